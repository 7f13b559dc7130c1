"""Pairs: originals and their retrained partners over seeds, the networks that an audit compares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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

    def group(which: Sequence[int], without: bool) -> list[Trained]:
        return _train_group([begun[seed] for seed in which], split, which, without, together)

    return Trainings(group(paired, False), group(paired, True), group(others, True), tuple(paired))


def _begin(network: Trained) -> Trained:
    if network.recipe is None:
        raise NeedError(
            "A verdict needs to train networks, but no recipe is known. Give `Trained.of(..., recipe=...)`."
        )
    start = network.weights if network.start is None else network.start
    return replace(network.at(start), start=start, decay=network.recipe.decay)


def _train_group(
    begun: Sequence[Trained], split: Split, seeds: Sequence[int], without: bool, together: bool
) -> list[Trained]:
    data = split.retain if without else split.whole
    if not together:
        pairs = track(list(zip(begun, seeds, strict=True)), "training")
        return [fit(network, data, seed=seed, order_of=split.whole) for network, seed in pairs]
    keep = (~split.forgotten if without else torch.ones_like(split.forgotten)).expand(len(seeds), -1)
    starts = torch.stack([network.weights for network in begun])
    weights = fit_many(begun[0], split.whole, begun[0].recipe, seeds=list(seeds), keep=keep, starts=starts)
    return [network.at(w) for network, w in zip(begun, weights, strict=True)]
