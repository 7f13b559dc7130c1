"""NTK scrubbing against dense ridge solutions, dense Newton steps, and what a linear network must give."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, float64, nn

from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.ntk import NTK
from spotlessnet.operators.linear_response import cheaper_form, removal_gradient, respond, solve_response
from spotlessnet.operators.linear_training import LinearTraining
from spotlessnet.operators.newton_cg import minimise
from spotlessnet.operators.solvers import CG, Auto, Dual, LowRank, Solver
from tests.methods.problems import Ridge, classifier, inputs

FORMS = ("dual", "primal", "low rank")
seeds = st.integers(0, 2**31 - 1)
decays = st.sampled_from([1e-3, 0.03, 0.1, 1.0])


@pytest.mark.parametrize("form", FORMS)
@given(seed=seeds, weight_decay=decays)
@settings(max_examples=8, deadline=None)
def test_a_linear_network_at_its_optimum_is_retrained(form, seed, weight_decay):
    check_retrained(form, seed, weight_decay)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@given(seed=seeds, weight_decay=decays)
@settings(max_examples=300, deadline=None)
def test_hundreds_of_linear_networks_are_retrained(form, seed, weight_decay):
    check_retrained(form, seed, weight_decay)


def tight(form: str, tolerance: float) -> Solver:
    """A solver of this form, as exact as it can be."""
    if form == "low rank":
        return LowRank(tolerance, rank=10_000)
    return Dual(tolerance) if form == "dual" else CG(tolerance)


def check_retrained(form: str, seed: int, weight_decay: float) -> None:
    problem = Ridge(seed, weight_decay)
    scrub = NTK(solver=tight(form, 1e-11), damping=0.0)
    scrubbed = scrub(problem.trained, problem.split)
    torch.testing.assert_close(scrubbed.mean, problem.retrained, rtol=0, atol=1e-6)
    assert scrubbed.is_noiseless
    assert scrubbed.diagnostics["ntk"]["scale"] == 1.0


@given(
    seed=seeds, output=st.sampled_from(["identity", "softmax", "exact"]), linearised=st.sampled_from(["end", "start"])
)
@settings(max_examples=8, deadline=None)
def test_every_reading_of_the_linear_problem_is_the_same(seed, output, linearised):
    problem = Ridge(seed)
    for residual in ("keep", "solve"):
        scrub = NTK(output=output, linearised=linearised, residual=residual, damping=0.0, solver=Auto(tolerance=1e-10))
        mean = scrub(problem.trained, problem.split).mean
        torch.testing.assert_close(mean, problem.retrained, rtol=0, atol=1e-6)


@given(seed=seeds)
@settings(max_examples=8, deadline=None)
def test_the_step_is_the_papers_with_its_signs_put_right(seed):
    """P·M·V (both with the ridge of D_r), the downdate with its correction for the ridge, and the primal agree."""
    problem = Ridge(seed)
    J_r, J_f = problem.jacobian(problem.split.retain), problem.jacobian(problem.split.forget)
    w, start, lam = problem.trained.weights, problem.start, problem.weight_decay
    e_r = problem.targets(problem.split.retain) - J_r @ start
    e_f = problem.targets(problem.split.forget) - J_f @ start
    k, n = len(problem.split.forget), len(problem.split.retain)
    eye = torch.eye(problem.any.size, dtype=float64)

    def with_ridge(J: Tensor, rho: float) -> Tensor:
        return J @ J.T + rho * torch.eye(len(J), dtype=float64)

    rho = n * lam
    rr, rf, ff = with_ridge(J_r, rho), J_r @ J_f.T, with_ridge(J_f, rho)
    P = eye - J_r.T @ torch.linalg.solve(rr, J_r)
    M = torch.linalg.inv(ff - rf.T @ torch.linalg.solve(rr, rf))
    # f_0(D_f) − Y_f = −e_f and Y_r − f_0(D_r) = e_r, as outputs are linear
    V = -e_f + rf.T @ torch.linalg.solve(rr, e_r)
    same_ridge = P @ J_f.T @ M @ V
    everything = problem.optimum(problem.data, ridge=rho)
    torch.testing.assert_close(everything + same_ridge, problem.retrained, rtol=0, atol=1e-9)

    # Downdate from one factor of D at that ridge.
    J, e = torch.cat([J_r, J_f]), torch.cat([e_r, e_f])
    K = torch.linalg.inv(with_ridge(J, rho))
    f = slice(len(J_r), None)
    downdate = -J.T @ K[:, f] @ torch.linalg.solve(K[f, f], (K @ e)[f])
    torch.testing.assert_close(downdate, same_ridge, rtol=0, atol=1e-9)

    # The ridge changes from Nλ to N_rλ: kλu joins the right-hand side.
    u = w - start
    H_r = J_r.T @ J_r + rho * eye
    primal = torch.linalg.solve(H_r, J_f.T @ (J_f @ u - e_f) + k * lam * u)
    torch.testing.assert_close(primal, problem.retrained - w, rtol=0, atol=1e-9)
    mean = NTK(damping=0.0, solver=Auto(tolerance=1e-11))(problem.trained, problem.split).mean
    torch.testing.assert_close(mean - w, primal, rtol=0, atol=1e-7)


@given(seed=seeds)
@settings(max_examples=8, deadline=None)
def test_what_training_left_undone_stays_undone(seed):
    """Off the optimum: the mean gradient on D_r after the step is the one on D before it."""
    problem = Ridge(seed)
    draw = torch.Generator().manual_seed(seed)
    away = problem.trained.at(problem.trained.weights + torch.randn(problem.any.size, dtype=float64, generator=draw))
    mean = NTK(damping=0.0, solver=Auto(tolerance=1e-11))(away, problem.split).mean
    before = torch.func.grad(lambda w: problem.any.risk(problem.data, w))(away.weights)
    after = torch.func.grad(lambda w: problem.any.risk(problem.split.retain, w))(mean)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-7)


@given(seed=seeds, damping=st.sampled_from([0.01, 0.5]))
@settings(max_examples=8, deadline=None)
def test_damping_is_counted_like_decay(seed, damping):
    problem = Ridge(seed)
    J, n = problem.jacobian(problem.split.retain), len(problem.split.retain)
    H = J.T @ J + n * (problem.weight_decay + damping) * torch.eye(J.shape[1], dtype=float64)
    w = problem.trained.weights
    J_f = problem.jacobian(problem.split.forget)
    b = J_f.T @ (J_f @ w - problem.targets(problem.split.forget)) + len(problem.split.forget) * problem.weight_decay * (
        w - problem.start
    )
    mean = NTK(damping=damping, solver=Auto(tolerance=1e-11))(problem.trained, problem.split).mean
    torch.testing.assert_close(mean, w + torch.linalg.solve(H, b), rtol=0, atol=1e-8)


@given(seed=seeds)
@settings(max_examples=8, deadline=None)
def test_neither_start_nor_decay_enter_the_push(seed):
    draw = torch.Generator().manual_seed(seed)
    g_f, g_r, a = (torch.randn(6, dtype=float64, generator=draw) for _ in range(3))
    k, N, lam = 3, 11, 0.2
    full = removal_gradient(g_f, g_f + g_r, k, N)
    by_sums = (N - k) / N * (g_f + g_r + N * lam * a) - (g_r + (N - k) * lam * a)
    torch.testing.assert_close(full, by_sums, rtol=0, atol=1e-12)


@given(seed=seeds, output=st.sampled_from(["identity", "softmax"]))
@settings(max_examples=8, deadline=None)
def test_the_three_forms_agree_on_a_real_network_and_with_the_dense_system(seed, output):
    trained, split = classifier(seed)
    (x, _), n, P = inputs(split.retain), len(split.retain), trained.size
    J = torch.func.jacrev(lambda w: trained.outputs(x, w))(trained.weights)
    p = trained.outputs(x).softmax(1)
    L = (
        p.diag_embed() - p.unsqueeze(2) * p.unsqueeze(1)
        if output == "softmax"
        else torch.eye(3, dtype=float64).expand(n, 3, 3)
    )
    H = torch.einsum("ncp,ncd,ndq->pq", J, L, J) + n * (0.05 + 0.02) * torch.eye(P, dtype=float64)

    def slope(data: Data) -> Tensor:
        a, y = inputs(data)
        return torch.func.grad(lambda w: trained.losses(a, y, w).sum())(trained.weights)

    g_f, N = slope(split.forget), n + len(split.forget)
    expected = torch.linalg.solve(H, n / N * g_f - (N - n) / N * slope(split.retain))
    for form in FORMS:
        scrub = NTK(output=output, solver=tight(form, 1e-11), damping=0.02, search=False)
        mean = scrub(trained, split).mean
        torch.testing.assert_close(mean - trained.weights, expected, rtol=1e-6, atol=1e-8)


@given(seed=seeds, linearised=st.sampled_from(["end", "start"]))
@settings(max_examples=2, deadline=None)
def test_exact_linearised_cross_entropy_against_dense_newton(seed, linearised):
    trained, split = classifier(seed)
    point = trained.weights if linearised == "end" else trained.anchor
    lam, N, n = 0.05, 18, len(split.retain)

    def objective(data: Data):
        x, y = inputs(data)
        f, J = trained.outputs(x, point), torch.func.jacrev(lambda w: trained.outputs(x, w))(point)

        def phi(w: Tensor) -> Tensor:
            loss = trained.loss(f + torch.einsum("ncp,p->nc", J, w - point), y).sum()
            return loss + 0.5 * len(data) * lam * (w - trained.anchor).square().sum()

        return phi

    def newton(phi, w: Tensor) -> Tensor:
        for _ in range(60):
            g = torch.func.grad(phi)(w)
            step = -torch.linalg.solve(torch.func.hessian(phi)(w), g)
            s = 1.0
            while phi(w + s * step) > phi(w) + 1e-4 * s * g @ step and s > 0.1 * step.norm():
                s /= 2
            w = w + s * step
            if step.norm() < 1e-9:
                break
        return w

    phi_D, phi_r, w = objective(split.whole), objective(split.retain), trained.weights
    settings_ = {"output": "exact", "linearised": linearised, "damping": 0.0, "solver": Auto(1e-11), "search": False}
    both = NTK(residual="solve", **settings_)(trained, split).mean - w
    torch.testing.assert_close(both, newton(phi_r, w) - newton(phi_D, w), rtol=0, atol=1e-6)
    tilt = n / N * torch.func.grad(phi_D)(w)
    kept = NTK(**settings_)(trained, split).mean
    torch.testing.assert_close(kept, newton(lambda v: phi_r(v) - tilt @ v, w), rtol=0, atol=1e-6)


def test_exact_damping_is_a_pull_to_the_trained_weights():
    trained, split = classifier(3)
    linear = LinearTraining(trained, trained.weights, output="exact", damping=0.4, solver=Auto(tolerance=1e-12))
    b = torch.randn(trained.size, dtype=float64, generator=torch.Generator().manual_seed(0))
    moved = linear.response(split.retain, b)
    n = len(split.retain)
    there = linear._linear.at(trained.weights + moved)
    slope = [
        torch.func.grad(lambda w, t=t: t.losses(*inputs(split.retain), w).sum())(t.weights)
        for t in (there, linear._linear)
    ]
    torch.testing.assert_close(slope[0] - slope[1] + n * (0.05 + 0.4) * moved, b, rtol=0, atol=1e-7)


def test_the_minimum_of_a_tilted_objective_leaves_the_tilt():
    trained, split = classifier(5)
    linear = LinearTraining(trained, trained.weights, output="exact")._linear
    tilt = torch.linspace(-1, 1, trained.size, dtype=float64)
    found = minimise(linear, split.retain, ridge=0.7, tilt=tilt, tolerance=1e-11)
    assert found.failure == ""
    g = torch.func.grad(lambda w: linear.losses(*inputs(split.retain), w).sum())(found.weights)
    torch.testing.assert_close(g + 0.7 * (found.weights - trained.anchor), tilt, rtol=0, atol=1e-8)
    stopped = minimise(linear, split.retain, ridge=0.7, tilt=tilt, tolerance=1e-11, max_steps=1)
    assert "The gradient must fall to 1e-11 of its first length" in stopped.failure


def test_a_curvature_from_elsewhere_will_do():
    problem = Ridge(1)
    linear = LinearTraining(problem.trained, problem.trained.weights, solver=Auto(tolerance=1e-12))
    g_f, g_r = linear.slope(problem.split.forget), linear.slope(problem.split.retain)
    b = removal_gradient(g_f, g_f + g_r, len(problem.split.forget), len(problem.data))
    J, n = problem.jacobian(problem.split.retain), len(problem.split.retain)
    H = LowRankPlusRidge.dense(J.T @ J + n * problem.weight_decay * torch.eye(J.shape[1], dtype=float64))
    torch.testing.assert_close(problem.trained.weights + respond(H, b), problem.retrained, rtol=0, atol=1e-8)


@given(seed=seeds, strength=st.sampled_from([0.1, 3.0, 30.0]))
@settings(max_examples=8, deadline=None)
def test_the_published_formula_is_wrong_for_a_linear_network_and_ours_is_not(seed, strength):
    problem = Ridge(seed, rows=24, gone=3, inputs=30, outputs=1)
    x, y = problem.data.source.fetch(problem.data.rows)
    assert isinstance(x, Tensor)
    problem.data = Data.of((strength * x, y))
    problem.split = Split(forget=problem.data.select([0, 1, 2]), kept=problem.data.select(range(3, 24)))
    trained = problem.any.at(problem.optimum(problem.data))
    retrained = problem.optimum(problem.split.retain)
    true = retrained - trained.weights
    about = NTK(variant="published", solver=Auto(tolerance=1e-12))(trained, problem.split)
    raw = (about.mean - trained.weights) / about.diagnostics["ntk"]["scale"]
    ours = NTK(damping=0.0, solver=Auto(tolerance=1e-12))(trained, problem.split).mean
    assert (ours - retrained).norm() < 1e-6 * true.norm()
    assert (about.mean - retrained).norm() > 0.1 * true.norm()
    if strength > 1:
        assert raw.norm() < 0.7 * true.norm()
    assert "for comparison only" in about.diagnostics["assumed"][0]


def test_the_published_variant_follows_the_published_code():
    trained, split = classifier(7)
    w, lam = trained.weights, 0.05

    def u(data: Data) -> Tensor:
        x, y = inputs(data)
        G = torch.func.jacrev(lambda v: trained.outputs(x, v))(w).reshape(-1, trained.size)
        f0_minus_y = (trained.outputs(x).softmax(1) - nn.functional.one_hot(y, 3)).reshape(-1)
        theta = G @ G.T + len(data) * lam * torch.eye(len(G), dtype=float64)
        return -G.T @ torch.linalg.solve(theta, f0_minus_y)

    delta = u(split.retain) - u(split.whole)
    m = w - trained.anchor - u(split.retain)
    c = delta @ m / delta.norm() / m.norm()
    norm = delta.norm() + 2 * c.abs() * m.norm()
    for form in ("dual", "primal"):
        got = NTK(variant="published", solver=tight(form, 1e-12))(trained, split)
        torch.testing.assert_close(got.mean, w + delta / delta.norm() * norm, rtol=1e-7, atol=1e-9)


def test_settings_out_of_range_are_named():
    with pytest.raises(SettingError, match=r"`NTK.damping` must be zero or positive, but got -1"):
        NTK(damping=-1.0)
    wrong = NTK()
    object.__setattr__(wrong, "output", "x")  # past the type check, which only tests have
    with pytest.raises(SettingError, match=r"`NTK.output` must be one of 'identity', 'softmax', 'exact', but got 'x'"):
        wrong.__post_init__()
    with pytest.raises(SettingError, match="both choose the length of the step"):
        NTK(trapezium=True, calibrate="holdout")
    trained, split = classifier(0)
    unknown = Trained.of(trained.module(), weight_decay=0.0)
    with pytest.raises(NeedError, match="needs the weights training began with"):
        NTK(linearised="start")(unknown, split)
    with pytest.raises(SettingError, match="divides by the ridge, which must be positive, but is 0"):
        NTK(solver=Dual(), damping=0.0)(unknown, split)
    with pytest.raises(NeedError, match="needs the retained data"):
        NTK()(trained, Split(forget=split.forget))


def test_what_is_not_known_is_said():
    trained, split = classifier(0)
    bare = NTK()(Trained.of(trained.module()), split)
    assert "the decay is not known" in bare.diagnostics["assumed"][0]
    half = NTK()(Trained.of(trained.module(), weight_decay=0.1), split)
    assert "the start is not known" in half.diagnostics["assumed"][0]
    assert NTK()(trained, split).diagnostics["assumed"] == []
    rough = NTK(solver=CG(max_iterations=2, tolerance=1e-12))(trained, split)
    assert "The residual must fall to 1e-12" in rough.diagnostics["assumed"][0]
    assert "only up to a residual" in rough.diagnostics["lost"][0]


def test_the_cheaper_form_follows_the_count_of_operations():
    wide = Trained.of(nn.Conv2d(1, 8, 3, padding=1))
    few = Trained.of(nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.AvgPool2d(32), nn.Flatten(), nn.Linear(16, 2)))
    images = Data.of((torch.zeros(40, 3, 32, 32), torch.zeros(40, dtype=torch.long)))
    # F/P is in the thousands for shared weights and two for dense ones: N < F(6I − 2C − 1)/(C²P) decides.
    assert cheaper_form(few, images) == "dual"
    dense = Trained.of(nn.Linear(50, 10))
    assert cheaper_form(dense, Data.of((torch.zeros(40, 50), torch.zeros(40, dtype=torch.long)))) == "primal"
    many = Data.of((torch.zeros(300, 1, 8, 8), torch.zeros(300, dtype=torch.long)))
    assert cheaper_form(wide, many) == "primal"  # 300 rows of 512 outputs: beyond what is ever made dense


def test_a_preconditioner_saves_products_and_changes_nothing_else():
    trained, split = classifier(4)
    b = torch.randn(trained.size, dtype=float64, generator=torch.Generator().manual_seed(1))
    plain, helped = (
        solve_response(
            trained, split.retain, b, ridge=1e-3, solver=CG(tolerance=1e-9, max_iterations=2000, precondition=r)
        )
        for r in (0, 20)
    )
    torch.testing.assert_close(plain.x, helped.x, rtol=1e-5, atol=1e-6)
    assert helped.iterations < plain.iterations


def test_a_small_rank_reports_what_it_misses():
    trained, split = classifier(4)
    b = torch.randn(trained.size, dtype=float64, generator=torch.Generator().manual_seed(1))
    full, small = (solve_response(trained, split.retain, b, ridge=0.1, solver=LowRank(rank=r)) for r in (10_000, 2))
    assert full.residual < 1e-8 < small.residual


def test_a_damping_without_decay_is_said():
    """Without decay the step was up to nine tenths short along flat directions, and nothing was assumed."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=draw, dtype=float64) * torch.logspace(0, -2, 5, dtype=float64)
    y = torch.randn(60, 1, generator=draw, dtype=float64)
    w, truth = (torch.linalg.lstsq(x[k:], y[k:]).solution.flatten() for k in (0, 3))
    data = Data.of((x, y))
    split = Split(forget=data.select(range(3)), kept=data.select(range(3, 60)))
    model = nn.Linear(5, 1, bias=False).double()
    for decay in (0.0, 1e-9):
        trained = Trained.of(model, SquaredError(), weight_decay=decay, init=0 * w).at(w)
        found = NTK()(trained, split)
        off = float((found.mean - truth).norm() / (truth - w).norm())
        assert (off > 0.1) == (decay == 0)
        assert any("training had no decay" in text for text in found.diagnostics.assumed) == (decay == 0)
