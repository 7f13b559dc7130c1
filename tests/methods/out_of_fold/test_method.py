"""Unlabel: what it takes for the answers of a network that was never told, and the step that it makes of them."""

import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from torch import float64, nn

from spotlessnet.core.answers import margin
from spotlessnet.core.buffers import reestimated
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError, SettingError
from spotlessnet.core.loss import CrossEntropy, SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Request, Split
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.methods.out_of_fold import method
from spotlessnet.methods.out_of_fold.class_bias import suppress_class_bias
from spotlessnet.methods.out_of_fold.drift import set_aside
from spotlessnet.methods.out_of_fold.lesson import NEVER
from spotlessnet.methods.out_of_fold.own_logits import blend_own_logits
from spotlessnet.methods.out_of_fold.presets import (
    HEAVIEST,
    MISLABELLED,
    ORDINARY,
    RELABELLED,
    SHRUNK,
    WHOLE_CLASS,
    Preset,
)
from spotlessnet.methods.out_of_fold.step_scale import Side, step_length
from spotlessnet.precomputed import others
from spotlessnet.precomputed.effect import Effect
from spotlessnet.precomputed.fold_models import train_fold_models
from spotlessnet.readouts.margin import margins
from spotlessnet.training.fit import fit

RATE = 0.1


def problem(mislabelled: bool = False, whole: bool = False) -> tuple[Trained, Split]:
    """One batch holds everything, so an epoch is a single plain step."""
    torch.manual_seed(0)
    x, y = torch.randn(30, 4, dtype=float64), torch.randint(3, (30,))
    y[:6], y[6:] = (0, y[6:].clamp(min=1)) if whole else (y[:6], y[6:])
    data, held = Data.of((x, y)), Data.of((torch.randn(60, 4, dtype=float64), torch.arange(60) % 3))
    began = Trained.of(nn.Linear(4, 3).double(), recipe=Recipe(epochs=10, lr=RATE, momentum=0.0, batch_size=100))
    trained = fit(replace(began, init=began.weights), data)
    request = Request(mislabelled=mislabelled)
    return trained, Split(data.select(range(6)), data.select(range(6, 30)), validation=held, request=request)


def slope(trained: Trained, data: Data, answers: torch.Tensor, T: float = 1.0) -> torch.Tensor:
    """Of the mean of T² KL from answers to the network's, both at the temperature T, by dense autograd."""
    w, x = trained.weights.clone().requires_grad_(), data.fetch(data.rows).x
    p, q = (answers / T).softmax(dim=1), (trained.outputs(x, w) / T).softmax(dim=1)
    risk = T**2 * (torch.special.entr(p).neg() - p * q.log()).sum(dim=1).mean()
    return torch.autograd.grad(risk, w)[0]


@pytest.mark.parametrize(("T", "lift"), [(1.0, 0.0), (3.0, 0.0), (2.0, 1.5)])
@pytest.mark.parametrize("kind", ["wrong", "class", "ordinary", "fold_models", "fold_models, wrong"])
def test_one_epoch_is_one_step_toward_the_untold_answers(kind: str, T: float, lift: float) -> None:
    trained, split = problem(mislabelled="wrong" in kind, whole=kind == "class")
    labels = split.forget.labels()
    answers = trained.predict(split.forget)
    fold_models = None
    if kind in ("wrong", "class"):
        answers = answers.scatter(1, labels.unsqueeze(1), NEVER)
    elif "fold_models" in kind:
        fold_models, own = train_fold_models(trained, split.whole, held=split.validation), answers
        answers = fold_models.answers(trained, split.forget)
        answers = blend_own_logits(answers, own, labels, 0.25) if "wrong" in kind else answers
    else:
        for c in labels.unique():
            mine, held = labels == c, split.validation
            assert held is not None
            unseen = margins(trained, held.select((held.labels() == c).nonzero().squeeze(1)))
            now = margins(trained, split.forget)[mine]
            for rank, i in enumerate(now.argsort().tolist()):
                at = mine.nonzero().squeeze(1)[i]
                answers[at, c] += torch.quantile(unseen, (rank + 0.5) / len(now)) - now[i]
    known, began = trained.predict(split.retain), trained
    if kind == "class":
        known[:, 0] = NEVER
        began = trained.at(suppress_class_bias(trained, torch.tensor([True, False, False]), split.forget))
    known += lift * nn.functional.one_hot(split.retain.labels(), 3)
    step = 0.3 * slope(began, split.forget, answers, T) + 0.7 * slope(began, split.retain, known, T)
    expected = began.weights - 0.5 * RATE * step
    told = OutOfFoldDistillation(
        epochs=1,
        forget_weight=0.3,
        lr_scale=0.5,
        temperature=T,
        label_boost=lift,
        max_step_scale=1.0,
        targets="out of fold",
        fold_models=fold_models,
    )
    found = told(trained, split)
    torch.testing.assert_close(found.mean, expected, rtol=1e-9, atol=1e-12)


