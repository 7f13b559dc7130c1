"""Which orders are compared, and what the table says of them."""

import argparse
from math import inf
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from benchmarks.klom_serve import LARGE

from benchmarks import statistics_first
from spotlessnet.auditing.rows import Row
from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe


def test_a_table_of_means_over_seeds() -> None:
    rows = [
        Row("r", "m", readout, seed, value + seed)
        for readout, value in ((statistics_first.WAY, 0.5), (statistics_first.RIGHT, 0.0))
        for seed in (0, 1)
    ]
    assert "| r | m | 100.0% [" in statistics_first.table(rows)


def test_tiny(tmp_path: Path) -> None:
    """Every request by every setting, statistics estimated anew after the step and before it."""
    draw = torch.Generator().manual_seed(0)
    pair = tuple(Data.of((torch.randn(n, 3, 32, 32, generator=draw), torch.arange(n) % 10)) for n in (120, 60))
    recipe = Recipe(epochs=1, lr=0.05, batch_size=32, freeze_statistics=False)
    with (
        patch.object(statistics_first, "cifar10", lambda _: pair),
        patch.multiple(statistics_first, ROWS=120, TEST=60, WIDTH=2, SHRINK=200, RECIPE=recipe, BUDGET=8.0),
    ):
        told = argparse.Namespace(data=None, epochs=1, seeds=[0], stop=inf)
        rows = list(statistics_first.rows(told, tmp_path))
    assert {row.experiment for row in rows} == set(LARGE)
    for name in LARGE:
        ways = {row.method: row.value for row in rows if row.readout == statistics_first.WAY and row.experiment == name}
        assert len(ways) == 2 * len(statistics_first.SETTINGS)
        for label in statistics_first.SETTINGS:
            after, before = (ways[f"{label}, statistics {order} the step"] for order in ("after", "before"))
            assert after != pytest.approx(before)
