"""Adding a readout or a bound is one file beside its test: registered, it is found everywhere at once."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from types import ModuleType
from typing import Any, ClassVar

import pytest

import spotlessnet as sn
from benchmarks import files_touched
from spotlessnet.auditing import catalogue
from spotlessnet.core.bound import BOUNDS, Bound
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.registry import Registry, with_registered
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from tests import test_every_bound as bound_contract
from tests import test_every_readout as readout_contract
from tests.cli.workshop import spotless


@dataclass(frozen=True)
class ToyDistance(Readout):
    """How far the weights are from those of a retrained network."""

    unit: ClassVar[str] = "weights, L2"
    ideal: ClassVar[Ideal] = "low"

    reference: Trained
    scale: float = 1.0

    def __call__(self, network: Trained, split: Split) -> Reading:
        return Reading(self.scale * float((network.weights - self.reference.weights).norm()))


@dataclass(frozen=True)
class ToyHalf(Bound):
    """Half of what the weights tell."""

    def __call__(self, scrubbed: Gaussian, reference: Gaussian, trained: Trained, split: Split) -> Reading:
        return Reading(max(0.0, scrubbed.kl(reference)) / 2)


def for_now(registry: Registry[Any], monkeypatch) -> None:
    """What is registered from here on is gone after the test."""
    registry.discover()
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.fixture
def toy_readout(monkeypatch) -> Iterator[type[Readout]]:
    for_now(READOUTS, monkeypatch)
    yield READOUTS.register("toy-distance", paper="nobody (2026), Toys", needs=("retrained network",))(ToyDistance)
    sn.__dict__.pop("ToyDistance", None)


@pytest.fixture
def toy_bound(monkeypatch) -> Iterator[type[Bound]]:
    for_now(BOUNDS, monkeypatch)
    yield BOUNDS.register("toy-half", paper="nobody (2026), Toys", guarantee="holds for half an attacker")(ToyHalf)
    sn.__dict__.pop("ToyHalf", None)


def test_a_readout_is_in_the_list_the_names_the_table_and_the_page_of_the_api(toy_readout):
    found = json.loads(spotless("list", "readouts", "--json").out)["readouts"]["toy-distance"]
    assert found["about"] == "How far the weights are from those of a retrained network."
    assert found["settings"] == {"scale": 1.0}
    assert (found["python"], found["unit"], found["ideal"]) == ("ToyDistance", "weights, L2", "low")
    assert (found["paper"], found["needs"]) == ("nobody (2026), Toys", ["retrained network"])
    assert sn.ToyDistance is sn.readouts.ToyDistance is toy_readout
    assert "ToyDistance" in sn.__all__
    [row] = [row for row in catalogue.readouts().splitlines() if "ToyDistance" in row]
    assert row.endswith("| weights, L2 | low | retrained network | nobody (2026), Toys |")
    marks = ("table: spotlessnet.auditing.catalogue.readouts", "registered: spotlessnet.core.readout.READOUTS")
    page = with_registered("\n".join(f"<!-- {mark} -->" for mark in (*marks, marks[0])))
    assert row in page
    assert "ToyDistance\n" in page.split(row)[1]


def test_a_readout_passes_the_contract_unlisted(toy_readout):
    make = readout_contract.readouts()["toy-distance"]  # what parametrises every test of the contract
    assert type(make()) is toy_readout
    readout_contract.test_every_readout_is_tried()
    readout_contract.declares_itself(READOUTS.entry("toy-distance"))
    contract = [test for test in contract_of(readout_contract) if "make" in signature(test).parameters]
    assert len(contract) >= 6
    for test in contract:
        test(make)


def contract_of(module: ModuleType) -> list[Callable[..., None]]:
    return [test for name, test in vars(module).items() if name.startswith("test_")]


def test_a_readout_that_reads_more_than_it_says_fails_the_contract(monkeypatch):
    for_now(READOUTS, monkeypatch)

    @READOUTS.register("toy-silent", paper="nobody (2026), Toys")
    @dataclass(frozen=True)
    class Silent(Readout):
        """Reads test rows and does not say so."""

        unit: ClassVar[str] = "rows"
        ideal: ClassVar[Ideal] = "as retrained"

        def __call__(self, network: Trained, split: Split) -> Reading:
            return Reading(float(len(split.tests)))

    with pytest.raises(sn.SpotlessError, match="test data"):
        readout_contract.declares_itself(READOUTS.entry("toy-silent"))


def test_a_bound_is_in_the_list_the_names_the_table_and_the_page_of_the_api(toy_bound):
    found = json.loads(spotless("list", "bounds", "--json").out)["bounds"]["toy-half"]
    assert (found["about"], found["unit"]) == ("Half of what the weights tell.", "nats")
    assert found["guarantee"] == "holds for half an attacker"
    assert sn.ToyHalf is sn.bounds.ToyHalf is toy_bound
    [row] = [row for row in catalogue.bounds().splitlines() if "ToyHalf" in row]
    assert (
        row
        == "| `ToyHalf` | Half of what the weights tell. | nats | holds for half an attacker | nobody (2026), Toys |"
    )
    assert "ToyHalf\n" in with_registered("<!-- registered: spotlessnet.core.bound.BOUNDS -->\n")


def test_a_bound_passes_the_contract_unlisted(toy_bound):
    entry = BOUNDS.entry("toy-half")
    assert "toy-half" in BOUNDS.names()  # which parametrises every test of the contract
    assert len(contract_of(bound_contract)) >= 5
    for test in contract_of(bound_contract):
        test(entry)


@pytest.mark.parametrize("kind", ["readout", "bound"])
def test_adding_one_touches_three_files(kind):
    assert len(files_touched.touched(kind)) == 3
