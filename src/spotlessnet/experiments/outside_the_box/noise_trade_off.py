"""Figures 3 and 8: what noise costs in test error and buys in nats, seen from the weights and from single answers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.auditing.comparison import retrained_of
from spotlessnet.auditing.rows import Row
from spotlessnet.bounds import WhiteBox
from spotlessnet.bounds.black_box import chosen, data_of
from spotlessnet.bounds.linearisation import linearisation
from spotlessnet.bounds.per_query import per_query
from spotlessnet.bounds.trade_off import scaled, trade_off
from spotlessnet.core.chaining import chain
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.experiment import Published, Sized
from spotlessnet.experiments.figures import colour, mark, save
from spotlessnet.experiments.outside_the_box.curves import at, curve
from spotlessnet.experiments.outside_the_box.five_readouts import PARTS as SCENES
from spotlessnet.experiments.outside_the_box.methods import noise
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
from spotlessnet.methods import NTK
from spotlessnet.readouts import Error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = {"figure_3": SCENES["figure_2"][:1], "figure_8": SCENES["figure_7"]}
"""The slices of each figure."""

UNSHIFTED, PUBLISHED, OURS = "Fisher", "NTK, published code, and Fisher", "NTK and Fisher"
ORIGINS = ("forget", "retain", "test")
WHITE, BLACK, TEST = "white box", "black box, one test query", "error on test"
FAR = 1e15
"""A factor of the noise at which the means no longer count."""

SOURCE = (
    "figure in the published notebook, read off its pixels within 3 %, halved: its sums lack the factor one half; "
    "white box reversed; strength 100 times its own"
)
PAPER = tuple(
    Published("cifar10, ResNet-18 ×0.4", PUBLISHED, at(readout, strength), value, SOURCE)
    for strength, white, white_error, black, _black_error in (
        (1e-6, 1.1e4, 0.262, 10.0, 0.255),
        (1e-5, 1.1e3, 0.266, 1.0, 0.263),
        (1e-4, 116.0, 0.324, 0.105, 0.313),
        (1e-3, 17.5, 0.74, 0.0135, 0.501),
    )
    for readout, value in ((WHITE, white), (TEST, white_error), (BLACK, black))
)
"""Recorded for its own strengths 1e-8 to 1e-5; see `methods.noise` for how the two compare."""


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """Which slices, how much noise, and how many answers an attacker gets to see one of.

    **Arguments:**

    - `strengths`: of the Fisher noise, one point of each curve.
    - `leak`: the strength at which queries of different origin are compared.
    - `draws`: noisy networks that an error is averaged over.
    - `queries`: single queries from each origin.
    """

    scenes: tuple[Scene, ...]
    strengths: tuple[float, ...] = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
    leak: float = 1e-6
    draws: int = 5
    queries: int = 25

    @staticmethod
    def toy(part: str) -> "Settings":
        return Settings(scenes=(toy_scene(),), strengths=(1e-6, 1e-4, 1e-3), draws=2, queries=3)

    @staticmethod
    def full(part: str) -> "Settings":
        return Settings(scenes=tuple(full_scene(*which) for which in PARTS[part]))

    @staticmethod
    def tiny(part: str) -> "Settings":
        scenes = tuple(tiny_scene(*which) for which in PARTS[part])
        return Settings(scenes=scenes, strengths=(1e-6, 1e-4), draws=1, queries=1, seeds=(0,))


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """All curves, a scene and a seed at a time."""
    for scene in settings.scenes:
        open_it = partial(scene.open, data, settings.place)
        measure_missing(out, scene, settings.seeds, open_it, partial(measure, settings))
    return stored(out)


def measure(settings: Settings, stage: Stage, seed: int) -> Iterator[Row]:
    """The rows of one seed."""
    split = stage.split(seed)
    original = stage.original(seed)
    unit = noise(1.0)
    retrained = retrained_of(original, split, seed)
    reference = Gaussian(retrained.weights, unit.spread(retrained, split, Notes()))
    scrubs: Mapping[str, Scrub] = {
        UNSHIFTED: unit,
        PUBLISHED: chain(NTK(variant="published"), unit),
        OURS: chain(NTK(), unit),
    }
    for method, scrub in scrubs.items():
        scrubbed = scrub(original, split)

        def row(
            readout: str, value: float, unit: str, low: float, high: float, note: str = "", method: str = method
        ) -> Row:
            return Row(stage.scene.name, method, readout, seed, value, low, high, unit, "low", note=note)

        errors = (Error("test"), Error("retain"))
        nats = WhiteBox()
        found = trade_off(
            scrubbed, reference, original, split, readouts=errors, bounds=(nats,),
            scales=settings.strengths, draws=settings.draws, seed=seed,
        )  # fmt: skip
        for i, strength in enumerate(settings.strengths):
            for readout in errors:
                mean = found.readings[readout.name][i]
                counted = readout.unit if readout.name == TEST else ""  # one error is enough for a table
                yield row(at(readout.name, strength), mean.value, counted, mean.low, mean.high, mean.note)
            seen = found.nats[nats.name][i]
            yield row(at(WHITE, strength), seen.value, "nats", seen.low, seen.high, seen.note)
        answers = one_query(scrubbed, reference, original, split, settings.queries)
        for strength in settings.strengths:
            how = linear_note(scaled(scrubbed, strength), original, split, settings.draws)
            yield row(at(BLACK, strength), *t_interval_of(answers["test"].nats(strength)), note=how)
        for origin, answer in answers.items():
            value = t_interval_of(answer.nats(settings.leak))
            yield row(
                at(f"leak of one query from {origin}", settings.leak), *value, note=f"{len(answer.moved)} queries"
            )


def t_interval_of(values: Float[Tensor, " N"]) -> tuple[float, str, float, float]:
    """Mean, unit and limits over queries, in the order of a row's fields."""
    mean, low, high = t_interval(values)
    return mean, "nats", low, high


