"""Proposition 2 of *Forgetting Outside the Box*: no decay, more weights than equations, against pseudo-inverses."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, float32, float64, nn
from torch.func import jacrev

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, ResourceError
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.ntk import NTK
from spotlessnet.operators import minimum_norm
from spotlessnet.operators.solvers import CG
from tests.methods.problems import classifier

seeds = st.integers(0, 2**31 - 1)


class Wide:
    """A linear network that interpolates: of all weights that fit, those nearest to the start."""

    def __init__(self, seed: int, rows: int = 9, gone: int = 3, inputs: int = 20, outputs: int = 2) -> None:
        g = torch.Generator().manual_seed(seed)
        self.x, self.y = (torch.randn(rows, d, generator=g, dtype=float64) for d in (inputs, outputs))
        self.start = torch.randn(outputs * inputs, generator=g, dtype=float64)
        self.shape = (outputs, inputs)
        data = Data.of((self.x, self.y))
        self.split = Split(forget=data.select(range(gone)), kept=data.select(range(gone, rows)))
        model = nn.Linear(inputs, outputs, bias=False).double()
        network = Trained.of(model, SquaredError(), weight_decay=0.0, init=self.start)
        self.trained = network.at(self.optimum(slice(None)))
        self.retrained = self.optimum(slice(gone, None))
        self.gone = gone

    def optimum(self, rows: slice) -> Tensor:
        x, y, W0 = self.x[rows], self.y[rows], self.start.view(self.shape)
        return (W0 + (torch.linalg.pinv(x) @ (y - x @ W0.T)).T).reshape(-1)


@given(seed=seeds, rows=st.sampled_from([7, 9, 14]))
@settings(max_examples=20, deadline=None)
def test_the_step_is_the_difference_of_pseudo_inverses(seed, rows):
    problem = Wide(seed, rows=rows)
    true = problem.retrained - problem.trained.weights
    for scrub in (NTK(), NTK(output="identity"), NTK(solver=CG(), damping=0.0), NTK(residual="solve")):
        found = scrub(problem.trained, problem.split)
        assert float((found.mean - problem.retrained).norm()) < 1e-9 * float(true.norm())
        assert set(found.diagnostics["ntk"]["solved"]) == {"minimum norm"}
        assert found.diagnostics["assumed"] == []


@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_it_is_the_papers_boxed_form(seed):
    """P ∇f(D_f)ᵀ M V with exact projectors, signs put right, no ridge anywhere."""
    problem = Wide(seed)
    eye = torch.eye(problem.shape[0], dtype=float64)
    J = torch.einsum("ni,oc->noci", problem.x, eye).reshape(-1, problem.trained.size)
    C, k = problem.shape[0], problem.gone
    J_f, J_r, e = J[: k * C], J[k * C :], problem.y.reshape(-1) - J @ problem.start
    rr, rf, ff = J_r @ J_r.T, J_r @ J_f.T, J_f @ J_f.T
    P = torch.eye(J.shape[1], dtype=float64) - J_r.T @ torch.linalg.solve(rr, J_r)
    M = torch.linalg.inv(ff - rf.T @ torch.linalg.solve(rr, rf))
    V = -e[: k * C] + rf.T @ torch.linalg.solve(rr, e[k * C :])
    step = NTK()(problem.trained, problem.split).mean - problem.trained.weights
    torch.testing.assert_close(step, P @ J_f.T @ M @ V, rtol=0, atol=1e-8)


@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_off_the_optimum_it_is_its_formula_on_dense_matrices(seed):
    problem = Wide(seed)
    nudge = torch.randn(problem.trained.size, generator=torch.Generator().manual_seed(seed), dtype=float64)
    away = problem.trained.at(problem.trained.weights + 0.1 * nudge)
    found = NTK()(away, problem.split).mean - away.weights
    x, y, k, N = problem.x, problem.y, problem.gone, len(problem.x)
    slopes = torch.einsum("no,ni->noi", x @ away.weights.view(problem.shape).T - y, x).reshape(N, -1)
    b = slopes[:k].sum(0) - k / N * slopes.sum(0)
    H = torch.kron(torch.eye(problem.shape[0], dtype=float64), x[k:].T @ x[k:])
    G = torch.kron(torch.eye(problem.shape[0], dtype=float64), x.T @ x)
    back, v = torch.linalg.pinv(H, hermitian=True), away.weights - problem.start
    seen = torch.linalg.pinv(G, hermitian=True) @ (G @ v)
    torch.testing.assert_close(found, back @ b - (seen - back @ (H @ v)), rtol=0, atol=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_what_training_wrote_where_no_row_looks_stays(seed):
    """It was taken back to the start, so that a bent network came out further from retraining than it had been."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 60), nn.Tanh(), nn.Linear(60, 2)).double()
    x, y = torch.randn(8, 12, dtype=float64), torch.randn(8, 2, dtype=float64)
    start = Trained.of(model, SquaredError(), weight_decay=0.0, init=model)

    def fitted(rows: slice) -> Tensor:
        w = start.weights
        for _ in range(400):
            w = w - 0.03 * jacrev(lambda w: 0.5 * (start.outputs(x[rows], w) - y[rows]).square().sum())(w)
        return w

    trained, retrained = start.at(fitted(slice(None))), fitted(slice(3, None))
    data = Data.of((x, y))
    found = NTK()(trained, Split(forget=data.select(range(3)), kept=data.select(range(3, 8)))).mean
    J = jacrev(lambda w: trained.outputs(x, w).reshape(-1))(trained.weights)
    step = found - trained.weights
    assert float((step - torch.linalg.pinv(J) @ (J @ step)).norm()) < 1e-8 * float(step.norm())
    assert float((found - retrained).norm()) < float((trained.weights - retrained).norm())
    shown = trained.at(found).outputs(x[3:]) - y[3:]
    assert float(shown.norm()) < 0.12 * float(y[3:].norm())


