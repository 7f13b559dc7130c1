"""What pre-training does to the bound: section 4.3 of *Eternal Sunshine of the Spotless Net*.

Two trainings that begin close to where they end differ less: the same fine-tuning from pre-trained and from random
weights, and the bound under the same Fisher noise. BatchNorm statistics stand still in both: those of pre-training, and
those of the random network on test images, which no request names.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from spotlessnet.auditing.comparison import Context, original_of, reference_of, retrained_of
from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.core.progress import track
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import some_of_class
from spotlessnet.core.trained import Trained
from spotlessnet.experiments import figures
from spotlessnet.experiments.experiment import ROWS, Published, Sized
from spotlessnet.experiments.few import FromFew, WhiteBoxWithNoise
from spotlessnet.experiments.setting import STANDS_IN, Opened, Setting
from spotlessnet.methods import Fisher
from spotlessnet.models.seeded import seeded
from spotlessnet.readouts import Error

PRETRAINED, FRESH = "pre-trained", "random weights"
DISTANCE, MOVED = "distance to the retrained weights", "distance to the start"
PAPER: tuple[Published, ...] = ()
"""The paper says that pre-training greatly improves the bound, and prints no number without it."""


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """Data, request and noise.

    **Arguments:**

    - `label`, `count`: which images must go.
    - `fisher`: the noise.
    - `curvature_rows`: retained rows that the Fisher matrix is measured on; all for `None`.
    """

    setting: Setting
    label: int = 0
    count: int = 100
    fisher: Fisher = field(default_factory=Fisher)
    curvature_rows: int | None = None

    @staticmethod
    def toy() -> "Settings":
        """Digits, pre-trained on rows that stay."""
        recipe = Recipe(epochs=20, lr=0.05, batch_size=64, weight_decay=1e-3)
        setting = Setting("digits", options={"hidden": (16,)}, recipe=recipe, pretrain="digits", core=0.5, rows=400)
        setting = replace(setting, pretrain_recipe=Recipe(epochs=20, lr=0.1, batch_size=64))
        return Settings(seeds=(0, 1), setting=setting, count=20, fisher=Fisher(strength=1e-7), curvature_rows=200)

    @staticmethod
    def full() -> "Settings":
        """All-CNN on faces10, with and without pre-training on faces14."""
        setting = Setting("faces10", "all-cnn", recipe=Recipe(epochs=30, weight_decay=5e-4), pretrain="faces14")
        return Settings(setting=setting, curvature_rows=2000)

    @staticmethod
    def tiny() -> "Settings":
        """The full path on a few images."""
        full = Settings.full()
        return replace(full, seeds=(0,), setting=full.setting.rehearsed(30), count=1, curvature_rows=8)


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """Both starts, all seeds."""
    done = {row.key for row in read_rows(out / ROWS)}
    name = f"pre-training, {settings.setting.title}, {settings.count} images"
    todo = [
        (start, seed)
        for start in (PRETRAINED, FRESH)
        for seed in settings.seeds
        if (name, start, DISTANCE, seed) not in done
    ]
    if todo:
        opened = settings.setting.open(data, settings.place)
        split = some_of_class(settings.label, settings.count)(opened.train, opened.test)
        starts = {PRETRAINED: opened.start, FRESH: _fresh(opened)}
        scrub = FromFew(settings.fisher, settings.curvature_rows)
        for start, seed in track(todo, "with and without pre-training"):
            original = original_of(starts[start], split, seed)
            context = Context(original, retrained_of(original, split, seed), split, seed)
            append_rows(out / ROWS, _measure(context, scrub, start, name, settings.setting.note))
    return read_rows(out / ROWS)


def _fresh(opened: Opened) -> Trained:
    """The same network with random weights."""
    model = opened.start.module()
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    with seeded(1):
        for layer in model.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d, nn.BatchNorm2d)):
                layer.reset_parameters()
    _measure_statistics(model, norms, opened)
    return Trained.of(model, init=model, recipe=opened.start.recipe)


@torch.no_grad()
def _measure_statistics(model: nn.Module, norms: list[nn.BatchNorm2d], opened: Opened) -> None:
    """BatchNorm statistics of the random network, from test images, which no request names."""
    if not norms:
        return
    usual = norms[0].momentum
    for layer in norms:
        layer.momentum = None  # the plain mean over batches
    model.train()
    for batch in opened.start.batches(opened.test, 128):
        model(batch.x)
    model.eval()
    for layer in norms:
        layer.momentum = usual


def _measure(context: Context, scrub: FromFew, start: str, name: str, note: str) -> list[Row]:
    original, seed = context.original, context.seed
    gaussian = scrub(original, context.split)
    bound = WhiteBoxWithNoise(scrub)(gaussian, reference_of(scrub, gaussian, context), original, context.split)
    noisy = original.at(gaussian.draw(torch.Generator().manual_seed(seed)))
    gap = float((original.weights - context.retrained.weights).norm())
    moved = float((original.weights - original.anchor).norm())
    test, after = Error("test")(original, context.split), Error("test")(noisy, context.split)
    notes = "; ".join(text for text in (bound.note, note) if text)
    return [
        Row(name, start, "information bound", seed, bound.value, unit="nats", ideal="low", note=notes),
        Row(name, start, "error on test", seed, test.value, test.low, test.high, "share of rows", "low"),
        Row(name, start, "error on test with noise", seed, after.value, after.low, after.high, "share of rows", "low"),
        Row(name, start, MOVED, seed, moved, unit="L2", ideal="low"),
        Row(name, start, DISTANCE, seed, gap, unit="L2", ideal="low"),
    ]


def draw(rows: list[Row], out: Path) -> list[Path]:
    """The bound and what explains it, with and without pre-training."""
    shown = ("information bound", DISTANCE, "error on test with noise")
    caption = next((text for name, text in STANDS_IN.items() if name in rows[0].experiment), "")
    return figures.save(out, "pretraining", figures.panels(rows, shown), (10, 2.4), caption)
