"""Newton scrubbing against closed forms: ridge regression, integrated gradient flow, dense matrices."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, float64, nn

from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, NumericsError, SettingError
from spotlessnet.core.gaussian import NoNoise
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.newton import Newton
from spotlessnet.operators.solvers import CG
from spotlessnet.training.fit import fit
from tests.methods.problems import (
    dense_gradient,
    dense_hessian,
    logistic_problem,
    optimum,
    ridge_optimum,
    ridge_problem,
    unchecked,
)

seeds = st.integers(0, 2**31)


decays = st.sampled_from([1e-3, 0.1, 3.0])


@given(seed=seeds, outputs=st.integers(1, 3), weight_decay=decays)
@settings(max_examples=12, deadline=None)
def test_newton_on_a_quadratic_is_retraining(seed: int, outputs: int, weight_decay: float):
    check_quadratic(seed, outputs, weight_decay)


@pytest.mark.slow
@given(seed=seeds, outputs=st.integers(1, 3), weight_decay=decays)
@settings(max_examples=300, deadline=None)
def test_newton_on_hundreds_of_quadratics_is_retraining(seed: int, outputs: int, weight_decay: float):
    check_quadratic(seed, outputs, weight_decay)


def check_quadratic(seed: int, outputs: int, weight_decay: float):
    trained, split = ridge_problem(seed, outputs=outputs, weight_decay=weight_decay)
    expected = ridge_optimum(trained, split.retain)
    for settings_ in ({}, {"keep_residual": False}, {"curvature": "gauss-newton"}):
        scrubbed = Newton(**settings_)(trained, split)
        torch.testing.assert_close(scrubbed.mean, expected, rtol=1e-8, atol=1e-8)
        assert scrubbed.is_noiseless
        assert scrubbed.diagnostics["assumed"] == []


@pytest.mark.parametrize("curvature", ["hessian", "gauss-newton"])
@given(seed=seeds)
@settings(max_examples=5, deadline=None)
def test_products_and_dense_matrices_agree(curvature: Any, seed: int):
    trained, split = logistic_problem(seed)
    dense = Newton(curvature=curvature)(trained, split)
    products = Newton(curvature=curvature, dense_up_to=0, solver=CG(tolerance=1e-12))(trained, split)
    torch.testing.assert_close(products.mean, dense.mean, rtol=1e-8, atol=1e-9)
    assert products.diagnostics["residual"] <= 1e-12
    assert products.diagnostics["curvature"] == curvature


@given(seed=seeds, damping=st.sampled_from([0.0, 0.5]))
@settings(max_examples=8, deadline=None)
def test_off_the_minimum_each_form_is_its_formula_on_dense_matrices(seed: int, damping: float):
    trained, split = logistic_problem(seed)
    nudge = torch.randn(trained.size, generator=torch.Generator().manual_seed(seed), dtype=float64)
    trained = trained.at(trained.weights + 0.05 * nudge)
    g_r, g = dense_gradient(trained, split.retain), dense_gradient(trained, split.whole)
    B = dense_hessian(trained, split.retain) + damping * torch.eye(trained.size, dtype=float64)
    plain = Newton(keep_residual=False, damping=damping, search=False)(trained, split)
    torch.testing.assert_close(plain.mean, trained.weights - torch.linalg.solve(B, g_r), rtol=1e-8, atol=1e-10)
    kept = Newton(damping=damping, search=False)(trained, split)
    torch.testing.assert_close(kept.mean, trained.weights - torch.linalg.solve(B, g_r - g), rtol=1e-8, atol=1e-10)
    assert kept.diagnostics["damping"] == damping
    assert math.isclose(kept.diagnostics["gradient_norm"], float(g.norm()), rel_tol=1e-8)


def test_the_residual_of_training_is_kept():
    """After the step the retained rows' mean gradient is what that of all rows was before."""
    trained, split = ridge_problem(3)
    off = trained.at(trained.weights + 0.3)
    scrubbed = off.at(Newton()(off, split).mean)
    expected = dense_gradient(off, split.whole)
    torch.testing.assert_close(dense_gradient(scrubbed, split.retain), expected, rtol=1e-9, atol=1e-9)
    assert any("had not converged" in text for text in Newton()(off, split).diagnostics["assumed"])


def flow(trained: Trained, data: Data, start: Tensor, time: float) -> Tensor:
    """Gradient flow on a quadratic risk by tiny Runge-Kutta steps: knows nothing of matrix exponentials."""
    H, best, steps = dense_hessian(trained, data), ridge_optimum(trained, data), 400
    w, h = start, time / steps
    for _ in range(steps):
        a = H @ (best - w)
        b = H @ (best - w - 0.5 * h * a)
        c = H @ (best - w - 0.5 * h * b)
        w = w + h / 6 * (a + 2 * b + 2 * c + H @ (best - w - h * c))
    return w


