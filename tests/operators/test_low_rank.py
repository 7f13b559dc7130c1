"""Kept eigenbases against dense ones, and a cohort taken out against the dense difference."""

import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from spotlessnet.core.errors import MismatchError, NumericsError, SettingError
from spotlessnet.operators import low_rank as directions
from spotlessnet.operators.downdate import without_cohort
from spotlessnet.operators.low_rank import LowRank, low_rank
from spotlessnet.operators.solve import conjugate_gradient


@dataclass
class Dense:
    """A written-out matrix that counts its products."""

    A: Tensor
    products: int = 0

    @property
    def size(self) -> int:
        return len(self.A)

    def multiply(self, v: Tensor) -> Tensor:
        self.products += len(v)
        return v @ self.A.to(v)


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def symmetric(values: Tensor, seed: int = 0) -> Tensor:
    Q = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator_of(seed), dtype=torch.float64))[0]
    return (Q * values) @ Q.T


def found(A: Tensor, rank: int, seed: int = 0, dtype: torch.dtype = torch.float64, **settings) -> LowRank:
    return low_rank(Dense(A), rank, generator=generator_of(seed), like=torch.empty(0, dtype=dtype), **settings)


def decaying(n: int, lr: float = 1.5) -> Tensor:
    return torch.arange(1, n + 1, dtype=torch.float64) ** -lr


@given(seed=st.integers(0, 10**6), rank=st.integers(1, 20), block=st.integers(1, 20))
@settings(max_examples=15, deadline=None)
def test_top_eigenpairs_of_a_decaying_spectrum(seed, rank, block):
    e = decaying(150)
    A = symmetric(e, seed)
    kept = found(A, rank, seed, block=block)
    U, values = kept.basis, kept.values
    torch.testing.assert_close(U.T @ U, torch.eye(rank, dtype=torch.float64), atol=1e-12, rtol=0)
    truth = (A @ U - U * values).norm(dim=0)
    torch.testing.assert_close(kept.residuals, truth, atol=1e-12, rtol=1e-6)
    # Each Ritz value lies within its residual of an eigenvalue, and none exceeds the eigenvalue of its number.
    assert bool(((values.unsqueeze(1) - e).abs().min(dim=1).values <= truth + 1e-12).all())
    assert bool((values <= e[:rank] + 1e-12).all())
    torch.testing.assert_close(values, e[:rank], atol=0.02, rtol=0)


def test_error_and_remainder_say_what_was_left_out():
    e = decaying(200)
    A = symmetric(e)
    kept = found(A, 20)
    remainder = A - (kept.basis * kept.values) @ kept.basis.T
    assert kept.error == pytest.approx(float(torch.linalg.matrix_norm(remainder, 2)), rel=0.1)
    assert kept.remainder == pytest.approx(float(remainder.trace()), rel=0.1)
    assert math.isnan(found(A, 20, probes=0).remainder)


def test_as_many_products_as_it_says():
    matrix = Dense(symmetric(decaying(100)))
    kept = low_rank(
        matrix, 5, generator=generator_of(0), like=torch.empty(0, dtype=torch.float64), oversample=7, block=4
    )
    assert kept.products == matrix.products == 12 + 4


def test_the_same_generator_gives_the_same_basis():
    A = symmetric(decaying(80))
    assert found(A, 5).basis.equal(found(A, 5).basis)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_of_low_rank_is_found_whole(dtype):
    e = torch.cat([torch.full((12,), 5.0), torch.zeros(60)]).double()  # twelve copies of one eigenvalue
    A = symmetric(e)
    kept = found(A, 12, dtype=dtype)
    assert kept.basis.dtype == dtype
    close = 1e-4 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close((kept.basis * kept.values).double() @ kept.basis.T.double(), A, atol=close, rtol=0)
    assert kept.error < close
    assert abs(kept.remainder) < close


def test_all_of_a_small_matrix():
    A = symmetric(torch.linspace(0.1, 2, 9, dtype=torch.float64))
    kept = found(A, 9)
    torch.testing.assert_close(kept.root @ kept.root.T, A)
    assert kept.error < 1e-12
    assert kept.remainder == 0
    torch.testing.assert_close(
        kept.plus_ridge(0.3).solve(torch.ones(9).double()),
        torch.linalg.solve(A + 0.3 * torch.eye(9, dtype=torch.float64), torch.ones(9).double()),
    )


def test_the_zero_matrix():
    kept = found(torch.zeros(20, 20, dtype=torch.float64), 3)
    assert not kept.values.any()
    torch.testing.assert_close(kept.basis.T @ kept.basis, torch.eye(3, dtype=torch.float64))


