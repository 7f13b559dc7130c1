"""Shadows: many models of which each saw a random half of the rows under attack, trained as one program."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from spotlessnet.auditing.seeds import scrub_every_seed
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Buffers, Trained, buffers_of
from spotlessnet.training.batches import mixed
from spotlessnet.training.many import Executor, train_many


@dataclass(frozen=True, eq=False)
class Shadows:
    """Trained shadows, and which rows each of them saw. Make them with `train_shadows`.

    **Arguments:**

    - `network`: where every shadow's training began, with its recipe.
    - `data`: all rows.
    - `targets`: positions in `data` of rows that a shadow is asked to forget, where it saw them.
    - `bystanders`: positions of rows of which each shadow saw half as well, but keeps them.
    - `seen`: for each shadow and row of `data`, whether it was trained on.
    - `weights`: of the trained shadows, one line each. Lines `2k` and `2k + 1` saw complementary halves.
    - `buffers`: of each shadow, where training moved them.
    - `validation`: held-out rows that a scrub may read.
    """

    network: Trained
    data: Data
    targets: Int64[Tensor, " T"]
    bystanders: Int64[Tensor, " B"]
    seen: Bool[Tensor, "S N"]
    weights: Float[Tensor, "S P"]
    buffers: Sequence[Buffers] | None
    seed: int
    validation: Data | None = None

    def __len__(self) -> int:
        return len(self.weights)

    def split(self, shadow: int) -> Split:
        """What this shadow must forget, the targets it saw, and what it keeps.

        One that saw none forgets the stand-in of its pair instead, which the other never saw: with a single target half
        of the shadows would else stay as they are, and the attack would find whatever a scrub does to every network.
        """
        seen = self.seen[shadow]
        is_target = self._goes(shadow)
        return Split(
            forget=self.data.select((seen & is_target).nonzero().squeeze(1)),
            kept=self.data.select((seen & ~is_target).nonzero().squeeze(1)),
            validation=self.validation,
        )

    def _goes(self, shadow: int) -> Bool[Tensor, " N"]:
        """Rows that this shadow is asked to forget where it saw them."""
        if bool((self.seen[shadow] & self._is_target).any()):
            return self._is_target
        taken = torch.cat([self.targets, self.bystanders])
        row = _stand_in(len(self.data), taken, shadow // 2, self.seed)
        return torch.zeros(len(self.data), dtype=torch.bool).index_fill(0, row, True)

    def networks(self, others: Float[Tensor, "S P"] | Sequence[Trained] | None = None) -> Iterator[Trained]:
        """The shadows one by one: as trained, with other weights, or whatever others came of them."""
        if others is not None and not isinstance(others, Tensor):
            yield from others
            return
        for s, w in enumerate(self.weights if others is None else others):
            yield self.network.at(w, None if self.buffers is None else self.buffers[s])

    def scrubbed(self, scrub: Scrub) -> list[Trained]:
        """Each shadow after the same scrub, with the same settings and draws of its own, of the targets it saw."""
        first = self.seed * len(self)
        splits = [self.split(s) for s in range(len(self))]
        seeds = range(first, first + len(self))
        found = scrub_every_seed(scrub, list(self.networks()), splits, seeds, "scrubbing shadows")
        return [one.network for one in found]

    def retrained(self, executor: Executor | None = None) -> list[Trained]:
        """Each shadow trained anew, with another seed, without the targets: what the audit must let pass."""
        seeds = _seeds(self.seed, len(self), again=True)
        keep = self.seen & ~torch.stack([self._goes(s) for s in range(len(self))])
        begun = [self.network] * len(self)
        return train_many(begun, self.data, seeds=seeds, keep=keep, label="retraining shadows", executor=executor)

    @property
    def _is_target(self) -> Bool[Tensor, " N"]:
        return torch.zeros(len(self.data), dtype=torch.bool).index_fill(0, self.targets, True)


def train_shadows(
    trained: Trained,
    data: Data,
    targets: Int64[Tensor, " T"],
    *,
    bystanders: Int64[Tensor, " B"] | None = None,
    recipe: Recipe | None = None,
    shadows: int = 64,
    seed: int = 0,
    validation: Data | None = None,
    executor: Executor | None = None,
) -> Shadows:
    """Train shadows on random halves of the targets and bystanders, together with all the other rows.

    **Arguments:**

    - `trained`: the network; every shadow begins at its `start`, or at its weights where no start is known.
    - `targets`: positions in `data` of the rows under attack.
    - `bystanders`: positions of rows that stay, whose safety is watched as well.
    - `recipe`: how to train; the network's own unless said.
    - `shadows`: how many, a multiple of four.
    - `executor`: in turn unless said; see `Executor`.
    """
    if shadows < 4 or shadows % 4:
        raise SettingError(
            f"`shadows` must be a multiple of 4, but got {shadows}: each half of them must hold complementary pairs."
        )
    others = torch.empty(0, dtype=torch.long) if bystanders is None else bystanders
    if torch.isin(targets, others).any():
        raise DataError("A row cannot be both a target and a bystander. Choose bystanders among the rows that stay.")
    if not len(targets):
        raise DataError("There is no target row to attack. Name at least one.")
    generator = torch.Generator().manual_seed(seed)
    seen = torch.ones(shadows, len(data), dtype=torch.bool)
    for rows in (targets, others):
        # Apart, so that every shadow sees exactly half of either kind.
        seen[:, rows] = complementary_halves(shadows, len(rows), generator)
    for s in (~seen[:, targets].any(dim=1)).nonzero().flatten().tolist():
        # Its partner, which saw the target, never sees the stand-in: both end without both, and differ by chance alone.
        seen[s ^ 1, _stand_in(len(data), torch.cat([targets, others]), s // 2, seed)] = False
    if not seen.any(dim=1).all():
        raise DataError("A shadow would be left without any row. Name fewer targets.")
    network = _begin(trained, recipe)
    seeds = _seeds(seed, shadows)
    begun = [network] * shadows
    made = train_many(begun, data, seeds=seeds, keep=seen, label="training shadows", executor=executor)
    moved = made[0].statistics_moved or made[0].moved_buffers
    return Shadows(
        network=network,
        data=data,
        targets=targets,
        bystanders=others,
        seen=seen,
        weights=torch.stack([one.weights for one in made]),
        buffers=[buffers_of(one.model) for one in made] if moved else None,
        seed=seed,
        validation=validation,
    )


def _stand_in(rows: int, taken: Int64[Tensor, " k"], pair: int, seed: int) -> Int64[Tensor, " 1"]:
    """A row, neither target nor bystander, drawn for one pair of shadows."""
    free = torch.ones(rows, dtype=torch.bool).index_fill(0, taken, False).nonzero().squeeze(1)
    if len(free) < 2:
        raise DataError("A shadow would be left without any row to forget instead. Name fewer targets, or more data.")
    draw = torch.Generator().manual_seed(mixed(seed, pair, "stand-in"))
    return free[torch.randint(len(free), (1,), generator=draw)]


def _begin(trained: Trained, recipe: Recipe | None) -> Trained:
    """Where every shadow's training begins."""
    if recipe is not None:
        trained = replace(trained, recipe=recipe, trainer=None, weight_decay=recipe.penalty)
    if trained.recipe is None and trained.trainer is None:
        raise NeedError(
            "Shadows need a recipe to train with, but none is known. Give `recipe=Recipe(...)`, or a network with a "
            "`trainer`."
        )
    known = trained if trained.init is not None else replace(trained, init=trained.weights)
    return known.begin("Shadows")


def complementary_halves(models: int, rows: int, generator: torch.Generator) -> Bool[Tensor, "S T"]:
    """Random halves of the rows; every second model sees exactly what the one before it did not.

    So each row is seen by half of the models, also within any even number of them in a row.
    """
    half = torch.zeros(models // 2, rows, dtype=torch.bool)
    for line in half:
        line[torch.randperm(rows, generator=generator)[: rows // 2]] = True
    return torch.stack([half, ~half], dim=1).flatten(0, 1)


def _seeds(seed: int, models: int, *, again: bool = False) -> list[int]:
    # Blocks that never overlap: retrained shadows share no seed with any that was trained before.
    first = (2 * seed + again) * models
    return list(range(first, first + models))
