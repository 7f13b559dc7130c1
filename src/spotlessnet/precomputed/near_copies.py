"""Rows that nearly copy one that an earlier request forgot, under another label: their request may bring that back.

No retained row lies as close to a forgotten one as its copy does, so none stands in for it here. The copies themselves
do: what a step does to their other labels it does to the forgotten row. Nothing has to be kept of that one.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained

HALF = 0.5
"""A label comes back where less than this share of its loss is left, and less than that of a guess,"""

UNLIKELY = 0.85
"""and where it had more than this share of the loss of a guess: one that was forgotten is not likely. Chosen on the
same sequences: with 1 a fifth fewer near copies were seen."""

ASKED = 0.1
"""The share of a step that retained rows must ask for, where labels come back. Chosen among 0, 0.1, 0.15 and 0.25 on
160 made sequences and 48 of `benchmarks/sequences.py`."""


def labels_back(trained: Trained, step: Float[Tensor, " P"], rows: Data) -> Bool[Tensor, "n C"]:
    """Which labels a step makes likely, at which rows of the request, that are not their own.

    So it must where such a label is right. Where it is that of a near copy which an earlier request forgot, it undoes
    that request; whether what stays asks for it tells the two apart (`asked_for`). None where rows have no single
    class.
    """
    now = trained.predict(rows).double().cpu()
    if not trained.loss.is_classification or now.ndim != 2:
        return torch.zeros(len(rows), 1, dtype=torch.bool)
    after = trained.at(trained.weights + step).predict(rows).double().cpu()
    now, after = -now.log_softmax(dim=1), -after.log_softmax(dim=1)
    others = torch.arange(now.shape[1]) != rows.labels().cpu().long().unsqueeze(1)
    guess = math.log(now.shape[1])
    return others & (now > UNLIKELY * guess) & (after < HALF * now) & (after < guess)


def asked_for(stays: Float[Tensor, " P"], b: Float[Tensor, " P"], step: Float[Tensor, " P"]) -> float:
    r"""The share of a step that retained rows ask for themselves, along it.

    $$-\frac{g_r^\top \delta}{b^\top \delta}$$

    with $g_r$ the slope of what they are trained on and $\delta = H_r^{-1} b$: there their objective, with the
    curvature that the statistics give it, is least along the step. Where training had come to its end it is 1. An
    earlier request that was damped leaves a network that has not come to its end without those rows; where it would go
    on in the other direction, the share is less than nothing, and retraining does not go where the step goes.

    **Arguments:**

    - `stays`: $g_r$, decay included, as a sum.
    - `b`: what the step solves for.
    """
    return -float(stays @ step) / max(float(b @ step), 1e-30)
