"""Pairs: originals and their retrained partners over seeds, the networks that an audit compares."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from spotlessnet.core.errors import NeedError, check_positive
from spotlessnet.core.progress import track
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.fit_many import fit_many


@dataclass(frozen=True, eq=False)
class Trainings:
    """Networks that an audit needs, one per seed and group: make them once with `train_pairs`, judge many scrubs."""

    original: list[Trained]
    retrained: list[Trained]
    held_out: list[Trained]
    seeds: tuple[int, ...]


def train_pairs(
    start: Trained | Callable[[int], Trained], split: Split, *, seeds: int = 8, first: int = 0, together: bool = True
) -> Trainings:
    """Train originals, their coupled retrained partners, and retrained networks with other seeds.

    **Arguments:**

    - `start`: a network with a recipe, which begins at its start (or at its weights where none is known); or a function
      of the seed that gives one, for trainings that begin at random.
    - `seeds`: pairs; as many held-out networks are trained besides. 5 is the least for a verdict, 8 the default.
    - `first`: the first seed.
    - `together`: all of them as one program, fast for small networks; `False` trains them one by one.
    """
    check_positive("seeds", seeds)
    paired, others = range(first, first + seeds), range(first + seeds, first + 2 * seeds)
    begun = {seed: _begin(start if isinstance(start, Trained) else start(seed)) for seed in (*paired, *others)}

    groups = ((paired, False), (paired, True), (others, True))
    if together:
        networks = _train_together(begun, split, groups)
    else:
        networks = [_train_one_by_one(begun, split, which, without) for which, without in groups]
    original, retrained, held_out = networks
    return Trainings(original, retrained, held_out, tuple(paired))


def _begin(network: Trained) -> Trained:
    if network.recipe is None:
        raise NeedError(
            "A verdict needs to train networks, but no recipe is known. Give `Trained.of(..., recipe=...)`."
        )
    start = network.weights if network.init is None else network.init
    return replace(network.at(start), init=start, weight_decay=network.recipe.weight_decay)


def _train_one_by_one(begun: Mapping[int, Trained], split: Split, seeds: Sequence[int], without: bool) -> list[Trained]:
    data = split.retain if without else split.whole
    return [fit(begun[seed], data, seed=seed, order_of=split.first_trained_on) for seed in track(seeds, "training")]


def _train_together(
    begun: Mapping[int, Trained], split: Split, groups: Sequence[tuple[Sequence[int], bool]]
) -> list[list[Trained]]:
    """All groups as one program: a step costs little more for three times the networks."""
    seeds = [seed for which, _ in groups for seed in which]
    data = split.first_trained_on
    place = torch.isin(data.rows, split.whole.rows)  # what earlier requests removed keeps its place, and is never read
    rows = {False: place, True: place.clone().masked_scatter_(place, ~split.forgotten)}
    keep = torch.stack([rows[without] for which, without in groups for _ in which])
    starts = torch.stack([begun[seed].weights for seed in seeds])
    first = begun[seeds[0]]
    weights = fit_many(first, data, first.recipe, seeds=seeds, keep=keep, starts=starts)
    networks = [begun[seed].at(w) for seed, w in zip(seeds, weights, strict=True)]
    cuts = [sum(len(which) for which, _ in groups[:i]) for i in range(len(groups) + 1)]
    return [networks[a:b] for a, b in pairwise(cuts)]
