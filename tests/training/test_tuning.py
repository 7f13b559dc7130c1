"""Training on where a training ended: at its own rate, or at a tenth where the highest would undo it."""

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import spotlessnet as sn
from spotlessnet.core.answers import error_rate
from spotlessnet.core.scrub import Notes, Sizes
from spotlessnet.requests.planning import work_beside
from spotlessnet.training.tuning import Tuning, stable_rate, work_of_rate

ADAMW = sn.Recipe(
    optimizer="adamw", epochs=8, lr=0.02, batch_size=64, weight_decay=0.05, decay_toward="zero", schedule="cosine",
    warmup_ratio=0.1, freeze_statistics=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "rate"),
    [
        (ADAMW, 0.002),
        (ADAMW.but(optimizer="adam", schedule="linear"), 0.002),
        (ADAMW.but(schedule="constant", warmup_ratio=0.0), 0.02),  # its end had the same rate
        (ADAMW.but(optimizer="sgd"), 0.02),  # its steps are as small as the gradient
    ],
)
def test_the_rate_is_a_tenth_where_adams_rate_fell(recipe, rate):
    trained = sn.Trained.of(nn.Linear(2, 2), recipe=recipe)
    assert sn.Finetune().recipe(trained, Notes()).lr == pytest.approx(rate)
    assert sn.Finetune(lr=0.5).recipe(trained, Notes()).lr == 0.5


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    sizes = ((1, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2))
    body = [
        nn.Sequential(nn.Conv2d(i, o, 3, stride=s, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
        for i, o, s in sizes
    ]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def test_fine_tuning_does_not_undo_what_adamw_had_settled():
    """BatchNorm statistics moved in training: at the highest rate, two epochs cost two points on retained digits."""
    digits = sn.load("digits")
    data = digits.train.select(range(500))
    network = convolutions()
    trained = sn.fit(sn.Trained.of(network, init=network, recipe=ADAMW), data, ADAMW, seed=0)
    split = sn.rows(range(30))(data, digits.test)
    errors = {}
    for lr in (None, ADAMW.lr):
        found = sn.Finetune(epochs=2, lr=lr)(trained, split)
        errors[lr] = error_rate(trained.at(found.mean, found.buffers), split.retain)
    assert errors[None] <= error_rate(trained, split.retain) + 0.005
    assert errors[ADAMW.lr] > errors[None] + 0.005


METHODS_THAT_TRAIN_ON = (
    sn.Finetune, sn.GradientAscent, sn.NegGradPlus, sn.L1Sparse, sn.SalUn, sn.SCRUB, sn.MSG, sn.RandomLabels,
    sn.BadTeacher, sn.LoTUS, sn.AMUN, sn.CT, sn.RespondAndFinetune,
)  # fmt: skip


def stiff() -> tuple[sn.Trained, sn.Split]:
    """Linear, with a curvature of some ten thousand: a rate of 0.01 multiplies its errors by a hundred at each step."""
    torch.manual_seed(0)
    x, y = 300 * torch.randn(200, 6), torch.arange(200) % 3
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.mul_(1e-3)
    data = sn.Data.of((x, y))
    return sn.Trained.of(model), sn.rows(range(10))(data, data)


def inputs(data: sn.Data) -> torch.Tensor:
    x = data.fetch(data.rows).x
    assert isinstance(x, torch.Tensor)
    return x


@pytest.mark.parametrize("kind", METHODS_THAT_TRAIN_ON, ids=lambda kind: kind.__name__)
def test_without_a_recipe_the_rate_is_one_at_which_steps_do_not_diverge(kind, monkeypatch):
    trained, split = stiff()
    chosen: list[sn.Recipe] = []
    given = Tuning.recipe

    def recipe(*args: Any) -> sn.Recipe:
        chosen.append(given(*args))
        return chosen[-1]

    monkeypatch.setattr(Tuning, "recipe", recipe)
    kind()(trained, split)
    x = inputs(split.retain)
    top = float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1]) / 3
    assert 0.01 * 1.9 / top < chosen[0].lr < 1.9 / top


def test_a_rate_that_is_given_or_known_stays():
    trained, split = stiff()
    known = sn.Trained.of(trained.module(), recipe=sn.Recipe(epochs=2, lr=0.3))
    assert sn.Finetune().recipe(known, Notes(), split.retain).lr == 0.3
    assert sn.Finetune(lr=0.5).recipe(trained, Notes(), split.retain).lr == 0.5
    flat = sn.Data.of((inputs(split.retain) / 300, torch.arange(190) % 3))
    assert sn.Finetune().recipe(trained, Notes(), flat).lr == 0.01


def test_a_network_without_forward_derivatives_is_trained_on_at_the_default_rate():
    """It was refused, with the advice to take `finetune`, which it had taken."""
    torch.manual_seed(0)
    data = sn.Data.of((torch.randint(0, 20, (60, 5)), torch.arange(60) % 3))
    model = nn.Sequential(nn.EmbeddingBag(20, 8), nn.Tanh(), nn.Linear(8, 3))
    notes = Notes()
    assert sn.Finetune().recipe(sn.Trained.of(model), notes, data).lr == 0.01
    assert any("curvature that would tell a stable rate could not be computed" in one for one in notes.assumed)
    result = sn.unlearn(model, data, forget=range(5), method="finetune")
    assert "stable rate" in json.dumps(result.receipt)


def test_a_plan_counts_the_look_for_a_rate():
    trained, split = stiff()
    sizes = Sizes.of(trained, split)
    with FlopCounterMode(display=False) as counted:
        stable_rate(trained, split.retain, 0.9, Notes())
    assert 0.5 < work_of_rate(len(split.retain), sizes).usual / counted.get_total_flops() < 2
    unknown = work_beside(trained, split, sn.Finetune(), sizes, None)
    told = work_beside(trained, split, sn.Finetune(lr=0.1), sizes, None)
    assert unknown.usual - told.usual == pytest.approx(work_of_rate(len(split.retain), sizes).usual)


def pixels() -> tuple[sn.Trained, sn.Split]:
    """Digits by a small network with BatchNorm that Adam trained in a loop of its own: nobody knows the recipe."""
    digits = sn.load("digits")
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    rows = digits.train.select(range(1200))
    batch = rows.fetch(rows.rows)
    x, y = batch.x, batch.y.clone()
    y[:20] = (y[:20] + 3) % 10
    adam = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(15):
        for some in torch.randperm(len(x)).split(64):
            adam.zero_grad()
            nn.functional.cross_entropy(network(x[some]), y[some]).backward()
            adam.step()
    return sn.Trained.of(network.eval()), sn.rows(range(20))(sn.Data.of((x, y)), digits.test)


def test_a_network_with_batchnorm_of_a_loop_of_its_own_is_not_ruined():
    """At twice the usual 0.01 four in five retained rows were answered wrong, or the loss was not a number."""
    trained, split = pixels()
    found = sn.RespondAndFinetune()(trained, split)
    left = error_rate(trained.at(found.mean, found.buffers), split.retain)
    assert left <= error_rate(trained, split.retain) + 0.01
