"""`Scene`: a small slice of a data set, a pre-trained network, and the rows that must go, as in section 5.1."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import fill
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError
from spotlessnet.core.progress import track
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split, some_of_class
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.experiment import ROWS
from spotlessnet.experiments.setting import Opened, Setting
from spotlessnet.models import replace_head
from spotlessnet.training.fit import fit

SMALL = Recipe(epochs=60, lr=0.01, momentum=0.9, batch_size=128, weight_decay=0.1, patience=5)
"""Section 5.2: decay toward the start, statistics frozen, until five epochs past zero training error."""

GENTLE = 0.003
"""The rate on faces10 and TinyImageNet: at 0.01 some seeds diverge after 40 epochs, with statistics that stand still
and come from other images."""

SLOW = Recipe(
    epochs=30, lr=0.1, momentum=0.9, batch_size=128, weight_decay=5e-4, schedule="one-cycle", freeze_statistics=False
)
"""Pre-training of section 5.2, with a rate that rises and falls."""

NETWORKS: Mapping[str, tuple[str, str, Mapping[str, float]]] = {
    "all-cnn": ("All-CNN", "allcnn-cifar100.safetensors", {}),
    "resnet": ("ResNet-18 ×0.4", "resnet18w04-cifar100.safetensors", {"width": 0.4}),
    "mlp": ("MLP", "", {}),
}
"""What a network is called in figures, its weights from CIFAR-100, and how it is built."""

Open = TypeVar("Open")
"""What an opened scene gives its measurements."""

OTHER_ORDER = 1000
"""Added to a seed for a second retrained network, whose distance to the first is the floor."""


@dataclass(frozen=True)
class Scene:
    """Where a figure's row is measured.

    **Arguments:**

    - `setting`: data, network and recipe.
    - `forget`: how many rows of class 0 must go, drawn by the seed.
    - `tests`: rows of each class to test on, from the test split.
    """

    setting: Setting = field(default_factory=Setting)
    forget: int = 25
    tests: int = 100

    @property
    def name(self) -> str:
        """Data set and network: the `experiment` of the rows."""
        return f"{self.setting.title}, {NETWORKS[self.setting.network][0]}"

    @property
    def note(self) -> str:
        """What must be said beside each number."""
        if self.setting.data.startswith("tinyimagenet"):
            return "64×64 pixels, begun from weights that were pre-trained on CIFAR-100"
        return self.setting.note

    def open(self, folder: Path | None, device: torch.device) -> "Stage":
        """Read the rows and the pre-trained weights."""
        opened = self.setting.open(folder, device)
        return Stage(self, replace(opened, test=of_each_class(opened.test, self.tests)))


@dataclass(frozen=True, eq=False)
class Stage:
    """An opened scene; a seed chooses the rows that go, the fresh head and the order of the batches."""

    scene: Scene
    opened: Opened

    def split(self, seed: int) -> Split:
        """The rows of class 0 that this seed chooses must go."""
        return some_of_class(0, self.scene.forget, seed)(self.opened.train, self.opened.test)

    def start(self, seed: int) -> Trained:
        """The pre-trained network under a head of this seed."""
        begun, recipe = self.opened.start, self.scene.setting.recipe
        classes = int(self.opened.train.labels().max()) + 1
        model = replace_head(begun.module(), classes, seed=seed)
        return Trained.of(model, init=model, recipe=recipe)

    def original(self, seed: int) -> Trained:
        """Trained on all rows; its recipe then names the epochs it took, so that retraining takes as many."""
        fitted, epochs = self.follow(seed, self.split(seed).whole)
        return replace(fitted, recipe=self.scene.setting.recipe.but(epochs=len(epochs), patience=None))

    def follow(self, seed: int, data: Data) -> tuple[Trained, list[Float[Tensor, " P"]]]:
        """The network trained on `data`, and its weights after each epoch."""
        path: list[Tensor] = []

        def watch(epoch: int, network: Trained) -> bool:
            path.append(network.weights)
            return False

        return fit(self.start(seed), data, seed=seed, watch=watch), path


def of_each_class(data: Data, count: int, seed: int = 0) -> Data:
    """At most `count` rows of each class, drawn by the seed."""
    labels = data.labels()
    draw = torch.Generator().manual_seed(seed)
    groups = [(labels == label).nonzero().squeeze(1) for label in labels.unique()]
    return data.select(torch.cat([g[torch.randperm(len(g), generator=draw)[:count]] for g in groups]).sort().values)


def slice_of(
    data: str, network: str, *, per_class: int = 100, epochs: int = SMALL.epochs, pretraining: int = SLOW.epochs
) -> Setting:
    """The paper's slice: rows of the first five classes, a network pre-trained on other classes.

    **Arguments:**

    - `data`: `"cifar10"`, `"tinyimagenet10"` (both begin from CIFAR-100) or `"faces10"` (pre-trained on faces14).
    - `per_class`, `epochs`, `pretraining`: rows and epochs; fewer for a rehearsal.
    """
    _, weights, options = NETWORKS[network]
    faces = data == "faces10"
    return Setting(
        data,
        network,
        options,
        SMALL.but(epochs=epochs, lr=SMALL.lr if data == "cifar10" else GENTLE),
        weights=None if faces else weights,
        pretrain="faces14" if faces else None,
        pretrain_recipe=SLOW.but(epochs=pretraining),
        classes=5,
        per_class=per_class,
    )


def toy_scene() -> Scene:
    """Five digits and a small network, pre-trained on half of the digits: for tests and a first look."""
    setting = Setting(
        "digits",
        "mlp",
        {"hidden": (12,)},
        SMALL.but(epochs=20, lr=0.05, batch_size=32, patience=2),
        pretrain="digits",
        pretrain_recipe=Recipe(epochs=5, lr=0.1, batch_size=64),
        core=0.5,
        classes=5,
        per_class=16,
    )
    return Scene(setting, forget=5, tests=15)


def full_scene(data: str, network: str) -> Scene:
    """The paper's own size: 500 images, of which 25 must go."""
    return Scene(slice_of(data, network))


