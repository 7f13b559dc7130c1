"""Every scrub, readout and bound on a GPU gives what it gives on the processor; skipped where there is none."""

from dataclasses import replace

import pytest
import torch
from torch import float64, nn

from spotlessnet.bounds import BlackBox, WhiteBox
from spotlessnet.core.adapters import Arrays
from spotlessnet.core.data import Data
from spotlessnet.core.readout import Readout
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split, some_of_class, whole_class
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.setting import on_device
from spotlessnet.readouts import ActivationDistance, Confidence, Entropy, Error, Margin, MeanLoss, RelearnTime
from spotlessnet.training.fit import fit
from spotlessnet.training.mixed import fit_users
from tests.test_every_method import CASES

NOISY = {"variational", "within budget"}
"""Their random numbers are drawn on the device, so only that they run is looked at."""

UNFINISHED = {"respond and fine-tune"}
"""Conjugate gradients that stop at a residual of 1e-3: rounding decides where below it."""

DEVICES = [
    pytest.param("cpu", id="cpu, channels last"),
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def world(device: str, *, whole: bool = False, linear: bool = False) -> tuple[Trained, Split]:
    """A small convolutional network and its images, on a device or, for `"plain"`, just as they come."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = torch.randn(60, 2, 5, 5, generator=draw, dtype=float64) + y.view(-1, 1, 1, 1)
    train, test = Data.of((x[:45], y[:45])), Data.of((x[45:], y[45:]))
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(27, 3)).double()
    if device != "plain":
        model = model.to(device)
        train, test = ((on_device(d, torch.device(device)) if device != "cpu" else _last(d)) for d in (train, test))
    start = Trained.of(model, init=model, recipe=Recipe(epochs=3, lr=0.02, batch_size=16, weight_decay=1e-2))
    split = (whole_class(0) if whole else some_of_class(0, 5))(train, test)
    trained = fit(start, train)
    return (fit_users(trained, train, weight_decay=0.1, tolerance=1e-10).trained if linear else trained), split


def _last(data: Data) -> Data:
    assert isinstance(data.source, Arrays)
    x = data.source.x
    assert isinstance(x, torch.Tensor)
    return replace(data, source=Arrays(x.contiguous(memory_format=torch.channels_last), data.source.y))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_scrubs(name, device):
    case = CASES[name]
    found = [_scrubbed(case.scrub, *world(d, whole=case.whole_class, linear=case.linear)) for d in (device, "plain")]
    for here, there in zip(*found, strict=True):
        if name not in NOISY:
            rtol, atol = (0.0, 5e-3) if name in UNFINISHED else (1e-6, 1e-8)
            torch.testing.assert_close(here.cpu(), there, rtol=rtol, atol=atol)


def _scrubbed(scrub: Scrub, trained: Trained, split: Split) -> tuple[torch.Tensor, ...]:
    made = scrub(trained, split)
    assert made.mean.device == trained.device
    assert made.draw(torch.Generator().manual_seed(0)).device == trained.device
    variances = made.covariance.multiply(torch.ones_like(made.mean))
    return made.mean, variances


@pytest.mark.parametrize("device", DEVICES)
def test_readouts_and_bounds(device):
    assert _read(device) == pytest.approx(_read("plain"), rel=1e-6, abs=1e-9)


def _read(device: str) -> list[float]:
    trained, split = world(device)
    retrained = fit(trained.at(trained.anchor), split.retain, order_of=split.whole)
    readouts: tuple[Readout, ...] = (Error("test"), MeanLoss("forget"), Margin(), Confidence(), Entropy())
    readouts = (*readouts, ActivationDistance(retrained), RelearnTime(trained, cap=3))
    scrub = CASES["fisher"].scrub
    here, there = scrub(trained, split), scrub(retrained, split)
    bounds = (WhiteBox(), BlackBox(queries=3))
    return [
        *(float(one(trained, split).value) for one in readouts),
        *(float(one(here, there, trained, split).value) for one in bounds),
    ]