def test_as_a_preconditioner_it_saves_iterations():
    A = symmetric(torch.cat([torch.logspace(0, 4, 30), torch.zeros(170)]).double())
    b = torch.randn(200, generator=generator_of(1), dtype=torch.float64)
    kept = found(A, 25)
    plain = conjugate_gradient(lambda v: v @ A, b, damping=0.1, tolerance=1e-8)
    for help_ in (kept.preconditioner(0.1), kept.plus_ridge(0.1)):
        quick = conjugate_gradient(lambda v: v @ A, b, damping=0.1, tolerance=1e-8, preconditioner=help_)
        assert 2 * quick.iterations < plain.iterations
        torch.testing.assert_close(quick.x, plain.x, rtol=1e-4, atol=1e-5)


def test_settings_and_products_are_checked():
    A = symmetric(decaying(10))
    with pytest.raises(SettingError, match="`rank` must lie between 1 and the 10 weights, but got 11"):
        found(A, 11)
    with pytest.raises(SettingError, match="`block` must be at least 1"):
        found(A, 2, block=0)
    with pytest.raises(SettingError, match=r"`ridge` must be positive, but got 0\.0\. A low rank leaves directions"):
        found(A, 2).plus_ridge(0.0)
    with pytest.raises(SettingError, match="`ridge` must be positive"):
        found(A, 2).preconditioner(0.0)
    with pytest.raises(NumericsError, match="product with the matrix must be finite"):
        found(A * math.nan, 2)

    class Narrow(Dense):
        def multiply(self, v: Tensor) -> Tensor:
            return v[:, :3]

    with pytest.raises(MismatchError, match=r"must keep the shape \(10, 10\), but gave \(10, 3\)"):
        low_rank(Narrow(A), 2, generator=generator_of(0))


@dataclass
class Problem:
    """A small classifier with a memorised cohort: Jacobian roots of all rows, gradient of the cohort, ridge."""

    all: Tensor
    cohort: Tensor
    gradient: Tensor
    ridge: float

    @property
    def whole(self) -> Tensor:
        return self.all @ self.all.T

    @property
    def exact(self) -> Tensor:
        eye = torch.eye(len(self.all), dtype=torch.float64)
        return self.whole - self.cohort @ self.cohort.T + self.ridge * eye

    def miss(self, step: Tensor) -> float:
        truth = torch.linalg.solve(self.exact, self.gradient)
        return float((step.double() - truth).norm() / truth.norm())


@cache
def problem(seed: int = 0, N: int = 60, k: int = 6, C: int = 4, weight_decay: float = 1e-3) -> Problem:
    g = generator_of(seed)
    x = torch.randn(N, 10, generator=g, dtype=torch.float64)
    y = (x @ torch.randn(10, C, generator=g, dtype=torch.float64)).argmax(dim=1)
    y[:k] = (y[:k] + 1) % C
    net = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, C)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    optimiser = torch.optim.Adam(net.parameters(), 2e-2, weight_decay=weight_decay)
    for _ in range(600):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    w = {n: p.detach() for n, p in net.named_parameters()}
    parts = jacrev(lambda w: functional_call(net, w, (x,)))(w)
    J = torch.cat([j.reshape(N, C, -1) for j in parts.values()], dim=2)
    p = net(x).softmax(dim=1).detach()
    S = torch.diag_embed(p.sqrt()) - p.unsqueeze(2) * p.sqrt().unsqueeze(1)
    R = torch.einsum("ncp,ncr->pnr", J, S)
    slope = torch.einsum("ncp,nc->p", J[:k], p[:k] - nn.functional.one_hot(y[:k], C))
    return Problem(R.reshape(len(R), -1), R[:, :k].reshape(len(R), -1), slope, (N - k) * weight_decay)


def test_with_everything_kept_the_difference_is_exact():
    it = problem()
    kept = found(it.whole, len(it.all))
    removed = without_cohort(kept, it.cohort, ridge=it.ridge)
    C = removed.curvature
    torch.testing.assert_close(C.multiply(torch.eye(C.size, dtype=torch.float64)), it.exact, atol=1e-10, rtol=0)
    assert it.miss(C.solve(it.gradient)) < 1e-9
    assert C.logdet() == pytest.approx(float(torch.logdet(it.exact)), abs=1e-6)
    assert removed.damped == 0
    assert removed.dropped == 0
    assert removed.least > -1e-12