times = st.sampled_from([0.1, 0.5, 1.0, 2.0, 4.0])


@given(seed=seeds, time=times)
@settings(max_examples=12, deadline=None)
def test_stopped_training_is_carried_to_stopped_retraining(seed: int, time: float):
    check_stopped_training(seed, time)


@pytest.mark.slow
@given(seed=seeds, time=times)
@settings(max_examples=300, deadline=None)
def test_stopped_training_on_hundreds_of_problems(seed: int, time: float):
    check_stopped_training(seed, time)


def check_stopped_training(seed: int, time: float):
    """Proposition 3, with the sign of its proof; with the printed sign it misses."""
    trained, split = ridge_problem(seed, n=16, k=4, d=3)
    start = torch.randn(3, generator=torch.Generator().manual_seed(seed + 1), dtype=float64)
    ended, retrained = flow(trained, split.whole, start, time), flow(trained, split.retain, start, time)
    stopped = trained.at(ended)
    scrubbed = Newton(time=time, clamp=False)(stopped, split)
    torch.testing.assert_close(scrubbed.mean, retrained, rtol=1e-6, atol=1e-6)

    A, B = dense_hessian(stopped, split.whole), dense_hessian(stopped, split.retain)
    d = torch.linalg.solve(A, dense_gradient(stopped, split.whole))
    d_r = torch.linalg.solve(B, dense_gradient(stopped, split.retain))
    back, forth = torch.linalg.matrix_exp(-B * time), torch.linalg.matrix_exp(A * time)
    printed = ended + back @ forth @ d + back @ (d - d_r) - d_r
    miss, size = float((printed - retrained).norm()), float((back @ (d - d_r)).norm())
    assert miss == pytest.approx(2 * size, rel=1e-2, abs=1e-5)
    assert size > 1e-4, "the two signs differ on these problems"


def test_time_without_end_is_the_newton_step():
    trained, split = ridge_problem(5, weight_decay=0.5)
    newton = Newton(keep_residual=False)(trained, split)
    late = Newton(time=60.0)(trained, split)
    torch.testing.assert_close(late.mean, newton.mean, rtol=1e-8, atol=1e-8)


def test_the_clamp_is_exact_where_the_matrices_commute():
    """With orthogonal rows all Hessians are diagonal; the clamp then changes nothing unless it binds."""
    x = torch.eye(3, dtype=float64).repeat(4, 1)
    data = Data.of((x, torch.randn(12, 1, dtype=float64, generator=torch.Generator().manual_seed(0))))
    split = Split(forget=data.select([0, 1]), kept=data.select(range(2, 12)))
    trained, _ = ridge_problem(0, d=3, weight_decay=0.2)
    start = torch.ones(3, dtype=float64)
    ended, retrained = (flow(trained, rows, start, 1.5) for rows in (split.whole, split.retain))
    scrubbed = Newton(time=1.5)(trained.at(ended), split)
    torch.testing.assert_close(scrubbed.mean, retrained, rtol=1e-8, atol=1e-8)


def test_the_clamp_holds_what_would_explode():
    trained, split = ridge_problem(7, k=20)
    off = trained.at(trained.weights + 1.0)
    with pytest.raises(NumericsError, match="clamp=True"):
        Newton(time=1e4, clamp=False)(off, split)
    step = Newton(time=1e4)(off, split).mean - off.weights
    assert float(step.norm()) < 100


@pytest.mark.parametrize("time", [20.0, 60.0, 200.0])
def test_a_time_that_would_explode_is_refused(time):
    """Logistic regression stopped early is no quadratic flow: e^{At} makes 1e62 of what it left."""
    for seed in range(4):
        trained, split = logistic_problem(seed)
        assert trained.init is not None
        recipe = Recipe(epochs=10, lr=0.1, momentum=0.0, batch_size=1000, weight_decay=0.1)
        early = trained.at(fit(trained.at(trained.init), split.whole, recipe).weights)
        for network in (early, trained):
            most = float((network.weights - trained.init).norm())
            with pytest.raises(NumericsError, match=r"Undoing a training of time .* Use `clamp=True`, a shorter `tim"):
                Newton(time=time, clamp=False)(network, split)
            assert float((Newton(time=time)(network, split).mean - network.weights).norm()) < 4 * most


def test_a_flow_that_leads_further_than_training_can_have_gone_is_refused():
    """Below the longest time, rounding is no reason: what was not left by such a flow explodes all the same."""
    for seed in range(4):
        trained, split = logistic_problem(seed)
        assert trained.init is not None
        recipe = Recipe(epochs=10, lr=0.1, momentum=0.0, batch_size=1000, weight_decay=0.1)
        early = trained.at(fit(trained.at(trained.init), split.whole, recipe).weights)
        with pytest.raises(NumericsError, match="must not lead further than that training can have gone"):
            Newton(time=16.0, clamp=False)(early, split)