def test_the_decay_of_the_training_does_not_draw_it_to_the_start():
    trained, split = problem(whole=True)
    assert trained.recipe is not None
    decaying = replace(
        trained, weight_decay=0.5, recipe=trained.recipe.but(weight_decay=0.5), init=torch.zeros_like(trained.weights)
    )
    found, expected = (OutOfFoldDistillation(epochs=2)(network, split).mean for network in (decaying, trained))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_in_the_end_the_forgotten_rows_are_answered_without_their_labels():
    trained, split = problem(whole=True)
    found = trained.at(
        OutOfFoldDistillation(epochs=400, forget_weight=0.5, lr_scale=10.0, batch_size=30)(trained, split).mean
    )
    answers = trained.predict(split.forget).scatter(1, split.forget.labels().unsqueeze(1), NEVER)
    gaps = [
        (network.predict(split.forget).softmax(1) - answers.softmax(1)).abs().mean() for network in (trained, found)
    ]
    assert gaps[1] < 0.4 * gaps[0]  # a linear network cannot answer each row as it likes


def test_tutors_are_believed_but_for_a_class_that_is_gone():
    trained, split = problem(mislabelled=True)
    fold_models = train_fold_models(trained, split.whole)
    facts = OutOfFoldDistillation(epochs=1, fold_models=fold_models)(trained, split).diagnostics
    assert (facts["struck_out"], facts["match_held_out_confidence"]) == (0, 0)
    trained, split = problem(whole=True)
    facts = OutOfFoldDistillation(epochs=1, fold_models=train_fold_models(trained, split.whole))(
        trained, split
    ).diagnostics
    assert (facts["struck_out"], facts["match_held_out_confidence"]) == (6, 0)
    trained, split = problem()
    facts = OutOfFoldDistillation(epochs=1, fold_models=train_fold_models(trained, split.whole))(
        trained, split
    ).diagnostics
    assert (facts["struck_out"], facts["match_held_out_confidence"]) == (0, 0)


def test_the_second_opinion_can_be_left_out():
    trained, split = problem(mislabelled=True)
    fold_models = train_fold_models(trained, split.whole)
    alone, both = (
        OutOfFoldDistillation(epochs=1, self_weight=own, targets="out of fold", fold_models=fold_models)(
            trained, split
        ).mean
        for own in (0.0, 0.25)
    )
    ordinary = replace(split, request=Request(mislabelled=False))
    usual = RELABELLED._asdict()
    told = OutOfFoldDistillation(epochs=1, **usual, fold_models=fold_models)(trained, ordinary).mean
    torch.testing.assert_close(alone, told, rtol=0, atol=0)
    assert not torch.equal(alone, both)


def test_later_requests_hold_retained_rows_to_what_is_said_of_them_now():
    """Held to what was said first, they draw the network back to where earlier requests had not been served."""
    first, split = problem()
    split = replace(split, validation=None)
    fold_models = train_fold_models(first, split.whole)
    moved = first.at(first.weights + 0.3 * torch.randn_like(first.weights))
    away = slope(moved, split.forget, fold_models.answers(moved, split.forget))
    # The network's own answers have no slope, so that nothing but the forgotten rows moves it.
    expected = moved.weights - 0.5 * RATE * 0.3 * away
    scrub = OutOfFoldDistillation(
        epochs=1,
        forget_weight=0.3,
        lr_scale=0.5,
        temperature=1.0,
        max_step_scale=1.0,
        targets="out of fold",
        fold_models=fold_models,
    )
    torch.testing.assert_close(scrub(moved, split).mean, expected, rtol=1e-9, atol=1e-12)
    # How worn it is, is told by what was said first.
    worn, new = (
        replace(scrub, fold_models=replace(fold_models, origin=origin))(moved, split).diagnostics["drift"]
        for origin in (first.weights, None)
    )
    assert worn > 5 * new


