"""Pairs: originals and their retrained partners over seeds, the networks that an audit compares."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from spotlessnet.core.errors import NeedError, check_positive
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.many import Executor, train_many


@dataclass(frozen=True, eq=False)
class Trainings:
    """Networks that an audit needs, one per seed and group: make them once with `train_pairs`, judge many scrubs."""

    original: list[Trained]
    retrained: list[Trained]
    held_out: list[Trained]
    seeds: tuple[int, ...]

    def join(self, others: "Trainings") -> "Trainings":
        """Both, group by group; of other seeds."""
        groups = ("original", "retrained", "held_out", "seeds")
        return Trainings(*(getattr(self, group) + getattr(others, group) for group in groups))


def train_pairs(
    start: Trained | Callable[[int], Trained],
    split: Split,
    *,
    seeds: int = 8,
    first: int = 0,
    together: bool = True,
    executor: Executor | None = None,
) -> Trainings:
    """Train originals, their coupled retrained partners, and retrained networks with other seeds.

    **Arguments:**

    - `start`: a network with a recipe or a trainer, which begins at its start (or at its weights where none is
      known); or a function of the seed that gives one, for trainings that begin at random.
    - `seeds`: pairs; as many held-out networks are trained besides. 5 is the least for a verdict, 8 the default.
    - `first`: the first seed.
    - `together`: all of them as one program, fast for small networks; `False` trains them one by one.
    - `executor`: in turn unless said; see `Executor`.
    """
    check_positive("seeds", seeds)
    paired, others = range(first, first + seeds), range(first + seeds, first + 2 * seeds)
    every = (*paired, *others)
    same = begin(start) if isinstance(start, Trained) else None
    begun = {seed: same or begin(start(seed)) for seed in every}  # type: ignore[operator]  # a function if not `same`

    groups = ((paired, False), (paired, True), (others, True))
    seeds_of = [seed for which, _ in groups for seed in which]
    data = split.first_trained_on
    rows = dict(zip((False, True), rows_seen(split), strict=True))
    keep = torch.stack([rows[without] for which, without in groups for _ in which])
    # All groups in one call: as one program, a step costs little more for three times the networks.
    networks = train_many(
        [begun[seed] for seed in seeds_of],
        data,
        seeds=seeds_of,
        keep=keep,
        together=together,
        label="training",
        executor=executor,
    )
    original, retrained, held_out = (networks[i * seeds : (i + 1) * seeds] for i in range(3))
    return Trainings(original, retrained, held_out, tuple(paired))


def rows_seen(split: Split) -> tuple[Bool[Tensor, " N"], Bool[Tensor, " N"]]:
    """Of the rows that the first training saw, those that an original sees and those that its retrained partner sees.

    What earlier requests removed keeps its place, and is never read.
    """
    place = torch.isin(split.first_trained_on.rows, split.whole.rows)
    return place, place.clone().masked_scatter_(place, ~split.forgotten)


def begin(network: Trained) -> Trained:
    """The network where its training begins: at its start, or at its weights where none is known."""
    if network.recipe is None and network.trainer is None:
        raise NeedError(
            "A verdict needs to train networks, but no recipe is known. Give `Trained.of(..., recipe=...)`, or "
            "`trainer=...` for a training of your own."
        )
    known = network if network.init is not None else replace(network, init=network.weights)
    decay = network.weight_decay if network.recipe is None else network.recipe.penalty
    return replace(known.begin("A verdict"), weight_decay=decay)
