"""Comparing: completeness, pairing, resuming, processes, and summaries against hand-made numbers."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor, nn

from spotlessnet.auditing.comparison import Context, compare, original_of, retrained_of
from spotlessnet.auditing.rows import Row, read_rows
from spotlessnet.auditing.summary import as_text, summarise
from spotlessnet.bounds import BlackBox, WhiteBox
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, NumericsError, SettingError
from spotlessnet.core.gaussian import Covariance, Diagonal
from spotlessnet.core.progress import Meter
from spotlessnet.core.readout import Ideal, Reading, Readout
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts import ActivationDistance, Error
from spotlessnet.training.fit import fit


@dataclass(frozen=True)
class Halfway(Scrub):
    """A toy method: half of the way back to the start, with some noise if asked for."""

    noise: float = 0.0

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        return 0.5 * (trained.weights + trained.anchor)

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        if not self.noise:
            return super().spread(trained, split, notes)
        return Diagonal(self.noise * (1 + trained.weights.square()))


CALLS: list[str] = []


@dataclass(frozen=True)
class Norm(Readout):
    """The length of the weights; counts how often it is asked."""

    unit: ClassVar[str] = "length"
    ideal: ClassVar[Ideal] = "as retrained"

    def __call__(self, network: Trained, split: Split) -> Reading:
        CALLS.append("norm")
        return Reading(float(network.weights.norm()), note="a note")


def split() -> Split:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 3, generator=g), torch.randint(2, (60,), generator=g)
    data = Data.of((x, y))
    return Split(data.select(range(10)), data.select(range(10, 40)), data.select(range(40, 60)))


def start() -> Trained:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return Trained.of(model, recipe=Recipe(epochs=2, lr=0.1, batch_size=8), init=model)


def distance(context: Context) -> Readout:
    return ActivationDistance(context.retrained)


def make(seed: int) -> Trained:
    return fit(start(), split().whole, seed=seed)


@dataclass(frozen=True)
class Broken(Scrub):
    """A toy method that always diverges."""

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        raise NumericsError("The training loss must be finite, but it is nan.")


def test_every_method_readout_bound_and_seed_has_a_row_beside_original_and_retrained():
    rows = compare(
        start(),
        split(),
        scrubs={"halfway": Halfway(), "noisy": Halfway(0.1), "per seed": lambda c: Halfway(0.1 * (1 + c.seed))},
        readouts={"error": Error("test"), "distance": distance},
        bounds=[WhiteBox(), BlackBox(2)],
        seeds=[3, 5],
    )
    methods = ["original", "halfway", "noisy", "per seed", "retrained"]
    columns = ["error", "distance", "WhiteBox", "BlackBox(2 on forget)"]
    assert [row.key[1:] for row in rows] == [(m, c, s) for m in methods for c in columns for s in (3, 5)]
    value = {(row.method, row.readout, row.seed): row.value for row in rows}
    assert value["retrained", "distance", 3] == 0.0
    assert value["retrained", "WhiteBox", 3] == 0.0
    assert value["original", "distance", 3] > 0
    for method in ("original", "halfway"):
        assert math.isinf(value[method, "WhiteBox", 5])
    assert 0 < value["noisy", "BlackBox(2 on forget)", 3] < math.inf
    assert value["per seed", "WhiteBox", 5] < value["noisy", "WhiteBox", 5]
    row = rows[0]
    assert (row.unit, row.ideal, row.experiment) == ("share of rows", "as retrained", "comparison")
    assert row.low < row.high
    assert row.seconds > 0


def test_a_method_that_diverges_costs_its_own_rows_and_says_why():
    scrubs = {"broken": Broken(), "halfway": Halfway()}
    rows = compare(start(), split(), scrubs=scrubs, readouts=[Error("test")], bounds=[WhiteBox()], seeds=[0])
    broken = [row for row in rows if row.method == "broken"]
    assert [row.readout for row in broken] == ["error on test", "WhiteBox"]
    assert all(math.isnan(row.value) for row in broken)
    assert {row.note for row in broken} == {"no number: The training loss must be finite, but it is nan."}
    assert all(not math.isnan(row.value) for row in rows if row.method != "broken")


@dataclass(frozen=True)
class BreaksOn(Readout):
    """Gives no number on one seed's original."""

    unit: ClassVar[str] = "length"
    ideal: ClassVar[Ideal] = "low"
    norm: float

    def __call__(self, network: Trained, split: Split) -> Reading:
        if float(network.weights.norm()) == self.norm:
            raise NumericsError("The training loss must be finite.")
        return Reading(1.0)


def test_a_readout_that_breaks_leaves_its_seed_out_and_counts_it():
    norm = float(make(1).weights.norm())
    rows = compare(make, split(), scrubs={}, readouts={"r": BreaksOn(norm)}, seeds=[0, 1, 2])
    assert [math.isnan(row.value) for row in rows if row.method == "original"] == [False, True, False]
    assert "no number: The training loss" in next(row.note for row in rows if math.isnan(row.value))
    original, retrained = summarise(rows)
    assert (original.seeds, original.broken, original.mean.value) == (2, 1, 1.0)
    assert (retrained.seeds, retrained.broken) == (3, 0)


