"""A later request for a near copy of a forgotten row, under another label: refused where it would bring that back."""

from dataclasses import replace

import pytest
import torch
from benchmarks.near_copies import BACK, LOST, SERVED, UNGUARDED, measure
from benchmarks.sequences import AT_HAND, RETRAINED
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.scrub import Notes
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gradient import gradient
from spotlessnet.precomputed import step as steps
from spotlessnet.precomputed.effect import Effect
from spotlessnet.precomputed.near_copies import ASKED, asked_for, labels_back
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.precomputed.step import StepFacts, faithful_step, step_from_statistics
from tests.precomputed.test_step import DECAY, problem


@pytest.mark.parametrize("seed", [141, 148])
def test_what_a_near_copy_would_bring_back_is_refused(seed):
    """It was served without a word, though retraining brings nothing back."""
    methods = (AT_HAND + UNGUARDED, AT_HAND, RETRAINED)
    found = {(row.method, row.readout): row.value for row in measure("alone", seed, methods)}
    assert [found[AT_HAND + UNGUARDED, readout] for readout in (SERVED, LOST, BACK)] == [1, 1, 1]
    assert found[AT_HAND, SERVED] == 0
    assert found[RETRAINED, BACK] == 0


def answering(*p: float) -> Trained:
    """A network of one input that gives classes these probabilities."""
    model = nn.Linear(1, len(p), bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(p, dtype=torch.float64).log().unsqueeze(1))
    return Trained.of(model)


def test_a_label_comes_back_with_half_its_loss_and_more_than_a_guess():
    """By hand: three labels at one row, whose own is the first."""
    row = Data.of((torch.ones(1, 1, dtype=torch.float64), torch.zeros(1).long()))
    now = answering(0.8, 0.1, 0.1)
    for after, back in (
        ((0.65, 0.34, 0.01), [False, True, False]),  # a loss of 1.08 of 2.30, and of a guess 1.10
        ((0.67, 0.32, 0.01), [False, False, False]),  # half its loss, and less than a guess
        ((0.02, 0.49, 0.49), [False, True, True]),
        ((0.98, 0.01, 0.01), [False, False, False]),  # its own is no other
    ):
        assert labels_back(now, answering(*after).weights - now.weights, row).tolist() == [back]
    # Nearly as likely as a guess before, so nothing comes back: losses of 0.92 and 0.95, and 0.85 of a guess is 0.93.
    for before, any_back in ((0.4, False), (0.385, True)):
        now = answering(0.9 - before, before, 0.1)
        assert bool(labels_back(now, answering(0.05, 0.85, 0.1).weights - now.weights, row).any()) is any_back


def test_without_a_class_for_each_row_there_is_no_other_label():
    trained, data = problem(0)
    assert not labels_back(trained, torch.randn_like(trained.weights), data).any()


def test_at_the_end_of_training_all_of_a_step_is_asked_for_and_away_from_it_another_share():
    """Where the model is linear, the objective of what stays is least along the step at just that share of it."""
    trained, data = problem(1)
    forget, rest = data.select([0, 1]), data.select(range(2, 40))
    for at, is_end in ((trained, True), (trained.at(trained.weights + 0.3 * torch.randn_like(trained.weights)), False)):
        statistics = precompute(at, data, rank=at.size, diagonal=None)
        found = step_from_statistics(statistics, at, forget, DECAY, Notes())
        stays = gradient(at, rest, ridge=len(rest) * DECAY)
        b = gradient(at, forget) - statistics.gradient * 2 / 40
        share = asked_for(stays, b, found.step)
        lengths = torch.linspace(-20, 20, 20_001, dtype=torch.float64)
        ends = at.weights + lengths.unsqueeze(1) * found.step
        x, y = (getattr(rest.fetch(rest.rows), name) for name in ("x", "y"))
        off = torch.einsum("tcd,nd->tnc", ends.reshape(-1, 2, 5), x) - y
        objective = 0.5 * off.square().sum((1, 2)) + 0.5 * len(rest) * DECAY * (ends - at.anchor).square().sum(1)
        assert share == pytest.approx(float(lengths[objective.argmin()]), abs=5e-3)
        assert (share == pytest.approx(1, abs=0.1)) is is_end


@pytest.mark.parametrize("known", [True, False], ids=["known", "purged"])
@pytest.mark.parametrize("asked", [-0.5, ASKED - 1e-3, ASKED + 1e-3, 1.0])
def test_both_signs_together_refuse_a_later_request_and_nothing_else_does(monkeypatch, known, asked):
    torch.manual_seed(0)
    data = Data.of((torch.randn(60, 4, dtype=torch.float64), torch.randint(3, (60,))))
    trained = Trained.of(nn.Linear(4, 3).double(), weight_decay=0.1)
    first = precompute(trained, data, rank=15, diagonal=None)
    later = replace(first, after_requests=True, effects=(Effect(1, 5.0, 6.0),) if known else None)
    forget, rest = data.select([0]), data.select(range(1, 60))
    monkeypatch.setattr(steps, "asked_for", lambda *_: asked)

    def refused(statistics: Statistics, *, back: bool) -> bool:
        monkeypatch.setattr(steps, "labels_back", lambda *_: torch.tensor([[back]]))
        answers = []
        for serve in (faithful_step, step_from_statistics):
            notes = Notes()
            serve(statistics, trained, forget, 0.1, notes, retain=rest)
            answers.append(bool(notes.of(StepFacts).retrain_now))
        assert answers[0] == answers[1]
        return answers[0]

    assert refused(later, back=True) is (asked < ASKED)
    assert not refused(later, back=False)
    assert not refused(first, back=True)  # nothing to take back
    assert not refused(replace(later, effects=()), back=True)  # earlier ones raised nothing
