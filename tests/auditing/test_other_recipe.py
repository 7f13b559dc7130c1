"""A network that its recipe does not give: the audit says so, and so does a retraining."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.auditing.other_recipe import OTHER_RECIPE, unlike_recipe
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import Finetune, Retrain
from spotlessnet.training.fit import fit
from spotlessnet.training.pairs import train_pairs

TRUE = Recipe(optimizer="adamw", epochs=12, lr=0.01, batch_size=16, weight_decay=0.01, decay_toward="zero")
WRONG = {
    "a third of the epochs": TRUE.but(epochs=4),
    "three times the epochs": TRUE.but(epochs=36),
    "twice the rate": TRUE.but(lr=0.02),
    "SGD": Recipe(epochs=12, lr=0.02, batch_size=16),
    "far more decay": TRUE.but(weight_decay=3.0),
    "a schedule": TRUE.but(schedule="cosine"),
    "larger batches": TRUE.but(batch_size=48),
}


def build(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3))


@cache
def split_of() -> Split:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(160) % 3
    x = torch.randn(160, 6, generator=draw) + 2 * nn.functional.one_hot(y, 6)
    data = sn.Data.of((x, y))
    gone = data.select(range(8))
    kept = data.select(range(8, 120))
    return Split(forget=gone, kept=kept, test=data.select(range(120, 160)))


@cache
def weights_of(seed: int) -> nn.Module:
    """What came of the true recipe."""
    return fit(Trained.of(build(), recipe=TRUE), split_of().whole, seed=seed).module()


def said(recipe: Recipe, *, seed: int = 100, init: nn.Module | None = None) -> str:
    given = Trained.of(weights_of(seed), recipe=recipe, init=init or build())
    return unlike_recipe(given, train_pairs(given, split_of(), seeds=5).original, split_of())


@pytest.mark.parametrize("recipe", WRONG.values(), ids=WRONG)
def test_a_network_of_another_recipe_is_known(recipe):
    assert said(recipe).startswith(OTHER_RECIPE)


def test_so_is_one_that_began_elsewhere():
    assert "distance from the initial weights" in said(TRUE, init=build(5))


@pytest.mark.parametrize("seed", range(100, 110))
def test_one_of_the_recipe_is_not_doubted(seed):
    assert said(TRUE, seed=seed) == ""


def test_a_trainer_is_told_by_its_name_for_what_to_check():
    def train(model, examples, seed):
        return fit(Trained.of(model, recipe=TRUE.but(epochs=3)), examples.data, seed=seed).module()

    given = Trained.of(weights_of(100), trainer=train, init=build())
    assert "Check the trainer, loss" in unlike_recipe(
        given, train_pairs(given, split_of(), seeds=5).original, split_of()
    )


def test_networks_that_were_never_trained_or_were_scrubbed_before_say_nothing():
    given = Trained.of(weights_of(100), recipe=TRUE.but(epochs=3), init=build())
    trained, split = train_pairs(given, split_of(), seeds=5).original, split_of()
    assert unlike_recipe(given, trained, split)
    assert given.init is not None
    assert unlike_recipe(replace(given, weights=given.init), trained, split) == ""
    assert unlike_recipe(given, trained, replace(split, gone=split.test)) == ""


def test_report_and_receipt_say_it_first():
    split = split_of()
    how: dict[str, Any] = {"data": split.whole, "forget": sn.rows(range(8)), "test": split.test}
    how["method"] = Finetune(epochs=1)
    for recipe, is_said in ((TRUE, False), (WRONG["a third of the epochs"], True)):
        done = sn.unlearn(weights_of(100), **how, init=build(), recipe=recipe, audit=sn.Audit(seeds=5))
        assert done.report is not None
        assert done.report.limits[0].startswith(OTHER_RECIPE) is is_said
        limits = done.receipt["predicate"]["limits"]
        assert any(one.startswith(OTHER_RECIPE) for one in limits) is is_said


@pytest.mark.parametrize("method", [Retrain(), sn.ShortRetrain(epoch_fraction=0.01)], ids=["retrain", "as it was"])
def test_a_retraining_by_another_recipe_is_told_without_an_audit(method):
    split = split_of()
    for recipe, word in ((TRUE, None), (TRUE.but(epochs=2), "less far from"), (TRUE.but(epochs=60), "further from")):
        given = Trained.of(weights_of(100), recipe=recipe, init=build())
        about = " ".join(method(given, split).diagnostics.assumed)
        assert ("may not be how" in about) is (word is not None)
        assert word is None or word in about
