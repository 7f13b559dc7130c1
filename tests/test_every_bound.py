"""The contract: what every bound must hold to. A new one is found by its registration."""

import math
import pickle
import re
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import float64, nn

from spotlessnet.bounds import WhiteBox
from spotlessnet.core.bound import BOUNDS, Bound
from spotlessnet.core.data import Data
from spotlessnet.core.gaussian import Diagonal, Gaussian
from spotlessnet.core.readout import Reading
from spotlessnet.core.registry import Entry
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained

every = pytest.mark.parametrize("entry", BOUNDS.entries(), ids=BOUNDS.names())
Kind = Entry[type[Bound]]


@cache
def world() -> tuple[Gaussian, Gaussian, Trained, Split]:
    """A linear network, the Gaussian around its weights and one around weights nearby, and data."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 3, generator=draw, dtype=float64), torch.arange(30) % 2
    data = Data.of((x, y))
    split = Split(forget=data.select(range(5)), kept=data.select(range(5, 20)), test=data.select(range(20, 30)))
    torch.manual_seed(0)
    trained = Trained.of(nn.Linear(3, 2).double())
    return around(trained, 0.0), around(trained, 0.1), trained, split


def around(trained: Trained, shift: float, variance: float = 0.04) -> Gaussian:
    return Gaussian(trained.weights + shift, Diagonal(torch.full_like(trained.weights, variance)))


@every
def test_it_says_what_it_is_and_is_made_without_arguments(entry: Kind):
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", entry.name), entry.name
    assert entry.summary
    assert entry.paper, "a bound must name its paper, or `this package`"
    assert entry.guarantee, "a bound must say for whom or when it holds"
    assert entry.thing.unit == "nats"
    assert entry.thing().name


@every
def test_equal_gaussians_leak_nothing_and_a_shift_leaks_something_that_repeats(entry: Kind):
    scrubbed, reference, trained, split = world()
    assert entry.thing()(scrubbed, scrubbed, trained, split).value == pytest.approx(0.0, abs=1e-9)
    first, second = (entry.thing()(scrubbed, reference, trained, split) for _ in range(2))
    assert isinstance(first, Reading)
    assert 0 < first.value < math.inf
    assert first == second or first.value == second.value


@every
def test_a_larger_shift_leaks_more_and_more_noise_less(entry: Kind):
    scrubbed, _, trained, split = world()
    nats = [entry.thing()(scrubbed, around(trained, shift), trained, split).value for shift in (0.05, 0.1, 0.2)]
    assert nats == sorted(set(nats))
    noisier = [
        entry.thing()(around(trained, 0.0, v), around(trained, 0.1, v), trained, split).value
        for v in (0.01, 0.04, 0.16)
    ]
    assert noisier == sorted(set(noisier), reverse=True)


@every
def test_no_bound_exceeds_what_the_weights_themselves_tell(entry: Kind):
    """Whatever is computed from the weights tells no more than they do (data processing)."""
    scrubbed, reference, trained, split = world()
    whole = WhiteBox()(scrubbed, reference, trained, split).value
    assert entry.thing()(scrubbed, reference, trained, split).value <= whole * (1 + 1e-9)


@every
def test_inputs_and_generators_are_left_alone_and_it_travels(entry: Kind):
    scrubbed, reference, trained, split = world()
    before = [tensor.clone() for tensor in (scrubbed.mean, reference.mean, trained.weights)]
    random = torch.get_rng_state()
    value = entry.thing()(scrubbed, reference, trained, split).value
    assert torch.equal(torch.get_rng_state(), random)
    assert all(map(torch.equal, before, (scrubbed.mean, reference.mean, trained.weights)))
    again = pickle.loads(pickle.dumps(entry.thing()))
    assert again(scrubbed, reference, replace(trained), split).value == value