@pytest.mark.parametrize("seed", range(3))
def test_outside_the_span_matters(seed):
    """Leaving the cohort in is useless, taking it out inside the span only is poor, outside too is near the truth."""
    it = problem(seed)
    kept = found(it.whole, 80)
    eye = torch.eye(len(it.all), dtype=torch.float64)
    left_in = torch.linalg.solve(it.whole + it.ridge * eye, it.gradient)
    projected = kept.basis.T @ it.cohort
    inside = kept.basis @ (kept.values.diag() - projected @ projected.T) @ kept.basis.T + it.ridge * eye
    both = without_cohort(kept, it.cohort, ridge=it.ridge)
    misses = [it.miss(s) for s in (left_in, torch.linalg.solve(inside, it.gradient))]
    misses.append(it.miss(both.curvature.solve(it.gradient)))
    assert misses[0] > 0.8
    assert misses[0] > 5 * misses[1] > 15 * misses[2]
    assert misses[2] < 0.05
    assert both.damped == 0


@given(seed=st.integers(0, 10**6), rank=st.integers(1, 12), width=st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_known_blocks_are_kept_and_the_third_is_the_smallest(seed, rank, width):
    """The model agrees with `H_D - H_f` wherever the eigenbasis knows it, and is never below the ridge."""
    g = generator_of(seed)
    rest = torch.randn(20, 25, generator=g, dtype=torch.float64)
    cohort = torch.randn(20, width, generator=g, dtype=torch.float64)
    H = rest @ rest.T + cohort @ cohort.T
    kept = found(H, rank)
    removed = without_cohort(kept, cohort, ridge=0.5)
    M = removed.curvature.multiply(torch.eye(20, dtype=torch.float64)) - 0.5 * torch.eye(20, dtype=torch.float64)
    truth = H - cohort @ cohort.T
    U = kept.basis
    torch.testing.assert_close(U.T @ M @ U, U.T @ truth @ U, atol=1e-8, rtol=0)
    Q = torch.linalg.qr(cohort - U @ (U.T @ cohort))[0]
    torch.testing.assert_close(U.T @ M @ Q, U.T @ truth @ Q, atol=1e-8, rtol=0)
    assert float(torch.linalg.eigvalsh(M).min()) > -1e-9
    assert float(torch.linalg.eigvalsh(Q.T @ (truth - M) @ Q).min()) > -1e-8
    assert removed.damped == 0


def test_a_cohort_that_was_never_inside_is_reported_and_damped():
    it = problem()
    kept = found(it.whole, 30)
    stranger = 10 * kept.basis[:, :2]
    removed = without_cohort(kept, stranger, ridge=it.ridge)
    assert removed.damped == 2
    assert removed.least == pytest.approx(float(kept.values[1]) - 100)
    values = removed.curvature.values
    assert float(values.min()) >= 0
    assert bool(removed.curvature.solve(it.gradient).isfinite().all())


def test_a_root_found_from_products_does_the_same():
    it = problem()
    kept = found(it.whole, 80)
    same = without_cohort(kept, it.cohort, ridge=it.ridge)
    own = found(it.cohort @ it.cohort.T, 18)
    by_operator = without_cohort(kept, own.root, ridge=it.ridge)
    assert it.miss(by_operator.curvature.solve(it.gradient)) == pytest.approx(
        it.miss(same.curvature.solve(it.gradient)), rel=1e-3
    )


def test_float32_comes_close():
    it = problem()
    kept = found(it.whole, 80, dtype=torch.float32)
    removed = without_cohort(kept, it.cohort.float(), ridge=it.ridge)
    assert removed.curvature.basis.dtype == torch.float32
    exact = without_cohort(found(it.whole, 80), it.cohort, ridge=it.ridge)
    close = it.miss(exact.curvature.solve(it.gradient))
    assert it.miss(removed.curvature.solve(it.gradient.float())) < close + 0.01


def test_removal_checks_its_settings():
    kept = found(symmetric(decaying(10)), 3)
    root = torch.ones(10, 2, dtype=torch.float64)
    with pytest.raises(SettingError, match="`ridge` must be positive"):
        without_cohort(kept, root, ridge=0.0)
    with pytest.raises(MismatchError, match="cohort has 4 weights, but the kept basis 10"):
        without_cohort(kept, root[:4], ridge=1.0)
    with pytest.raises(NumericsError, match="cohort's root must be finite"):
        without_cohort(kept, root * math.nan, ridge=1.0)


def test_long_rows_are_multiplied_and_combined_piece_by_piece(monkeypatch):
    A = symmetric(decaying(50))
    whole = found(A, 5)
    monkeypatch.setattr(directions, "TALL", 0)
    monkeypatch.setattr(directions, "PIECE", 8)  # fifty is no multiple of it
    monkeypatch.setattr(directions, "COLUMNS", {"cpu": 7 * 50})
    again = found(A, 5)
    torch.testing.assert_close(again.values, whole.values)
    torch.testing.assert_close(again.basis @ again.basis.T, whole.basis @ whole.basis.T)
    a, b = (torch.randn(3, 50, generator=generator_of(seed), dtype=torch.float64) for seed in (0, 1))
    torch.testing.assert_close(directions._inner(a, b), a @ b.T)
