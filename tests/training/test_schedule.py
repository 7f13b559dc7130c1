"""Schedules against torch's own."""

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR

from spotlessnet.core.recipe import Recipe
from spotlessnet.training import lr_at

OURS = ["constant", "cosine", "step", "one-cycle"]


@pytest.mark.parametrize("total", [1, 3, 8, 40, 101])
@pytest.mark.parametrize("schedule", OURS)
def test_rates_are_those_of_torch(schedule, total):
    optimiser = SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    theirs = {
        "constant": lambda: MultiStepLR(optimiser, []),
        "cosine": lambda: CosineAnnealingLR(optimiser, total),
        "step": lambda: MultiStepLR(optimiser, [-(-total // 2), -(-3 * total // 4)]),
        "one-cycle": lambda: OneCycleLR(optimiser, 0.3, total_steps=total, cycle_momentum=False),
    }[schedule]()
    for step in range(total):
        want = optimiser.param_groups[0]["lr"]
        assert lr_at(Recipe(lr=0.3, schedule=schedule), step, total) == pytest.approx(want, rel=1e-9, abs=1e-15)
        optimiser.step()
        if step + 1 < total:
            theirs.step()
