"""How steep the training loss is at most: what says how long a step may be."""

import math

import torch

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gauss_newton import GaussNewton

PRODUCTS = 4
"""Products with the curvature: power iteration."""


def largest_curvature(pupil: Trained, data: Data, seed: int = 0, *, keep: bool = True) -> float:
    r"""The largest eigenvalue of $\frac1n \sum_i J_i^\top H_i J_i$, the Gauss-Newton matrix of the mean loss.

    **Arguments:**

    - `keep`: as in `GaussNewton`: faster, and memory grows with every row.
    """
    G = GaussNewton(pupil, data, keep=keep, batch_size=len(data))
    v = torch.randn(pupil.size, generator=torch.Generator().manual_seed(seed)).to(pupil.weights)
    size = 0.0
    for _ in range(PRODUCTS):
        v = G.multiply(v / v.norm()) / len(data)
        size = float(v.norm())
        if not 0 < size < math.inf:
            return size
    return size
