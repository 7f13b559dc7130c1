"""Table 1: the paper's class, and a number or an honest cap in every cell."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from spotlessnet.core.chaining import Chain
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.eternal_sunshine.table_1 import Settings, scrubs
from spotlessnet.experiments.few import Slower
from spotlessnet.methods import Finetune, GradientAscent
from spotlessnet.training.fit import fit


def test_the_class_is_the_papers():
    assert {Settings.full(part).label for part in ("mnist", "faces10", "cifar10 class")} == {5}
    assert Settings.toy("mnist").label == 5


def bursting() -> tuple[Trained, Split]:
    """Inputs so large that one epoch up the loss at the training's rate ends in NaN, though it was trained at it."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = 4e3 * (torch.randn(60, 4, generator=g) + 3 * nn.functional.one_hot(y, 4))
    data = Data.of((x, y))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    trained = Trained.of(model, init=model, recipe=Recipe(epochs=1, lr=1.0, batch_size=4))
    gentle = fit(trained, data, Recipe(epochs=5, lr=1e-9, batch_size=4))
    split = Split(forget=data.select(range(0, 60, 3)), kept=data.select([i for i in range(60) if i % 3]))
    return replace(trained, weights=gentle.weights), split


def test_a_tuning_that_bursts_is_repeated_at_lower_rates():
    trained, split = bursting()
    with pytest.raises(NumericsError):
        GradientAscent(epochs=1)(trained, split)
    found = Slower(GradientAscent(epochs=1), halvings=60)(trained, split)
    assert bool(found.mean.isfinite().all())
    assert found.diagnostics["halvings"] >= 1
    assert found.diagnostics["lr"] == 1.0 / 2 ** found.diagnostics["halvings"]
    with pytest.raises(NumericsError, match="must end with numbers at some rate"):
        Slower(GradientAscent(epochs=1), halvings=0)(trained, split)
    gentle = replace(trained, recipe=Recipe(epochs=1, lr=1e-12, batch_size=4))
    notes = Notes()
    step = Slower(Finetune(epochs=1)).shift(gentle, split, notes)
    assert torch.equal(step, Finetune(epochs=1)(gentle, split).mean)
    assert notes.facts["halvings"] == 0


def test_the_table_lets_no_tuning_burst():
    for whole in (True, False):
        made = scrubs(Settings.toy("mnist"), whole=whole)
        assert isinstance(made["negative gradient"], Slower)
        assert isinstance(made["ours"], Chain)
        assert isinstance(made["ours"].links[-1], Slower)
