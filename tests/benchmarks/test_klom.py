"""The KLoM benchmark: its design, its augmentation, its attacker, and a tiny run from training to table."""

from itertools import combinations
from pathlib import Path

import pytest
import torch

from benchmarks import klom, klom_page
from spotlessnet.auditing.rows import read_rows
from spotlessnet.core.data import Data


@pytest.mark.slow
def test_tiny(tmp_path: Path) -> None:
    margins, out = tmp_path / "margins.pt", tmp_path / "rows.jsonl"
    told = ["run", "--tiny", "--out", str(margins), "--device", "cpu", "--networks", "4", "--folds", "1"]
    klom.main([*told, "--only", "5 rounds"])
    klom_page.main([str(margins), "--out", str(out), "--least", "2"])
    rows = read_rows(out)
    assert {row.experiment for row in rows} == {f"CIFAR-10, {name}" for name in (*klom.RANDOM, *klom.COHERENT)}
    assert {row.method for row in rows} >= {"original", "retrained", f"{klom.OURS}, 5 rounds, 5%"}
    shares = [row.value for row in rows if row.readout == klom_page.SHARE]
    assert shares
    assert all(share > 0 for share in shares)
    found = klom_page.read([margins])
    for one in found["unlearned"]:
        assert one["set"] not in klom.Run.missed(_nobody(), one["seed"])


def _nobody() -> klom.Run:
    """A run with the names of the sets alone."""
    made = object.__new__(klom.Run)
    made.sets = dict.fromkeys((*klom.RANDOM, *klom.COHERENT))  # type: ignore[assignment]  # nothing is read from them
    return made


def test_every_network_misses_half_of_the_sets_and_no_two_sets_go_together() -> None:
    run = _nobody()
    every = [set(run.missed(seed)) for seed in range(16)]
    for name in run.sets:
        assert sum(name in missed for missed in every) == 8
    for a, b in combinations(run.sets, 2):
        assert sum({a, b} <= missed for missed in every) == 4
    for seed in range(0, 16, 2):
        assert not every[seed] & every[seed + 1]
        assert every[seed] | every[seed + 1] == set(run.sets)


def test_sets_are_disjoint_and_coherent_ones_lie_along_a_direction() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 1, 2, 2, generator=draw)
    x[:, 0, 0, 0] *= 10
    data = Data.of((x, torch.arange(2000) % 10))
    sets = klom.forget_sets(data, None, shrink=10)
    rows = [row for each in sets.values() for row in each]
    assert len(rows) == len(set(rows)) == 220
    labels = data.labels()
    for name, (label, _) in klom.COHERENT.items():
        assert set(labels[sets[name]].tolist()) == {label}
        along = x[sets[name], 0, 0, 0]
        assert along.abs().min() > 0
        assert along.sign().unique().numel() == 1


def test_images_are_moved_as_a_loop_would() -> None:
    x = torch.arange(2 * 3 * 5 * 5, dtype=torch.float32).reshape(2, 3, 5, 5)
    torch.manual_seed(0)
    found = klom.shifted(x)
    torch.manual_seed(0)
    flips = torch.rand(2, 1, 1, 1) < 0.5
    by = torch.randint(0, 9, (2, 2, 1))
    for n in range(2):
        wide = torch.nn.functional.pad(x[n].flip(2) if bool(flips[n]) else x[n], (4, 4, 4, 4))
        i, j = int(by[0, n]), int(by[1, n])
        assert torch.equal(found[n], wide[:, i : i + 5, j : j + 5])


def test_the_attacker_is_at_chance_on_equal_networks_and_sees_what_differs() -> None:
    draw = torch.Generator().manual_seed(0)
    level = torch.randn(500, generator=draw)
    ours, theirs = (level + torch.randn(30, 500, generator=draw) for _ in range(2))
    equal = klom_page.attacked(ours.double(), theirs.double())
    assert len(equal) == 30
    assert 0.45 < sum(equal) / 30 < 0.52
    seen = klom_page.attacked((ours + 1).double(), theirs.double())
    assert 0.72 < sum(seen) / 30 < 0.8  # Gaussians one standard deviation apart: .76
    assert min(klom_page.attacked((ours + 50).double(), theirs.double())) == 1.0


def test_chance_falls_with_the_number_of_networks() -> None:
    assert klom_page.chance(20, 20) > klom_page.chance(40, 40) > klom_page.chance(100, 100)
