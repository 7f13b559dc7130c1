"""The linearised network against a first-order expansion written out."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64

from spotlessnet.operators.linearised import Linearised
from tests.reference import NETWORKS, dense_jacobian, problem


@given(name=st.sampled_from(sorted(NETWORKS)), seed=st.integers(0, 999))
@settings(max_examples=12, deadline=None)
def test_is_the_first_order_expansion(name, seed):
    trained, data = problem(name, seed)
    x = data.fetch(data.rows).x
    move = torch.randn(trained.size, generator=torch.Generator().manual_seed(seed), dtype=float64)
    truth = trained.outputs(x) + dense_jacobian(trained, data) @ move
    torch.testing.assert_close(Linearised(trained).outputs(x, trained.weights + move), truth)


def test_a_network_linear_in_its_weights_is_itself():
    trained, data = problem("linear", 0)
    x, w = data.fetch(data.rows).x, torch.randn(trained.size, dtype=float64)
    torch.testing.assert_close(Linearised(trained).outputs(x, w), trained.outputs(x, w))


def test_the_module_predicts_and_learns_in_its_weights():
    trained, data = problem("residual", 0)
    x = data.fetch(data.rows).x
    module = Linearised(trained).as_module(trained.weights)
    torch.testing.assert_close(module(x), trained.outputs(x))
    u = torch.randn(5, 3, dtype=float64)
    (module(x) * u).sum().backward()
    truth = torch.einsum("ncp,nc->p", dense_jacobian(trained, data), u)
    torch.testing.assert_close(module.weights.grad, truth)
    assert [name for name, _ in module.named_parameters()] == ["weights"]


def test_the_module_takes_named_inputs():
    trained, data = problem("words", 0)
    x = data.fetch(data.rows).x
    assert isinstance(x, dict)
    module = Linearised(trained).as_module(trained.weights)
    torch.testing.assert_close(module(**x), trained.outputs(x))
