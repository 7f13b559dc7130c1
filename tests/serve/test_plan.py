"""The plan of a job: figures that stand side by side are of one speed of the machine, and the audit is among them."""

from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.requests import planning
from spotlessnet.requests.audits import Audit, audit_seconds
from spotlessnet.serve import worker

RECIPE = sn.Recipe(epochs=8, lr=0.1, batch_size=32)


def examples() -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(300) % 3
    x = torch.randn(300, 4, generator=generator) + 2 * nn.functional.one_hot(y, 4)
    return x, y, [f"person {i % 30}" for i in range(300)]


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("method", [None, "short-retrain", "finetune"])
def test_a_method_costs_the_same_wherever_the_page_names_it(method, tmp_path, monkeypatch):
    """Each was timed anew: one job was told to take 0.8 s in one line and 0.5 s in the next."""
    x, y, _ = examples()
    model = build()
    with sn.record(tmp_path / "run", model, examples, build=build, recipe=RECIPE) as run:
        run.model = sn.fit(sn.Trained.of(model, recipe=RECIPE), sn.Data.of((x, y)), RECIPE).module()
    slower = count(1)
    monkeypatch.setattr(planning, "seconds_per_row", lambda *_: 1e-3 * next(slower))
    monkeypatch.setattr(planning, "seconds_per_byte", lambda *_: 0.0)
    where = {"kind": "recorded", "base": str(tmp_path / "run"), "key": "00" * 32}
    told: dict[str, Any] = {**where, "ids": ["person 3"], "gone": [], "method": method, "seeds": 5}
    made = worker.plan(told)
    assert made["methods"].keys() == {"retrain", "short-retrain", "finetune"}
    assert made["method"] == (method or "short-retrain")
    assert made["methods"][made["method"]] == made["seconds"]
    monkeypatch.setattr(planning, "seconds_per_row", lambda *_: 1e-3)
    left = worker._left(told)
    for name, seconds in made["methods"].items():
        plan = worker._planned(left, told, name)
        assert seconds == pytest.approx(plan.cost.seconds)
        if name == made["method"]:
            assert made["retraining"] == pytest.approx(plan.cost.retraining)
            assert made["audit"] == pytest.approx(audit_seconds(plan, Audit(5))[0])
    assert worker.plan({**told, "seeds": 0})["audit"] is None
