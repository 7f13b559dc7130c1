"""Figure 3: filters of a two-layer network before and after forgetting a digit.

*Eternal Sunshine of the Spotless Net*, section 4.1: filters that serve the forgotten digit alone are flooded with
noise, the others stay as they are. Here that is also a number: how the noise of a filter, relative to its weights,
goes with how much more it answers to the forgotten digit than to the others.
"""

import io
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.auditing.summary import ORIGINAL
from spotlessnet.core.data import Data
from spotlessnet.core.files import write_whole
from spotlessnet.core.progress import track
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split, whole_class
from spotlessnet.core.trained import Trained
from spotlessnet.experiments import figures
from spotlessnet.experiments.experiment import ROWS, Published, Sized
from spotlessnet.experiments.few import FromFew
from spotlessnet.experiments.setting import Setting
from spotlessnet.methods import Fisher
from spotlessnet.readouts import Error
from spotlessnet.training.fit import fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 6
"""Filters of each kind in the figure."""

ALIVE = 0.05
"""A filter whose mean answer is below this share of the usual one serves nobody and is left out."""

FILTERS = "filters.npz"
PAPER: tuple[Published, ...] = ()
"""The paper shows pictures, and prints no numbers."""


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """Data, network and noise.

    **Arguments:**

    - `label`: the digit that must go.
    - `fisher`: what sets the noise.
    - `curvature_rows`: retained rows that the Fisher matrix is measured on; all for `None`.
    """

    setting: Setting
    label: int = 5
    fisher: Fisher = field(default_factory=lambda: Fisher(strength=1e-7, cap=1.0))
    curvature_rows: int | None = None

    @staticmethod
    def toy() -> "Settings":
        """The digits of scikit-learn, 8×8 pixels."""
        recipe = Recipe(epochs=20, lr=0.1, batch_size=64, weight_decay=1e-5)
        return Settings(seeds=(0, 1), setting=Setting("digits", options={"hidden": (32,)}, recipe=recipe, rows=600))

    @staticmethod
    def full() -> "Settings":
        """MNIST."""
        recipe = Recipe(epochs=10, lr=0.05, batch_size=128, weight_decay=1e-5)
        return Settings(setting=Setting("mnist", options={"hidden": (64,)}, recipe=recipe), curvature_rows=10000)

    @staticmethod
    def tiny() -> "Settings":
        """MNIST, a few images."""
        full = Settings.full()
        return replace(full, seeds=(0,), setting=full.setting.rehearsed(200), curvature_rows=50)


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """Train, add the noise, look at the filters; those of the first seed are kept in a file for the picture."""
    done = {row.key for row in read_rows(out / ROWS)}
    name = f"figure 3, {settings.setting.title}, digit {settings.label}"
    seeds = [seed for seed in settings.seeds if (name, "Fisher", "error on forget", seed) not in done]
    if seeds:
        opened = settings.setting.open(data, settings.place)
        split = whole_class(settings.label)(opened.train, opened.test)
        scrub = FromFew(settings.fisher, settings.curvature_rows)
        for seed in track(seeds, "looking at filters"):
            original = fit(opened.start, split.whole, seed=seed)
            append_rows(out / ROWS, _measure(original, split, scrub, seed, name, out))
    return read_rows(out / ROWS)


