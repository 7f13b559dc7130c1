"""Figures 1 and 6: training paths with and without the forgotten rows in a plane, and the loss between them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from spotlessnet.auditing.rows import Row
from spotlessnet.bounds.trade_off import scaled
from spotlessnet.bounds.white_box import parts
from spotlessnet.core.chaining import chain
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import track
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.experiment import Published, Sized
from spotlessnet.experiments.figures import colour, mark, save
from spotlessnet.experiments.outside_the_box.curves import at, curve, place_of
from spotlessnet.experiments.outside_the_box.methods import noise
from spotlessnet.experiments.outside_the_box.scene import (
    Scene,
    Stage,
    captioned,
    full_scene,
    measure_missing,
    stored,
    tiny_scene,
    toy_scene,
    wrapped,
)
from spotlessnet.methods import NTK
from spotlessnet.readouts import Error
from spotlessnet.readouts.curve import loss_along_line
from spotlessnet.readouts.mean_loss import mean_loss
from spotlessnet.training.fit import fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER: tuple[Published, ...] = ()
"""Neither figure prints a number. What they claim: the step goes toward the retrained network, which lessens the noise
that is needed; the loss is smooth and almost convex, and the two paths stay close."""

SCRUBBED = ("Fisher", "NTK and Fisher")
FIRST, SECOND = "first direction", "second direction"
LINES = (("start", "original"), ("original", "retrained"), ("original", "scrubbed"), ("scrubbed", "retrained"))


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """What is projected and how finely the loss is looked at.

    **Arguments:**

    - `nats`: the noise of both scrubs is as strong as their means need to differ by so many nats.
    - `cloud`: noisy networks that are drawn.
    - `steps`: of each line.
    - `grid`: points across the plane at which the loss is measured; zero for none.
    """

    scene: Scene
    nats: float = 100.0
    cloud: int = 30
    steps: int = 20
    grid: int = 0

    @staticmethod
    def toy(part: str) -> "Settings":
        return Settings(scene=toy_scene(), cloud=10, steps=5, grid=5 if part == "figure_6" else 0)

    @staticmethod
    def full(part: str) -> "Settings":
        return Settings(scene=full_scene("cifar10", "all-cnn"), grid=17 if part == "figure_6" else 0)

    @staticmethod
    def tiny(part: str) -> "Settings":
        scene = tiny_scene("cifar10", "all-cnn")
        return Settings(scene=scene, cloud=2, steps=1, grid=2 if part == "figure_6" else 0, seeds=(0,))


@dataclass(frozen=True, eq=False)
class Plane:
    """The two directions in which the paths vary most, through the retrained network."""

    origin: Float[Tensor, " P"]
    basis: Float[Tensor, "2 P"]
    explained: float

    @staticmethod
    def through(points: Float[Tensor, "K P"], origin: Float[Tensor, " P"]) -> "Plane":
        """Principal directions of some weights, by the small matrix of their inner products."""
        # Double: two paths differ by far less than they are long, and shortened products would blur that.
        centred = (points - points.mean(0)).double()
        values, vectors = torch.linalg.eigh(centred @ centred.T)
        basis = torch.nn.functional.normalize(vectors[:, [-1, -2]].T @ centred, dim=1)
        return Plane(origin, basis.to(points), float(values[-2:].sum() / values.sum()))

    def place(self, weights: Float[Tensor, " P"]) -> tuple[float, float]:
        """Coordinates of the nearest point of the plane."""
        x, y = (self.basis.double() @ (weights - self.origin).double()).tolist()
        return x, y

    def at(self, x: float, y: float) -> Float[Tensor, " P"]:
        """The weights at a point of the plane."""
        return self.origin + x * self.basis[0] + y * self.basis[1]


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """Paths, clouds and lines, a seed at a time; the plane is that of each seed."""
    open_it = partial(settings.scene.open, data, settings.place)
    measure_missing(out, settings.scene, settings.seeds, open_it, partial(measure, settings))
    return stored(out)


def measure(settings: Settings, stage: Stage, seed: int) -> Iterator[Row]:
    """The rows of one seed."""
    split = stage.split(seed)
    start = stage.start(seed)
    name = stage.scene.name
    original, path = stage.follow(seed, split.whole)
    recipe = stage.scene.setting.recipe.but(epochs=len(path), patience=None)
    original, path_r = replace(original, recipe=recipe), []

    def watch(epoch: int, network: Trained) -> bool:
        path_r.append(network.weights)
        return False

    retrained = fit(replace(start, recipe=recipe), split.retain, seed=seed, order_of=split.whole, watch=watch)
    plane = Plane.through(torch.stack([start.weights, *path, *path_r]), retrained.weights)
    yield Row(name, "plane", "share of the paths' variance", seed, plane.explained, unit="share", ideal="high")
    for method, weights in (("path on D", path), ("path on D_r", path_r)):
        yield from placed(name, method, seed, plane, [start.weights, *weights])
    ends = {"start": start, "original": original, "retrained": retrained}
    yield from clouds(settings, name, seed, plane, split, ends)
    if settings.grid:
        yield from landscape(settings, name, seed, plane, original, split)


def placed(name: str, method: str, seed: int, plane: Plane, weights: list[Float[Tensor, " P"]]) -> Iterator[Row]:
    """Coordinates of some weights in the plane, numbered."""
    for i, one in enumerate(weights):
        for direction, value in zip((FIRST, SECOND), plane.place(one), strict=True):
            yield Row(name, method, at(direction, i), seed, value)


def clouds(
    settings: Settings, name: str, seed: int, plane: Plane, split: Split, ends: Mapping[str, Trained]
) -> Iterator[Row]:
    """Where scrubs lead, how much noise the same nats cost them, and the loss on the lines between networks."""
    original = ends["original"]
    retrained = ends["retrained"]
    unit = noise(1.0)
    reference = Gaussian(retrained.weights, unit.spread(retrained, split, Notes()))
    for method, scrub in {"Fisher": unit, "NTK and Fisher": chain(NTK(), unit)}.items():
        scrubbed = scrub(original, split)
        moved, _ = parts(scrubbed, reference, scrubbed.kl(reference))
        strength = moved / settings.nats
        noisy = scaled(scrubbed, strength)
        draw = torch.Generator().manual_seed(seed)
        drawn = [noisy.draw(draw) for _ in range(settings.cloud)]
        yield from placed(name, f"{method}, mean", seed, plane, [scrubbed.mean])
        yield from placed(name, f"{method}, cloud", seed, plane, drawn)
        gap = float((scrubbed.mean - retrained.weights).norm())
        note = f"means {settings.nats:g} nats apart"
        yield Row(name, method, "distance to retrained", seed, gap, unit="weights", ideal="low")
        yield Row(name, method, "noise strength", seed, strength, unit="strength", ideal="low", note=note)
        errors = [Error("retain")(original.at(w), split).value for w in drawn]
        mean = sum(errors) / len(errors)
        yield Row(name, method, "error on retain", seed, mean, unit="share of rows", ideal="low", note=note)
    yield from lines(settings, name, seed, split, {**ends, "scrubbed": original.at(scrubbed.mean)})


def lines(settings: Settings, name: str, seed: int, split: Split, ends: Mapping[str, Trained]) -> Iterator[Row]:
    """Mean loss on the retained and on the forgotten rows along straight lines."""
    for begin, end in LINES:
        for on, data in (("retain", split.retain), ("forget", split.forget)):
            found = loss_along_line(ends[begin], ends[end], data, steps=settings.steps)
            for a, value in zip(found.positions.tolist(), found.values.tolist(), strict=True):
                readout = at(f"loss on {on}", a)
                yield Row(name, f"{begin} to {end}", readout, seed, value)


def landscape(settings: Settings, name: str, seed: int, plane: Plane, network: Trained, split: Split) -> Iterator[Row]:
    """Mean loss on all rows over the part of the plane that the paths cross, with a margin."""
    corners = torch.tensor([plane.place(network.anchor), plane.place(network.weights), (0.0, 0.0)])
    low, high = corners.min(0).values, corners.max(0).values
    margin = 0.35 * float((high - low).max())
    x, y = (torch.linspace(float(low[i]) - margin, float(high[i]) + margin, settings.grid) for i in (0, 1))
    for a, b in track([(a, b) for a in x.tolist() for b in y.tolist()], "loss over the plane"):
        value = mean_loss(network.at(plane.at(a, b)), split.whole)
        yield Row(name, "plane", at("loss on D", a, b), seed, value)


def draw(rows: list[Row], out: Path) -> list[Path]:
    """Of the first seed: paths with clouds, and, where it was measured, the loss over the plane and along lines."""
    seed = min(row.seed for row in rows)
    here = [row for row in rows if row.seed == seed]
    caption = wrapped(f"{here[0].experiment}, seed {seed} of", captioned(rows), width=110)

    def beside(figure: "Figure") -> None:
        for axes, method in zip(figure.subplots(1, 2, sharex=True, sharey=True), SCRUBBED, strict=True):
            paths(axes, here)
            cloud(axes, here, method)
            axes.set_title(method, fontsize=10)
        figure.axes[0].legend(fontsize=7)

    said = f"{caption}\nThe noise of both is as strong as {_nats(here)} nats between the means need."
    drawn = save(out, "paths", beside, (9, 4.2), said)
    if any(place_of(row.readout)[0] == "loss on D" for row in here):
        drawn += save(out, "landscape", lambda figure: overlooked(figure, here), (10, 6), caption)
    return drawn


def paths(axes: "Axes", rows: list[Row]) -> None:
    """Both training paths in the plane."""
    for i, (method, label) in enumerate((("path on D", "trained on D"), ("path on D_r", "trained on D_r"))):
        xy = points(rows, method)
        axes.plot(xy[:, 0], xy[:, 1], color=colour(i), marker=mark(i), ms=2.5, lw=1, label=label)
        axes.plot(*xy[-1], color=colour(i), marker=mark(i), ms=8, mfc="none")
    axes.set_xlabel("first direction (weights)")
    axes.set_ylabel("second direction (weights)")


def cloud(axes: "Axes", rows: list[Row], method: str) -> None:
    """The scrubbed mean and noisy networks around it."""
    drawn, mean = points(rows, f"{method}, cloud"), points(rows, f"{method}, mean")
    axes.plot(drawn[:, 0], drawn[:, 1], ".", color=colour(6), ms=3, label="scrubbed, with noise", zorder=0)
    axes.plot(*mean[0], "X", color=colour(3), ms=9, label="scrubbed")


def overlooked(figure: "Figure", rows: list[Row]) -> None:
    """The loss over the plane with both paths, and along the four lines."""
    grid = figure.add_gridspec(2, 3)
    axes = figure.add_subplot(grid[0, :2])
    losses = {place_of(r.readout)[1]: r.value for r in rows if place_of(r.readout)[0] == "loss on D"}
    x, y = (sorted({place[i] for place in losses}) for i in (0, 1))
    heights = torch.tensor([[losses[a, b] for a in x] for b in y]).log10()
    shown = axes.contourf(x, y, heights, levels=12, cmap="cividis")
    figure.colorbar(shown, ax=axes, label="log10 of the loss on D")
    paths(axes, rows)
    axes.legend(fontsize=7)
    places = (grid[0, 2], grid[1, 0], grid[1, 1], grid[1, 2])
    for place, (begin, end) in zip(places, LINES, strict=True):
        axes = figure.add_subplot(place)
        for i, on in enumerate(("retain", "forget")):
            found = curve(rows, f"{begin} to {end}", f"loss on {on}")
            axes.plot([*found], [v[0] for v in found.values()], color=colour(i), marker=mark(i), ms=2.5, label=on)
        axes.set_title(f"{begin} (0) to {end} (1)", fontsize=9)
        axes.set_xlabel("position on the line")
        axes.set_ylabel("loss a row")
        axes.set_ylim(bottom=0)
    figure.axes[2].legend(fontsize=7)


def points(rows: list[Row], method: str) -> Float64[Tensor, "K 2"]:
    """Coordinates in the plane, in their order."""
    both = [[v[0] for v in curve(rows, method, name).values()] for name in (FIRST, SECOND)]
    return torch.tensor(both, dtype=torch.float64).T


def _nats(rows: list[Row]) -> str:
    note = next(row.note for row in rows if row.readout == "noise strength")
    return note.removeprefix("means ").split(" nats")[0]