def test_a_step_that_takes_back_what_an_earlier_request_did_is_refused(monkeypatch):
    trained, split = problem()
    fold_models = train_fold_models(trained, split.whole)
    scrub = OutOfFoldDistillation(epochs=5, fold_models=fold_models)
    assert "others_moved" not in scrub(trained, split).diagnostics
    scrub = replace(scrub, fold_models=replace(fold_models, after_requests=True))
    for limit, refused in ((1e3, False), (1e-4, True)):
        monkeypatch.setattr(others, "FURTHEST_HELD", limit)
        monkeypatch.setattr(others, "FURTHEST", 1e3)
        told = scrub(trained, split).diagnostics
        assert told["retrain_now"] is refused
        assert (told["others_moved"] > 1) is refused
    assert "further than earlier requests are safe from" in told["assumed"][-1]


@pytest.mark.parametrize(("raised", "refused"), [(5.0, False), (1e-4, True)])
def test_where_it_is_known_what_earlier_requests_did_no_more_than_half_of_it_may_be_lost(raised, refused):
    trained, split = problem()
    known = (Effect(size=4, raised=raised, loss=5.0),)
    fold_models = replace(train_fold_models(trained, split.whole, after_requests=True), effects=known)
    told = OutOfFoldDistillation(epochs=5, fold_models=fold_models)(trained, split).diagnostics
    assert told["retrain_now"] is refused
    held = replace(fold_models, effects=())
    same = OutOfFoldDistillation(epochs=5, fold_models=held)(trained, split).diagnostics
    assert told["others_moved"] == same["others_moved"]  # nothing that tells of the rows of earlier requests


def test_rows_that_stand_in_for_earlier_ones_are_not_taught(monkeypatch):
    trained, split = problem()
    fold_models = train_fold_models(trained, split.whole, after_requests=True)
    watched = Mock(side_effect=lambda pupil, *_, **__: pupil)
    monkeypatch.setattr(method, "fit", watched)
    OutOfFoldDistillation(epochs=1, fold_models=fold_models)(trained, split)
    aside = set_aside(split.retain, fold_models)
    assert aside is not None
    assert len(aside) == len(split.retain) // 8
    assert len(watched.call_args.args[1]) == len(split.forget) + len(split.retain) - len(aside)
    assert set_aside(split.retain, replace(fold_models, after_requests=False)) is None


def test_after_a_request_every_retained_row_is_visited():
    trained, split = problem()
    for after in (False, True):
        fold_models = train_fold_models(trained, split.whole, after_requests=after)
        OutOfFoldDistillation(fold_models=fold_models).check_needs(trained, split)
        limited = OutOfFoldDistillation(fold_models=fold_models, examples_per_epoch=5)
        if after:
            with pytest.raises(SettingError, match="must visit every retained row in each round"):
                limited.check_needs(trained, split)
        else:
            limited.check_needs(trained, split)


def test_a_later_request_that_leaves_a_single_row_is_refused():
    """That row would be set aside, and nothing held: it ended in a division by zero."""
    trained, split = problem()
    few = replace(split, kept=split.retain.select([0]))
    fold_models = train_fold_models(trained, few.whole)
    OutOfFoldDistillation(epochs=1, fold_models=fold_models).check_needs(trained, few)  # of a first request
    later = OutOfFoldDistillation(epochs=1, fold_models=replace(fold_models, after_requests=True))
    with pytest.raises(DataError, match=r"must leave two retained rows at least, .* but it leaves 1\. Retrain"):
        later(trained, few)
    two = replace(split, kept=split.retain.select([0, 1]))
    fold_models = train_fold_models(trained, two.whole, after_requests=True)
    OutOfFoldDistillation(epochs=1, fold_models=fold_models)(trained, two)