def test_networks_are_paired_by_seed_and_the_noise_is_the_scrubs_own():
    s, trained = split(), start()
    rows = compare(trained, s, scrubs={"noisy": Halfway(0.1)}, readouts=[Norm()], bounds=[WhiteBox()], seeds=[7])
    value = {(row.method, row.readout): row.value for row in rows}
    original = fit(trained, s.whole, seed=7)
    retrained = fit(trained, s.retain, seed=7, order_of=s.whole)
    assert value["original", "Norm"] == pytest.approx(float(original.weights.norm()))
    assert value["retrained", "Norm"] == pytest.approx(float(retrained.weights.norm()))
    assert torch.equal(original_of(trained, s, 7).weights, original.weights)
    assert torch.equal(retrained_of(original, s, 7).weights, retrained.weights)
    gaussian = Halfway(0.1)(original, s)
    assert value["noisy", "Norm"] == pytest.approx(float(gaussian.draw(torch.Generator().manual_seed(7)).norm()))
    v, v0 = gaussian.covariance.diagonal(), 0.1 * (1 + retrained.weights.square())
    gap = gaussian.mean - retrained.weights
    truth = 0.5 * (gap.square() / v0 + v / v0 - (v / v0).log() - 1).sum()
    assert value["noisy", "WhiteBox"] == pytest.approx(float(truth), rel=1e-4)


def test_a_second_run_measures_only_what_is_missing(tmp_path):
    out, s = tmp_path / "rows.jsonl", split()
    first = compare(make, s, scrubs={"a": Halfway()}, readouts=[Norm()], seeds=[0], out=out)
    before, CALLS[:] = out.read_bytes(), []
    again = compare(make, s, scrubs={"a": Halfway()}, readouts=[Norm()], seeds=[0], out=out)
    assert CALLS == []
    assert [(r.key, r.value) for r in again] == [(r.key, r.value) for r in first]
    more = compare(make, s, scrubs={"a": Halfway(), "b": Halfway()}, readouts=[Norm()], seeds=[0, 1], out=out)
    assert len(CALLS) == 1 + 4  # method b on seed 0, and all four methods on seed 1
    assert out.read_bytes().startswith(before)
    assert len(read_rows(out)) == len(more) == 8


def test_an_interrupted_run_keeps_what_it_had(tmp_path):
    out = tmp_path / "rows.jsonl"

    def fails(context: Context) -> Scrub:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(make, split(), scrubs={"a": Halfway(), "b": fails}, readouts=[Norm()], out=out)
    assert [row.method for row in read_rows(out)] == ["original", "a"]


@pytest.mark.slow
def test_processes_give_the_same_rows(tmp_path):
    run = partial(compare, make, split(), scrubs={"a": Halfway(0.1)}, readouts={"d": distance}, bounds=[WhiteBox()])
    alone = run(seeds=[0, 1])
    together = run(seeds=[0, 1], workers=2, out=tmp_path / "r")
    assert [row.key for row in together] == [row.key for row in alone]
    assert [row.value for row in together] == pytest.approx([row.value for row in alone])
    assert len(read_rows(tmp_path / "r")) == len(alone)


def test_messages():
    s = split()
    with pytest.raises(SettingError, match="'retrained' is always compared"):
        compare(make, s, scrubs={"retrained": Halfway()}, readouts=[Norm()])
    with pytest.raises(SettingError, match="Columns need one name each"):
        compare(make, s, scrubs={}, readouts=[])
    with pytest.raises(SettingError, match=r"Seeds must be different and at least one, but got \[1, 1\]"):
        compare(make, s, scrubs={}, readouts=[Norm()], seeds=[1, 1])
    with pytest.raises(SettingError, match="`workers` must be at least 1, but got 0"):
        compare(make, s, scrubs={}, readouts=[Norm()], workers=0)
    with pytest.raises(SettingError, match="Several workers need scrubs, readouts and networks that can be pickled"):
        compare(make, s, scrubs={"x": lambda c: Halfway()}, readouts=[Norm()], seeds=[0, 1], workers=2)
    with pytest.raises(NeedError, match="needs the recipe and the start of the training, but there is no"):
        compare(Trained.of(nn.Linear(3, 2)), s, scrubs={}, readouts=[Norm()])


def test_a_summary_has_means_intervals_targets_and_paired_differences():
    gaps, base = [0.5, 0.7, 0.9], [10.0, 20.0, 60.0]
    rows = [Row("e", "retrained", "r", s, b, unit="u", seconds=2.0) for s, b in enumerate(base)]
    rows += [
        Row("e", "a", "r", s, b + g, unit="u", seconds=4.0, memory=s)
        for s, (b, g) in enumerate(zip(base, gaps, strict=True))
    ]
    rows += [Row("e", "b", "r", 0, math.inf), Row("e", "b", "r", 1, 1.0)]
    retrained, a, b = summarise(rows)
    low, high = stats.t.interval(0.95, 2, loc=30, scale=stats.sem(base))
    assert (retrained.mean.value, retrained.mean.low, retrained.mean.high) == pytest.approx((30, low, high))
    assert a.target == retrained.mean
    assert a.difference.value == pytest.approx(0.7)
    assert a.miss == "above"  # the paired interval sees what the two wide means hide
    assert a.mean.low < a.target.value < a.mean.high
    assert (a.seeds, a.seconds, a.memory) == (3, 4.0, 2)
    assert retrained.miss == "as retrained"
    assert math.isinf(b.mean.value)
    assert math.isnan(b.mean.low)
    assert summarise([Row("e", "a", "r", 0, 1.0)])[0].miss == ""
    text = as_text([retrained, a])
    assert text.splitlines()[0].split() == ["method", "readout", "mean", "interval", "retrained", "miss", "seconds"]
    assert "above" in text.splitlines()[2]
    below = [Row("e", "retrained", "r", s, 5.0) for s in range(3)] + [Row("e", "a", "r", s, 4.0) for s in range(3)]
    assert summarise(below)[1].miss == "below"


def test_the_meter_sees_time_and_memory():
    with Meter() as meter:
        block = torch.ones(40 * 2**20 // 4)
        for _ in range(20):
            block = block * 1.0001
    assert meter.seconds > 0
    assert math.isnan(meter.memory) or 20 < meter.memory < 400
