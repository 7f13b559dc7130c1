"""The contract: what every readout must hold to. A new one is found by its registration."""

import math
import pickle
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from functools import cache, partial
from typing import get_args

import pytest
import torch
from torch import Tensor, float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.readout import DATA, FIELDS, READOUTS, Ideal, Reading, Readout
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.registry import Entry
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts import (
    RMIA,
    ActivationDistance,
    Confidence,
    Entropy,
    EntropyAttack,
    Error,
    LiRA,
    Margin,
    MeanLoss,
    RelearnTime,
)
from spotlessnet.training.fit import fit

IDEAL_ON_EQUALS = {"low": 0.0}
"""What a readout whose ideal is `low` must give for a network that equals its reference."""


@cache
def world() -> tuple[Trained, tuple[Trained, ...], Split]:
    """A small trained network, three networks retrained without the cohort, and the data."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    x = torch.randn(90, 4, generator=draw, dtype=float64) + 2 * nn.functional.one_hot(y, 4)
    train, test = Data.of((x[:60], y[:60])), Data.of((x[60:], y[60:]))
    split = Split(forget=train.select(range(10)), kept=train.select(range(10, 60)), test=test)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    start = Trained.of(model, init=model, recipe=Recipe(epochs=8, lr=0.1, batch_size=16, weight_decay=1e-3))
    return fit(start, train), tuple(fit(start, split.retain, seed=s) for s in range(3)), split


def readouts() -> dict[str, Callable[[], Readout]]:
    """The readouts as they are tried; one that is not named here is tried as it comes, on what it says it needs."""
    made: dict[str, Callable[[], Readout]] = {
        "error": lambda: Error(on="test"),
        "mean loss": lambda: MeanLoss(on="retain"),
        "margin": lambda: Margin(),
        "confidence": lambda: Confidence(),
        "entropy": lambda: Entropy(),
        "relearn time": lambda: RelearnTime(world()[0], cap=5),
        "entropy attack": lambda: EntropyAttack(),
        "entropy attack, svc": lambda: EntropyAttack(kind="svc"),
        "activation distance": lambda: ActivationDistance(world()[1][0]),
        "lira": lambda: LiRA(world()[1][1:]),
        "rmia": lambda: RMIA(world()[1][1:]),
    }
    named = {name.replace(" ", "-") for name in made}
    return made | {entry.name: partial(made_from, entry) for entry in READOUTS.entries() if entry.name not in named}


def made_from(entry: Entry[type[Readout]]) -> Readout:
    """A readout with the networks that it declares to need, and its own settings."""
    network, retrained, _ = world()
    given = {"original": network, "retrained network": retrained[0], "retrained networks": retrained[1:]}
    return entry.thing(**{FIELDS[need]: given[need] for need in entry.needs if need in FIELDS})


every = pytest.mark.parametrize("make", readouts().values(), ids=readouts().keys())


def contents(network: Trained, split: Split) -> list[bytes]:
    tensors = [network.weights, *network.model.state_dict().values()]
    tensors += [t for b in split.whole.batches() for t in (b.x, b.y) if isinstance(t, Tensor)]
    return [t.detach().contiguous().numpy().tobytes() for t in tensors]


def test_every_readout_is_tried():
    assert set(READOUTS.things()) == {type(make()) for make in readouts().values()}


@pytest.mark.parametrize("entry", READOUTS.entries(), ids=READOUTS.names())
def test_it_says_what_it_is_and_needs_what_it_says(entry: Entry[type[Readout]]):
    declares_itself(entry)


def declares_itself(entry: Entry[type[Readout]]) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", entry.name), entry.name
    assert entry.summary.endswith("."), "the first line of a readout's docstring must be a sentence"
    assert entry.paper, "a readout must name its paper, or `this package`"
    unknown = set(entry.needs) - {*FIELDS, *DATA}
    assert not unknown, f"what a readout needs must be among {', '.join((*FIELDS, *DATA))}"
    required = {f.name for f in fields(entry.thing) if f.default is MISSING and f.default_factory is MISSING}  # type: ignore[arg-type]  # every readout is a dataclass
    assert required == {FIELDS[need] for need in entry.needs if need in FIELDS}
    network, _, split = world()
    if "test data" not in entry.needs:
        made_from(entry)(network, replace(split, test=None))
    if "retained data" not in entry.needs:
        made_from(entry)(network, replace(split, kept=None))


@every
def test_it_is_one_finite_number_and_repeats(make: Callable[[], Readout]):
    network, _, split = world()
    first, second = make()(network, split), make()(network, split)
    assert isinstance(first, Reading)
    assert math.isfinite(float(first))
    assert str(first) == str(second)
    assert float(first) == float(second)
    assert math.isnan(first.low) == math.isnan(first.high)
    if not math.isnan(first.low):
        assert first.low <= first.value <= first.high


@every
def test_unit_ideal_and_name_are_declared(make: Callable[[], Readout]):
    readout = make()
    assert readout.unit
    assert readout.ideal in get_args(Ideal)
    assert readout.name
    assert type(readout).__doc__


@every
def test_the_network_and_the_generators_are_left_alone(make: Callable[[], Readout]):
    network, _, split = world()
    before, random = contents(network, split), torch.get_rng_state()
    make()(network, split)
    assert contents(network, split) == before
    assert torch.equal(torch.get_rng_state(), random)


@every
def test_equal_networks_read_alike_and_the_ideal_is_reached(make: Callable[[], Readout]):
    """A copy of the retrained network reads as the retrained one does; a distance to it reads nothing."""
    _, retrained, split = world()
    readout = make()
    reference = retrained[0]
    copy = Trained.of(reference.module(), reference.loss, init=reference.init, recipe=reference.recipe)
    seen, expected = readout(copy, split), readout(reference, split)
    assert float(seen) == pytest.approx(float(expected), abs=1e-9)
    if readout.ideal in IDEAL_ON_EQUALS:
        assert float(seen) == pytest.approx(IDEAL_ON_EQUALS[readout.ideal], abs=1e-12)


@every
def test_it_depends_on_the_network(make: Callable[[], Readout]):
    network, _, split = world()
    draw = torch.Generator().manual_seed(0)
    others = [torch.randn(network.size, generator=draw, dtype=float64) for _ in range(3)]
    readings = {float(make()(replace(network, weights=w), split)) for w in (network.weights, *others)}
    assert len(readings) > 1


@every
def test_it_travels(make: Callable[[], Readout]):
    network, _, split = world()
    again = pickle.loads(pickle.dumps(make()))
    assert float(again(network, split)) == float(make()(network, split))
