"""Short retraining: never sees the forgotten rows, stops as soon as it is good enough, says when it is not."""

from dataclasses import replace

import pytest
import torch

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained
from spotlessnet.methods import Retrain, ShortRetrain, short_retrain
from spotlessnet.models.mlp import MLP
from spotlessnet.readouts import Error
from spotlessnet.training.fit import fit, train

RECIPE = Recipe(epochs=20, lr=0.1, batch_size=16, weight_decay=1e-3)


def problem(recipe: Recipe = RECIPE) -> tuple[Trained, Split]:
    """Two kinds of points and a network trained to tell them apart; the first ten must go."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=draw)
    data = Data.of((x, (x[:, 0] > 0).long()))
    begun = Trained.of(MLP(3, 2, hidden=(8,), seed=0), recipe=recipe)
    return fit(replace(begun, init=begun.weights), data), rows(range(10))(data)


def test_the_forgotten_rows_never_touch_the_weights():
    trained, split = problem()
    found = ShortRetrain()(trained, split)
    flipped = split.whole.relabel(torch.where(split.forgotten, 1 - split.whole.labels(), split.whole.labels()))
    other = ShortRetrain()(trained.at(trained.weights + 0.0), rows(range(10))(flipped))
    assert torch.equal(found.mean, other.mean)
    # Not even through the original's weights, so long as it errs as much on the rows that stay.
    moved = ShortRetrain(error_tolerance=1.0)(trained.at(trained.weights * 1.5), split)
    assert torch.equal(moved.mean, ShortRetrain(error_tolerance=1.0)(trained, split).mean)


def test_it_ends_after_the_first_stage_that_is_as_good_as_the_original():
    trained, split = problem()
    found = ShortRetrain(epoch_fraction=0.1)(trained, split)
    goal = float(Error("retain")(trained, split)) + 0.005
    assert found.diagnostics["retained_error"] <= goal
    assert float(Error("retain")(trained.at(found.mean), split)) == pytest.approx(found.diagnostics["retained_error"])
    assert found.diagnostics["epochs"] % 2 == 0
    short = ShortRetrain(epoch_fraction=0.1, error_tolerance=0.5)(trained, split).diagnostics
    assert short["share_of_training"] == 0.1 < found.diagnostics["share_of_training"] <= 1
    assert not found.diagnostics["assumed"]


def test_each_stage_says_which_epochs_it_is(monkeypatch):
    """The fault before: all had one name, so whoever waited read 6 of 12, then 5 of 12, then 4 of 12."""
    told: list[str] = []

    def spied(*given, label, **named):
        told.append(label)
        return train(*given, label=label, **named)

    monkeypatch.setattr(short_retrain, "train", spied)
    ShortRetrain(epoch_fraction=0.25, lr_scale=1e-9, error_tolerance=0.0)(*problem())
    assert told == [f"retraining in short, epochs {first} to {first + 4}" for first in (1, 6, 11, 16)]


def test_a_stage_is_a_fraction_of_the_recipe_in_smaller_batches_at_a_higher_rate():
    trained, split = problem()
    stage = RECIPE.but(epochs=4, lr=0.15, batch_size=8, schedule="cosine")
    once = fit(trained.at(trained.anchor), split.retain, stage, seed=0).weights
    assert torch.equal(ShortRetrain(error_tolerance=1.0)(trained, split).mean, once)


def test_where_it_never_gets_as_good_it_says_so():
    trained, split = problem()
    found = ShortRetrain(lr_scale=1e-9, error_tolerance=0.0)(trained, split).diagnostics
    assert found["epochs"] == 20
    assert found["lost"] == [
        "the network answers the retained rows worse than the original; retrain by the recipe itself"
    ]


def test_start_and_recipe_must_be_known():
    trained, split = problem()
    with pytest.raises(NeedError, match=r"needs the recipe and the start of the training, but there is no init\. Give"):
        ShortRetrain()(replace(trained, init=None), split)
    with pytest.raises(SettingError, match=r"`ShortRetrain.epoch_fraction` must be positive"):
        ShortRetrain(epoch_fraction=0)


@pytest.mark.parametrize("epochs", [1, 5, 7])
def test_a_training_of_few_epochs_is_repeated_as_it_is(epochs):
    trained, split = problem(RECIPE.but(epochs=epochs))
    found = ShortRetrain(seed=3)(trained, split)
    assert found.mean.equal(Retrain(coupled=False, seed=3)(trained, split).mean)
    assert found.diagnostics["share_of_retraining"] == 1.0
    assert ShortRetrain().cost(trained, split).most == Retrain().cost(trained, split).most
