"""Figure 4: the answers of networks on the way from the original to the scrubbed one, against the retrained network."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spotlessnet.auditing.comparison import Context, retrained_of
from spotlessnet.auditing.rows import Row
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.scrub import Scrub
from spotlessnet.experiments.experiment import Published, Sized
from spotlessnet.experiments.figures import colour, mark, save
from spotlessnet.experiments.outside_the_box.curves import at, curve
from spotlessnet.experiments.outside_the_box.five_readouts import PARTS as SCENES
from spotlessnet.experiments.outside_the_box.methods import FINETUNED, FLOOR, OURS, PUBLISHED, methods
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
from spotlessnet.readouts import ActivationDistance
from spotlessnet.readouts.activation_distance import along_path
from spotlessnet.readouts.parts import Part, part

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = (PUBLISHED, OURS, FINETUNED)
ON: tuple[Part, ...] = ("forget", "retain", "test")

PAPER = tuple(
    Published("cifar10, ResNet-18 ×0.4", PUBLISHED, at(f"activation distance on {on}", a), value, source)
    for on, ends in (("forget", (0.7483, 0.2336)), ("retain", (0.012, 0.0117)), ("test", (0.0828, 0.0686)))
    for a, value in zip((0, 1), ends, strict=True)
    for source in ("saved outputs of the published notebook; the figure itself prints no number",)
)


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """Which slices, and in how many steps the way is walked."""

    scenes: tuple[Scene, ...]
    steps: int = 10

    @staticmethod
    def toy() -> "Settings":
        return Settings(scenes=(toy_scene(),), steps=5)

    @staticmethod
    def full() -> "Settings":
        which = (*SCENES["figure_2"], SCENES["figure_7"][0])
        return Settings(scenes=tuple(full_scene(*one) for one in which))

    @staticmethod
    def tiny() -> "Settings":
        return Settings(scenes=(tiny_scene("cifar10", "all-cnn"),), steps=1, seeds=(0,))


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """All curves, a scene and a seed at a time."""
    for scene in settings.scenes:
        open_it = partial(scene.open, data, settings.place)
        measure_missing(out, scene, settings.seeds, open_it, partial(measure, settings))
    return stored(out)


def measure(settings: Settings, stage: Stage, seed: int) -> Iterator[Row]:
    """Distances along the way of each method, and those of a second retrained network: the floor."""
    split = stage.split(seed)
    original = stage.original(seed)
    context = Context(original, retrained_of(original, split, seed), split, seed)
    unit = ActivationDistance.unit
    for method, made in methods(1.0).items():
        if method not in (*SHOWN, FLOOR):
            continue
        scrub = made if isinstance(made, Scrub) else made(context)
        end = original.at(scrub(original, split).mean)
        for on in ON:
            name = f"activation distance on {on}"
            if method == FLOOR:
                value = ActivationDistance(context.retrained, on)(end, split).value
                yield Row(stage.scene.name, method, name, seed, value, unit=unit, ideal="low")
                continue
            way = along_path(original, end, context.retrained, part(split, on), steps=settings.steps)
            for a, value in zip(way.positions.tolist(), way.values.tolist(), strict=True):
                yield Row(stage.scene.name, method, at(name, a), seed, value, unit=unit if a in (0, 1) else "")


def draw(rows: list[Row], out: Path) -> list[Path]:
    """Per slice and part of the data, distance along the way with its interval; dashed: two retrained networks."""
    drawn = []
    for experiment in dict.fromkeys(row.experiment for row in rows):
        here = [row for row in rows if row.experiment == experiment]

        def fill(figure: "Figure", here: list[Row] = here) -> None:
            for j, (axes, on) in enumerate(zip(figure.subplots(1, len(ON)), ON, strict=True)):
                name = f"activation distance on {on}"
                for i, method in enumerate(SHOWN):
                    found = {a: t_interval(v) for a, v in curve(here, method, name).items()}
                    means = [m.value for m in found.values()]
                    axes.plot([*found], means, color=colour(i), marker=mark(i), ms=3, label=method)
                    if len({row.seed for row in here}) > 1:
                        lows, highs = [m.low for m in found.values()], [m.high for m in found.values()]
                        axes.fill_between([*found], lows, highs, color=colour(i), alpha=0.15, lw=0)
                floor = [row.value for row in here if row.method == FLOOR and row.readout == name]
                axes.axhline(sum(floor) / len(floor), color=colour(6), ls="--", label="two retrained networks")
                axes.set_title(f"on {on}", fontsize=10)
                axes.set_xlabel("way from the original (0) to the scrubbed (1)", fontsize=8)
                axes.set_ylim(bottom=0)
                if not j:
                    axes.set_ylabel("distance to retrained (L1)")
                    axes.legend(fontsize=7)

        caption = wrapped(f"{experiment}. Mean distance of the answers; bands: 95 % over seeds.", captioned(here))
        drawn += save(out, file_name(experiment), fill, (10, 3.6), caption)
    return drawn