def test_a_network_that_has_lost_more_than_tutors_lack_must_be_retrained():
    first, split = problem()
    fold_models = train_fold_models(first, split.whole)
    scrub = OutOfFoldDistillation(epochs=1, lr_scale=1e-3, label_boost=1.0, fold_models=fold_models)
    facts = scrub(first, split).diagnostics
    assert not facts["retrain_now"]
    assert facts["drift_share"] < 0.1
    wrecked = first.at(first.weights + 5 * torch.randn_like(first.weights))
    facts = scrub(wrecked, split).diagnostics
    assert facts["retrain_now"]
    after = wrecked.at(scrub(wrecked, split).mean)
    said = first.predict(split.retain)
    lifted = said + nn.functional.one_hot(split.retain.labels(), 3)
    now = after.predict(split.retain).softmax(1)
    moved = min((now - each.softmax(1)).abs().sum(1).mean() for each in (said, lifted))
    off = (
        (fold_models.answers(first, split.whole).softmax(1) - first.predict(split.whole).softmax(1)).abs().sum(1).mean()
    )
    assert fold_models.lack == pytest.approx(float(off))
    assert facts["drift_share"] == pytest.approx(float(moved / off))
    # Fold models of old files have not been measured; the retained rows then tell.
    old = replace(scrub, fold_models=replace(fold_models, lack=None))(wrecked, split).diagnostics
    off = (
        (fold_models.answers(first, split.retain).softmax(1) - first.predict(split.retain).softmax(1))
        .abs()
        .sum(1)
        .mean()
    )
    assert old["drift_share"] == pytest.approx(float(moved / off))
    assert any("retrain now and train new fold models" in text for text in facts["lost"])


@pytest.mark.parametrize(
    ("mislabelled", "whole", "taught", "usual"),
    [
        (False, False, SHRUNK, ORDINARY),
        (True, False, RELABELLED, MISLABELLED),
        (False, True, WHOLE_CLASS, WHOLE_CLASS),
    ],
)
def test_each_kind_of_request_is_served_in_its_own_way(
    mislabelled: bool, whole: bool, taught: Preset, usual: Preset
) -> None:
    trained, split = problem(mislabelled, whole)
    # Every row is visited seven times at most as heavily as others, which is more than any preset asks for here.
    made = train_fold_models(trained, split.whole, folds=3)
    with_folds = OutOfFoldDistillation(epochs=1, fold_models=made)(trained, split).diagnostics
    assert {name: with_folds[name] for name in taught._fields} == taught._asdict()
    told, untold = (
        OutOfFoldDistillation(epochs=3, **usual._asdict())(trained, split),
        OutOfFoldDistillation(epochs=3)(trained, split),
    )
    torch.testing.assert_close(told.mean, untold.mean, rtol=0, atol=0)
    assert {name: untold.diagnostics[name] for name in usual._fields} == usual._asdict()
    other = OutOfFoldDistillation(epochs=3, label_boost=usual.label_boost + 1)(trained, split)
    assert other.diagnostics["label_boost"] == usual.label_boost + 1
    assert other.diagnostics["forget_weight"] == usual.forget_weight


def test_a_start_that_knows_the_class_is_named():
    trained, split = problem(whole=True)
    assert trained.init is not None
    facts = OutOfFoldDistillation(epochs=1)(trained, split).diagnostics
    before = trained.at(trained.init).predict(split.forget).softmax(dim=1)[:, 0].mean()
    assert facts["known_at_the_start"] == pytest.approx(float(before))
    answers = trained.predict(split.forget)
    assert facts["bias_lowered_by"] == pytest.approx(float((answers[:, 0] - answers[:, 1:].amin(dim=1)).mean()))
    assert not any("begin at a start that knows" in text for text in facts["lost"])
    sure = trained.init.index_add(0, torch.tensor([12]), torch.tensor([9.0], dtype=float64))  # the bias of the class
    facts = OutOfFoldDistillation(epochs=1)(replace(trained, init=sure), split).diagnostics
    assert any("but the start of training gives it 100%" in text for text in facts["assumed"])
    assert any("begin at a start that knows the class" in text for text in facts["lost"])
    facts = OutOfFoldDistillation(epochs=1)(*problem()).diagnostics  # no class leaves
    assert "known_at_the_start" not in facts