def tiny_scene(data: str, network: str) -> Scene:
    """The same path on a few rows and for one epoch."""
    return Scene(slice_of(data, network, per_class=3, epochs=1, pretraining=0), forget=1, tests=2)


def stored(out: Path) -> list[Row]:
    """The rows that stand in an experiment's folder."""
    return read_rows(out / ROWS)


def keep(out: Path, scene: Scene, rows: Iterable[Row]) -> None:
    """Add rows to the folder, each with what must be said about the scene; none if measuring them diverges.

    A seed that is left out is said aloud and missing from the count of seeds; the others are still worth measuring.
    """
    try:
        noted = [replace(row, note="; ".join(part for part in (row.note, scene.note) if part)) for row in rows]
    except NumericsError as error:
        print(f"{scene.name}: a seed was left out. {error}", file=sys.stderr)
        return
    append_rows(out / ROWS, noted)


def is_done(out: Path, scene: Scene, seed: int) -> bool:
    """Whether this seed's rows of the scene are there; they are written all at once."""
    return any(row.experiment == scene.name and row.seed == seed for row in stored(out))


def measure_missing(
    out: Path,
    scene: Scene,
    seeds: Iterable[int],
    open_it: Callable[[], Open],
    measure: Callable[[Open, int], Iterable[Row]],
) -> None:
    """Measure the seeds that the folder lacks. Nothing is read, and no weights are asked for, where it lacks none."""
    todo = [seed for seed in seeds if not is_done(out, scene, seed)]
    if not todo:
        return
    opened = open_it()
    for seed in track(todo, scene.name):
        keep(out, scene, measure(opened, seed))


def captioned(rows: Iterable[Row]) -> str:
    """What a figure of these rows must say: stand-ins, seeds and size."""
    rows = list(rows)
    said = [
        part for row in rows for part in row.note.split("; ") if "stands in" in part or "pre-trained on CIFAR" in part
    ]
    seeds = len({row.seed for row in rows})
    return ". ".join([*dict.fromkeys(said), f"{seeds} seed{'s' if seeds != 1 else ''}."])


def wrapped(*sentences: str, width: int = 120) -> str:
    """A caption on several lines."""
    return fill(" ".join(sentences), width)


def file_name(experiment: str) -> str:
    """A scene's name as that of a file."""
    kept = "".join(c if c.isascii() and c.isalnum() else " " for c in experiment.lower().replace("×", "x"))
    return "-".join(kept.split())
