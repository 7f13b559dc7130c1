"""What is taught of a class, and the table."""

import pytest
import torch

from benchmarks import class_features
from spotlessnet.auditing.rows import Row


def test_a_probe_tells_what_lies_apart_and_not_what_does_not() -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(400, 5, generator=draw, dtype=torch.float64) for _ in range(2))
    assert class_features.probed(a + 5, b) > 0.999
    assert class_features.probed(a, b) == pytest.approx(0.5, abs=0.06)


def test_the_table_has_a_reading_for_each_seed() -> None:
    rows = [Row("class", "original", class_features.PROBE, seed, 0.9 + seed / 20) for seed in (0, 1)]
    assert "| original | 0.90, 0.95 |" in class_features.table(rows)
