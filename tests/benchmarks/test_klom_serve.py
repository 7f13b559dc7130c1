"""What is served with which settings, in which order and by which process."""

import argparse
import json
from math import inf
from pathlib import Path

import pytest
from benchmarks.klom_serve import (
    LARGE,
    LAST,
    OURS,
    Unit,
    grid,
    listed,
    of_worker,
    own_settings,
    picked,
    to_choose,
    to_run,
)

from benchmarks import klom

SEEDS = list(range(16))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> klom.World:
    keep = tmp_path_factory.mktemp("keep")
    return klom.opened(argparse.Namespace(tiny=True, device="cpu", draw=0, keep=keep, stop=inf, epochs=8))


def _options(**more: object) -> argparse.Namespace:
    return argparse.Namespace(**{"chosen": None, "ours": None, "only": None, "worker": 0, "workers": 1} | more)


def test_settings_of_ours_are_given_by_name(world: klom.World) -> None:
    given = ['hot={"temperature": "inf", "targets": "in minus out"}', 'dear={"compute_budget": 0.5}']
    found = own_settings(world, given)
    assert list(found) == ["hot", "dear"]
    assert found["hot"]["temperature"] == inf
    assert found["hot"]["compute_budget"] == own_settings(world)[""]["compute_budget"]
    assert found["dear"] == {"compute_budget": 0.5}
    assert [label for method, label, _ in listed(world, given) if method == OURS] == [", hot", ", dear"]
    assert grid(world, given)[OURS] == list(found.values())
    asked = {unit.settings for unit in to_choose(world, SEEDS, 1, given) if unit.method == OURS}
    assert len(asked) == 2


def test_small_sets_have_what_was_chosen_for_large_ones_of_their_kind(world: klom.World, tmp_path: Path) -> None:
    lines = [
        {"method": method, "set": name, "settings": json.dumps({"epochs": epochs}), "gap": [1.0], "worse": 0.0,
         "seed": 0}
        for method in (OURS, "finetune") for name, epochs in zip(LARGE, (3, 7), strict=True)
    ]  # fmt: skip
    path = tmp_path / "chosen.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    found = picked(world, _options(chosen=path))
    assert [one[1] for one in found if one[0] == OURS] == [""]
    for method in (OURS, "finetune"):
        settings = next(each for name, _, each in found if name == method)
        told = {name: each["epochs"] for name, each in settings.items()}
        assert told == {"random, small": 3, "random, large": 3, "coherent, small": 7, "coherent, large": 7}
    assert {one[0] for one in picked(world, _options(chosen=path, only="ours"))} == {OURS}
    others = picked(world, _options(chosen=path, only="others"))
    assert {one[0] for one in others} == {one[0] for one in found} - {OURS}
    assert next(each for name, _, each in others if name == "salun")["random, large"] == grid(world)["salun"][1]


def test_every_rival_serves_a_network_before_any_serves_the_next(world: klom.World) -> None:
    found = picked(world, _options(only="others"))
    units = [unit for unit in to_run(world, SEEDS, found, few=2) if unit.name == "random, large"]
    assert all("random, large" not in world.missed(unit.seed) for unit in units)
    order = list(dict.fromkeys(unit.seed for unit in units))
    quick = [one[0] for one in found if one[0] not in LAST]
    assert [unit.method for unit in units[: 2 * len(quick)]] == quick * 2
    assert {unit.seed for unit in units[: len(quick)]} == {order[0]}
    first_dear = next(i for i, unit in enumerate(units) if unit.method in LAST)
    assert first_dear == 2 * len(quick)
    everything = [
        (unit.method, unit.name, unit.seed) for unit in to_run(world, SEEDS, found, few=2) if unit.method in quick
    ]
    assert len(everything) == len(set(everything)) == len(quick) * 4 * 8


@pytest.mark.parametrize("only", ["ours", "others"])
def test_processes_share_the_work_and_ours_keeps_a_network_in_one(world: klom.World, only: str) -> None:
    units = list(to_run(world, SEEDS, picked(world, _options(only=only))))
    parts = [of_worker(units, _options(only=only, worker=k, workers=3)) for k in range(3)]
    assert sorted(str(unit) for part in parts for unit in part) == sorted(map(str, units))
    if only == "ours":
        seeds = [{unit.seed for unit in part} for part in parts]
        assert not seeds[0] & seeds[1]
        assert not seeds[0] & seeds[2]


def test_a_unit_reads_what_it_spells() -> None:
    assert Unit("m", '{"temperature": "inf", "epochs": 2}', "s", 0).told == {"temperature": inf, "epochs": 2}
