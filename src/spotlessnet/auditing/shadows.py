"""Shadows: many models of which each saw a random half of the rows under attack, trained as one program."""

from collections.abc import Iterator
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
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit_many import fit_many


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
    - `validation`: held-out rows that a scrub may read.
    """

    network: Trained
    data: Data
    targets: Int64[Tensor, " T"]
    bystanders: Int64[Tensor, " B"]
    seen: Bool[Tensor, "S N"]
    weights: Float[Tensor, "S P"]
    seed: int
    validation: Data | None = None

    def __len__(self) -> int:
        return len(self.weights)

    def split(self, shadow: int) -> Split:
        """What this shadow must forget, the targets it saw, and what it keeps."""
        seen, is_target = self.seen[shadow], self._is_target
        return Split(
            forget=self.data.select((seen & is_target).nonzero().squeeze(1)),
            kept=self.data.select((seen & ~is_target).nonzero().squeeze(1)),
            validation=self.validation,
        )

    def networks(self, weights: Float[Tensor, "S P"] | None = None) -> Iterator[Trained]:
        """The shadows one by one, as trained or with other weights."""
        for w in self.weights if weights is None else weights:
            yield replace(self.network, weights=w, init=self.network.anchor)

    def scrubbed(self, scrub: Scrub) -> Float[Tensor, "S P"]:
        """Each shadow after the same scrub, with the same settings and draws of its own, of the targets it saw."""
        first = self.seed * len(self)
        splits = [self.split(s) for s in range(len(self))]
        seeds = range(first, first + len(self))
        found = scrub_every_seed(scrub, list(self.networks()), splits, seeds, "scrubbing shadows")
        return torch.stack([one.network.weights for one in found])

    def retrained(self) -> Float[Tensor, "S P"]:
        """Each shadow trained anew, with another seed, without the targets: what the audit must let pass."""
        seeds = _seeds(self.seed, len(self), again=True)
        keep = self.seen & ~self._is_target
        start = self.network.at(self.network.anchor)
        return fit_many(start, self.data, self._recipe, seeds=seeds, keep=keep, label="retraining shadows")

    @property
    def _is_target(self) -> Bool[Tensor, " N"]:
        return torch.zeros(len(self.data), dtype=torch.bool).index_fill(0, self.targets, True)

    @property
    def _recipe(self) -> Recipe:
        if self.network.recipe is None:
            raise NeedError("Shadows need a recipe to train with, but none is known. Give `recipe=Recipe(...)`.")
        return self.network.recipe


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
) -> Shadows:
    """Train shadows on random halves of the targets and bystanders, together with all the other rows.

    **Arguments:**

    - `trained`: the network; every shadow begins at its `start`, or at its weights where no start is known.
    - `targets`: positions in `data` of the rows under attack.
    - `bystanders`: positions of rows that stay, whose safety is watched as well.
    - `recipe`: how to train; the network's own unless said.
    - `shadows`: how many, a multiple of four.
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
        seen[:, rows] = complementary_halves(shadows, len(rows), generator)
    if not seen.any(dim=1).all():
        raise DataError("A shadow would be left without any row. Name fewer targets.")
    recipe = recipe or trained.recipe
    weight_decay = trained.weight_decay if recipe is None else recipe.weight_decay
    start = trained.weights if trained.init is None else trained.init
    network = replace(trained.at(start), init=start, recipe=recipe, weight_decay=weight_decay)
    begun = Shadows(network, data, targets, others, seen, start.repeat(shadows, 1), seed, validation)
    seeds = _seeds(seed, shadows)
    weights = fit_many(network, data, begun._recipe, seeds=seeds, keep=seen, label="training shadows")
    return replace(begun, weights=weights)


def complementary_halves(models: int, rows: int, generator: torch.Generator) -> Bool[Tensor, "S T"]:
    """Random halves of the rows; every second model sees exactly what the one before it did not.

    So each row is seen by half of the models, also within any even number of them in a row.
    """
    half = torch.zeros(models // 2, rows, dtype=torch.bool)
    for line in half:
        line[torch.randperm(rows, generator=generator)[: rows // 2]] = True
    return torch.stack([half, ~half], dim=1).flatten(0, 1)


def _seeds(seed: int, models: int, *, again: bool = False) -> list[int]:
    first = (2 * seed + again) * models
    return list(range(first, first + models))
