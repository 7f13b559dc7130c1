"""A forgettable model is audited as any method is, and one that does not forget is found out."""

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.auditing.forgettable_models import audit_forgettable
from spotlessnet.core.errors import NeedError
from spotlessnet.forgettable.model import ForgettableModel


def some(n, seed):
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=draw)
    return torch.randn(n, 6, generator=draw) + 1.5 * nn.functional.one_hot(y, 6), y


CORE, USER, TEST = some(40, 0), some(80, 1), some(200, 2)
WRONG = list(range(12))
USER[1][WRONG] = (USER[1][WRONG] + 1) % 3
"""Wrong labels: what a model must have forgotten to answer as one that never held them."""


def made(seed, **settings):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 60), nn.ReLU())
    how = sn.Adaptation(epochs=4, lr=0.05, batch_size=8)
    return sn.fit_forgettable(backbone, core=CORE, user=USER, adaptation=how, ridge=0.003, seed=seed, **settings)


def audited(**settings):
    return audit_forgettable(made, core=CORE, user=USER, forget=WRONG, test=TEST, seeds=6, **settings)


def test_what_was_taken_out_is_forgotten():
    report = audited(title="Wrong labels")
    assert report.outcome == "forgotten", report.reason
    assert report.settings["weights equal to solving anew, bit for bit"] == "6 of 6 seeds"
    error = {m: [r.value for r in report.rows if r.method == m and r.readout.startswith("error on forget")] for m in
             ("original", "forgettable", "retrained")}  # fmt: skip
    assert error["forgettable"] == error["retrained"] != error["original"]
    assert {cost.what for cost in report.costs} == {"original", "forgettable", "retrained"}
    assert "Wrong labels" in sn.page(report)


def test_a_model_that_does_not_forget_is_found_out(monkeypatch):
    monkeypatch.setattr(ForgettableModel, "forget", lambda self, ids: self.requests[-1])
    report = audited()
    assert report.outcome == "not forgotten", report.reason
    assert report.settings["weights equal to solving anew, bit for bit"] == "0 of 6 seeds"


def test_class_weights_are_refused():
    with pytest.raises(NeedError, match="class weights"):
        audit_forgettable(
            lambda seed: made(seed, class_weights=torch.tensor([1, 2, 1])), core=CORE, user=USER, forget=[0], seeds=2
        )
