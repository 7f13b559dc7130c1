"""Figure 1: where 100 trainings of a logistic regression end, before and after forgetting a cluster.

Section 5.3 of *Eternal Sunshine of the Spotless Net*: a linear logistic regression on three clusters, uniformly random
starts, batches of 10, stopped after 10 epochs. The task is to forget one of the two clusters of a class.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.bounds.from_samples import kl_from_samples
from spotlessnet.core.data import Data
from spotlessnet.core.loss import BinaryCrossEntropy
from spotlessnet.core.progress import track
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split
from spotlessnet.core.split import rows as by_number
from spotlessnet.core.trained import Trained
from spotlessnet.experiments import figures
from spotlessnet.experiments.experiment import ROWS, Published, Sized
from spotlessnet.methods import Newton
from spotlessnet.models import Logistic
from spotlessnet.training.fit_many import fit_many

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "figure 1"
TIMED, NOISY = "Newton, finite time", "Newton, finite time, with noise"
TIMELESS, KEPT = "Newton without time", "Newton without time, residual kept"
DAMPING = 1e-6
"""Next to nothing: three weights on three clusters have curvature in every direction."""

NATS, FLOOR, P = "divergence of the clouds", "the same for shuffled clouds", "p of the permutation test"
WEIGHTS = ("weight 1", "weight 2", "bias")

PAPER = (Published(NAME, TIMED, NATS, 1.0, "Figure 1: less than 1 nat after forgetting", at_most=True),)


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """How many trainings make a cloud, and what they train on.

    **Arguments:**

    - `seeds`: repetitions of the whole figure, each with clusters drawn anew.
    - `trainings`: points in each cloud.
    - `centres`, `counts`, `spread`: of the clusters; the first two are one class, the first must go.
    - `strength`: of the noise in the variant that has it.
    """

    trainings: int = 100
    centres: tuple[tuple[float, float], ...] = ((-1.5, 1.5), (-0.5, -1.5), (1.5, 0.5))
    counts: tuple[int, ...] = (50, 100, 150)
    spread: float = 0.7
    strength: float = 1e-5
    recipe: Recipe = field(default_factory=lambda: Recipe(epochs=10, lr=0.02, momentum=0.0, batch_size=10))

    @staticmethod
    def toy() -> "Settings":
        """Two clouds of 40."""
        return Settings(seeds=(0, 1), trainings=40, counts=(25, 50, 75))

    @staticmethod
    def full() -> "Settings":
        """Clouds of 100, as in the paper."""
        return Settings(seeds=(0, 1, 2))

    @staticmethod
    def tiny() -> "Settings":
        """Clouds of 8."""
        return Settings(seeds=(0,), trainings=8, counts=(5, 10, 15))


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """Train both clouds, scrub the first, and compare them; nothing is read from the data folder."""
    done = {row.key for row in read_rows(out / ROWS)}
    for seed in track(settings.seeds, NAME):
        if (NAME, RETRAINED, FLOOR, seed) not in done:
            append_rows(out / ROWS, _measure(settings, seed))
    return read_rows(out / ROWS)


def _measure(settings: Settings, seed: int) -> list[Row]:
    split = clusters(settings, seed)
    trained = Trained.of(Logistic(2, 1).double(), BinaryCrossEntropy(), recipe=settings.recipe)
    n = settings.trainings
    w_D = _train(trained, split, settings, [seed * 1000 + s for s in range(n)], without=False)
    # Other seeds: an attacker who knows how the training went, but not its random numbers.
    w_r = _train(trained, split, settings, [500_000 + seed * 1000 + s for s in range(n)], without=True)
    again = _train(trained, split, settings, [900_000 + seed * 1000 + s for s in range(n)], without=True)
    timed = Newton(time="recipe", damping=DAMPING, search=False)
    kept = Newton(damping=DAMPING, search=False)
    timeless = replace(kept, keep_residual=False)
    noisy = Newton(time="recipe", damping=DAMPING, search=False, strength=settings.strength, structure="dense")
    h = _scrubbed(timed, trained, split, w_D)
    draws = [torch.Generator().manual_seed(2 * seed + i) for i in range(2)]
    clouds = {
        ORIGINAL: (w_D, w_r),
        TIMELESS: (_scrubbed(timeless, trained, split, w_D), w_r),
        KEPT: (_scrubbed(kept, trained, split, w_D), w_r),
        TIMED: (h, w_r),
        # The reference gets the same recipe of noise, at its own weights.
        NOISY: (_noised(noisy, trained, split, h, draws[0]), _noised(noisy, trained, split, w_r, draws[1])),
        RETRAINED: (again, w_r),
    }
    made = []
    for method, (first, second) in clouds.items():
        found = kl_from_samples(first, second, permutations=199, seed=seed)
        note = f"two clouds of {n} trainings, independent seeds, Gaussian estimate"
        readings = (
            (NATS, found.nats, "nats", "low"),
            (FLOOR, found.floor, "nats", "low"),
            (P, found.p, "share", "high"),
        )
        made += [
            Row(NAME, method, name, seed, value, unit=unit, ideal=ideal, note=note)
            for name, value, unit, ideal in readings
        ]
        made += _points(method, first, seed)
        if method == NOISY:
            made += _points("retrained, with noise", second, seed)
    x, y = split.whole.fetch(split.whole.rows)[:2]
    assert isinstance(x, Tensor)  # made above
    made += [
        Row(f"{NAME} data", kind, axis, 1000 * seed + i, float(value), unit="", ideal="")
        for i, (point, label, gone) in enumerate(zip(x, y.flatten(), split.forgotten, strict=True))
        for axis, value in zip(("x", "y"), point, strict=True)
        for kind in ["forgotten" if gone else f"class {int(bool(label))}"]
    ]
    return made


def clusters(settings: Settings, seed: int) -> Split:
    """Three clusters in the plane, the first of which must go; the first two are class 1."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.cat(
        [
            torch.tensor(centre, dtype=torch.float64)
            + settings.spread * torch.randn(count, 2, generator=draw, dtype=torch.float64)
            for centre, count in zip(settings.centres, settings.counts, strict=True)
        ]
    )
    a, b, c = settings.counts
    y = torch.cat([torch.ones(a + b, dtype=torch.float64), torch.zeros(c, dtype=torch.float64)]).unsqueeze(1)
    return by_number(range(a))(Data.of((x, y)))


