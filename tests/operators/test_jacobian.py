"""Jacobian products over data against the dense Jacobian."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn

import spotlessnet as sn
from spotlessnet.core.errors import MismatchError, NeedError
from spotlessnet.operators.jacobian import Jacobian, jacobian_rows
from tests.reference import CLASSES, NETWORKS, dense_jacobian, problem

EVERY = st.sampled_from(sorted(NETWORKS))


@given(name=EVERY, seed=st.integers(0, 999), batch=st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_products_are_those_of_the_dense_jacobian(name, seed, batch):
    trained, data = problem(name, seed)
    J, g = dense_jacobian(trained, data), torch.Generator().manual_seed(seed)
    v = torch.randn(trained.size, generator=g, dtype=float64)
    u = torch.randn(len(data), CLASSES, generator=g, dtype=float64)
    torch.testing.assert_close(Jacobian(trained, data, batch).multiply(v), J @ v)
    torch.testing.assert_close(Jacobian(trained, data, batch).transpose_multiply(u), torch.einsum("ncp,nc->p", J, u))


@given(name=EVERY, seed=st.integers(0, 999))
@settings(max_examples=9, deadline=None)
def test_dense_rows_agree_with_one_row_at_a_time(name, seed):
    trained, data = problem(name, seed)
    torch.testing.assert_close(jacobian_rows(trained, data.fetch(data.rows).x), dense_jacobian(trained, data))


def test_rows_that_appear_twice_count_twice():
    trained, data = problem("mlp", 0)
    twice = data.select([2, 2, 4])
    u = torch.randn(3, CLASSES, dtype=float64)
    truth = torch.einsum("ncp,nc->p", dense_jacobian(trained, twice), u)
    torch.testing.assert_close(Jacobian(trained, twice, 2).transpose_multiply(u), truth)


def test_vectors_of_another_network_are_refused():
    trained, data = problem("linear", 0)
    with pytest.raises(MismatchError, match=r"v must have shape \(15,\) or \(K, 15\).* but has \(4,\)"):
        Jacobian(trained, data).multiply(torch.zeros(4, dtype=float64))
    with pytest.raises(MismatchError, match="u must have one row per row of data, 5, but has 2"):
        Jacobian(trained, data).transpose_multiply(torch.zeros(2, CLASSES, dtype=float64))


def test_vectors_on_another_device_are_refused():
    trained, data = problem("linear", 0)
    with pytest.raises(MismatchError, match=r"v must lie on the network's device cpu, but lies on meta. Move it"):
        Jacobian(trained, data).multiply(torch.zeros(trained.size, device="meta"))
    with pytest.raises(MismatchError, match="u must lie on the network's device cpu, but lies on meta"):
        Jacobian(trained, data).transpose_multiply(torch.zeros(5, CLASSES, device="meta"))


@pytest.mark.parametrize("method", ["ntk", "newton", "respond-and-finetune"])
def test_a_network_without_forward_derivatives_is_refused_in_words(method):
    torch.manual_seed(0)
    x, y = torch.randint(0, 20, (40, 6)), torch.arange(40) % 3
    model = nn.Sequential(nn.EmbeddingBag(20, 8), nn.Tanh(), nn.Linear(8, 3))
    with pytest.raises(NeedError, match=r"no forward derivative of _embedding_bag, which .* such as `finetune`"):
        sn.unlearn(model, (x, y), forget=range(4), method=method)
