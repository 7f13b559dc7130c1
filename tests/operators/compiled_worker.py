"""Compiled products beside dense ones, as JSON: run apart, since the compiler cannot see through checks of shapes."""

import json

import torch
from torch import float64

from spotlessnet.operators.compiled import Compiled
from spotlessnet.operators.gauss_newton import TOGETHER, GaussNewton
from tests.reference import NETWORKS, dense_gauss_newton, problem, random_weights


def worst(name: str) -> float:
    """The largest difference to the dense product, relative to its size."""
    trained, data = problem(name, 3)
    s, draw = random_weights(len(data), 3), torch.Generator().manual_seed(0)
    v = torch.randn(TOGETHER + 1, trained.size, generator=draw, dtype=float64)
    # Fewer rows in the last batch, one vector in the last chunk: both go the plain way.
    plain = GaussNewton(trained, data, sample_weights=s, ridge=0.3, batch_size=max(int((s != 0).sum()) - 1, 1))
    G, truth = Compiled(plain, backend="aot_eager"), v @ dense_gauss_newton(trained, data, s) + 0.3 * v
    gaps = (G.multiply(v) - truth).abs().max(), (G.multiply(v[0]) - truth[0]).abs().max()
    return float(torch.stack(gaps).max() / truth.abs().max())


if __name__ == "__main__":
    print(json.dumps({name: worst(name) for name in sorted(NETWORKS)}))
