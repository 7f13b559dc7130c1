"""Names of version 0.1 in Python: keywords work and warn, and signatures are those of the classes themselves."""

import inspect
from dataclasses import fields

import pytest
import torch
from torch import nn

import spotlessnet as sn


@pytest.mark.parametrize(
    ("old", "new", "value"), [("rate", "lr", 0.5), ("batch", "batch_size", 7), ("decay", "weight_decay", 0.1)]
)
def test_relearn_time(old, new, value):
    original = sn.Trained.of(nn.Linear(2, 2))
    with pytest.warns(DeprecationWarning, match=f"`RelearnTime\\({old}=...\\)` is now called `{new}`"):
        made = sn.RelearnTime(original, **{old: value})
    assert getattr(made, new) == value


def test_respond_and_polish():
    with pytest.warns(DeprecationWarning, match="`spotlessnet.RespondAndPolish` is now called"):
        assert sn.RespondAndPolish is sn.RespondAndFinetune


def test_newton_and_fold_models():
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    trained = sn.Trained.of(model, init=model, recipe=sn.Recipe(epochs=1, batch_size=8))
    data = sn.Data.of((torch.randn(40, 2), torch.arange(40) % 2))
    with pytest.warns(DeprecationWarning, match=r"`Newton\(memory=...\)` is now called `statistics`"):
        assert sn.Newton(memory=None).statistics is None  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="is now called") as told:
        models = sn.train_tutors(trained, data, parts=2, divisions=1)
    said = " ".join(str(one.message) for one in told)
    assert "`folds`" in said
    assert "`repeats`" in said
    assert len(models.weights) == 2


@pytest.mark.parametrize(
    "kind", [sn.Newton, sn.MixedLinear, sn.NTK, sn.Recipe, sn.RelearnTime], ids=lambda kind: kind.__name__
)
def test_signatures_name_the_settings(kind):
    found = inspect.signature(kind)
    assert "kwargs" not in found.parameters
    assert list(found.parameters) == [field.name for field in fields(kind)]
