"""Adding a method or a data set is one file beside its test: registered, it is found everywhere at once."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import spotlessnet as sn
from benchmarks import files_touched
from spotlessnet.core.registry import with_registered
from spotlessnet.core.scrub import METHODS, NEEDS, Notes, Scrub, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import DATASETS, DataPair, NamedData
from spotlessnet.methods.catalogue import table
from spotlessnet.requests.methods import named
from tests import test_every_method as contract
from tests.cli.workshop import spotless


@pytest.fixture
def toy_method(monkeypatch) -> Iterator[type[Scrub]]:
    METHODS.discover()
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))

    @METHODS.register("toy-rewind", paper="nobody (2026), Toys", needs=("retained data",), guarantee="none")
    @dataclass(frozen=True)
    class ToyRewind(Scrub):
        """Go back part of the way to the start."""

        share: float = 0.5

        def cost(self, trained: Trained, split: Split) -> Work:
            return gradients(trained, split, 1)

        def shift(self, trained: Trained, split: Split, notes: Notes) -> Tensor:
            return trained.weights + self.share * (trained.anchor - trained.weights)

    yield ToyRewind
    sn.__dict__.pop("ToyRewind", None)


def test_a_method_is_in_the_list_the_names_the_table_and_the_page_of_the_api(toy_method):
    found = json.loads(spotless("list", "methods", "--json").out)["methods"]["toy-rewind"]
    assert found["about"] == "Go back part of the way to the start."
    assert found["settings"] == {"share": 0.5}
    assert found["paper"] == "nobody (2026), Toys"
    assert sn.ToyRewind is toy_method
    assert "ToyRewind" in sn.__all__
    assert "ToyRewind" in dir(sn.methods)
    [row] = [row for row in table().splitlines() if "ToyRewind" in row]
    assert row.startswith("| `ToyRewind` | `toy-rewind` | nobody (2026), Toys | retained data | 0.0% | none |")
    assert "ToyRewind\n" in with_registered("<!-- registered: spotlessnet.core.scrub.METHODS -->\n")
    assert named("toy-rewind", {"share": "0.25"}) == toy_method(0.25)
    assert named("toy-rewind+fisher", {}).is_noisy


def test_a_method_passes_the_contract_unlisted(toy_method):
    entry = METHODS.entry("toy-rewind")
    case = contract.case_of(entry)
    assert case.scrub == toy_method()
    assert set(entry.needs) <= set(NEEDS)
    contract.CASES["toy-rewind"] = case
    try:
        contract.test_every_method_has_a_case_and_says_what_it_is(entry)
    finally:
        del contract.CASES["toy-rewind"]
    contract.test_it_needs_what_it_says_and_no_more(case)
    contract.test_the_input_is_left_alone_and_the_answer_repeats(case)
    contract.test_its_cost_is_a_number_and_costs_nothing_to_ask(case)


def test_a_method_without_a_cost_or_a_paper_fails_the_contract(monkeypatch):
    METHODS.discover()
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))

    @METHODS.register("toy-silent", paper="nobody (2026), Toys", guarantee="none")
    @dataclass(frozen=True)
    class Silent(Scrub):
        """Says nothing of its cost."""

        def shift(self, trained: Trained, split: Split, notes: Notes) -> Tensor:
            return trained.weights

    entry = METHODS.entry("toy-silent")
    monkeypatch.setitem(contract.CASES, "toy-silent", contract.case_of(entry))
    with pytest.raises(AssertionError, match="a method must count what it costs"):
        contract.test_every_method_has_a_case_and_says_what_it_is(entry)


def test_a_data_set_is_in_the_list_and_is_loaded_by_its_name(monkeypatch, tmp_path):
    DATASETS.discover()
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS._entries))

    @DATASETS.register("toy-points", summary="four points")
    class ToyPoints(NamedData):
        @staticmethod
        def load(folder, *, seed, verify, normalise) -> DataPair:
            data = sn.Data.of((torch.zeros(4, 2), torch.arange(4) % 2))
            return DataPair(data, data.select([]), ("a", "b"))

    found = json.loads(spotless("list", "datasets", "--json").out)["datasets"]
    assert found["toy-points"]["about"] == "four points"
    assert len(sn.load("toy-points", tmp_path).train) == 4
    with pytest.raises(sn.SpotlessError, match=r"one of cifar10, .*, toy-points"):
        sn.load("toy-point", tmp_path)


@pytest.mark.parametrize("kind", files_touched.KINDS)
def test_adding_one_touches_three_files(kind):
    assert len(files_touched.touched(kind)) == 3


def test_a_file_that_does_not_register_is_not_found(monkeypatch):
    """The search itself can fail: a file that forgets its registration is missed and said to be."""
    toy = files_touched.KINDS["method"]
    silent = replace(toy, text=toy.text.replace("@METHODS.register", "# @METHODS.register"))
    monkeypatch.setitem(files_touched.KINDS, "method", silent)
    with pytest.raises(LookupError, match="not in registry, list, names, table"):
        files_touched.touched("method")
