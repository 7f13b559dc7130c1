"""That a method never saw the rows is not said of a start that knows them, of copies that stay, or of another file."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.auditing import run_audit
from spotlessnet.auditing.own_training import known_at_the_start
from spotlessnet.auditing.provenance import doubts, not_made_again, with_copies_counted
from spotlessnet.auditing.verdict import NEVER_SAW, Outcome, Verdict
from spotlessnet.core.scrub import METHODS, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.pairs import Trainings

RECIPE = sn.Recipe(epochs=4, lr=0.2, batch_size=10)
FORGOTTEN, ROWS, TESTS = 12, 60, 60


def data_of(copies: int = 0) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Labels that nobody can guess; some rows to forget stand in the data twice."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(ROWS + TESTS, 8, generator=g), torch.randint(3, (ROWS + TESTS,), generator=g)
    train = torch.cat([x[:ROWS], x[:copies]]), torch.cat([y[:ROWS], y[:copies]])
    return *train, (x[ROWS:], y[ROWS:])


def problem(copies: int = 0, epochs_before: int = 0) -> tuple[Trained, Split]:
    """A network that begins where it is; perhaps after some training on every row."""
    x, y, test = data_of(copies)
    torch.manual_seed(0)
    trained = Trained.of(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3)), recipe=RECIPE)
    if epochs_before:
        begun = replace(trained, init=trained.weights)
        trained = trained.at(sn.fit(begun, sn.Data.of((x, y)), RECIPE.but(epochs=epochs_before)).weights)
    return replace(trained, init=trained.weights), sn.rows(range(FORGOTTEN))((x, y), test)


def judged(
    monkeypatch: pytest.MonkeyPatch, trained: Trained, split: Split, scrub: Scrub, word: Outcome = "inconclusive",
    **how: object,
) -> str:  # fmt: skip
    """What an audit makes of it whose own test says so; unless told otherwise, it cannot tell."""

    def unknown(*_: object, **__: object) -> Verdict:
        return Verdict(word, "too little trace", 0.1, 5, "forgotten", "inconclusive")

    monkeypatch.setattr(run_audit, "judge_networks", unknown)
    report = sn.audit(trained, split, scrub, name="method", seeds=5, **how)  # type: ignore[arg-type]  # any of them
    return f"{report.outcome}: {report.reason}"


def test_retraining_never_saw_the_rows(monkeypatch):
    assert judged(monkeypatch, *problem(), sn.Retrain()).startswith(NEVER_SAW)


def test_copies_that_stay_are_counted_where_nobody_did(monkeypatch):
    trained, split = problem(copies=3)
    assert split.request.copies is None
    assert with_copies_counted(split).request.copies == 3
    assert judged(monkeypatch, trained, split, sn.Retrain()).startswith("inconclusive")
    counted = replace(split, request=replace(split.request, copies=7))
    assert with_copies_counted(counted) is counted


def test_a_start_that_knows_the_rows_is_not_believed(monkeypatch):
    trained, split = problem(epochs_before=150)
    told = judged(monkeypatch, trained, split, sn.Retrain())
    assert told.startswith("inconclusive")
    assert "begun at answers the forgotten examples far better than new ones" in told
    # Networks beside others that know the rows look as if they had forgotten: the reason must say what that is worth.
    said = judged(monkeypatch, trained, split, sn.Retrain(), "forgotten")
    assert "too little trace. But the network that training is said to have begun at" in said
    assert "But" not in judged(monkeypatch, *problem(), sn.Retrain(), "forgotten")


def test_a_start_that_knows_the_rows_is_the_first_limit_of_every_report():
    trained, split = problem(epochs_before=150)
    report = sn.audit(trained, split, sn.Retrain(), name="retrain", seeds=5)
    assert report.limits[0].startswith("The network that training is said to have begun at answers")
    assert not any(sign.isdigit() for sign in report.limits[0])  # limits outlast a purge
    fresh = sn.audit(*problem(), sn.Retrain(), name="retrain", seeds=5)
    assert "begun at" not in fresh.limits[0]


def test_a_start_that_knows_the_rows_that_stay_may_know_the_others():
    """Of few rows that everyone gets right nobody can tell; of all that stay it shows that these are not new data."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(500, 10, generator=g)
    y = (x[:, 0] + 0.7 * torch.randn(500, generator=g) > 0).long()
    torch.manual_seed(0)
    fresh = Trained.of(nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 2)), recipe=RECIPE)
    fresh = replace(fresh, init=fresh.weights)
    split = sn.rows(range(4))((x[:100], y[:100]), (x[100:], y[100:]))
    knows = sn.fit(fresh, split.whole, RECIPE.but(epochs=150))
    told = known_at_the_start(replace(knows, init=knows.weights), split)
    assert "answers examples that stay far better than new ones (error 0%" in told
    # One that was trained on other data finds both as hard.
    elsewhere = sn.fit(fresh, sn.Data.of((x[100:200], y[100:200])), RECIPE.but(epochs=150))
    apart = replace(split, test=sn.Data.of((x[200:], y[200:])))
    assert not known_at_the_start(replace(elsewhere, init=elsewhere.weights), apart)
    assert not known_at_the_start(fresh, split)


