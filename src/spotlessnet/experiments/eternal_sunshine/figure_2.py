"""Figure 2: what noise costs in test error, and how many nats about the forgotten class it takes away.

*Eternal Sunshine of the Spotless Net*, section 4.1. The covariance of each method's noise is scaled over a grid; its
reference, the same noise around the retrained weights, with it.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spotlessnet.auditing.comparison import Context, original_of, reference_of, retrained_of
from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.bounds import WhiteBox
from spotlessnet.bounds.trade_off import trade_off
from spotlessnet.core.chaining import chain
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.progress import track
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import whole_class
from spotlessnet.experiments import figures
from spotlessnet.experiments.experiment import ROWS, Published, Sized
from spotlessnet.experiments.few import FromFew
from spotlessnet.experiments.setting import STANDS_IN, Setting
from spotlessnet.methods import NTK, Finetune, Fisher, Variational
from spotlessnet.operators.solvers import CG, Auto
from spotlessnet.readouts import Error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NATS = "WhiteBox"
ERRORS = ("error on test", "error on retain", "error on forget")
PAPER: tuple[Published, ...] = ()
"""The paper prints the curve, but no numbers."""


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """Data and the grid of noise.

    **Arguments:**

    - `label`: the class that must go.
    - `scales`: factors of the covariance.
    - `draws`: noisy networks per point.
    - `fisher`, `variational`: what sets the noise at a factor of one.
    - `curvature_rows`: retained rows that Fisher matrix and NTK are measured on; all for `None`.
    """

    setting: Setting
    label: int = 0
    scales: tuple[float, ...] = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
    draws: int = 5
    fisher: Fisher = field(default_factory=Fisher)
    variational: Variational = field(default_factory=Variational)
    ntk: NTK = field(default_factory=lambda: NTK(solver=Auto(tolerance=1e-2, max_iterations=40)))
    curvature_rows: int | None = None

    @staticmethod
    def toy() -> "Settings":
        """Digits, a small perceptron, pre-trained on rows that stay."""
        recipe = Recipe(epochs=15, lr=0.05, batch_size=64, weight_decay=5e-3)
        setting = Setting("digits", options={"hidden": (16,)}, recipe=recipe, pretrain="digits", core=0.3, rows=400)
        setting = replace(setting, pretrain_recipe=Recipe(epochs=5, lr=0.1, batch_size=64))
        return Settings(
            seeds=(0, 1),
            setting=setting,
            scales=(1.0, 100.0, 1e4),
            draws=2,
            fisher=Fisher(strength=1e-7, cap=10.0),
            variational=Variational(strength=1e-5, steps=60, cap=10.0),
            curvature_rows=200,
        )

    @staticmethod
    def full() -> "Settings":
        """All of MNIST and a two-layer network; the paper does not say what its figure shows, and 3 shows these."""
        recipe = Recipe(epochs=10, lr=0.01, batch_size=128, weight_decay=5e-4)
        setting = Setting("mnist", options={"hidden": (256,)}, recipe=recipe, pretrain="mnist", core=0.1)
        setting = replace(setting, pretrain_recipe=Recipe(epochs=5, lr=0.05, weight_decay=5e-4))
        return Settings(
            setting=setting,
            curvature_rows=5000,
            scales=(1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0),
            ntk=NTK(solver=CG(tolerance=1e-2, max_iterations=40), damping=5e-3),
        )

    @staticmethod
    def tiny() -> "Settings":
        """The full path on a few images."""
        full = Settings.full()
        return replace(
            full,
            seeds=(0,),
            setting=full.setting.rehearsed(30),
            scales=(0.1, 1.0),
            draws=1,
            variational=replace(full.variational, steps=4),
            ntk=replace(full.ntk, damping=5e-3, solver=Auto(tolerance=1e-2, max_iterations=3)),
            curvature_rows=8,
        )


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """One curve per method and seed."""
    done = {row.key for row in read_rows(out / ROWS)}
    name = f"figure 2, {settings.setting.title}"
    seeds = [seed for seed in settings.seeds if (name, RETRAINED, ERRORS[-1], seed) not in done]
    if seeds:
        opened = settings.setting.open(data, settings.place)
        split = whole_class(settings.label)(opened.train, opened.test)
        for seed in track(seeds, "trading error for nats"):
            original = original_of(opened.start, split, seed)
            context = Context(original, retrained_of(original, split, seed), split, seed)
            append_rows(out / ROWS, _curves(settings, context, name))
    return read_rows(out / ROWS)


def methods(settings: Settings) -> dict[str, Scrub]:
    """The two of the paper, and ours."""
    fisher = FromFew(settings.fisher, settings.curvature_rows)
    step = FromFew(settings.ntk, settings.curvature_rows, thin=True)
    return {"Fisher": fisher, "variational": settings.variational, "ours": chain(step, Finetune(epochs=3), fisher)}


def _curves(settings: Settings, context: Context, name: str) -> list[Row]:
    readouts = [Error("test"), Error("retain"), Error("forget")]
    made = []
    for method, scrub in methods(settings).items():
        gaussian = scrub(context.original, context.split)
        found = trade_off(
            gaussian,
            reference_of(scrub, gaussian, context),
            context.original,
            context.split,
            readouts=readouts,
            bounds=[WhiteBox()],
            scales=settings.scales,
            draws=settings.draws,
            seed=context.seed,
        )
        for i, scale in enumerate(found.scales):
            for column, readings in {**found.readings, **found.nats}.items():
                one, unit = readings[i], "nats" if column == NATS else "share of rows"
                label = f"{method} × {scale:g}"
                made.append(Row(name, label, column, context.seed, one.value, one.low, one.high, unit, note=one.note))
    for method, network in ((ORIGINAL, context.original), (RETRAINED, context.retrained)):
        for readout in readouts:
            one = readout(network, context.split)
            made.append(Row(name, method, readout.name, context.seed, one.value, one.low, one.high, readout.unit))
    return made


def draw(rows: list[Row], out: Path) -> list[Path]:
    """Test error against nats, with the band over seeds."""

    def fill(figure: "Figure") -> None:
        axes = figure.add_subplot()
        curves: dict[str, dict[float, dict[str, list[float]]]] = {}
        for row in rows:
            if " × " in row.method:
                method, scale = row.method.split(" × ")
                curves.setdefault(method, {}).setdefault(float(scale), {}).setdefault(row.readout, []).append(row.value)
        for i, (method, points) in enumerate(curves.items()):
            seen = [points[scale] for scale in sorted(points)]
            nats = [sum(p[NATS]) / len(p[NATS]) for p in seen]
            test = [t_interval(p[ERRORS[0]]) if len(p[ERRORS[0]]) > 1 else (p[ERRORS[0]][0],) * 3 for p in seen]
            axes.plot(
                nats, [t[0] for t in test], marker=figures.mark(i), color=figures.colour((0, 3, 4)[i]), label=method
            )
            low, high = ([min(max(t[j], 0.0), 1.0) for t in test] for j in (1, 2))
            axes.fill_between(nats, low, high, color=figures.colour((0, 3, 4)[i]), alpha=0.2, lw=0)
        for method, style in ((ORIGINAL, "--"), (RETRAINED, ":")):
            values = [row.value for row in rows if row.method == method and row.readout == ERRORS[0]]
            axes.axhline(sum(values) / len(values), color=figures.colour_of(method), ls=style, label=method)
        axes.set_xscale("log")
        axes.invert_xaxis()
        axes.set_xlabel("information left about the class, nats (less to the right)")
        axes.set_ylabel("test error, share of rows")
        axes.legend()

    caption = next((text for name, text in STANDS_IN.items() if name in rows[0].experiment), "")
    return figures.save(out, "trade_off", fill, caption=caption)
