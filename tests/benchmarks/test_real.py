"""What the scripts on real networks share, on digits and a network of one layer."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import spotlessnet as sn
from benchmarks import real, real_verdicts
from spotlessnet.auditing.judging import judge_networks
from spotlessnet.readouts.matched_controls import matched_controls
from spotlessnet.training.pairs import Trainings

SEEDS = [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[real.Case, list[dict[str, object]]]:
    digits = sn.load("digits")
    data = digits.train.select(range(300))
    split = sn.whole_class(3)(data, digits.test.select(range(100)))

    def start(lr: float) -> sn.Trained:
        torch.manual_seed(0)
        begun = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        return sn.Trained.of(begun, init=begun, recipe=sn.Recipe(epochs=5, lr=lr, batch_size=32))

    class Broken(sn.Retrain):
        def shift(self, trained, split, notes):
            raise ValueError("not today")

    out = tmp_path_factory.mktemp("real") / "rows.jsonl"
    case = real.Case("a digit", split, {"fine-tuning": sn.Finetune(epochs=1), "broken": Broken()})
    real.run(start, (1e-9, 0.1), [case], real.Report(out, {"data": "digits"}, math.inf), SEEDS)
    return case, [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_the_rate_is_chosen_by_held_out_rows_at_a_seed_of_its_own(ran) -> None:
    case, rows = ran
    tried = [row for row in rows if row["what"] == "choosing"]
    assert [row["lr"] for row in tried] == [1e-9, 0.1]
    assert tried[0]["error_held_out"] > tried[1]["error_held_out"]
    assert {row["seed"] for row in tried}.isdisjoint({*SEEDS, *(real.APART + seed for seed in SEEDS)})
    assert case.networks[real_verdicts.ORIGINAL][0].recipe.lr == 0.1


def test_verdicts_and_attacks_are_those_of_the_library(ran) -> None:
    case, rows = ran
    of = case.networks
    trainings = Trainings(
        of[real_verdicts.ORIGINAL], of[real_verdicts.RETRAINED], of[real_verdicts.OTHER], tuple(SEEDS)
    )
    found = {row["method"]: row for row in rows if row["what"] == "verdict"}
    assert set(found) == {real_verdicts.ORIGINAL, "fine-tuning", real_verdicts.OTHER}
    attack = sn.LiRA(tuple(of[real_verdicts.OTHER]), matched_controls(of[real_verdicts.OTHER], case.split))
    for name, row in found.items():
        verdict = judge_networks(of[name], trainings, case.split)
        assert (row["outcome"], row["reason"], row["pairs"]) == (verdict.outcome, verdict.reason, len(SEEDS))
        attacked = of[real_verdicts.RETRAINED if name == real_verdicts.OTHER else name]
        assert row["lira"] == pytest.approx([float(attack(network, case.split)) for network in attacked])
    assert found[real_verdicts.ORIGINAL]["outcome"] == "not forgotten"


def test_each_network_has_a_row_and_a_method_that_breaks_costs_its_own_alone(ran) -> None:
    _, rows = ran
    of_networks = [(row["seed"], row["method"]) for row in rows if row["what"] == "network"]
    names = (real_verdicts.ORIGINAL, real_verdicts.RETRAINED, real_verdicts.OTHER, "fine-tuning")
    assert of_networks == [(seed, name) for seed in SEEDS for name in names]
    assert [row["error"] for row in rows if row["what"] == "failed"] == ["ValueError: not today"]
    assert [row["method"] for row in rows if row["what"] == "request"] == ["short-retrain"]
    assert rows[-1]["what"] == "end"


def test_no_seed_begins_that_would_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    report = real.Report(None, {}, stop=10.0)
    monkeypatch.setattr(real.Report, "elapsed", property(lambda self: 4.0 * len(done)))
    monkeypatch.setattr(real, "one_seed", lambda begun, cases, report, seed: done.append(seed))
    monkeypatch.setattr(real, "judge", lambda cases, report, seeds, now: None)
    monkeypatch.setattr(real, "chosen", lambda *given: 0.1)
    monkeypatch.setattr(real, "served", lambda *given: None)
    monkeypatch.setattr(real, "plan", lambda begun, case, report: None)
    split = sn.rows([0])((torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])))
    begun = sn.Trained.of(nn.Linear(2, 2))
    real.run(lambda lr: begun, (0.1,), [real.Case("x", split, {}, {real_verdicts.ORIGINAL: [begun]})], report, SEEDS)
    assert done == [0, 1]  # the third would end at 12


def test_one_seed_alone_gets_its_rows_and_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "one_seed", lambda begun, cases, report, seed: None)
    monkeypatch.setattr(real, "chosen", lambda *given: 0.1)
    monkeypatch.setattr(real, "served", lambda *given: None)
    monkeypatch.setattr(real, "plan", lambda begun, case, report: None)
    monkeypatch.setattr(real, "judge", lambda cases, report, seeds, now: pytest.fail("there is no spread to judge by"))
    begun = sn.Trained.of(nn.Linear(2, 2))
    split = sn.rows([0])((torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])))
    real.run(
        lambda lr: begun,
        (0.1,),
        [real.Case("x", split, {}, {real_verdicts.ORIGINAL: [begun]})],
        real.Report(None, {}, math.inf),
        [0],
    )


def test_rows_hold_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["x", "--packed", str(Path("/home/me/faces.npz")), "--tiny"])
    found = real.about("real_faces", torch.device("cpu"))
    assert found["command"] == "python benchmarks/real_faces.py --packed faces.npz --tiny"


def test_what_was_kept_is_judged_as_the_networks_were(ran, tmp_path: Path) -> None:
    case, rows = ran
    seen = real_verdicts.Seen.of(case.name, {n: g for n, g in case.networks.items() if len(g) == 5}, case.split, SEEDS)
    seen.save(tmp_path / "seen.pt")
    again = real_verdicts.judged_again(rows, [real_verdicts.Seen.read(tmp_path / "seen.pt")])
    assert [row["what"] for row in again].count("verdict") == 3
    assert [row["what"] for row in again if row["what"] != "verdict"] == [
        r["what"] for r in rows if r["what"] != "verdict"
    ]
    before, after = ({r["method"]: r for r in one if r["what"] == "verdict"} for one in (rows, again))
    for name, row in before.items():
        assert (after[name]["outcome"], after[name]["reason"]) == (row["outcome"], row["reason"])
        assert after[name]["lira"] == pytest.approx(row["lira"], abs=1e-2)
