r"""The note's Figure 1: forgetting as the step from one optimum to the other, in one dimension.

With $L_{D_r} = \tfrac b2 (w - w_r)^2$ and $L_{D_f} = \tfrac c2 (w - w_f)^2$ the optimum of their sum is
$w_D = (b w_r + c w_f)/(b + c)$, and one Newton step on $L_{D_r}$ from there lands on $w_r$. The note's equation 5
prints $w_D - \tfrac cb w_f (w_f - w_D)$, where the factor $w_f$ is one too many; both are tried, beside the package's
own step.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.auditing.summary import ORIGINAL
from spotlessnet.core.data import Data
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split
from spotlessnet.core.split import rows as by_number
from spotlessnet.core.trained import Trained
from spotlessnet.experiments import figures
from spotlessnet.experiments.experiment import ROWS, Published, Sized
from spotlessnet.methods import NTK, Newton
from spotlessnet.operators.solvers import CG

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "shifting optima"
MISS = "distance to the retrained optimum"
NEWTON, KERNEL, PRINTED, MENDED = "Newton", "NTK", "equation 5 as printed", "equation 5 without the stray factor"
PAPER = (Published(NAME, NEWTON, MISS, 0.0, "equation 9: the step lands on the optimum exactly"),)


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """Random parabolas.

    **Arguments:**

    - `rows`: of which the first third must go.
    """

    seeds: tuple[int, ...] = tuple(range(10))
    rows: int = 30

    @staticmethod
    def toy() -> "Settings":
        """Ten problems."""
        return Settings()

    @staticmethod
    def full() -> "Settings":
        """A hundred problems."""
        return Settings(seeds=tuple(range(100)))

    @staticmethod
    def tiny() -> "Settings":
        """Two problems."""
        return Settings(seeds=(0, 1))


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """One problem per seed; nothing is read from the data folder."""
    done = {row.seed for row in read_rows(out / ROWS)}
    for seed in settings.seeds:
        if seed not in done:
            append_rows(out / ROWS, _measure(problem(settings.rows, seed), seed))
    return read_rows(out / ROWS)


def problem(rows: int, seed: int) -> Split:
    """Rows of a line through the origin; those that must go lie on another line."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, 1, generator=draw, dtype=torch.float64) + 0.5
    slopes = torch.where(torch.arange(rows).unsqueeze(1) < rows // 3, 2.0, 0.5)
    y = slopes * x + 0.1 * torch.randn(rows, 1, generator=draw, dtype=torch.float64)
    return by_number(range(rows // 3))(Data.of((x, y)))


def parabola(data: Data) -> tuple[float, float]:
    r"""Curvature and optimum of $\sum \tfrac12 (w x - y)^2$."""
    x, y, _ = data.fetch(data.rows)
    assert isinstance(x, torch.Tensor)  # made above
    return float((x * x).sum()), float((x * y).sum() / (x * x).sum())


def _measure(split: Split, seed: int) -> list[Row]:
    (b, w_r), (c, w_f), (_, w_D) = (parabola(data) for data in (split.retain, split.forget, split.whole))
    trained = Trained.of(nn.Linear(1, 1, bias=False).double(), SquaredError(), weight_decay=0.0)
    trained = trained.at(torch.tensor([w_D], dtype=torch.float64))
    # The squared error of the package may carry another factor; it drops out of the step.
    landed = {
        ORIGINAL: w_D,
        NEWTON: float(Newton(damping=0.0).shift(trained, split, Notes())),
        KERNEL: float(NTK(damping=0.0, solver=CG(tolerance=1e-12)).shift(trained, split, Notes())),
        PRINTED: w_D - c / b * w_f * (w_f - w_D),
        MENDED: w_D - c / b * (w_f - w_D),
    }
    made = [Row(NAME, method, MISS, seed, abs(w - w_r), unit="weight", ideal="low") for method, w in landed.items()]
    shape = {"b": b, "c": c, "w_r": w_r, "w_f": w_f, "w_D": w_D, "newton": landed[NEWTON]}
    return made + [Row(f"{NAME}, shape", "problem", key, seed, value) for key, value in shape.items()]


def draw(rows: list[Row], out: Path) -> list[Path]:
    """The three parabolas of the first problem, and the step."""
    first = min(row.seed for row in rows)
    at = {row.readout: row.value for row in rows if row.seed == first and row.method == "problem"}

    def fill(figure: "Figure") -> None:
        axes = figure.add_subplot()
        low, high = min(at["w_r"], at["w_f"]) - 0.6, max(at["w_r"], at["w_f"]) + 0.6
        w = [low + (high - low) * i / 200 for i in range(201)]
        L_r = [0.5 * at["b"] * (v - at["w_r"]) ** 2 for v in w]
        L_f = [0.5 * at["c"] * (v - at["w_f"]) ** 2 for v in w]
        total = [p + q for p, q in zip(L_r, L_f, strict=True)]
        for i, (label, values) in enumerate((("all rows", total), ("retained", L_r), ("forgotten", L_f))):
            axes.plot(w, values, color=figures.colour((1, 2, 0)[i]), ls=("-", "--", ":")[i], label=label)
        height = 0.5 * at["b"] * (at["w_D"] - at["w_r"]) ** 2
        axes.plot([at["w_D"]], [height], marker="o", color=figures.colour(1))
        axes.plot([at["newton"]], [0], marker="s", color=figures.colour(2))
        axes.text(at["w_D"], 1.6 * height, "  from the optimum on all rows", fontsize=9, va="bottom")
        axes.annotate(
            "",
            xy=(at["newton"], 0),
            xytext=(at["w_D"], height),
            arrowprops={"arrowstyle": "->", "color": "black"},
        )
        axes.text(at["newton"], 0, "one Newton step ", fontsize=9, ha="right", va="bottom")
        axes.set_ylim(bottom=-0.05 * max(total), top=1.05 * max(total))
        axes.set_xlabel("the one weight")
        axes.set_ylabel("loss, up to a constant")
        axes.legend()

    return figures.save(out, "shifting_optima", fill)