def test_single_precision_keeps_its_digits():
    problem = Wide(1)
    data = Data.of((problem.x.float(), problem.y.float()))
    split = Split(forget=data.select(range(3)), kept=data.select(range(3, 9)))
    single = Trained.of(problem.trained.module().float(), SquaredError(), weight_decay=0.0, init=problem.start.float())
    found = NTK()(single, split).mean
    assert found.dtype == float32
    step = problem.retrained - problem.trained.weights
    assert float((found.double() - problem.retrained).norm()) < 1e-5 * float(step.norm())


def test_a_bent_network_says_how_far_it_departs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    x, y = torch.randn(8, 4, dtype=float64), torch.randn(8, 1, dtype=float64)
    trained = Trained.of(model, SquaredError(), weight_decay=0.0, init=model)
    trained = trained.at(trained.weights + 5 * torch.randn_like(trained.weights))
    data = Data.of((x, y))
    found = NTK()(trained, Split(forget=data.select([0, 1]), kept=data.select(range(2, 8)))).diagnostics
    assert found["ntk"]["drift"] > 0.2
    assert "from the linear picture on the forgotten rows" in found["assumed"][0]


def test_what_cannot_be_had_is_refused_or_noted(monkeypatch):
    problem = Wide(2)
    with pytest.raises(NeedError, match="nearest to where training began, which needs `start`"):
        NTK()(replace(problem.trained, init=None), problem.split)
    with pytest.raises(NeedError, match='needs an `output` other than "exact"'):
        NTK(output="exact")(problem.trained, problem.split)
    unknown = NTK()(replace(problem.trained, weight_decay=None), problem.split).diagnostics
    assert any("12 equations leave the other of 40 weights free" in text for text in unknown["assumed"])
    curved, split = classifier(0, weight_decay=0.0)
    few = Split(forget=split.forget, kept=split.retain.select(range(4)))
    assert any("equations leave" in text for text in NTK()(curved, few).diagnostics["assumed"])
    monkeypatch.setattr(minimum_norm, "DENSE_LIMIT", 11)
    with pytest.raises(ResourceError, match=r"at most 11 rows times outputs, but there are 12\. Give a decay"):
        NTK()(problem.trained, problem.split)
