"""The KLoM benchmark: its design, its choice of settings, its attacker, and a tiny run from training to table."""

import json
from itertools import combinations
from pathlib import Path

import pytest
import torch

from benchmarks import klom, klom_page, klom_serve, klom_words
from spotlessnet.auditing.rows import read_rows
from spotlessnet.core.data import Data


@pytest.mark.slow
def test_tiny(tmp_path: Path) -> None:
    keep, chosen, served, out = (tmp_path / name for name in ("keep", "chosen.jsonl", "served.pt", "rows.jsonl"))
    told = ["--tiny", "--device", "cpu", "--keep", str(keep)]
    klom.main(["train", *told, "--networks", "4", "--folds", "1", "--cuts", "2"])
    lines = [
        {"method": "finetune", "set": name, "settings": klom_serve.spelt({"epochs": 1, "lr": lr}), "gap": [gap],
         "worse": 0.0, "seed": 0}
        for name in klom_serve.LARGE for lr, gap in ((0.001, 3.0), (0.01, 1.0))
    ]  # fmt: skip
    ours = klom_serve.spelt({"epochs": 2, "examples_per_epoch": 20})
    lines += [lines[0] | {"method": klom_serve.OURS, "set": name, "settings": ours} for name in klom_serve.LARGE]
    chosen.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    klom_serve.main(["run", *told, "--out", str(served), "--chosen", str(chosen), "--stop", "60"])
    klom_page.main([str(keep / "trained-0.pt"), str(served), "--out", str(out), "--least", "2"])
    rows = read_rows(out)
    assert {row.experiment for row in rows} == {f"CIFAR-10, {name}" for name in (*klom.RANDOM, *klom.COHERENT)}
    assert {row.method for row in rows} >= {"original", "retrained", klom_serve.OURS, "finetune"}
    shares = [row.value for row in rows if row.readout == klom_words.SHARE]
    assert shares
    assert all(share > 0 for share in shares)
    found = klom_page.read([keep / "trained-0.pt", served])
    for one in found["unlearned"]:
        was_missed = one["set"] in klom.World.missed(_nobody(), one["seed"])
        assert was_missed == ("truncated" in one["method"])
        if one["method"] == "finetune":
            assert json.loads(one["settings"])["lr"] == 0.01


def _nobody() -> klom.World:
    """A world with the names of the sets alone."""
    made = object.__new__(klom.World)
    made.sets = dict.fromkeys((*klom.RANDOM, *klom.COHERENT))  # type: ignore[assignment]  # nothing is read from them
    return made


def test_every_network_misses_half_of_the_sets_and_no_two_sets_go_together() -> None:
    world = _nobody()
    every = [set(world.missed(seed)) for seed in range(16)]
    for name in world.sets:
        assert sum(name in missed for missed in every) == 8
    for a, b in combinations(world.sets, 2):
        assert sum({a, b} <= missed for missed in every) == 4
    for seed in range(0, 16, 2):
        assert not every[seed] & every[seed + 1]
        assert every[seed] | every[seed + 1] == set(world.sets)


def test_the_setting_nearest_to_retraining_is_chosen_among_those_that_keep_errors(tmp_path: Path) -> None:
    def line(setting: int, gap: list[float], worse: float, seed: int = 0) -> str:
        told = {"method": "m", "set": "s", "settings": klom_serve.spelt({"epochs": setting}), "gap": gap}
        return json.dumps(told | {"worse": worse, "seed": seed})

    path = tmp_path / "lines.jsonl"
    # The first is off by chance of one network only, the second truly, the third is near and ruins the network.
    lines = [
        line(1, [2.0, 2.0], 0.0),
        line(1, [-2.0, -2.0], 0.0, 1),
        line(2, [1.0, 1.0], 0.0),
        line(3, [0.0, 0.0], 0.5),
    ]
    again = [line(2, [1.0, 1.0], 0.0, 1), line(3, [0.0, 0.0], 0.5, 1)]
    path.write_text("\n".join(lines + again), encoding="utf-8")
    assert klom_serve.chosen(path) == {("m", "s"): {"epochs": 1}}
    path.write_text("\n".join(lines), encoding="utf-8")
    assert klom_serve.chosen(path) == {("m", "s"): {"epochs": 2}}  # the second network served one setting alone
    path.write_text("\n".join(lines[2:]), encoding="utf-8")
    assert klom_serve.chosen(path) == {("m", "s"): {"epochs": 2}}
    path.write_text("\n".join([lines[3], line(4, [9.0, 9.0], 0.2)]), encoding="utf-8")
    assert klom_serve.chosen(path) == {("m", "s"): {"epochs": 4}}  # none keeps errors: the one nearest to that


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


def test_who_knows_two_networks_of_a_method_finds_less_than_who_knows_thirty() -> None:
    draw = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(31, 500, generator=draw).double() for _ in range(2))
    pairs = klom_page.attacked_in_pairs(ours + 1, theirs)
    assert len(pairs) == 15  # the last network has no other
    assert pairs[1] == pytest.approx(sum(klom_page.attacked(ours[2:4] + 1, theirs)) / 2)
    assert max(pairs) < min(klom_page.attacked(ours + 1, theirs)[:30])


def test_chance_falls_with_the_number_of_networks() -> None:
    assert klom_page.chance(20, 20) > klom_page.chance(40, 40) > klom_page.chance(100, 100)
