r"""The note's section 2: the optimal noise has a root that the paper's Proposition 4 lacks.

The Lagrangian $\tfrac12\mathrm{tr}(B\Sigma) + \tfrac\lambda2\mathrm{tr}(\Sigma^{-1}\Sigma_h)$ with
$\Sigma_h = \sigma_h^2 I$ is least at $\Sigma = \sqrt{\lambda\sigma_h^2}\,B^{-1/2}$. The paper prints
$\lambda\sigma_h^2\,B^{-1/2}$. Both are put to a network at the same $\lambda\sigma_h^2$: what the Lagrangian comes
to, how large the noise is, what it costs in error and buys in nats.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.auditing.comparison import original_of, retrained_of
from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.bounds import WhiteBox
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import track
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split, some_of_class
from spotlessnet.core.trained import Trained
from spotlessnet.experiments import figures
from spotlessnet.experiments.experiment import ROWS, Published, Sized
from spotlessnet.experiments.few import fewer
from spotlessnet.experiments.setting import Setting
from spotlessnet.methods import Fisher
from spotlessnet.readouts import Error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "corrected root"
CORRECTED, PRINTED = "corrected", "as printed"
LAGRANGIAN, DEVIATION = "Lagrangian over its least value", "median deviation of the noise"
BOUND = "white-box bound"
PAPER = (Published(f"{NAME}", CORRECTED, LAGRANGIAN, 1.0, "Proposition 2.1 of the note: the least value there is"),)


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    r"""Data and the grid.

    **Arguments:**

    - `grid`: values of $\lambda\sigma_h^2$.
    - `curvature_rows`: retained rows that $B$ is measured on; all for `None`.
    """

    setting: Setting
    label: int = 0
    count: int = 100
    grid: tuple[float, ...] = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
    curvature_rows: int | None = None

    @staticmethod
    def toy() -> "Settings":
        """Digits."""
        recipe = Recipe(epochs=15, lr=0.05, batch_size=64, weight_decay=5e-3)
        setting = Setting("digits", options={"hidden": (16,)}, recipe=recipe, rows=400)
        return Settings(seeds=(0, 1), setting=setting, count=20, curvature_rows=200, grid=(1e-10, 1e-8, 1e-6, 1e-4))

    @staticmethod
    def full() -> "Settings":
        """MNIST, a perceptron."""
        setting = Setting("mnist", options={"hidden": (256,)}, recipe=Recipe(epochs=10, weight_decay=5e-4))
        return Settings(setting=setting, curvature_rows=10000)

    @staticmethod
    def tiny() -> "Settings":
        """MNIST, a few images."""
        full = Settings.full()
        return replace(full, seeds=(0,), setting=full.setting.rehearsed(200), count=3, grid=(1e-8,), curvature_rows=50)


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """Both forms over the grid, all seeds."""
    done = {row.seed for row in read_rows(out / ROWS)}
    seeds = [seed for seed in settings.seeds if seed not in done]
    if seeds:
        opened = settings.setting.open(data, settings.place)
        split = some_of_class(settings.label, settings.count)(opened.train, opened.test)
        for seed in track(seeds, "adding both noises"):
            original = original_of(opened.start, split, seed)
            retrained = retrained_of(original, split, seed)
            append_rows(out / ROWS, _measure(settings, original, retrained, split, seed))
    return read_rows(out / ROWS)


def _measure(settings: Settings, original: Trained, retrained: Trained, split: Split, seed: int) -> list[Row]:
    few = fewer(split, settings.curvature_rows)
    made = []
    # Σ at λσ² = 1 is B^{-1/2}; everything else is a multiple of it.
    root, other = (Fisher(strength=1.0, cap=1e6).spread(at, few, Notes()) for at in (original, retrained))
    B = root.diagonal().double().pow(-2)
    for s in settings.grid:
        for method, factor in ((CORRECTED, s**0.5), (PRINTED, s)):
            here = Gaussian(original.weights, root.scaled(factor))
            there = Gaussian(retrained.weights, other.scaled(factor))
            noisy = original.at(here.draw(torch.Generator().manual_seed(seed)))
            test = Error("test")(noisy, split)
            nats = WhiteBox()(here, there, original, split)
            label = f"{method} at {s:g}"
            variance = here.covariance.diagonal().double()
            ratio = lagrangian(B, variance, s) / lagrangian(B, (s / B).sqrt(), s)
            made += [
                Row(NAME, label, LAGRANGIAN, seed, ratio, unit="ratio", ideal="low"),
                Row(NAME, label, DEVIATION, seed, float(variance.sqrt().median()), unit="weight", ideal=""),
                Row(NAME, label, _test_name(), seed, test.value, test.low, test.high, "share of rows"),
                Row(NAME, label, BOUND, seed, nats.value, unit="nats", ideal="low", note=nats.note),
            ]
    return made


def _test_name() -> str:
    """The column of the error."""
    return Error("test").name


def lagrangian(B: Float[Tensor, " P"], variance: Float[Tensor, " P"], s: float) -> float:
    r"""$\tfrac12\sum_i B_i \Sigma_i + s / \Sigma_i$ for diagonal matrices, $s = \lambda\sigma_h^2$."""
    return 0.5 * float((B * variance + s / variance).sum())


def draw(rows: list[Row], out: Path) -> list[Path]:
    r"""Each number against $\lambda\sigma_h^2$, for both forms."""
    shown = (LAGRANGIAN, DEVIATION, _test_name(), BOUND)

    def fill(figure: "Figure") -> None:
        for i, readout in enumerate(shown):
            axes = figure.add_subplot(2, 2, i + 1)
            for j, method in enumerate((CORRECTED, PRINTED)):
                points: dict[float, list[float]] = {}
                for row in rows:
                    form, _, s = row.method.partition(" at ")
                    if form == method and row.readout == readout:
                        points.setdefault(float(s), []).append(row.value)
                grid = sorted(points)
                colour = figures.colour((2, 1)[j])
                means = [sum(points[s]) / len(points[s]) for s in grid]
                axes.plot(grid, means, color=colour, marker=figures.mark(j), label=method)
                axes.fill_between(
                    grid, [min(points[s]) for s in grid], [max(points[s]) for s in grid], color=colour, alpha=0.2, lw=0
                )
            axes.set_xscale("log")
            if readout != _test_name():
                axes.set_yscale("log")
            axes.set_title(readout, fontsize=10)
            axes.set_xlabel("λσ²")
            axes.set_ylabel(next(row.unit for row in rows if row.readout == readout))
            axes.legend(fontsize=8)

    return figures.save(out, "corrected_root", fill, (9, 6), "Lines: mean over seeds; bands: least and largest.")