def _train(
    trained: Trained, split: Split, settings: Settings, seeds: Sequence[int], *, without: bool
) -> Float[Tensor, "S P"]:
    starts = torch.stack(
        [torch.rand(trained.size, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in seeds]
    )
    keep = (~split.forgotten if without else torch.ones(len(split.whole), dtype=torch.bool)).expand(len(seeds), -1)
    # Uniform in (-1, 1), as the paper starts.
    return fit_many(trained, split.whole, settings.recipe, seeds=seeds, keep=keep, starts=2 * starts - 1)


def _scrubbed(scrub: Newton, trained: Trained, split: Split, w: Float[Tensor, "S P"]) -> Float[Tensor, "S P"]:
    return torch.stack([scrub.shift(trained.at(one), split, Notes()) for one in track(w, "scrubbing")])


def _noised(
    scrub: Newton, trained: Trained, split: Split, w: Float[Tensor, "S P"], draw: torch.Generator
) -> Float[Tensor, "S P"]:
    return torch.stack([one + scrub.spread(trained.at(one), split, Notes()).draw(draw) for one in w])


def _points(method: str, cloud: Float[Tensor, "S P"], seed: int) -> list[Row]:
    return [
        Row(f"{NAME} clouds", method, name, 1000 * seed + s, float(value), unit="", ideal="")
        for s, point in enumerate(cloud)
        for name, value in zip(WEIGHTS, point, strict=True)
    ]


def draw(rows: list[Row], out: Path) -> list[Path]:
    """The clouds of weights, the decision boundaries, and the divergences."""
    first = min(row.seed for row in rows if row.experiment == NAME)
    here = [row for row in rows if row.seed // 1000 == first and row.experiment != NAME]
    clouds = _gathered([row for row in here if row.experiment.endswith("clouds")], WEIGHTS)
    data = _gathered([row for row in here if row.experiment.endswith("data")], ("x", "y"))
    nats = {row.method: row.value for row in rows if row.readout == NATS and row.seed == first}
    shown = (ORIGINAL, TIMELESS, TIMED)
    return [
        *figures.save(out, "clouds", _each(shown, lambda axes, m: _cloud(axes, m, clouds, nats)), (10, 3.6)),
        *figures.save(
            out, "boundaries", _each((*shown, RETRAINED), lambda a, m: _lines(a, m, clouds, data)), (12, 3.6)
        ),
        *figures.save(out, "divergence", figures.panels([r for r in rows if r.experiment == NAME], (NATS, FLOOR), 2)),
    ]


def _gathered(rows: list[Row], names: tuple[str, ...]) -> dict[str, list[tuple[float, ...]]]:
    points: dict[str, dict[int, dict[str, float]]] = {}
    for row in rows:
        points.setdefault(row.method, {}).setdefault(row.seed, {})[row.readout] = row.value
    return {m: [tuple(point[name] for name in names) for point in each.values()] for m, each in points.items()}


def _each(methods: Sequence[str], draw_one: Callable[["Axes", str], None]) -> Callable[["Figure"], None]:
    def fill(figure: "Figure") -> None:
        shared = None
        for i, method in enumerate(methods):
            shared = figure.add_subplot(1, len(methods), i + 1, sharex=shared, sharey=shared)
            draw_one(shared, method)

    return fill


def _cloud(axes: "Axes", method: str, clouds: dict[str, list[tuple[float, ...]]], nats: dict[str, float]) -> None:
    for i, name in ((0 if method != ORIGINAL else 1, method), (2, RETRAINED)):
        x, y = zip(*[point[:2] for point in clouds[name]], strict=True)
        axes.scatter(x, y, s=14, color=figures.colour(i), marker=figures.mark(i), alpha=0.6, lw=0, label=name)
    axes.set_title(f"{method}: {nats[method]:.2g} nats", fontsize=10)
    axes.set_xlabel("weight 1")
    axes.set_ylabel("weight 2")
    axes.legend(fontsize=8)


def _lines(
    axes: "Axes",
    method: str,
    clouds: dict[str, list[tuple[float, ...]]],
    data: dict[str, list[tuple[float, ...]]],
) -> None:
    for i, (kind, points) in enumerate(sorted(data.items())):
        x, y = zip(*points, strict=True)
        axes.scatter(x, y, s=12, color=figures.colour((6, 0, 1)[i]), marker=figures.mark(i), label=kind, lw=0)
    edges = (-5.0, 5.0)
    for a, b, c in clouds[method]:
        axes.plot(
            edges, [-(c + a * x) / b for x in edges] if abs(b) > 1e-9 else edges, color="black", lw=0.4, alpha=0.25
        )
    axes.set_xlim(-4, 4)
    axes.set_ylim(-4, 4)
    axes.set_title(method, fontsize=10)
    axes.set_xlabel("first input")
    axes.set_ylabel("second input")
    axes.legend(fontsize=7, loc="lower left")
