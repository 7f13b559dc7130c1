"""The audit battery: every network beside the retrained ones, a verdict where one can be had, and a page."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.battery import DELIVERED
from spotlessnet.auditing.run_audit import audit
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained
from spotlessnet.methods import Finetune, Fisher, Retrain
from spotlessnet.report.page import page

READOUTS = {
    "error on retain",
    "error on forget",
    "error on test",
    "loss on forget",
    "margin on forget",
    "activation distance on forget",
    "relearn time",
}


def problem() -> tuple[Trained, Split]:
    """Two blobs, and six rows with the wrong label that must be learnt by heart."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(90, 6, generator=draw)
    y = (x[:, 0] > 0).long()
    y[:6] = 1 - y[:6]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2))
    recipe = Recipe(epochs=30, lr=0.2, batch_size=12, weight_decay=1e-4)
    trained = Trained.of(model, recipe=recipe)
    split = rows(range(6), mislabelled=True)((x[:60], y[:60]), (x[60:], y[60:]))
    return replace(trained, init=trained.weights), split


@pytest.fixture(scope="module")
def report() -> AuditReport:
    trained, split = problem()
    others = {"fine-tune": Finetune(epochs=1), "noise": Fisher(strength=1e-8)}
    return audit(trained, split, Retrain(), name="retrain again", others=others, seeds=5, delivered=trained)


def test_every_method_is_looked_at_with_every_readout_on_every_seed(report):
    keys = {(row.method, row.readout, row.seed) for row in report.rows}
    for method in ("original", "retrain again", "fine-tune", "noise", "retrained"):
        for readout in READOUTS:
            assert {seed for m, r, seed in keys if (m, r) == (method, readout)} == set(range(5)), (method, readout)
    assert {(m, r) for m, r, _ in keys if m == DELIVERED} >= {(DELIVERED, readout) for readout in READOUTS}


def test_bounds_are_there_for_noise_and_only_for_noise(report):
    bounded = {row.method for row in report.rows if row.unit == "nats"}
    assert bounded == {"noise"}


def test_the_floor_of_the_activation_distance_is_another_retrained_network(report):
    floor = [r.value for r in report.rows if (r.method, r.readout) == ("retrained", "activation distance on forget")]
    assert min(floor) > 0


def test_the_verdict_and_its_own_checks_are_told(report):
    assert report.verdict is not None
    assert report.verdict.seeds == 5
    assert report.verdict.outcome in ("forgotten", "not forgotten", "inconclusive")
    assert report.verdict.checks[0].name == "remembered share"


def test_fine_tuning_is_not_taken_for_forgetting():
    trained, split = problem()
    judged = audit(trained, split, Finetune(epochs=1, lr=1e-4), name="hardly anything", seeds=5).verdict
    assert judged is not None
    assert judged.power == "not forgotten"
    assert judged.outcome == "not forgotten"


def test_every_figure_has_something_to_show_and_the_page_holds_them(report):
    curves = report.curves
    assert set(curves.confidence) == {"original", "retrain again", "retrained"}
    assert len(curves.trade_off) == 2
    assert set(curves.leak) == {"forget rows", "retain rows", "test rows"}
    assert len(curves.paths["original"]) == 31
    assert all(0 < f <= 1 for f in curves.roc["original"][0])
    assert page(report).count("<figure") == 7


def test_costs_stand_beside_one_retraining(report):
    costs = {c.what: c.seconds for c in report.costs}
    assert set(costs) == {"retrain again", "fine-tune", "noise", "original", "retrained"}
    assert all(seconds > 0 for seconds in costs.values())


def test_without_a_recipe_there_are_numbers_but_no_verdict():
    trained, split = problem()
    bare = replace(trained, recipe=None, init=None)
    told = audit(bare, split, Finetune(epochs=1), name="fine-tune")
    assert told.verdict is None
    assert told.limits[0].startswith("The start of training or its recipe is not known")
    assert "There is no verdict" in page(told)
    assert {row.method for row in told.rows} == {"original", "fine-tune"}


def test_a_picture_that_cannot_be_drawn_costs_no_verdict(monkeypatch):
    """A network with packed sequences ended an audit in a raw error, after all its trainings."""

    def fails(*_: object) -> None:
        raise RuntimeError("no storage")

    monkeypatch.setattr("spotlessnet.auditing.curves._noise_curves", fails)
    trained, split = problem()
    with pytest.warns(UserWarning, match="The picture of noise against error is left out: no storage"):
        found = audit(trained, split, Retrain(), name="retrain again", seeds=5)
    assert found.curves.trade_off == {}
    assert found.outcome
