"""The tangent kernel against `J J'` written out, and its factor against dense solutions."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64

from spotlessnet.core.errors import DataError, MismatchError, NumericsError, SettingError, SolveError
from spotlessnet.core.trained import Trained
from spotlessnet.operators import kernel as kernel_file
from spotlessnet.operators.factor import factor
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.per_sample import Plan
from tests.reference import CLASSES, NETWORKS, dense_jacobian, problem

EVERY = st.sampled_from(sorted(NETWORKS))


@given(
    name=EVERY,
    seed=st.integers(0, 999),
    batch=st.integers(1, 9),
    memory=st.sampled_from([None, 1e-6]),
    columns=st.sampled_from([2**14, 8]),
    least=st.sampled_from([125, 2]),
)
@settings(max_examples=18, deadline=None)
def test_is_the_dense_kernel_and_symmetric_to_the_bit(name, seed, batch, memory, columns, least):
    trained, data = problem(name, seed, rows=6)
    J = dense_jacobian(trained, data).flatten(0, 1)
    with patch.object(kernel_file, "COLUMNS", columns), patch.object(kernel_file, "LEAST", least):
        theta = kernel(trained, data, batch_size=batch, memory=memory)
    torch.testing.assert_close(theta, J @ J.T)
    assert torch.equal(theta, theta.T)


@given(name=EVERY, seed=st.integers(0, 999), memory=st.sampled_from([None, 1e-6]))
@settings(max_examples=12, deadline=None)
def test_cross_blocks(name, seed, memory):
    trained, data = problem(name, seed)
    a, b = data.select([0, 2, 4]), data.select([3, 1, 2, 2])
    J = dense_jacobian(trained, data)
    truth = J[[0, 2, 4]].flatten(0, 1) @ J[[3, 1, 2, 2]].flatten(0, 1).T
    torch.testing.assert_close(kernel(trained, a, b, batch_size=3, memory=memory), truth)


def test_row_index_is_row_times_outputs_plus_output():
    trained, data = problem("mlp", 0)
    J = dense_jacobian(trained, data)
    assert float(kernel(trained, data)[4 * CLASSES + 1, 2 * CLASSES]) == pytest.approx(float(J[4, 1] @ J[2, 0]))


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_layer_by_layer_and_by_vmap_are_the_same(name):
    trained, data = problem(name, 3)
    fast = kernel(trained, data, batch_size=4)
    with patch.object(kernel_file, "plan", lambda trained, x: Plan([], list(trained.names))):
        torch.testing.assert_close(fast, kernel(trained, data, batch_size=4))


def test_float32_agrees_with_float64():
    trained, data = problem("residual", 5)
    found = kernel(Trained.of(trained.module().float()), data)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, kernel(trained, data).float(), rtol=1e-4, atol=1e-4)


def test_a_single_row():
    trained, data = problem("residual", 1)
    J = dense_jacobian(trained, data.select([3]))[0]
    torch.testing.assert_close(kernel(trained, data.select([3])), J @ J.T)


def test_the_factor_solves_in_float64():
    trained, data = problem("mlp", 0)
    theta, b = kernel(trained, data), torch.randn(15, 2, dtype=float64)
    made = factor(theta, ridge=0.5)
    shifted = theta + 0.5 * torch.eye(15, dtype=float64)
    torch.testing.assert_close(made.solve(b), torch.linalg.solve(shifted, b))
    torch.testing.assert_close(made.solve(b[:, 0]), torch.linalg.solve(shifted, b[:, 0]))
    assert made.logdet() == pytest.approx(float(torch.logdet(shifted)))
    assert made.jitter == 0
    single = factor(theta.float(), ridge=0.5)
    assert single.cholesky.dtype == float64
    assert single.solve(b.float()).dtype == torch.float32


def test_a_singular_kernel_gets_the_least_jitter_and_says_so():
    theta = torch.ones(4, 4, dtype=float64)
    with pytest.warns(UserWarning, match="was not positive definite; 1e-10 of its mean diagonal was added"):
        made = factor(theta)
    assert made.jitter == 1e-10


def test_an_ill_conditioned_kernel_says_so():
    theta = torch.diag(torch.tensor([1.0, 1e-14], dtype=float64))
    with pytest.warns(UserWarning, match=r"condition number is at least 1.0e\+14"):
        assert factor(theta).jitter == 0


def test_errors_say_what_to_do():
    trained, data = problem("linear", 0)
    with pytest.raises(SolveError, match=r"least eigenvalue is -1. Give a ridge above 1, leave out repeated rows"):
        factor(torch.diag(torch.tensor([2.0, -1.0])))
    with pytest.raises(MismatchError, match=r"must be square, but has shape \(2, 3\)"):
        factor(torch.zeros(2, 3))
    with pytest.raises(SettingError, match="`ridge` must be zero or positive, but got -1"):
        factor(torch.eye(2), ridge=-1.0)
    with pytest.raises(NumericsError, match="The kernel must be finite, but 1 of 4 entries"):
        factor(torch.tensor([[1.0, 0.0], [0.0, float("nan")]]))
    with pytest.raises(MismatchError, match="kernel of 2 rows cannot be solved for 3 entries"):
        factor(torch.eye(2)).solve(torch.zeros(3))
    with pytest.raises(DataError, match="A kernel needs rows on both sides"):
        kernel(trained, data, data.select([]))
    with pytest.raises(SettingError, match="`memory` must be positive, but got 0"):
        kernel(trained, data, memory=0.0)
