"""Training on where a training ended: at its own rate, or at a tenth where the highest would undo it."""

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.answers import error_rate
from spotlessnet.core.scrub import Notes

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
