"""Residuals against rational arithmetic, which shares nothing with them."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlessnet.forgettable.residual import residual, scheme, size_of


def exact(gram: torch.Tensor, cross: torch.Tensor, ridge: int, W: torch.Tensor) -> list[list[Fraction]]:
    """The residual as a fraction, entry by entry."""
    G, C, X = ([[Fraction(v) for v in row] for row in m.tolist()] for m in (gram, cross, W))
    d, columns = W.shape
    return [
        [C[i][c] - sum(G[i][j] * X[j][c] for j in range(d)) - ridge * X[i][c] for c in range(columns)] for i in range(d)
    ]


@pytest.mark.parametrize("halved", [False, True])
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), bits=st.integers(3, 15), weight=st.integers(1, 2**14), ridge=st.integers(1, 2**40)
)
def test_no_residual_is_further_from_the_truth_than_it_says(
    halved: bool, seed: int, bits: int, weight: int, ridge: int
):
    draw = torch.Generator().manual_seed(seed)
    q = torch.randint(-(2**bits) + 1, 2**bits, (12, 7), generator=draw).double()
    gram, cross = weight * (q.T @ q), weight * (q.T @ torch.randint(-9, 9, (12, 2), generator=draw).double())
    W = torch.linalg.solve(gram + ridge * torch.eye(7, dtype=torch.float64), cross)
    with pytest.MonkeyPatch.context() as patch:
        if halved:
            patch.setattr("spotlessnet.forgettable.residual.SPLITTING", -10_000)
        found = residual(gram, cross, ridge, W, size=size_of(gram, ridge))
    true = exact(gram, cross, ridge, W)
    for c in range(2):
        off = [Fraction(found.value[i, c].item()) - true[i][c] for i in range(7)]
        assert math.sqrt(sum(float(o) ** 2 for o in off)) <= float(found.slack[c])
        # Far below what plain float64 would lose in the product.
        assert float(found.slack[c]) <= 2.0**-60 * size_of(gram, ridge) * float(W[:, c].norm()) + 2.0**-52 * float(
            found.value[:, c].norm()
        )


@pytest.mark.parametrize("halved", [False, True])
def test_moments_are_halved_where_they_are_large(halved: bool):
    largest = 2.0**49 if halved else 2.0**20
    cut = scheme(largest, 7 * largest, 7 * largest, 1001, 7, 2)
    assert bool(cut.shift) == halved