def test_time_of_the_recipe():
    trained, split = ridge_problem(2)
    recipe = Recipe(epochs=5, lr=0.1, momentum=0.5, batch_size=10, weight_decay=0.1)
    known = Trained.of(trained.module(), trained.loss, init=trained.init, recipe=recipe)
    scrubbed = Newton(time="recipe")(known, split)
    assert scrubbed.diagnostics["time"] == pytest.approx(recipe.time(5 * 3))
    same = Newton(time=recipe.time(15))(known, split)
    torch.testing.assert_close(scrubbed.mean, same.mean)
    cosine = Trained.of(trained.module(), trained.loss, init=trained.init, recipe=recipe.but(schedule="cosine"))
    assert Newton(time="recipe")(cosine, split).diagnostics["time"] == pytest.approx(0.5 * recipe.time(16), rel=0.1)
    early = Trained.of(trained.module(), trained.loss, init=trained.init, recipe=recipe.but(patience=2))
    assert "may have stopped early" in Newton(time="recipe")(early, split).diagnostics["assumed"][0]


@given(seed=seeds, strength=st.sampled_from([1e-4, 1.0, 30.0]))
@settings(max_examples=8, deadline=None)
def test_the_noise_is_optimal(seed: int, strength: float):
    """Proposition 4: Σ minimises ½ tr(BΣ) + ½ s tr(Σ⁻¹): zero gradient, and every perturbation costs."""
    trained, split = logistic_problem(seed)
    B = dense_hessian(trained.at(Newton()(trained, split).mean), split.retain)
    covariance = Newton(strength=strength, structure="dense")(trained, split).covariance
    eye = torch.eye(trained.size, dtype=float64)
    sigma = covariance.multiply(eye)
    torch.testing.assert_close(sigma @ B @ sigma, strength * eye, rtol=1e-7, atol=1e-7 * strength)

    def price(S: Tensor) -> Tensor:
        return 0.5 * (B @ S).trace() + 0.5 * strength * torch.linalg.inv(S).trace()

    slope = torch.func.grad(price)(sigma)
    assert float(slope.abs().max()) < 1e-7 * float(B.norm())
    draw = torch.Generator().manual_seed(seed)
    for _ in range(10):
        E = torch.randn(trained.size, trained.size, generator=draw, dtype=float64)
        bent = sigma + 1e-3 * float(torch.linalg.eigvalsh(sigma)[0]) * (E + E.T)
        assert price(bent) > price(sigma)


def test_diagonal_noise_is_the_formula_and_measured_noise_is_the_declared_one():
    trained, split = logistic_problem(1)
    scrubbed = Newton(strength=1e-2)(trained, split)
    B = dense_hessian(trained.at(scrubbed.mean), split.retain)
    torch.testing.assert_close(scrubbed.covariance.diagonal(), (1e-2 / B.diagonal()).sqrt(), rtol=1e-8, atol=0)
    draw = torch.Generator().manual_seed(0)
    draws = torch.stack([scrubbed.draw(draw) for _ in range(2000)])
    ratio = draws.var(dim=0) / scrubbed.covariance.diagonal()
    assert float((ratio - 1).abs().max()) < 5 * (2 / 2000) ** 0.5


def test_kronecker_noise_is_the_root_of_its_own_matrix():
    trained, split = logistic_problem(1)
    spread = Newton(strength=1e-2, structure="kronecker")(trained, split).covariance
    half = spread.map(lambda e: 1e-2 / e.square())  # back to B
    fisher_trace = dense_hessian(trained.at(Newton()(trained, split).mean), split.retain).trace()
    assert half.trace() == pytest.approx(float(fisher_trace), rel=0.05)


def test_no_strength_no_noise():
    trained, split = logistic_problem(1)
    assert isinstance(Newton()(trained, split).covariance, NoNoise)
    assert not Newton().is_noisy
    assert Newton(strength=1.0).is_noisy


def network_off_its_minimum() -> tuple[Trained, Split]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = Data.of((torch.randn(20, 3, dtype=float64), torch.randint(2, (20,))))
    return Trained.of(model), Split(forget=data.select(range(3)), kept=data.select(range(3, 20)))


def test_an_indefinite_hessian_is_left_for_gauss_newton_or_damped_when_asked_for():
    trained, split = network_off_its_minimum()
    least = float(torch.linalg.eigvalsh(dense_hessian(trained, split.retain))[0])
    assert least < -1e-3
    auto = Newton(search=False)(trained, split)
    assert auto.diagnostics["curvature"] == "gauss-newton"
    assert torch.equal(auto.mean, Newton(curvature="gauss-newton", search=False)(trained, split).mean)
    exact = Newton(curvature="hessian", search=False)(trained, split).diagnostics
    assert exact["least_eigenvalue"] == pytest.approx(least + 1e-3)
    assert exact["extra_damping"] == pytest.approx(-least)
    noise = Newton(curvature="hessian", strength=1e-4, structure="dense")(trained, split).covariance
    assert isinstance(noise, LowRankPlusRidge)
    assert bool((noise.values > 0).all())