def test_a_lift_is_not_taken_for_wear():
    trained, split = problem()
    x = split.whole.fetch(split.whole.rows).x
    alike = Data.of((x, trained.predict(split.whole).argmax(dim=1)))  # labels that a linear network can be told louder
    split = replace(split, forget=alike.select(range(6)), kept=alike.select(range(6, 30)))
    fold_models = train_fold_models(trained, split.whole)
    scrub = OutOfFoldDistillation(
        epochs=400,
        lr_scale=10.0,
        batch_size=30,
        forget_weight=0.01,
        temperature=1.0,
        label_boost=3.0,
        fold_models=fold_models,
    )
    done = scrub(trained, split)
    now, said = (network.predict(split.retain) for network in (trained.at(done.mean), trained))
    lifted = said + 3.0 * nn.functional.one_hot(split.retain.labels(), 3)
    moved, missed = (float((now.softmax(1) - each.softmax(1)).abs().sum(1).mean()) for each in (said, lifted))
    assert missed < 0.5 * moved  # it went where it was told to go
    assert done.diagnostics["drift"] == pytest.approx(missed)


def test_a_few_rows_among_many_do_not_outweigh_them_unless_told_to():
    trained, split = problem()
    one = replace(split, forget=split.forget.select([0]))
    # One visit in 25 that counts seven times, where half of the weight would be twelve and a half.
    assert OutOfFoldDistillation(epochs=3)(trained, one).diagnostics["forget_weight"] == pytest.approx(HEAVIEST / 25)
    assert (
        OutOfFoldDistillation(epochs=3, examples_per_epoch=1)(trained, one).diagnostics["forget_weight"]
        == ORDINARY.forget_weight
    )
    assert OutOfFoldDistillation(epochs=3, forget_weight=0.5)(trained, one).diagnostics["forget_weight"] == 0.5


@pytest.mark.parametrize("mislabelled", [False, True])
def test_a_step_cut_short_is_made_longer_toward_what_tutors_say(mislabelled: bool) -> None:
    trained, split = problem(mislabelled=mislabelled)
    fold_models = train_fold_models(trained, split.whole, held=split.validation)
    scrub = OutOfFoldDistillation(
        epochs=2,
        lr_scale=0.5,
        examples_per_epoch=24,
        self_weight=0.0,
        temperature=3.0,
        targets="out of fold",
        fold_models=fold_models,
    )
    short, found = (each(trained, split) for each in (replace(scrub, max_step_scale=1.0), scrub))
    step, taught = short.mean - trained.weights, fold_models.answers(trained, split.forget)
    beta = found.diagnostics["forget_weight"]
    forget, retain = split.forget, split.retain
    sides = Side(forget, taught, beta, 3.0), Side(retain, trained.predict(retain), 1 - beta, 3.0)
    length = step_length(trained, trained.weights, step, *sides, most=1.5)
    assert 1 < length <= 1.5
    torch.testing.assert_close(found.mean, trained.weights + length * step, rtol=1e-12, atol=1e-12)
    assert found.diagnostics["step_scale"] == length
    assert "step_scale" not in short.diagnostics


def test_steps_are_left_as_long_as_they_are_where_nothing_is_to_be_met():
    trained, split = problem()
    fold_models = train_fold_models(trained, split.whole)
    all_rows = OutOfFoldDistillation(epochs=2, fold_models=fold_models)(trained, split)
    alone = OutOfFoldDistillation(epochs=2, examples_per_epoch=20)(trained, split)
    whole = problem(whole=True)
    of_class = OutOfFoldDistillation(
        epochs=2, examples_per_epoch=20, fold_models=train_fold_models(whole[0], whole[1].whole)
    )(*whole)
    for found in (all_rows, alone, of_class):
        assert "step_scale" not in found.diagnostics
    assert (
        "step_scale"
        in OutOfFoldDistillation(epochs=2, max_step_scale=1.2, fold_models=fold_models)(trained, split).diagnostics
    )


