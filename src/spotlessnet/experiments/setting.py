"""`Setting`: data, network, start and recipe of an experiment, opened from a folder."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spotlessnet.core.adapters import Arrays
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import DataPair, load
from spotlessnet.models import build, load_pretrained
from spotlessnet.models.pretrained import RESNET_NAMES
from spotlessnet.training.fit import fit

STANDS_IN = {
    "faces10": "faces10 (ten identities of a public face set) stands in for Lacuna-10; it is not VGGFace2",
    "faces14": "faces14 (fourteen other identities) stands in for Lacuna-100; it is not VGGFace2",
}
"""Data sets that replace ones which are not public: to be said wherever they appear."""

SHORT = {"faces10": "faces10 (for Lacuna-10)", "faces14": "faces14 (for Lacuna-100)"}

PRETRAINING = Recipe(epochs=15, lr=0.1, momentum=0.9, weight_decay=5e-4, schedule="one-cycle", freeze_statistics=False)
"""Section 5.2 of *Eternal Sunshine*, with a rate that rises and falls."""


@dataclass(frozen=True)
class Setting:
    """Where an experiment begins.

    **Arguments:**

    - `data`: a name that `datasets.load` knows, or of packed shards in the folder.
    - `network`, `options`: for `models.build`.
    - `recipe`: of the fine-tuning, and so of the retraining.
    - `weights`: a safetensors file of pre-trained weights, looked for in the data folder and in `weights` beside it.
    - `pretrain`: a data set to pre-train on where there is no such file; the own name with `core` takes that share
      of the training rows for it.
    - `classes`, `per_class`: keep only the first classes, and this many rows of each, drawn with seed 0.
    - `rows`: the most training rows, and the most rows to pre-train on, drawn with seed 0.
    - `test_rows`: the most test rows.
    """

    data: str = "digits"
    network: str = "mlp"
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe = field(default_factory=lambda: Recipe(epochs=10))
    weights: str | None = None
    pretrain: str | None = None
    pretrain_recipe: Recipe = PRETRAINING
    core: float = 0.0
    classes: int | None = None
    per_class: int | None = None
    rows: int | None = None
    test_rows: int | None = None

    @property
    def title(self) -> str:
        """The data set's name, and what it stands in for."""
        return SHORT.get(self.data, self.data)

    @property
    def note(self) -> str:
        """What must be said about the data sets, or nothing."""
        return "; ".join(STANDS_IN[name] for name in (self.data, self.pretrain) if name in STANDS_IN)

    def rehearsed(self, rows: int) -> "Setting":
        """The same on a few rows for one epoch."""
        return replace(
            self,
            rows=rows,
            test_rows=rows // 2,
            recipe=self.recipe.but(epochs=1, batch_size=32),
            pretrain_recipe=self.pretrain_recipe.but(epochs=1, batch_size=32),
        )

    def open(self, folder: Path | None, device: torch.device) -> "Opened":
        """Read the data, build the network, load or make its pre-trained start."""
        pair = load(self.data, folder, core=self.core)
        train = _fewer(pair.train, self.classes, self.per_class, self.rows)
        test = _fewer(pair.test, self.classes, None, self.test_rows)
        classes = len(pair.classes) if self.classes is None else self.classes
        shape = tuple(train.fetch(train.rows[:1]).x.shape[1:])  # type: ignore[union-attr]  # images are one tensor
        model = self._start(build(self.network, shape, classes, **self.options), pair, folder, device)
        start = Trained.of(model.to(device), init=model.to(device), recipe=self.recipe)
        return Opened(on_device(train, device), on_device(test, device), start)

    def _start(self, model: nn.Module, pair: DataPair, folder: Path | None, device: torch.device) -> nn.Module:
        path = find_weights(self.weights, folder)
        if path is not None:
            return load_pretrained(model, path, rename=RESNET_NAMES if self.network == "resnet" else None)
        if self.pretrain is not None:
            return load_pretrained(model, self.pretrained(pair, folder, device).state_dict())
        if self.weights is not None:
            raise DataError(
                f"The pre-trained weights {self.weights} must be in the data folder or in `weights` beside it, but are "
                "not. Put them there, or name a data set to pre-train on."
            )
        return model

    def pretrained(self, pair: DataPair, folder: Path | None, device: torch.device) -> nn.Module:
        """A network trained on the pre-training rows, with its own head."""
        if self.pretrain == self.data:
            if pair.core is None:
                raise DataError(f"Pre-training on {self.data} itself needs a share of it set aside. Give `core`.")
            # The core is what pre-training may see: rows that will never be asked to go.
            data, classes = pair.core, len(pair.classes)
        else:
            other = load(self.pretrain or "", folder)
            data, classes = other.train, len(other.classes)
        data = _fewer(data, None, None, self.rows)
        shape = tuple(data.fetch(data.rows[:1]).x.shape[1:])  # type: ignore[union-attr]  # images are one tensor
        model = build(self.network, shape, classes, **self.options).to(device)
        recipe = self.pretrain_recipe
        fitted = fit(Trained.of(model, recipe=recipe), on_device(data, device), recipe, label="pre-training")
        return fitted.module().cpu()


@dataclass(frozen=True, eq=False)
class Opened:
    """What `Setting.open` gives: rows, and the network where training begins."""

    train: Data
    test: Data
    start: Trained

    def but(self, recipe: Recipe) -> "Opened":
        """The same with another recipe."""
        return replace(self, start=replace(self.start, recipe=recipe, weight_decay=recipe.weight_decay))


def on_device(data: Data, device: torch.device) -> Data:
    """The same rows with their inputs moved once, so that operators that pass over them often need not wait."""
    source = data.source
    if device.type == "cpu" or not isinstance(source, Arrays) or isinstance(source.x, dict):
        return data
    x = source.x.to(device)
    # Channels last is how tensor cores want images; views of rows keep it.
    x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
    return replace(data, source=Arrays(x, source.y))


def find_weights(name: str | None, folder: Path | None) -> Path | None:
    """The file of pre-trained weights, in the data folder or in `weights` inside or beside it."""
    if name is None:
        return None
    place = Path(folder if folder is not None else os.environ.get("SPOTLESS_DATA", "data"))
    places = (place / name, place / "weights" / name, place.parent / "weights" / name)
    return next((path for path in places if path.is_file()), None)


def _fewer(data: Data, classes: int | None, per_class: int | None, rows: int | None) -> Data:
    draw = torch.Generator().manual_seed(0)
    if classes is not None:
        data = data.select((data.labels() < classes).nonzero().squeeze(1))
    if per_class is not None:
        labels = data.labels()
        groups = [(labels == label).nonzero().squeeze(1) for label in labels.unique()]
        chosen = [group[torch.randperm(len(group), generator=draw)[:per_class]] for group in groups]
        data = data.select(torch.cat(chosen).sort().values)
    if rows is not None and rows < len(data):
        data = data.select(torch.randperm(len(data), generator=draw)[:rows].sort().values)
    return data