def test_what_is_asked_of_a_start():
    trained, split = problem(epochs_before=150)
    assert "error 0%" in known_at_the_start(trained, split)
    assert not known_at_the_start(replace(trained, init=None), split)
    assert not known_at_the_start(trained, replace(split, test=None))
    assert not known_at_the_start(*problem())


@dataclass(frozen=True)
class SaysSo(Scrub):
    """A method of somebody else, which hands back the original."""

    def shift(self, trained, split, notes):
        return trained.weights


def test_what_an_author_says_of_a_method_is_not_proof(monkeypatch):
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))
    METHODS.register("says-so", never_sees_forgotten=True)(SaysSo)
    trained, split = problem()
    told = judged(monkeypatch, trained, split, SaysSo())
    assert told.startswith("inconclusive")
    assert "only the author of says-so says" in told
    once = Trainings([trained], [trained], [trained], (0,))
    assert not doubts(sn.chain(sn.Retrain(), sn.ShortRetrain()), once, split)


def test_a_delivered_network_must_be_what_the_method_makes(monkeypatch):
    trained, split = problem()
    original = sn.fit(trained, split.whole)
    retrained = trained.at(sn.Retrain()(original, split).mean)
    assert not not_made_again(sn.Retrain(), original, split, retrained)
    assert judged(monkeypatch, original, split, sn.Retrain(), delivered=retrained).startswith(NEVER_SAW)
    told = judged(monkeypatch, original, split, sn.Retrain(), delivered=original)
    assert told.startswith("inconclusive")
    assert "the delivered network is not the one that the method makes" in told
    other = retrained.at(retrained.weights + 1e-6)
    assert not_made_again(sn.Retrain(), original, split, other)
    # A request that made it just now knows where it comes from: no device repeats every bit.
    assert judged(monkeypatch, original, split, sn.Retrain(), delivered=other, traced=True).startswith(NEVER_SAW)


def test_running_statistics_belong_to_a_network_too():
    _, split = problem()
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    own = Trained.of(model, recipe=RECIPE, init=model)
    made = own.at(sn.Retrain()(own, split).mean)
    assert not not_made_again(sn.Retrain(), own, split, made)
    moved = made.with_buffers({name: value + 1 for name, value in made.model.named_buffers()})
    assert not_made_again(sn.Retrain(), own, split, moved)


def test_forgotten_is_said_of_the_methods_networks_and_not_of_another_file(monkeypatch):
    """Of networks that are trained without the rows; the file next to them was trained on all."""
    trained, split = problem()
    other = sn.fit(trained, split.whole, RECIPE)
    told = judged(monkeypatch, trained, split, sn.Retrain(), "forgotten", delivered=other)
    assert told.startswith(
        "forgotten: too little trace. But the delivered network is not the one that the method makes"
    )
    assert "one network shows far less" in told
    own = sn.Retrain()(trained, split).mean
    assert "But" not in judged(monkeypatch, trained, split, sn.Retrain(), "forgotten", delivered=trained.at(own))
    assert "But" not in judged(monkeypatch, trained, split, sn.Retrain(), "forgotten", delivered=other, traced=True)


def with_new_head(knows: Trained, *, frozen: bool) -> Trained:
    """Hidden layers that know the rows, and a head that knows nothing; perhaps the head alone is trained."""
    module = knows.module()
    assert isinstance(module, nn.Sequential)
    torch.manual_seed(5)
    head = module[-1]
    assert isinstance(head, nn.Linear)
    head.reset_parameters()
    module[:-1].requires_grad_(not frozen)
    made = Trained.of(module, recipe=RECIPE)
    return replace(made, init=made.weights)


@pytest.mark.parametrize("frozen", [False, True])
def test_hidden_layers_that_know_the_rows_are_seen_under_a_new_head(monkeypatch, frozen):
    trained, split = problem(epochs_before=150)
    start = with_new_head(trained, frozen=frozen)
    told = judged(monkeypatch, start, split, sn.Retrain())
    assert told.startswith("inconclusive")
    assert "far better than new ones through a new last layer" in told


def test_what_frozen_weights_know_is_named_as_a_limit(monkeypatch):
    trained, split = problem()
    for frozen in (False, True):
        start = with_new_head(trained, frozen=frozen)
        judged(monkeypatch, start, split, sn.Retrain())
        report = sn.audit(start, split, sn.Retrain(), name="method", seeds=5)
        assert any("Some weights are frozen" in limit for limit in report.limits) == frozen
