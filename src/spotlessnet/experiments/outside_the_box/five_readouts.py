"""Figures 2 and 7: what can be read out of original, fine-tuned and scrubbed networks, beside retrained ones."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from spotlessnet.auditing.comparison import Context, ReadoutOf, compare
from spotlessnet.auditing.rows import Row
from spotlessnet.core.readout import Readout
from spotlessnet.experiments.experiment import Published, Sized
from spotlessnet.experiments.figures import panels, save
from spotlessnet.experiments.outside_the_box.methods import PUBLISHED, methods
from spotlessnet.experiments.outside_the_box.scene import (
    Scene,
    Stage,
    captioned,
    file_name,
    full_scene,
    measure_missing,
    stored,
    tiny_scene,
    toy_scene,
    wrapped,
)
from spotlessnet.readouts import ActivationDistance, EntropyAttack, Error, MeanLoss, RelearnTime

PARTS = {
    "figure_2": (("cifar10", "all-cnn"), ("faces10", "all-cnn")),
    "figure_7": (
        ("cifar10", "resnet"),
        ("faces10", "resnet"),
        ("tinyimagenet10", "all-cnn"),
        ("tinyimagenet10", "resnet"),
    ),
}
"""The rows of each figure: data and network."""

ATTACKS = (EntropyAttack("svc", balanced=False), EntropyAttack("svc"))

SHOWN = ("error on forget", "error on retain", "error on test", "relearn time", *(a.name for a in ATTACKS))
SHOWN = (*SHOWN, "activation distance on forget", "activation distance on retain", "activation distance on test")

BARS = "Bars and band: 95 % intervals over seeds; an arrow has reached the cap."

SOURCE = (
    "saved outputs of the published notebook: one seed, ResNet ×0.4, test rows from the training split, retrained on "
    "duplicates"
)
RECORDED: dict[str, dict[str, float]] = {
    "error on retain": {"original": 0.0, "retrained": 0.0, "fine-tune": 0.0, "Fisher": 0.1516, PUBLISHED: 0.0},
    "error on forget": {"original": 0.0, "retrained": 0.36, "fine-tune": 0.0, "Fisher": 0.12, PUBLISHED: 0.28},
    "error on test": {"original": 0.24, "retrained": 0.256, "fine-tune": 0.246, "Fisher": 0.31, PUBLISHED: 0.254},
    "loss on forget": {"original": 0.072, "retrained": 1.195, "fine-tune": 0.068, "Fisher": 0.262, PUBLISHED: 0.928},
    "relearn time": {"original": 1, "retrained": 64, "fine-tune": 1, "Fisher": 20, PUBLISHED: 64},
    ATTACKS[0].name: {"original": 1.0, "retrained": 0.8, "fine-tune": 0.96, "Fisher": 1.0, PUBLISHED: 0.8},
    "activation distance on forget": {"original": 0.7483, "fine-tune": 0.7554, "Fisher": 0.5536, PUBLISHED: 0.2336},
    "activation distance on retain": {"original": 0.012, "fine-tune": 0.0236, "Fisher": 0.3599, PUBLISHED: 0.0117},
    "activation distance on test": {"original": 0.0828, "fine-tune": 0.0893, "Fisher": 0.4132, PUBLISHED: 0.0686},
}
PAPER = tuple(
    Published("cifar10, ResNet-18 ×0.4", method, readout, value, SOURCE)
    for readout, values in RECORDED.items()
    for method, value in values.items()
)
"""The paper draws bars without printing them; these numbers stand in the notebook that was published with it."""


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """Which slices and networks, how much Fisher noise, and how long relearning may take."""

    scenes: tuple[Scene, ...]
    strength: float = 1e-4
    cap: int = 100

    @staticmethod
    def toy(part: str) -> "Settings":
        return Settings(scenes=(toy_scene(),), strength=1e-3, cap=10)

    @staticmethod
    def full(part: str) -> "Settings":
        return Settings(scenes=tuple(full_scene(*which) for which in PARTS[part]), seeds=(0, 1, 2, 3, 4))

    @staticmethod
    def tiny(part: str) -> "Settings":
        return Settings(scenes=tuple(tiny_scene(*which) for which in PARTS[part]), cap=2, seeds=(0,))


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """Every method under every readout, a scene and a seed at a time."""
    for scene in settings.scenes:
        open_it = partial(scene.open, data, settings.place)
        measure_missing(out, scene, settings.seeds, open_it, partial(measure, settings))
    return stored(out)


def measure(settings: Settings, stage: Stage, seed: int) -> Iterator[Row]:
    """Every method under every readout."""
    rows = compare(
        stage.original,
        stage.split(seed),
        scrubs=methods(settings.strength),
        readouts=readouts(settings.cap),
        seeds=(seed,),
        experiment=stage.scene.name,
    )
    yield from rows
    yield from missing_attacks(rows)


def readouts(cap: int) -> dict[str, ReadoutOf]:
    """The five readouts; the attacks only where scikit-learn is installed.

    **Arguments:**

    - `cap`: the most epochs of relearning.
    """
    plain: list[Readout] = [Error("forget"), Error("retain"), Error("test"), MeanLoss("forget"), MeanLoss("test")]
    if find_spec("sklearn") is not None:
        plain += ATTACKS

    def relearning(context: Context) -> Readout:
        return RelearnTime(context.original, cap=cap, seed=context.seed)

    return {
        **{readout.name: readout for readout in plain},
        "relearn time": relearning,
        "activation distance on forget": lambda context: ActivationDistance(context.retrained, "forget"),
        "activation distance on retain": lambda context: ActivationDistance(context.retrained, "retain"),
        "activation distance on test": lambda context: ActivationDistance(context.retrained, "test"),
    }


def missing_attacks(rows: list[Row]) -> list[Row]:
    """Rows without a value that say why there are no attacks; none where there are."""
    measured = {row.readout for row in rows}
    methods = dict.fromkeys(row.method for row in rows)
    return [
        Row(rows[0].experiment, method, attack.name, rows[0].seed, math.nan, unit=attack.unit, note=why)
        for attack in ATTACKS
        if attack.name not in measured
        for method in methods
        for why in ("not measured: scikit-learn is not installed",)
    ]


def draw(rows: list[Row], out: Path) -> list[Path]:
    """A panel per readout and a file per slice; the green band is that of the retrained networks."""
    drawn = []
    for experiment in dict.fromkeys(row.experiment for row in rows):
        here = [row for row in rows if row.experiment == experiment]
        shown = [name for name in SHOWN if any(r.readout == name and math.isfinite(r.value) for r in here)]
        caption = wrapped(f"{experiment}. Green: networks retrained without the forgotten rows.", BARS, captioned(here))
        drawn += save(out, file_name(experiment), panels(here, shown), (10, 7.5), caption)
    return drawn
