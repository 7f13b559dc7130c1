"""`Community`: core rows that never go, user rows that may, and a network made of both."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from spotlessnet.auditing.rows import Row
from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.experiment import Sized
from spotlessnet.experiments.outside_the_box.scene import (
    GENTLE,
    SMALL,
    Scene,
    Stage,
    measure_missing,
    of_each_class,
    slice_of,
)
from spotlessnet.experiments.setting import Setting
from spotlessnet.operators.precision import matmul
from spotlessnet.training.fit import fit
from spotlessnet.training.mixed import Settled, settle, user_network


@dataclass(frozen=True)
class Community:
    r"""A slice of a data set, shared between a core and users.

    **Arguments:**

    - `setting`: data, network and the recipe of the core; its `per_class` rows are those of core and users together.
    - `core`: rows of each class that will never be asked to go, drawn by the seed.
    - `weight_decay`: $\mu$ of the user weights.
    - `scale`: how far apart the targets lie.
    - `tolerance`: of the user weights' solution.
    """

    setting: Setting = field(default_factory=Setting)
    core: int = 20
    weight_decay: float = 0.1
    scale: float = 5.0
    tolerance: float = 1e-4

    @property
    def name(self) -> str:
        """Data set and network: the `experiment` of the rows."""
        return self.scene.name

    @property
    def scene(self) -> Scene:
        """The slice as a scene, which says what must be said about its data."""
        return Scene(self.setting)

    def open(self, folder: Path | None, device: torch.device) -> "Town":
        """Read the rows and the pre-trained weights."""
        return Town(self, self.scene.open(folder, device))


@dataclass(frozen=True, eq=False)
class Town:
    """An opened community; a seed says which rows are core, and begins every training."""

    community: Community
    stage: Stage

    def core(self, seed: int) -> Data:
        """The rows that stay."""
        return of_each_class(self.stage.opened.train, self.community.core, seed)

    def users(self, seed: int) -> Data:
        """The rows that may be asked to go."""
        return self.stage.opened.train.without(self.core(seed))

    @property
    def test(self) -> Data:
        """Rows of the test split."""
        return self.stage.opened.test

    def core_network(self, seed: int) -> Trained:
        """Trained on the core alone."""
        return fit(self.stage.start(seed), self.core(seed), seed=seed, label="core network")

    def without_users(self, core: Trained) -> Trained:
        """The core network with user weights that are all zero."""
        return user_network(core, weight_decay=self.community.weight_decay, scale=self.community.scale)

    def settled(self, core: Trained, users: Data, tolerance: float | None = None) -> Settled:
        """User weights learnt from nothing on these rows: training, and retraining."""
        return settle(self.without_users(core), users, tolerance=tolerance or self.community.tolerance)

    def fine_tuned(self, core: Trained, seed: int) -> Trained:
        """The usual way, which cannot forget: the core network trained on with core and users."""
        # Its decay pulls to the core network, as that of the user weights does.
        return fit(replace(core, init=core.weights), self.stage.opened.train, seed=seed, label="fine-tuning")


def measure_community(
    out: Path,
    community: Community,
    settings: Sized,
    data: Path | None,
    measure: Callable[[Town, int], Iterable[Row]],
) -> None:
    """Measure the seeds that the folder lacks, with full products: a certificate is worth what its residual is."""

    def exactly(town: Town, seed: int) -> Iterator[Row]:
        with matmul("float32"):
            yield from measure(town, seed)

    measure_missing(out, community.scene, settings.seeds, partial(community.open, data, settings.place), exactly)


def toy_community() -> Community:
    """Five digits: a small core and a few users."""
    setting = Setting(
        "digits", "mlp", {"hidden": (12,)}, SMALL.but(epochs=10, lr=0.05, batch_size=32, patience=2),
        pretrain="digits", pretrain_recipe=Recipe(epochs=3, lr=0.1, batch_size=64), core=0.5, classes=5, per_class=16,
    )  # fmt: skip
    return Community(setting, core=3, weight_decay=0.5)


def full_community(data: str, network: str) -> Community:
    """The first five classes: 20 rows of each are core, 100 are users'."""
    # An epoch of the core is one batch: many of them, and gentle, since some seeds diverge at 0.01.
    setting = slice_of(data, network, per_class=120, epochs=200)
    return Community(replace(setting, recipe=setting.recipe.but(lr=GENTLE)))


def tiny_community(data: str, network: str) -> Community:
    """The same path on a few rows."""
    return Community(slice_of(data, network, per_class=4, epochs=1, pretraining=0), core=1, tolerance=0.1)
