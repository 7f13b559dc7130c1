"""The formulas of forward mode against dense Jacobians, in which they have no part, and that they are taken at all."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn
from torch.func import jacrev, jvp
from torch.nn import functional

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained
from spotlessnet.operators import forward_mode
from spotlessnet.operators.forward_mode import Attention, FewerPasses, LayerNorm, Linear
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.jacobian import Jacobian, as_function
from tests.reference import dense_gauss_newton

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 10), st.sampled_from([1, 2]), st.integers(1, 4))
"""Rows, positions, heads, width of a head."""

KINDS = ("plain", "scaled", "causal", "masked", "across")


class Mixing(nn.Module):
    """A layer of a transformer that has everything once: norms and products with and without weights and biases."""

    def __init__(self, heads: int, width: int, kind: str) -> None:
        super().__init__()
        self.heads, self.kind, all_heads = heads, kind, heads * width
        self.norm, self.bare = nn.LayerNorm(all_heads), nn.LayerNorm(all_heads, elementwise_affine=False)
        self.parts = nn.ModuleList(nn.Linear(all_heads, all_heads, bias=i != 1) for i in range(4))
        self.head = nn.Linear(all_heads, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x + x.sin())
        q, k, v = (part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.parts[:3])
        more: dict[str, Any] = {}
        if self.kind == "scaled":
            more = {"scale": 0.3}
        elif self.kind == "causal":
            more = {"is_causal": True}
        elif self.kind == "masked":
            more = {"attn_mask": torch.ones(len(x), 1, 1, x.shape[1], dtype=torch.bool)}
            more["attn_mask"][..., 1:] = False
        elif self.kind == "across":
            q = q[:, :, :1]
        mixed = functional.scaled_dot_product_attention(q, k, v, **more).transpose(1, 2).flatten(2)
        return self.head(self.bare(x[:, : mixed.shape[1]] + self.parts[3](mixed))[:, 0])


def problem(shape, kind, seed=0, dtype=float64):
    rows, positions, heads, width = shape
    torch.manual_seed(seed)
    trained = Trained.of(Mixing(heads, width, kind).to(dtype), weight_decay=0.0)
    x = torch.randn(rows, positions, heads * width, dtype=dtype)
    return trained, Data.of((x, torch.randint(3, (rows,)))), torch.randn(trained.size, dtype=dtype)


@given(shape=SHAPES, kind=st.sampled_from(KINDS), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_is_the_dense_jacobian_times_a_vector(shape, kind, seed):
    trained, data, v = problem(shape, kind, seed)
    f = as_function(trained, data.fetch(data.rows).x)
    with FewerPasses():
        outputs, moved = jvp(f, (trained.weights,), (v,))[:2]
    torch.testing.assert_close(outputs, f(trained.weights))
    torch.testing.assert_close(moved, jacrev(f)(trained.weights) @ v, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_takes_the_formulas_where_it_may(kind, monkeypatch):
    taken = []
    for one in (Linear, LayerNorm, Attention):
        real = one.jvp
        monkeypatch.setattr(one, "jvp", staticmethod(lambda *a, real=real, one=one: taken.append(one) or real(*a)))  # type: ignore[func-returns-value]
    trained, data, v = problem((2, 3, 2, 2), kind)
    with FewerPasses():
        jvp(as_function(trained, data.fetch(data.rows).x), (trained.weights,), (v,))
    assert [taken.count(one) for one in (Linear, LayerNorm)] == [5, 1]
    assert taken.count(Attention) == (kind not in ("causal", "masked"))


def test_inputs_and_frozen_weights_that_do_not_move_stand_still():
    layer, x = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=float64)
    moved = torch.randn(2, dtype=float64)
    with FewerPasses():
        found = jvp(lambda b: functional.linear(x, layer.weight.detach(), b), (layer.bias.detach(),), (moved,))[1]
    torch.testing.assert_close(found, moved.expand(4, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_in_half_precision_no_further_off_than_torch_itself(kind):
    trained, data, v = problem((8, 9, 2, 8), kind, dtype=torch.float32)
    f = as_function(trained, data.fetch(data.rows).x)
    truth = jvp(f, (trained.weights,), (v,))[1]
    off = {}
    contexts: dict[str, AbstractContextManager[Any]] = {"torch": nullcontext(), "ours": FewerPasses()}
    for name, context in contexts.items():
        with context, torch.autocast("cpu", torch.bfloat16):
            found = jvp(f, (trained.weights,), (v,))[1]
        off[name] = float((found - truth).norm() / truth.norm())
    assert off["ours"] < max(1.5 * off["torch"], 0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_the_same_with_them(kind, monkeypatch):
    monkeypatch.setattr(forward_mode, "PAYS", ("cpu",))
    trained, data, v = problem((5, 3, 2, 2), kind)
    entered = []
    real = FewerPasses.__enter__
    monkeypatch.setattr(FewerPasses, "__enter__", lambda self: entered.append(1) or real(self))  # type: ignore[func-returns-value]
    G = GaussNewton(trained, data, batch_size=2)
    torch.testing.assert_close(G.multiply(v), dense_gauss_newton(trained, data, torch.ones(5)) @ v)
    assert len(entered) == 3
    f = as_function(trained, data.fetch(data.rows).x)
    torch.testing.assert_close(Jacobian(trained, data).multiply(v), jacrev(f)(trained.weights) @ v)
    assert len(entered) == 4


def test_a_processor_keeps_to_torch():
    with forward_mode.fewer_passes(torch.device("cpu")):
        assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_products_are_those_of_the_processor(kind):
    trained, data, v = problem((5, 3, 2, 2), kind)
    there = GaussNewton(Trained.of(trained.module().cuda(), weight_decay=0.0), data).multiply(v.cuda())
    torch.testing.assert_close(there.cpu(), GaussNewton(trained, data).multiply(v))
