"""How long the NTK step is: the trapezium, the search, damping by trust, and calibration on held-out rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError, SettingError
from spotlessnet.core.split import rows, some_of_class, whole_class
from spotlessnet.core.trained import Trained
from spotlessnet.methods.ntk import NTK
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.holdout_scale import holdout_scale
from spotlessnet.operators.linear_response import removal_gradient
from spotlessnet.operators.linear_training import LinearTraining
from spotlessnet.operators.solvers import CG, Auto, Dual, LowRank
from spotlessnet.operators.trapezium import trapezium_scale
from spotlessnet.operators.trust import dampings, least_trusted
from tests.methods.problems import Ridge, classifier, inputs

seeds = st.integers(0, 2**31 - 1)


@given(seed=seeds)
@settings(max_examples=200, deadline=None)
def test_the_trapezium_never_flips_and_never_blows_up(seed):
    draw = torch.Generator().manual_seed(seed)
    size = 10 ** (4 * torch.rand((), generator=draw).item() - 2)
    step, leg = (torch.randn(6, dtype=float64, generator=draw) for _ in range(2))
    leg = size * leg
    scale = trapezium_scale(step, leg)
    angle = math.acos(float(step @ leg / step.norm() / leg.norm())) - math.pi / 2
    expected = float(step.norm() + 2 * math.sin(angle) * leg.norm()) / float(step.norm())
    assert scale.raw == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert 0 < 0.25 <= scale.used <= 4.0
    if 0.25 <= scale.raw <= 4:
        assert scale.used == scale.raw


def test_the_trapezium_is_idle_where_the_linear_model_is_right():
    problem = Ridge(2)
    scrubbed = NTK(trapezium=True, damping=0.0, solver=Auto(tolerance=1e-12))(problem.trained, problem.split)
    assert scrubbed.diagnostics["ntk"]["trapezium"] == pytest.approx(1.0, abs=1e-8)
    torch.testing.assert_close(scrubbed.mean, problem.retrained, rtol=0, atol=1e-6)
    zero = torch.zeros(3, dtype=float64)
    assert trapezium_scale(zero, zero).used == 1.0


def test_the_trapezium_takes_the_leg_to_the_linear_solution_on_all_data():
    trained, split = classifier(11)
    scrub = NTK(trapezium=True, search=False, damping=0.02, solver=Auto(tolerance=1e-12))
    plain = NTK(search=False, damping=0.02, solver=Auto(tolerance=1e-12))(trained, split).mean - trained.weights
    linear = LinearTraining(trained, trained.weights, damping=0.02, solver=Auto(tolerance=1e-12))
    scale = trapezium_scale(plain, trained.weights - linear.end(split.whole))
    got = scrub(trained, split)
    torch.testing.assert_close(got.mean - trained.weights, scale.used * plain, rtol=1e-6, atol=1e-9)
    assert got.diagnostics["ntk"]["trapezium_unguarded"] == pytest.approx(scale.raw, rel=1e-6)


@given(seed=seeds)
@settings(max_examples=8, deadline=None)
def test_the_search_never_leaves_more_of_what_the_step_was_to_lower(seed):
    trained, split = classifier(seed, weight_decay=1e-4)
    got = NTK(damping=0.0, solver=Auto(tolerance=1e-10))(trained, split)
    n, N = len(split.retain), 18
    tilt = n / N * N * torch.func.grad(lambda w: trained.risk(split.whole, w))(trained.weights)

    def phi(w: Tensor) -> float:
        return float(n * trained.risk(split.retain, w) - tilt @ w)

    assert phi(got.mean) <= phi(trained.weights)
    assert got.diagnostics["ntk"]["searched"]


@given(seed=seeds)
@settings(max_examples=5, deadline=None)
def test_no_damping_is_added_where_the_linear_model_is_right(seed):
    problem = Ridge(seed)
    for output in ("softmax", "exact"):
        scrubbed = NTK(output=output, solver=Auto(tolerance=1e-10))(problem.trained, problem.split)
        torch.testing.assert_close(scrubbed.mean, problem.retrained, rtol=0, atol=1e-6)
        assert scrubbed.diagnostics["ntk"]["damping"] == 0.0
        assert scrubbed.diagnostics["ntk"]["trust"] == pytest.approx(1.0, abs=1e-6)


def test_damping_is_raised_until_the_network_follows():
    trained, train, _ = blobs()
    weak = Trained.of(trained.module(), weight_decay=1e-4, init=trained.anchor)
    split = rows([0, 1, 2, 3, 4, 5])(train)
    facts = NTK(solver=CG())(weak, split).diagnostics["ntk"]
    assert facts["damping"] > 0
    assert facts["trust"] >= 0.5
    loose = NTK(solver=CG(), damping=facts["damping"] / 4, search=False)(weak, split).mean
    firm = NTK(solver=CG(), damping=facts["damping"], search=False)(weak, split).mean
    n, N = len(split.retain), len(train)
    tilt = n * torch.func.grad(lambda w: weak.risk(train, w))(weak.weights)

    def fall(w: Tensor) -> float:
        return float(
            n * (weak.risk(split.retain, weak.weights) - weak.risk(split.retain, w)) + tilt @ (w - weak.weights)
        )

    linear = LinearTraining(weak, weak.weights, solver=CG(), damping=facts["damping"])
    g_f, g_r = linear.slope(split.forget), linear.slope(split.retain)
    b = removal_gradient(g_f, g_f + g_r, N - n, N)
    promise = linear.promise(split.retain, b, firm - weak.weights)
    assert fall(firm) / promise == pytest.approx(facts["trust"], rel=1e-3)
    looser = LinearTraining(weak, weak.weights, solver=CG(), damping=facts["damping"] / 4)
    assert fall(loose) / looser.promise(split.retain, b, loose - weak.weights) < 0.5


@pytest.mark.parametrize(("solver", "dear"), [(Dual(), "kernel"), (LowRank(rank=20), "low_rank")])
def test_what_no_damping_changes_is_found_once(monkeypatch, solver, dear):
    from spotlessnet.operators import linear_response

    trained, train, _ = blobs()
    trained, split = Trained.of(trained.module(), weight_decay=1e-4, init=trained.anchor), rows(range(6))(train)
    found, original = [], getattr(linear_response, dear)

    def counted(*given, **named):
        found.append(dear)
        return original(*given, **named)

    monkeypatch.setattr(linear_response, dear, counted)
    damping = NTK(solver=solver)(trained, split).diagnostics["ntk"]["damping"]
    assert damping > 0  # so several were tried
    assert len(found) == 1
    alone = NTK(solver=solver, damping=damping)(trained, split).mean
    torch.testing.assert_close(NTK(solver=solver)(trained, split).mean, alone)


def test_the_promise_is_the_fall_of_the_quadratic_model():
    trained, split = classifier(9)
    linear = LinearTraining(trained, trained.weights, damping=0.3, solver=Auto(tolerance=1e-12))
    b = torch.randn(trained.size, dtype=float64, generator=torch.Generator().manual_seed(2))
    step = linear.response(split.retain, b)
    H = GaussNewton(trained, split.retain, ridge=len(split.retain) * 0.05).multiply(step)
    assert linear.promise(split.retain, b, step) == pytest.approx(float(b @ step - 0.5 * step @ H), rel=1e-8)


def test_after_the_last_raise_the_step_is_taken_as_it_is():
    step = torch.ones(2, dtype=float64)
    taken = least_trusted(lambda damping: step, lambda step, damping: 1.0, lambda step: 0.1, dampings(1.0))
    assert (taken.damping, taken.ratio) == (4.0**7, 0.1)
    assert least_trusted(lambda damping: step, lambda step, damping: 0.0, lambda step: 0.0, [0.0]).ratio == 1.0


def blobs(seed: int = 0) -> tuple[Trained, Data, Data]:
    """A wide network that has memorised a few overlapping classes, and held-out rows of them."""
    draw = torch.Generator().manual_seed(seed)

    def some(count: int) -> Data:
        y = torch.arange(count) % 3
        return Data.of(
            (1.2 * nn.functional.one_hot(y, 6).double() + torch.randn(count, 6, dtype=float64, generator=draw), y)
        )

    train, held = some(45), some(90)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    trained = Trained.of(network, weight_decay=1e-3, init=network)
    w = trained.weights
    for _ in range(300):
        w = w - 0.5 * torch.func.grad(lambda v: trained.risk(train, v))(w)
    return trained.at(w), train, held


def test_calibration_makes_forgotten_rows_look_held_out():
    trained, train, held = blobs()
    split = some_of_class(1, 6)(train, validation=held)
    got = NTK(calibrate="holdout", damping=0.01)(trained, split)
    facts = got.diagnostics["ntk"]
    assert facts["matched"]
    assert facts["forget_loss"] == pytest.approx(facts["holdout_loss"], rel=0.02)
    x, y = inputs(held.select((held.labels() == 1).nonzero().squeeze(1)))
    assert float(trained.losses(x, y).mean()) == pytest.approx(facts["holdout_loss"], rel=1e-9)
    there = trained.at(got.mean)
    assert float(there.losses(*inputs(split.forget)).mean()) == pytest.approx(facts["forget_loss"], rel=1e-9)


def test_calibration_weighs_classes_as_the_forgotten_rows_do():
    trained, train, held = blobs()
    labels = train.labels()
    chosen = torch.cat([(labels == 0).nonzero()[:4, 0], (labels == 2).nonzero()[:1, 0]])
    split = rows(chosen.tolist())(train, validation=held)
    found = holdout_scale(trained, split, torch.zeros_like(trained.weights))
    of_class = [
        float(trained.losses(*inputs(held.select((held.labels() == c).nonzero().squeeze(1)))).mean()) for c in (0, 2)
    ]
    assert found.holdout_loss == pytest.approx(0.8 * of_class[0] + 0.2 * of_class[1], rel=1e-9)
    assert not found.meets


def test_calibration_is_refused_where_it_says_nothing():
    trained, train, held = blobs()
    scrub = NTK(calibrate="holdout")
    with pytest.raises(SettingError, match="when a whole class goes: no retained row has class 1"):
        scrub(trained, whole_class(1)(train, validation=held))
    with pytest.raises(SettingError, match="must not be used for mislabelled rows"):
        scrub(trained, rows([0, 1], mislabelled=True)(train, validation=held))
    with pytest.raises(NeedError, match="needs held-out rows, but the split has no `validation`"):
        scrub(trained, rows([0, 1])(train))
    without = held.select((held.labels() != 0).nonzero().squeeze(1))
    with pytest.raises(DataError, match="every forgotten class, but none has class 0"):
        scrub(trained, rows([0])(train, validation=without))
    problem = Ridge(0)
    with pytest.raises(SettingError, match="the loss 'squared error' has no classes"):
        scrub(problem.trained, problem.split)