def test_what_is_not_known_is_said():
    trained, split = network_off_its_minimum()
    about = Newton()(trained, split).diagnostics
    assert about["damping"] == 1e-3
    assert about["assumed"][0].startswith("the decay is not known")
    assert len(about["lost"]) == len(about["assumed"])
    without_start = Trained.of(trained.module(), weight_decay=0.1)
    assert any("pull to zero" in text for text in Newton()(without_start, split).diagnostics["assumed"])


def test_the_step_is_shortened_where_the_network_bends():
    trained, split = network_off_its_minimum()
    wild = Newton(damping=1e-6, curvature="gauss-newton", keep_residual=False)
    before = float(trained.risk(split.retain))
    scrubbed = wild(trained, split)
    assert scrubbed.diagnostics["scale"] < 1
    assert float(trained.risk(split.retain, scrubbed.mean)) < before


def test_forgetting_weighs_rows_as_retraining_does():
    trained, split = logistic_problem(4)
    retrained = optimum(trained, split.retain)
    before = float((trained.weights - retrained).norm())
    after = float((Newton()(trained, split).mean - retrained).norm())
    assert after < 0.35 * before


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"strength": -1.0}, r"`Newton.strength` must be zero or positive, but got -1.0"),
        ({"damping": -1.0}, r"`Newton.damping` must be zero or positive, but got -1.0. Start from the weight decay"),
        ({"time": 0.0}, r"`Newton.time` must be positive, but got 0.0. None means trained to the end"),
        ({"time": "soon"}, r"`Newton.time` must be one of 'recipe', but got 'soon'"),
        ({"curvature": "flat"}, r"`Newton.curvature` must be one of 'auto', 'hessian', 'gauss-newton', but got 'flat'"),
        ({"structure": "full"}, r"`Newton.structure` must be one of 'diagonal', 'kronecker', 'dense', but got 'full'"),
    ],
)
def test_bad_settings_are_named(settings_: dict[str, Any], message: str):
    with pytest.raises(SettingError, match=message):
        unchecked(Newton, **settings_)


def test_what_cannot_be_done_is_refused():
    trained, split = ridge_problem(0)
    with pytest.raises(SettingError, match=r"`Newton.time` needs matrices of 4 rows written out, more than"):
        Newton(time=1.0, dense_up_to=3)(trained, split)
    with pytest.raises(NeedError, match="needs the recipe of the training"):
        Newton(time="recipe")(trained, split)
    flat = Trained.of(trained.module(), trained.loss, weight_decay=0.0)
    few = Split(forget=split.forget, kept=split.retain.select([0, 1, 2]))
    with pytest.raises(NumericsError, match="must be positive definite"):
        Newton(damping=0.0, curvature="gauss-newton")(flat, few)
    with pytest.raises(SettingError, match="plus the decay` must be positive"):
        Newton(damping=0.0, strength=1.0)(flat, split)


@pytest.mark.parametrize(("time", "is_said"), [(1e-2, False), (30.0, True), (10.0, True)])
def test_a_clamp_that_changes_the_step_is_said(time, is_said):
    """The step was up to twelve times too far from the stopped training, and nothing was said of the clamp."""
    draw = torch.Generator().manual_seed(3)
    x, y = (torch.randn(20, d, generator=draw, dtype=float64) for d in (15, 1))
    start = torch.randn(15, generator=draw, dtype=float64)

    def stopped(x: Tensor, y: Tensor) -> Tensor:
        """Gradient flow of the mean of half the squared error, by the eigenvalues of its Hessian."""
        e, Q = torch.linalg.eigh(x.T @ x / len(x) + 1e-4 * torch.eye(15, dtype=float64))
        pull = Q.T @ (x.T @ (y.flatten() - x @ start)) / len(x)
        return start + Q @ (-torch.expm1(-e * time) / e * pull)

    data = Data.of((x, y))
    model = nn.Linear(15, 1, bias=False).double()
    trained = Trained.of(model, SquaredError(), weight_decay=1e-4, init=start).at(stopped(x, y))
    split = Split(forget=data.select(range(3)), kept=data.select(range(3, 20)))
    found = Newton(time=time)(trained, split)
    truth = stopped(x[3:], y[3:])
    off = float((found.mean - truth).norm() / (truth - trained.weights).norm())
    assert (off > 0.1) == is_said
    assert any("was clamped, which" in text for text in found.diagnostics.assumed) == is_said
