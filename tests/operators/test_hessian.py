"""Hessian products against `torch.func.hessian`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64

from spotlessnet.core.errors import MismatchError
from spotlessnet.core.trained import Trained
from spotlessnet.operators.hessian import Hessian, dense_hessian
from tests import reference
from tests.reference import NETWORKS, problem, random_weights


@given(name=st.sampled_from(sorted(NETWORKS)), seed=st.integers(0, 999), batch=st.integers(1, 9))
@settings(max_examples=12, deadline=None)
def test_is_the_dense_hessian(name, seed, batch):
    trained, data = problem(name, seed)
    s = random_weights(len(data), seed)
    v = torch.randn(2, trained.size, generator=torch.Generator().manual_seed(seed), dtype=float64)
    H = Hessian(trained, data, s, ridge=0.3, batch_size=batch)
    truth = v @ reference.dense_hessian(trained, data, s) + 0.3 * v
    torch.testing.assert_close(H.multiply(v), truth)
    torch.testing.assert_close(H.multiply(v[1]), truth[1])


def test_written_out_it_is_symmetric_to_the_bit():
    trained, data = problem("tied", 0)
    H = dense_hessian(trained, data, 0.5, batch_size=3)
    assert torch.equal(H, H.T)
    truth = reference.dense_hessian(trained, data) + 0.5 * torch.eye(trained.size, dtype=float64)
    torch.testing.assert_close(H, truth)


def test_count_times_decay_as_ridge_gives_count_times_the_hessian_of_the_risk():
    trained, data = problem("mlp", 1)
    truth = torch.func.hessian(lambda w: trained.risk(data, w))(trained.weights)
    torch.testing.assert_close(dense_hessian(trained, data, len(data) * trained.known_weight_decay), len(data) * truth)


def test_float32_agrees_with_float64():
    trained, data = problem("residual", 5)
    v = torch.randn(trained.size, generator=torch.Generator().manual_seed(0))
    truth = (reference.dense_hessian(trained, data) @ v.double()).float()
    found = Hessian(Trained.of(trained.module().float()), data).multiply(v)
    torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-4 * float(truth.abs().max()))


def test_vectors_of_another_network_are_refused():
    trained, data = problem("linear", 0)
    with pytest.raises(MismatchError, match=r"v must have shape \(15,\) or \(K, 15\)"):
        Hessian(trained, data).multiply(torch.zeros(4, dtype=float64))
