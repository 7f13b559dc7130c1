"""What the published code's slips do to its own numbers: the same networks, judged its way and ours.

The code draws its test rows from the training split, retrains on duplicates in place of the forgotten rows, and leaves
a term out of its step (`NTK(variant="published")`). Each is repeated here on purpose, beside what the paper describes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from spotlessnet.auditing.comparison import Context, retrained_of
from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.core.data import Data
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.experiment import Published, Sized
from spotlessnet.experiments.figures import panels, save
from spotlessnet.experiments.outside_the_box.methods import FINETUNED, FLOOR, OURS, PUBLISHED, methods
from spotlessnet.experiments.outside_the_box.scene import (
    OTHER_ORDER,
    Scene,
    Stage,
    captioned,
    measure_missing,
    of_each_class,
    slice_of,
    stored,
    tiny_scene,
    toy_scene,
    wrapped,
)
from spotlessnet.methods.ntk import NTKFacts
from spotlessnet.readouts import ActivationDistance, Error
from spotlessnet.training.fit import fit

EPOCHS = 26
"""The notebook looks at the checkpoint of epoch 25, counted from zero."""

DUPLICATES = "retrained on duplicates"
NEAR, NEAR_DUPLICATES = "activation distance on forget", "activation distance on forget, to the one on duplicates"
TEST, TRAIN_TEST = "error on test", "error on test rows from the training split"
GAP, GAP_DUPLICATES = "distance of weights to retrained", "distance of weights to the one on duplicates"
STEP, SCALE = "length of the step", "factor of the trapezium"

SOURCE = "saved outputs of the published notebook (one seed)"
PAPER = (
    Published("cifar10, ResNet-18 ×0.4", ORIGINAL, NEAR_DUPLICATES, 0.7483, SOURCE),
    Published("cifar10, ResNet-18 ×0.4", PUBLISHED, NEAR_DUPLICATES, 0.2336, SOURCE),
    Published("cifar10, ResNet-18 ×0.4", ORIGINAL, TRAIN_TEST, 0.24, SOURCE),
    Published("cifar10, ResNet-18 ×0.4", DUPLICATES, TRAIN_TEST, 0.256, SOURCE),
    Published("cifar10, ResNet-18 ×0.4", PUBLISHED, TRAIN_TEST, 0.254, SOURCE),
    Published("cifar10, ResNet-18 ×0.4", ORIGINAL, GAP_DUPLICATES, 0.42935, SOURCE),
    Published("cifar10, ResNet-18 ×0.4", PUBLISHED, GAP_DUPLICATES, 0.4307, f"derived from {SOURCE}"),
    Published("cifar10, ResNet-18 ×0.4", PUBLISHED, STEP, 0.4282, SOURCE),
    Published("cifar10, ResNet-18 ×0.4", PUBLISHED, SCALE, 23.543, SOURCE),
    Published("cifar10, ResNet-18 ×0.4", DUPLICATES, "error on forget", 0.36, SOURCE),
    Published("cifar10, ResNet-18 ×0.4", PUBLISHED, "error on forget", 0.28, SOURCE),
)


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """The slice, and how many rows of each class its way of testing takes from the training split."""

    scene: Scene
    tests: int = 100

    @staticmethod
    def toy() -> "Settings":
        return Settings(scene=_as_published(toy_scene()), tests=16)

    @staticmethod
    def full() -> "Settings":
        return Settings(scene=_as_published(Scene(slice_of("cifar10", "resnet"))), seeds=(0, 1, 2, 3, 4))

    @staticmethod
    def tiny() -> "Settings":
        return Settings(scene=tiny_scene("cifar10", "resnet"), tests=4, seeds=(0,))


def _as_published(scene: Scene) -> Scene:
    """The same for a fixed number of epochs, as the notebook has it."""
    recipe = scene.setting.recipe.but(epochs=EPOCHS, patience=None)
    return replace(scene, setting=replace(scene.setting, recipe=recipe))


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """All methods, judged both ways, a seed at a time."""
    scene = settings.scene

    def open_it() -> tuple[Stage, Data]:
        stage = scene.open(data, settings.place)
        # The whole split, of which the slice is a part: what the code draws its test rows from.
        return stage, replace(scene.setting, per_class=None).open(data, settings.place).train

    measure_missing(out, scene, settings.seeds, open_it, partial(measure, settings))
    return stored(out)


def measure(settings: Settings, opened: tuple[Stage, Data], seed: int) -> Iterator[Row]:
    """The rows of one seed."""
    stage, pool = opened
    split = stage.split(seed)
    original = stage.original(seed)
    context = Context(original, retrained_of(original, split, seed), split, seed)
    duplicates = retrained_on_duplicates(original, split, seed)
    networks = {ORIGINAL: original, RETRAINED: context.retrained, DUPLICATES: duplicates}
    scales: dict[str, float | None] = {}
    for method in (PUBLISHED, OURS, FINETUNED, FLOOR):
        made = methods(1.0)[method]
        gaussian = (made if isinstance(made, Scrub) else made(context))(original, split)
        networks[method] = original.at(gaussian.mean)
        scales[method] = gaussian.diagnostics.of(NTKFacts).scale
    # Not the seed itself: seed 0 drew the slice from this pool, and would draw the very same rows again.
    leaky = replace(split, test=of_each_class(pool, settings.tests, OTHER_ORDER + seed))
    overlap = overlapping(leaky, split)
    for method, network in networks.items():
        yield from judged(stage, method, network, context, duplicates, leaky, overlap)
        moved = float((network.weights - original.weights).norm())
        yield Row(stage.scene.name, method, STEP, seed, moved, unit="weights")
        scale = scales.get(method)
        if method == PUBLISHED and scale is not None:
            yield Row(stage.scene.name, method, SCALE, seed, scale, unit="factor")


def judged(
    stage: Stage, method: str, network: Trained, context: Context, duplicates: Trained, leaky: Split, overlap: int
) -> Iterator[Row]:
    """One network by both references and both kinds of test rows."""
    name, seed, split = stage.scene.name, context.seed, context.split
    for on in (Error("forget"), Error("retain"), Error("test")):
        found = on(network, split)
        yield Row(name, method, on.name, seed, found.value, found.low, found.high, on.unit)
    error = Error("test")(network, leaky)
    note = f"{overlap} of {len(leaky.tests)} rows were trained on"
    yield Row(name, method, TRAIN_TEST, seed, error.value, error.low, error.high, Error.unit, note=note)
    for readout, gap, reference in ((NEAR, GAP, context.retrained), (NEAR_DUPLICATES, GAP_DUPLICATES, duplicates)):
        near = ActivationDistance(reference)(network, split).value
        yield Row(name, method, readout, seed, near, unit=ActivationDistance.unit, ideal="low")
        far = float((network.weights - reference.weights).norm())
        yield Row(name, method, gap, seed, far, unit="weights", ideal="low")


def retrained_on_duplicates(original: Trained, split: Split, seed: int) -> Trained:
    """The code's own reference: as many rows as before, the forgotten ones overwritten by others."""
    assert original.init is not None  # the scene gave it one
    return fit(original.at(original.init), with_duplicates(split, seed), seed=seed, label="retraining on duplicates")


def with_duplicates(split: Split, seed: int) -> Data:
    """All rows of $D$, where each forgotten one is replaced by a retained row of any class, drawn with replacement."""
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(split.retain), (len(split.forget),), generator=draw)
    rows = split.whole.rows.clone()
    rows[split.forgotten] = split.retain.rows[chosen]
    x, y = split.retain.source.fetch(rows)
    return Data.of((x, y))


def overlapping(leaky: Split, split: Split) -> int:
    """How many of the test rows from the training split are training rows: the two are views of equal sources."""
    return int(torch.isin(leaky.tests.rows, split.whole.rows).sum())


def draw(rows: list[Row], out: Path) -> list[Path]:
    """Each readout its way and ours, side by side."""
    shown = [NEAR, NEAR_DUPLICATES, TEST, TRAIN_TEST, GAP, GAP_DUPLICATES]
    caption = wrapped(
        f"{rows[0].experiment}. Left: as the paper describes it. Right: as its code does it (retrained on duplicates,"
        " test rows from the training split). Bars and band: 95 % intervals over seeds.",
        captioned(rows),
    )
    return save(out, "published-code", panels(rows, shown, across=2), (10, 8), caption)
