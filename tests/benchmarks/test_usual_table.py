"""The usual table: its attacker, its area under the curve and its gap, by hand."""

import argparse
import json
from math import inf
from pathlib import Path

import pytest
import torch
from benchmarks.usual_table import APART, CLASS, RANDOM

from benchmarks import usual_table
from benchmarks import usual_table_page as page


def _network(seed: int, forget: float, new: float, right: float) -> dict[str, object]:
    """Answers of equal probability on all rows of a part."""
    log_p = {RANDOM: [forget] * 10, CLASS: [forget] * 10, "retain": [0.9] * 20, "validation": [new] * 20}
    told = {name: torch.tensor(values).log() for name, values in log_p.items()}
    answers = {name: torch.arange(len(told[name])) < right * len(told[name]) for name in (RANDOM, CLASS, "validation")}
    return {"seed": seed, "log_p": told, "right": answers, "retained": 1.0, "error": 0.0, "seconds": 2.0}


def test_a_line_tells_members_with_fewest_mistakes() -> None:
    draw = torch.Generator().manual_seed(0)
    members, others = torch.rand(50, generator=draw) + 0.3, torch.rand(80, generator=draw)
    line = page.best_line(members, others)

    def right(at: float) -> float:
        return float((members > at).double().mean() + (others <= at).double().mean())

    assert right(line) == max(right(float(at)) for at in torch.linspace(-1, 2, 3001))


def test_area_counts_pairs_and_ties_half() -> None:
    inside, outside = torch.tensor([1.0, 2.0, 2.0]), torch.tensor([2.0, 0.0])
    pairs = [(a > b) + 0.5 * (a == b) for a in inside.tolist() for b in outside.tolist()]
    assert page.auc(inside, outside) == pytest.approx(sum(pairs) / 6)


def test_the_gap_is_the_mean_over_four_distances_to_the_retrained_network() -> None:
    networks = [_network(0, 0.9, 0.5, 1.0), _network(APART, 0.5, 0.5, 0.8), _network(2 * APART, 0.5, 0.5, 0.8)]
    paid = {"share": 0.05, "training": 40.0}
    served = {"unlearned": [_network(0, 0.5, 0.5, 0.9) | {"set": RANDOM, "method": "m"} | paid], "about": ""}
    rows = list(page.rows_of([{"networks": networks, "about": "a"}, served], torch.arange(20) < 2))
    found = {(row.method, row.readout): row.value for row in rows if row.experiment == page.TITLES[RANDOM]}
    # Forgotten rows are as likely as test rows, so the attacker takes none of them for members, of the original all.
    assert found["m", "MIA"] == found["retrained", "MIA"] == 100
    assert found["original", "MIA"] == 0
    assert found["m", "UA"] == pytest.approx(10)
    assert found["m", page.GAP] == pytest.approx((10 + 0 + 10 + 0) / 4)
    assert found["original", page.GAP] == pytest.approx((20 + 0 + 20 + 100) / 4)
    assert found["retrained", page.GAP] == 0
    assert found["m", page.TIME] == pytest.approx(0.05)
    without = {(row.method, row.readout): row.value for row in rows if row.experiment == page.TITLES[CLASS]}
    assert without["retrained", "TA"] == pytest.approx(100 * 14 / 18)  # the two test rows of the class do not count


def test_rmia_is_at_one_half_where_forgotten_rows_are_as_new() -> None:
    draw = torch.Generator().manual_seed(0)

    def network(gain: float) -> dict[str, object]:
        log_p = {
            name: -torch.rand(n, generator=draw) for name, n in ((RANDOM, 400), ("retain", 50), ("validation", 800))
        }
        log_p[RANDOM] = log_p[RANDOM] * (1 - gain)
        right = {name: torch.ones(len(log_p[name]), dtype=torch.bool) for name in log_p}
        return {"log_p": log_p, "right": right, "retained": 1.0}

    references, nobody = [network(0.0) for _ in range(4)], torch.zeros(800, dtype=torch.bool)
    fresh = page.measured(network(0.0), RANDOM, references, nobody)[page.RMIA]
    known = page.measured(network(0.9), RANDOM, references, nobody)[page.RMIA]
    assert abs(fresh - 0.5) < 0.05
    assert known > 0.7


def test_settings_of_ours_are_those_of_the_least_gap_and_of_the_least_that_is_quick(tmp_path: Path) -> None:
    tried = [("a", 0.5, 0.30), ("b", 0.9, 0.05), ("c", 1.5, 0.04)]
    lines = [{"set": RANDOM, "settings": json.dumps({"targets": t}), "gap": g, "time": s} for t, g, s in tried]
    lines.append({"set": CLASS, "settings": json.dumps({"epochs": 1}), "gap": 0.1, "time": 0.01})
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    found = usual_table.own(path)
    assert found[RANDOM] == {"": {"targets": "a"}, ", quick": {"targets": "b"}}
    assert found[CLASS] == {"": {"epochs": 1}}
    path.write_text("", encoding="utf-8")
    assert usual_table.own(path) == {RANDOM: {}, CLASS: {}}


def test_every_method_serves_common_seeds_before_any_serves_the_others(tmp_path: Path) -> None:
    world = usual_table.opened(argparse.Namespace(tiny=True, device="cpu", keep=tmp_path, stop=inf, epochs=8))
    options = argparse.Namespace(chosen=None, own=None, ours=None, networks=5)
    units = list(usual_table.to_serve(world, options))
    assert len({(unit.method, unit.name, unit.seed) for unit in units}) == len(units)
    early = [unit.seed < usual_table.COMMON for unit in units]
    assert early == sorted(early, reverse=True)
    assert {unit.name for unit in units if unit.method == usual_table.MASKED} == {CLASS}
    assert {unit.seed for unit in units if unit.method == "truncated-retrain"} == set(range(5))