def _measure(original: Trained, split: Split, scrub: Scrub, seed: int, name: str, out: Path) -> list[Row]:
    gaussian = scrub(original, split)
    w, noise = first_layer(original, original.weights), first_layer(original, gaussian.covariance.diagonal())
    share = noise.mean(dim=1).sqrt() / w.square().mean().sqrt()
    specific, alive = specificity(original, split)
    order = specific.masked_fill(~alive, -1).argsort(descending=True)[: int(alive.sum())]
    tenth = max(1, len(order) // 10)
    after = original.at(gaussian.draw(torch.Generator().manual_seed(seed)))
    if seed == 0:
        _keep(w, first_layer(original, after.weights), order, share, specific, out / FILTERS)
    readings = {
        "noise over weights in the tenth of filters most specific": float(share[order[:tenth]].mean()),
        "noise over weights in the tenth of filters least specific": float(share[order[-tenth:]].mean()),
        "rank correlation of noise and specificity": _rank_correlation(share[alive], specific[alive]),
        "filters that never answer": float((~alive).double().mean()),
    }
    made = [Row(name, "Fisher", key, seed, value, unit="ratio", ideal="") for key, value in readings.items()]
    for method, network in ((ORIGINAL, original), ("Fisher", after)):
        for part in (Error("test"), Error("retain"), Error("forget")):
            one = part(network, split)
            made.append(Row(name, method, part.name, seed, one.value, one.low, one.high, part.unit))
    return made


def first_layer(trained: Trained, vector: Float[Tensor, " P"]) -> Float[Tensor, "h d"]:
    """What a vector over all weights says about the first layer, one row per filter."""
    return trained.unflatten(vector)[trained.names[0]].flatten(1)


def specificity(trained: Trained, split: Split) -> tuple[Float[Tensor, " h"], Bool[Tensor, " h"]]:
    """How much of each filter's mean answer goes to the forgotten digit, and whether it answers at all."""
    forgotten, others = (_activity(trained, data) for data in (split.forget, split.retain))
    both = forgotten + others
    return forgotten / both.clamp(min=1e-12), both > ALIVE * both.mean()


@torch.no_grad()
def _activity(trained: Trained, data: Data) -> Float[Tensor, " h"]:
    parts = trained.unflatten(trained.weights)
    W, b = parts[trained.names[0]], parts[trained.names[1]]
    total = [(batch.x.flatten(1) @ W.T + b).relu().sum(dim=0) for batch in trained.batches(data)]  # type: ignore[union-attr]  # images are one tensor
    return torch.stack(total).sum(dim=0) / len(data)


def _rank_correlation(a: Float[Tensor, " h"], b: Float[Tensor, " h"]) -> float:
    ranks = torch.stack([v.argsort().argsort().double() for v in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


def _keep(before: Tensor, after: Tensor, order: Tensor, share: Tensor, specific: Tensor, path: Path) -> None:
    chosen = torch.cat([order[:SHOWN], order[-SHOWN:]]).cpu()
    stream = io.BytesIO()
    np.savez(
        stream,
        before=before.cpu()[chosen].numpy(),
        after=after.cpu()[chosen].numpy(),
        share=share.cpu()[chosen].numpy(),
        specificity=specific.cpu()[chosen].numpy(),
    )
    write_whole(path, stream.getvalue(), replace=True, shared=True)


def draw(rows: list[Row], out: Path) -> list[Path]:
    """The most and the least specific filters, before and after."""
    found = np.load(out / FILTERS)
    side = math.isqrt(found["before"].shape[1])
    limit = float(np.abs(found["before"]).max())

    def fill(figure: "Figure") -> None:
        for row, (kind, first) in enumerate((("most specific", 0), ("least specific", SHOWN))):
            for i in range(SHOWN):
                for half, when in enumerate(("before", "after")):
                    axes = figure.add_subplot(4, SHOWN, (2 * row + half) * SHOWN + i + 1)
                    axes.imshow(found[when][first + i].reshape(side, side), cmap="PuOr", vmin=-limit, vmax=limit)
                    axes.set_xticks([])
                    axes.set_yticks([])
                    if i == 0:
                        axes.set_ylabel(f"{kind},\n{when}", fontsize=8)
                    if half == 0:
                        axes.set_title(f"to the digit {found['specificity'][first + i]:.0%}", fontsize=8)
                    else:
                        axes.set_xlabel(f"noise/weights {found['share'][first + i]:.2f}", fontsize=7)

    return figures.save(out, "filters", fill, (9, 7))
