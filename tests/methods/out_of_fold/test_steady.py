"""A rate that does not diverge: the curvature in closed form, and the settings at which it did."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Request, Split
from spotlessnet.core.targets import Distillation, WeightedDistillation, with_weights
from spotlessnet.core.trained import Trained
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.methods.out_of_fold import method
from spotlessnet.methods.out_of_fold.steady import Steady, steady, unlucky
from spotlessnet.operators.largest_curvature import largest_curvature
from spotlessnet.precomputed.fold_models import FoldModels, train_fold_models
from spotlessnet.readouts import Error
from spotlessnet.readouts.margin import margins
from spotlessnet.training.fit import fit


def test_squares_are_the_limit_of_a_high_temperature():
    torch.manual_seed(0)
    f, t = 5 * torch.randn(7, 4, dtype=float64), 5 * torch.randn(7, 4, dtype=float64)
    centred = (f - f.mean(1, keepdim=True)) - (t - t.mean(1, keepdim=True))
    torch.testing.assert_close(Distillation(math.inf)(f, t), centred.square().sum(1) / 8)
    torch.testing.assert_close(Distillation(1e4)(f, t), Distillation(math.inf)(f, t), rtol=1e-3, atol=0)
    T, w = torch.tensor([1.0, 3.0, math.inf] * 2 + [10.0], dtype=float64), torch.rand(7, dtype=float64)
    each = torch.stack([w[i] * Distillation(float(T[i]))(f[i : i + 1], t[i : i + 1])[0] for i in range(7)])
    torch.testing.assert_close(WeightedDistillation()(f, with_weights(torch.cat([t, T[:, None]], 1), w)), each)


def linear(rows: int = 30) -> tuple[Trained, Data, torch.Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(rows, 4, dtype=float64), 1 + torch.rand(rows, dtype=float64)
    pupil = replace(Trained.of(nn.Linear(4, 3, bias=False).double()), loss=WeightedDistillation())
    labels = torch.cat([torch.randn(rows, 3, dtype=float64), torch.full((rows, 1), math.inf, dtype=float64)], 1)
    # Squares on a linear network: H = (1/n) sum w x x^T kron (I - 11^T/C)/C, whose top is that of the first factor / C.
    top = float(torch.linalg.eigvalsh((x.T * w) @ x / rows)[-1]) / 3
    return pupil, Data.of((x, with_weights(labels, w))), torch.tensor(top)


def test_the_curvature_in_closed_form():
    pupil, data, top = linear()
    found = largest_curvature(pupil, data)
    assert 0.85 * top < found <= top * (1 + 1e-9)  # a few products come near from below


def test_the_rate_is_held_below_half_of_where_it_diverges():
    pupil, data, _ = linear()
    held = steady(pupil, data, 10, lr=1e3, momentum=0.8, batch_size=100)
    assert held.lr == pytest.approx(1.8 / largest_curvature(pupil, data.select([*range(10), *range(10, 30)])), rel=0.3)
    assert steady(pupil, data, 10, lr=1e-5, momentum=0.8, batch_size=100).lr == 1e-5
    g = torch.tensor([3.0, 4.0])
    Steady(1.0, 2.5).clip(g, g, 0.0)
    torch.testing.assert_close(g, torch.tensor([1.5, 2.0]))
    Steady(1.0, 9.0).clip(g, g, 0.0)
    torch.testing.assert_close(g, torch.tensor([1.5, 2.0]))


@pytest.mark.parametrize("lr", [1e-3, 1e-1, 1e3])
def test_steps_move_answers_by_five_logits_at_most(lr: float) -> None:
    pupil, data, _ = linear()
    far = data.relabel(data.labels() * torch.tensor([1e4, 1e4, 1e4, 1.0, 1.0], dtype=float64))
    held = steady(pupil, far, 10, lr=lr, momentum=0.9, batch_size=100)
    top = largest_curvature(pupil, far.select(range(30)))
    # Along the steepest direction a step of length s changes the loss's root by s sqrt(top).
    assert held.lr * held.longest / (1 - 0.9) * math.sqrt(top) == pytest.approx(5.0, rel=0.2)
    # Where targets are near, twice the gradient at the beginning may be less than that.
    assert steady(pupil, data, 10, lr=lr, momentum=0.9, batch_size=100).longest <= held.longest


def test_a_batch_may_hold_more_forgotten_rows_than_usual():
    assert unlucky(visits=64, heavy=0, batch_size=64) == (0, 64)
    assert unlucky(visits=30, heavy=20, batch_size=64)[0] == 20
    assert sum(unlucky(visits=10_000, heavy=100, batch_size=16)) == 64


@cache
def hard_problem() -> tuple[Trained, Split, Data]:
    """Forty rows with wrong labels, learnt by heart in small batches at a high rate."""
    torch.manual_seed(0)
    y = torch.arange(600) % 5
    x = torch.randn(600, 20) + 1.5 * nn.functional.one_hot(y, 20)
    y[:20] = (y[:20] + 1) % 5
    ids = ["annotator"] * 20 + [str(i // 10) for i in range(580)]
    data = Data.of((x, y), columns={"id": ids})
    network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    began = Trained.of(network, recipe=Recipe(epochs=30, lr=0.05, batch_size=16))
    trained = fit(replace(began, init=began.weights), data)
    return trained, Split(data.select(range(20)), data.select(range(20, 600)), request=Request(mislabelled=True)), data


@cache
def fold_models_of_it() -> FoldModels:
    trained, _, data = hard_problem()
    return train_fold_models(trained, data, folds=3)


def test_it_does_not_diverge_where_it_did(monkeypatch):
    """Weight 0.5 and temperature 10: with the usual rate the network is lost, or its retained rows are."""
    trained, split, _ = hard_problem()
    fold_models = fold_models_of_it()
    scrub = OutOfFoldDistillation(forget_weight=0.5, temperature=10.0, fold_models=fold_models)
    before = float(Error("retain")(trained, split))
    found = scrub(trained, split)
    after = trained.at(found.mean)
    assert float(Error("retain")(after, split)) <= before + 0.01
    assert float(margins(after, split.forget).mean()) < float(margins(trained, split.forget).mean()) - 1
    for look in ("_is_careful", "_is_held"):
        monkeypatch.setattr(method.OutOfFoldDistillation, look, lambda *_: False)
    try:
        lost = float(Error("retain")(trained.at(scrub(trained, split).mean), split))
    except ArithmeticError:
        lost = math.inf
    assert lost > before + 0.02


@pytest.mark.parametrize("lr_scale", [0.1, 1.0, 30.0])
def test_squares_and_far_targets_hold_at_any_rate(lr_scale: float) -> None:
    trained, split, _ = hard_problem()
    fold_models = fold_models_of_it()
    scrub = OutOfFoldDistillation(targets="in minus out", fold_models=fold_models, compute_budget=0.5)
    after = trained.at(replace(scrub, lr_scale=lr_scale)(trained, split).mean)
    assert float(Error("retain")(after, split)) <= float(Error("retain")(trained, split)) + 0.01
    assert float(margins(after, split.forget).mean()) < float(margins(trained, split.forget).mean()) - 1