@dataclass(frozen=True)
class Answers:
    r"""What single queries give away, at any strength: $\text{spread} + \text{moved} / s$ nats."""

    moved: Float[Tensor, " N"]
    spread: Float[Tensor, " N"]

    def nats(self, strength: float) -> Float[Tensor, " N"]:
        """Nats per query when both covariances have this strength."""
        return self.spread + self.moved / strength


def one_query(
    scrubbed: Gaussian, reference: Gaussian, trained: Trained, split: Split, count: int
) -> dict[str, Answers]:
    """For `count` single queries from each origin, what means and covariances contribute at unit strength."""
    found = {}
    for origin in ORIGINS:
        data = chosen(data_of(split, origin), count)
        spread = per_query(scaled(scrubbed, FAR), scaled(reference, FAR), trained, data)
        both = per_query(scrubbed, reference, trained, data)
        found[origin] = Answers((both - spread).clamp(min=0.0), spread)
    return found


def linear_note(noisy: Gaussian, trained: Trained, split: Split, draws: int) -> str:
    """Whether the network is linear as far as this noise reaches, by a few draws and queries."""
    data = chosen(split.tests, 2)
    generator = torch.Generator().manual_seed(0)
    return linearisation(noisy, trained, data, generator=generator, draws=max(4 * draws, 4)).note


def draw(rows: list[Row], out: Path) -> list[Path]:
    """Per slice: error against nats of the weights, of one answer, and the leak by the query's origin."""
    drawn = []
    for experiment in dict.fromkeys(row.experiment for row in rows):
        here = [row for row in rows if row.experiment == experiment]

        def fill(figure: object, here: list[Row] = here) -> None:
            left, middle, right = figure.subplots(1, 3)  # type: ignore[attr-defined]  # matplotlib comes late
            for axes, nats in ((left, WHITE), (middle, BLACK)):
                against(axes, here, nats)
            left.legend(fontsize=7)
            leaks(right, here)

        caption = wrapped(
            f"{experiment}. Each point is a strength of the noise; its error bars are 95 % intervals over seeds.",
            "Right: mean over queries and seeds, with 95 % intervals over seeds.",
            captioned(here),
        )
        drawn += save(out, file_name(experiment), fill, (10, 3.8), caption)
    return drawn


def against(axes: "Axes", rows: list[Row], nats: str) -> None:
    """Test error against nats, one curve per method."""
    for i, method in enumerate((UNSHIFTED, PUBLISHED, OURS)):
        x, y = curve(rows, method, nats), curve(rows, method, TEST)
        middle = [t_interval(y[s]) for s in x]
        several = all(len(values) > 1 for values in y.values())
        bars = [[m.value - m.low for m in middle], [m.high - m.value for m in middle]] if several else None
        axes.errorbar(
            [sum(v) / len(v) for v in x.values()], [m.value for m in middle], yerr=bars,
            color=colour(i), marker=mark(i), ms=4, lw=1.2, capsize=2, label=method,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel(f"{nats} (nats)")
    axes.set_ylabel("error on test (share)")


def leaks(axes: "Axes", rows: list[Row]) -> None:
    """Nats of one query by where it comes from."""
    for i, method in enumerate((UNSHIFTED, PUBLISHED, OURS)):
        for j, origin in enumerate(ORIGINS):
            [(strength, values)] = curve(rows, method, f"leak of one query from {origin}").items()
            mean = t_interval(values)
            axes.bar(j + 0.27 * (i - 1), mean.value, 0.25, color=colour(i), label=method if not j else None)
            if len(values) > 1:
                reach = [[min(mean.value - mean.low, mean.value)], [mean.high - mean.value]]
                axes.errorbar(j + 0.27 * (i - 1), mean.value, yerr=reach, color="black", capsize=2, lw=1)
    axes.set_xticks(range(len(ORIGINS)), ORIGINS)
    axes.set_xlabel(f"origin of the query (strength {strength:g})")
    axes.set_ylabel("nats from one query")