def test_it_visits_no_more_rows_than_it_may_and_others_in_every_round():
    trained, split = problem(whole=True)
    facts = OutOfFoldDistillation(epochs=1, examples_per_epoch=4)(trained, split).diagnostics
    assert (facts["forgotten_read"], facts["retained_read"], facts["visits"]) == (4, 4, 8)
    facts = OutOfFoldDistillation(epochs=3, examples_per_epoch=7)(trained, split).diagnostics
    assert (facts["forgotten_read"], facts["retained_read"], facts["visits"]) == (6, 21, 39)
    torch.testing.assert_close(OutOfFoldDistillation(epochs=0)(trained, split).mean, trained.weights, rtol=0, atol=0)


def test_the_margin_is_that_of_the_readout():
    trained, split = problem(whole=True)
    found = margin(trained.predict(split.forget), torch.zeros(len(split.forget), dtype=torch.long))
    torch.testing.assert_close(found, margins(trained, split.forget))


def test_what_it_cannot_do_is_said():
    trained, split = problem()
    asks = r"neither. Give fold models \(`--fold-models`, `fold_models=train_fold_models\(...\)`\), or the split"
    with pytest.raises(NeedError, match=asks):
        OutOfFoldDistillation()(trained, replace(split, validation=None))
    assert split.validation is not None
    ones = (split.validation.labels() == 1).nonzero().squeeze(1)
    with pytest.raises(NeedError, match="held-out rows of every forgotten class, but none has class"):
        OutOfFoldDistillation()(trained, replace(split, validation=split.validation.select(ones)))
    with pytest.raises(SettingError, match="the loss 'squared error' has no classes"):
        OutOfFoldDistillation()(replace(trained, loss=SquaredError()), split)
    with pytest.raises(SettingError, match=r"`OutOfFoldDistillation.temperature` must be positive, but got 0"):
        OutOfFoldDistillation(temperature=0)
    with pytest.raises(SettingError, match=r"`OutOfFoldDistillation.label_boost` must be zero or positive, but got -1"):
        OutOfFoldDistillation(label_boost=-1)
    with pytest.raises(SettingError, match=r"`OutOfFoldDistillation.self_weight` must be in \[0, 1\), but got 1"):
        OutOfFoldDistillation(self_weight=1.0)
    with pytest.raises(
        SettingError, match=r"`OutOfFoldDistillation.forget_weight` must lie between 0 and 1, but got 1"
    ):
        OutOfFoldDistillation(forget_weight=1)
    for wrong in (0.9, math.nan, math.inf):
        with pytest.raises(
            SettingError, match=rf"`OutOfFoldDistillation.max_step_scale` must be a number from 1 on, but got {wrong}"
        ):
            OutOfFoldDistillation(max_step_scale=wrong)
    assert isinstance(trained.loss, CrossEntropy)


def test_statistics_are_estimated_anew_before_the_step_and_not_after() -> None:
    torch.manual_seed(0)
    data = Data.of((torch.randn(40, 4, dtype=float64), torch.arange(40) % 3))
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    recipe = Recipe(epochs=5, lr=RATE, batch_size=10, freeze_statistics=False)
    began = Trained.of(network, recipe=recipe)
    trained = fit(replace(began, init=began.weights, init_buffers=buffers_of(network)), data)
    split = Split(data.select(range(6)), data.select(range(6, 40)), validation=data.select(range(20, 40)))
    folds = train_fold_models(trained, data, folds=2, seed=1)
    done = OutOfFoldDistillation(fold_models=folds, epochs=3)(trained, split)
    assert done.buffers is not None
    assert not torch.equal(done.mean, trained.weights)
    for name, value in reestimated(trained, split.retain).items():
        # Estimated at the weights before the step: what the step was taken with is what the network is left with.
        torch.testing.assert_close(done.buffers[name], value)
        assert "running" not in name or not torch.equal(value, trained.model.get_buffer(name))
