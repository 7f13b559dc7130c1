"""All visits in a few parts, with a look after each: a part that diverged is taken back, and steps become shorter."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import Adjust, fit

PARTS = 4
"""Of the visits."""

LOOKS = PARTS + 1
"""Before them, and after each."""

SLOWER = 0.25
"""What gradients are multiplied by once a part has diverged."""

Objective = Callable[[Float[Tensor, " P"]], float]


class Swept(NamedTuple):
    """The best weights after any part, and how many parts were taken back."""

    weights: Float[Tensor, " P"]
    taken_back: int


def sweep(pupil: Trained, told: Data, recipe: Recipe, clip: Adjust, objective: Objective, *, seed: int) -> Swept:
    """Visit all of `told` by SGD whose rate falls along a cosine; weights after a part count only if they are nearer.

    A part after which the objective is no smaller than before all of them is taken back, and what is left goes on from
    the best weights so far with shorter steps. The weights in the end are the best of those after any part, so that
    one step in a bad direction costs a part of the visits and not the request.
    """
    first = objective(pupil.weights)
    best, lowest, slower, taken_back = pupil.weights, first, 1.0, 0
    here = best
    drawn = torch.randperm(len(told), generator=torch.Generator().manual_seed(seed))
    for k in range(PARTS):
        visits = told.select(drawn[k * len(told) // PARTS : (k + 1) * len(told) // PARTS])
        there = _part(replace(pupil, weights=here), visits, recipe, _falling(clip, k, slower), seed)
        off = math.inf if there is None else objective(there)
        if there is None or not off < first:
            here, slower, taken_back = best, SLOWER * slower, taken_back + 1
            continue
        here = there
        if off < lowest:
            best, lowest = there, off
    return Swept(best, taken_back)


def _part(pupil: Trained, visits: Data, recipe: Recipe, adjust: Adjust, seed: int) -> Float[Tensor, " P"] | None:
    """The weights after these visits; `None` where they are no numbers."""
    if not len(visits):
        return None
    try:
        return fit(pupil, visits, recipe.but(epochs=1, schedule="constant"), seed=seed, label="distilling",
                   adjust=adjust).weights  # fmt: skip
    except NumericsError:
        return None


def _falling(clip: Adjust, k: int, slower: float) -> Adjust:
    """The rate of the `k`-th part as a factor of its gradients, so that the cosine goes on from part to part."""

    def adjust(g: Tensor, w: Tensor, done: float) -> None:
        clip(g, w, done)
        g.mul_(slower * 0.5 * (1 + math.cos(math.pi * (k + done) / PARTS)))

    return adjust
