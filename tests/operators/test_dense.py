"""Functions of small matrices against torch's own and against gradient flow itself."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spotlessnet.core.errors import MismatchError, NumericsError, ResourceError, SettingError
from spotlessnet.operators.dense import (
    clamp_eigenvalues,
    eigenbasis,
    symmetric_exp,
    symmetric_power,
    undo_and_redo,
)


def definite(n: int, seed: int, least: float = 0.1) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    M = torch.randn(n, n, generator=g, dtype=torch.float64) / n**0.5
    return M @ M.T + least * torch.eye(n, dtype=torch.float64)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 8), time=st.floats(-2, 2))
@settings(max_examples=25, deadline=None)
def test_exponential_against_torch(seed, n, time):
    A = definite(n, seed)
    torch.testing.assert_close(symmetric_exp(A, time), torch.linalg.matrix_exp(A * time))


@given(seed=st.integers(0, 10**6), n=st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_powers(seed, n):
    A = definite(n, seed)
    inverse = torch.linalg.inv(A)
    torch.testing.assert_close(torch.linalg.matrix_power(symmetric_power(A, -0.5), 2), inverse)
    torch.testing.assert_close(torch.linalg.matrix_power(symmetric_power(A, -0.25), 4), inverse)
    torch.testing.assert_close(torch.linalg.matrix_power(symmetric_power(A, 0.5), 2), A)


def test_the_root_of_a_semi_definite_matrix_exists_but_its_inverse_does_not():
    v = torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(symmetric_power(v.T @ v, 0.5), v.T @ v / 3, atol=1e-7, rtol=0)
    with pytest.raises(NumericsError, match=r"power -0.5 needs positive eigenvalues, but the least is .*Add a ridge"):
        symmetric_power(v.T @ v, -0.5)
    with pytest.raises(NumericsError, match=r"power 0\.5 needs positive eigenvalues, but the least is -1"):
        symmetric_power(torch.diag(torch.tensor([-1.0, 1.0])), 0.5)


def test_clamp_moves_only_what_lies_outside():
    A = torch.diag(torch.tensor([-2.0, 0.5, 3.0], dtype=torch.float64))
    expected = torch.diag(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    torch.testing.assert_close(clamp_eigenvalues(A, least=0.0, most=1.0), expected)
    inside = definite(5, 0)
    torch.testing.assert_close(clamp_eigenvalues(inside, least=0.0), inside)


@given(seed=st.integers(0, 10**6), time=st.floats(0.1, 3))
@settings(max_examples=15, deadline=None)
def test_undo_and_redo_against_torch(seed, time):
    A, B = definite(5, seed), definite(5, seed + 1)
    expected = torch.linalg.matrix_exp(-B * time) @ torch.linalg.matrix_exp(A * time)
    torch.testing.assert_close(undo_and_redo(A, B, time), expected)


def test_undo_and_redo_turns_one_gradient_flow_into_the_other():
    A, B, time = definite(4, 3), definite(4, 4), 1.3
    start = torch.randn(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    steps = 20_000
    here = there = start
    for _ in range(steps):
        here, there = here - time / steps * (A @ here), there - time / steps * (B @ there)
    torch.testing.assert_close(undo_and_redo(A, B, time) @ here, there, rtol=1e-3, atol=1e-4)


def test_the_clamped_form_is_the_same_where_both_commute_and_differ_little():
    A = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    B = torch.diag(torch.tensor([0.8, 2.5], dtype=torch.float64))
    torch.testing.assert_close(undo_and_redo(A, B, 2.0, clamp=True), undo_and_redo(A, B, 2.0))


def test_the_clamped_form_never_exceeds_e():
    A, B = 1e4 * definite(5, 1), definite(5, 2)
    with pytest.raises(NumericsError, match="Shorten the time, or use `clamp=True`"):
        undo_and_redo(A, B, 10.0)
    grown = undo_and_redo(A, B, 10.0, clamp=True)
    assert float(torch.linalg.eigvalsh(grown).max()) == pytest.approx(math.e)


def test_what_cannot_be_factored_is_refused():
    with pytest.raises(ResourceError, match=r"at most 3 wide, but this one is 4\. Use products"):
        eigenbasis(torch.eye(4), largest=3)
    with pytest.raises(NumericsError, match="must be symmetric, but differs from its transpose by 1"):
        eigenbasis(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    with pytest.raises(NumericsError, match="dense matrix must be finite"):
        eigenbasis(torch.full((2, 2), math.nan))
    with pytest.raises(MismatchError, match="Matrices of 2 and 3 rows"):
        undo_and_redo(torch.eye(2), torch.eye(3), 1.0)
    with pytest.raises(SettingError, match="`time` must be positive"):
        undo_and_redo(torch.eye(2), torch.eye(2), 0.0)
