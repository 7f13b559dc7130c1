"""Conjugate gradients against dense solves, and each way it can fail."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import cg as scipys
from torch import Tensor

from spotlessnet.core.covariance import Block, Kronecker, LowRankPlusRidge
from spotlessnet.core.errors import MismatchError, NumericsError, SettingError, SolveError
from spotlessnet.core.gaussian import Diagonal
from spotlessnet.operators.solve import conjugate_gradient


def symmetric(values: Tensor, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(len(values), len(values), generator=g, dtype=torch.float64))[0]
    A = (Q * values) @ Q.T
    return 0.5 * (A + A.T)


def right(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spread(n: int, decades: float) -> Tensor:
    return torch.logspace(-decades, 0, n, dtype=torch.float64)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), rows=st.integers(1, 4), decades=st.floats(0, 4))
@settings(max_examples=30, deadline=None)
def test_against_a_dense_solve(seed, n, rows, decades):
    A, b = symmetric(spread(n, decades), seed), right(rows, n, seed=seed)
    found = conjugate_gradient(lambda v: v @ A, b, tolerance=1e-11, max_iterations=2000)
    torch.testing.assert_close(found.x, torch.linalg.solve(A, b.T).T, rtol=1e-5, atol=1e-10 * 10**decades)
    # The difference of b and A x rounds to some 1e-17 of x's size, which grows with the condition number.
    rounding = 1e-14 + 1e-16 * 10**decades
    torch.testing.assert_close(found.residual, (b - found.x @ A).norm(dim=1) / b.norm(dim=1), rtol=1e-3, atol=rounding)
    assert found.converged.all()
    assert not found.failure


def test_a_single_vector_is_given_single_vectors():
    A, b = symmetric(spread(10, 2)), right(10)
    found = conjugate_gradient(lambda v: A.mv(v), b, preconditioner=lambda v: v * 2.0, tolerance=1e-10)
    assert found.residual.shape == found.converged.shape == ()
    torch.testing.assert_close(found.x, torch.linalg.solve(A, b), rtol=1e-6, atol=1e-6)


def test_as_many_iterations_as_scipy():
    A, b = symmetric(spread(60, 3)), right(60)
    count = 0

    def counted(_):
        nonlocal count
        count += 1

    scipys(A.numpy(), b.numpy(), rtol=1e-8, atol=0.0, callback=counted)
    found = conjugate_gradient(lambda v: v @ A, b, tolerance=1e-8)
    assert abs(found.iterations - count) <= 0.1 * count


def test_each_right_hand_side_leaves_when_it_is_done():
    A = symmetric(torch.cat([torch.ones(39, dtype=torch.float64), torch.tensor([9.0], dtype=torch.float64)]))
    top = torch.linalg.eigh(A).eigenvectors[:, -1]
    b = torch.stack([top, right(40), torch.zeros(40, dtype=torch.float64)])
    seen: list[int] = []

    def product(v: Tensor) -> Tensor:
        seen.append(len(v))
        return v @ A

    found = conjugate_gradient(product, b, tolerance=1e-10)
    assert found.iterations == 2
    assert seen == [2, 1, 1, 1]  # two rows, the check of the first, one row, its check
    assert not found.x[2].any()
    assert found.residual[2] == 0


def test_damping_is_added_to_the_matrix():
    A, b = symmetric(spread(20, 2)), right(20)
    found = conjugate_gradient(lambda v: v @ A, b, damping=0.3, tolerance=1e-12)
    torch.testing.assert_close(found.x, torch.linalg.solve(A + 0.3 * torch.eye(20, dtype=torch.float64), b))


def test_a_start_at_the_solution_needs_no_iteration():
    A, b = symmetric(spread(20, 2)), right(2, 20)
    x = torch.linalg.solve(A, b.T).T
    kept = x.clone()
    assert conjugate_gradient(lambda v: v @ A, b, start=x).iterations == 0
    near = conjugate_gradient(lambda v: v @ A, b, start=x + 1e-5)
    far = conjugate_gradient(lambda v: v @ A, b)
    assert near.iterations < far.iterations
    assert x.equal(kept)


def test_objects_with_products_and_preconditioners_with_solves():
    values = torch.cat([torch.logspace(2, 4, 10, dtype=torch.float64), torch.ones(90, dtype=torch.float64)])
    A, b = symmetric(values), right(3, 100)
    plain = conjugate_gradient(lambda v: v @ A, b, tolerance=1e-8, max_iterations=1000)
    e, V = torch.linalg.eigh(A)
    deflation = LowRankPlusRidge(V[:, -10:], e[-10:] - 1, 1.0)
    quick = conjugate_gradient(LowRankPlusRidge.dense(A), b, preconditioner=deflation, tolerance=1e-8)
    assert quick.iterations <= 2 < plain.iterations
    torch.testing.assert_close(quick.x, plain.x, rtol=1e-5, atol=1e-6)


def test_diagonal_and_kronecker_preconditioners():
    scales = torch.logspace(0, 4, 60, dtype=torch.float64)
    A = symmetric(torch.linspace(1, 2, 60, dtype=torch.float64)) * scales.sqrt().outer(scales.sqrt())
    b = right(60)
    plain = conjugate_gradient(lambda v: v @ A, b, tolerance=1e-8, max_iterations=2000)
    quick = conjugate_gradient(lambda v: v @ A, b, preconditioner=Diagonal(A.diagonal()), tolerance=1e-8)
    assert 3 * quick.iterations < plain.iterations
    left, other = symmetric(spread(6, 2), 1), symmetric(spread(10, 2), 2)
    (e, L), (f, R) = torch.linalg.eigh(left), torch.linalg.eigh(other)
    exact = Kronecker((Block(L, R, e.outer(f)),))
    product = torch.kron(left, other)
    assert conjugate_gradient(lambda v: v @ product, b, preconditioner=exact, tolerance=1e-8).iterations <= 2


def test_float32_stops_on_the_true_residual():
    A, b = symmetric(spread(50, 2)).float(), right(3, 50).float()
    found = conjugate_gradient(lambda v: v @ A, b, tolerance=1e-4)
    truth = (b.double() - found.x.double() @ A.double()).norm(dim=1) / b.double().norm(dim=1)
    assert found.x.dtype == torch.float32
    assert float(truth.max()) <= 1.1e-4


def test_drift_of_the_recurrence_is_not_believed():
    """Beyond what float32 holds, the recurrence goes on falling while the truth stays: the truth must be told."""
    A, b = symmetric(spread(100, 4)).float(), right(2, 100).float()
    with pytest.raises(
        SolveError, match=r"the true one stays at .*: float32 gives no more\. Loosen `tolerance`, solve"
    ):
        conjugate_gradient(lambda v: v @ A, b, tolerance=1e-7, max_iterations=5000)
    found = conjugate_gradient(lambda v: v @ A, b, tolerance=1e-7, max_iterations=5000, on_failure="return")
    truth = (b.double() - found.x.double() @ A.double()).norm(dim=1) / b.double().norm(dim=1)
    torch.testing.assert_close(found.residual, truth, rtol=0.5, atol=0)
    assert not found.converged.any()


def test_negative_curvature_is_named_with_the_damping_it_needs():
    A = symmetric(torch.tensor([-0.5, 1.0, 2.0, 3.0], dtype=torch.float64))
    v = torch.linalg.eigh(A).eigenvectors[:, 0]
    with pytest.raises(
        SolveError, match=r"has curvature -0\.5\. Raise the damping \(now 0\) by more than 0\.5, or use"
    ):
        conjugate_gradient(lambda p: p @ A, v)
    assert conjugate_gradient(lambda p: p @ A, v, damping=0.6).converged


def test_negative_curvature_stops_only_its_own_row():
    A = torch.diag(torch.tensor([-0.5, 1.0, 2.0], dtype=torch.float64))
    b = torch.eye(3, dtype=torch.float64)
    found = conjugate_gradient(lambda p: p @ A, b, on_failure="return")
    assert found.converged.tolist() == [False, True, True]
    assert found.residual.tolist() == [1.0, 0.0, 0.0]
    assert "curvature -0.5" in found.failure


def test_a_singular_matrix_is_named():
    A = torch.diag(torch.tensor([0.0, 1.0], dtype=torch.float64))
    with pytest.raises(SolveError, match=r"has curvature 0\. Raise the damping"):
        conjugate_gradient(lambda p: p @ A, torch.tensor([1.0, 0.0], dtype=torch.float64))


def test_too_few_iterations_are_named():
    A, b = symmetric(spread(50, 4)), right(2, 50)
    with pytest.raises(
        SolveError, match=r"after 3 iterations\. Allow more \(`max_iterations`\), give a preconditioner"
    ):
        conjugate_gradient(lambda v: v @ A, b, max_iterations=3)
    found = conjugate_gradient(lambda v: v @ A, b, max_iterations=3, on_failure="return")
    assert found.iterations == 3
    torch.testing.assert_close(found.residual, (b - found.x @ A).norm(dim=1) / b.norm(dim=1))
    assert "after 3 iterations" in found.failure


def test_a_bad_preconditioner_and_a_bad_product_are_named():
    A, b = symmetric(spread(5, 1)), right(5)
    with pytest.raises(SolveError, match=r"preconditioner must be positive definite, but rᵀM⁻¹r = -"):
        conjugate_gradient(lambda v: v @ A, b, preconditioner=lambda v: -v)
    with pytest.raises(SolveError, match="product with the matrix must be finite"):
        conjugate_gradient(lambda v: v * math.nan, b)
    with pytest.raises(MismatchError, match=r"product with \(1, 5\) must keep that shape, but gave \(1, 3\)"):
        conjugate_gradient(lambda v: v[:3], b)
    with pytest.raises(MismatchError, match=r"preconditioner must return \(1, 5\), but gave \(1, 3\)"):
        conjugate_gradient(lambda v: v @ A, b, preconditioner=lambda v: v[:3])


def test_settings_are_checked():
    b = right(3)
    with pytest.raises(SettingError, match="`on_failure` must be one of 'raise', 'return'"):
        conjugate_gradient(lambda v: v, b, on_failure="warn")
    with pytest.raises(SettingError, match="`damping` must be zero or positive"):
        conjugate_gradient(lambda v: v, b, damping=-1.0)
    with pytest.raises(SettingError, match="`tolerance` must be positive"):
        conjugate_gradient(lambda v: v, b, tolerance=0.0)
    with pytest.raises(SettingError, match="must be at least 1, but got 0 and 50"):
        conjugate_gradient(lambda v: v, b, max_iterations=0)
    with pytest.raises(NumericsError, match="right-hand side must be finite"):
        conjugate_gradient(lambda v: v, b * math.nan)
    with pytest.raises(
        MismatchError, match=r"first guess must lie beside the right-hand side, \(3,\) on cpu, but is \(2,\)"
    ):
        conjugate_gradient(lambda v: v, b, start=right(2))


def test_enough_stops_where_products_bring_nothing_more():
    """Half the spectrum is a tail that hardly lowers the objective: the step is there long before the residual is."""
    e = torch.cat([torch.logspace(0, 1, 20), torch.logspace(-6, -3, 180)]).double()
    Q = torch.linalg.qr(torch.randn(200, 200, generator=torch.Generator().manual_seed(0)).double())[0]
    A = (Q * e) @ Q.T
    b = A @ torch.randn(200, generator=torch.Generator().manual_seed(1)).double()
    exact = torch.linalg.solve(A, b)

    def height(x):
        return float(0.5 * x @ A @ x - b @ x)

    def solved(enough):
        return conjugate_gradient(
            lambda v: v @ A, b, enough=enough, tolerance=1e-12, max_iterations=300, on_failure="return"
        )

    whole, early = solved(0.0), solved(1e-4)
    assert early.iterations < 0.5 * whole.iterations
    assert height(early.x) < 0.999 * height(exact)  # negative: all but a thousandth was gained
    assert "brought less than" in early.failure
    torch.testing.assert_close(early.residual, (b - A @ early.x).norm() / b.norm())
    # Stopped on purpose, so nothing is raised; and each right-hand side on its own.
    both = conjugate_gradient(lambda v: v @ A, torch.stack([b, torch.zeros_like(b)]), enough=1e-4, tolerance=1e-12)
    torch.testing.assert_close(both.x[0], early.x)
    assert not both.x[1].any()


def test_enough_leaves_a_solve_alone_that_converges_at_once():
    A = torch.diag(torch.linspace(1, 2, 30)).double()
    found = conjugate_gradient(lambda v: v @ A, torch.ones(30).double(), enough=1e-4, tolerance=1e-6)
    assert bool(found.converged)
    assert not found.failure
