"""Diagnostics: typed where they are read, plain where they are kept."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

import spotlessnet as sn
from spotlessnet.core.gaussian import Diagnostics, Measured
from spotlessnet.core.scrub import METHODS, Notes
from spotlessnet.methods.fisher import FisherFacts
from spotlessnet.methods.ntk import NTKFacts
from tests.methods.problems import logistic_problem


@dataclass(frozen=True)
class Flat(Measured):
    residual: float | None = None
    retrain_now: bool | None = None


@dataclass(frozen=True)
class Nested(Measured):
    under: ClassVar[str] = "nested"

    scale: float | None = None


def test_what_is_measured_comes_back_in_its_type_and_as_receipts_have_it():
    notes = Notes()
    notes.measure(Nested, scale=0.5)
    notes.measure(Flat, residual=0.1)
    notes.measure(Flat, retrain_now=True)
    notes.fact(free="word")
    notes.assume("no decay", "nothing")
    notes.assume("no decay", "nothing")
    found = notes.diagnostics()
    assert found.of(Flat) == Flat(0.1, True)
    assert found.of(Nested).scale == 0.5
    assert found.assumed == ("no decay",)
    assert found.retrain_now
    expected = {"nested": {"scale": 0.5}, "residual": 0.1, "retrain_now": True, "free": "word"}
    assert dict(found) == {**expected, "assumed": ["no decay"], "lost": ["nothing"]}
    assert notes.facts == expected
    assert json.loads(json.dumps(dict(found))) == found.record()


def test_what_was_not_measured_is_none_and_not_kept():
    assert Diagnostics().of(Flat) == Flat()
    assert not Diagnostics().retrain_now
    assert dict(Diagnostics()) == {"assumed": [], "lost": []}
    with pytest.raises(KeyError):
        Diagnostics()["residual"]


def test_a_misspelt_field_is_refused():
    with pytest.raises(TypeError, match="residuum"):
        Notes().measure(Flat, residuum=1.0)


def test_each_part_of_a_chain_keeps_its_own():
    trained, split = logistic_problem(0)
    found = sn.chain(sn.NTK(), sn.Fisher())(trained, split).diagnostics
    assert found.of(NTKFacts).scale == found["ntk"]["scale"]
    assert found.of(FisherFacts).largest_deviation == found["largest_deviation"]


def test_methods_of_the_package_measure_in_types():
    """Free-form facts are for methods elsewhere: here every number has a field, so that no reader spells a key."""
    trained, split = logistic_problem(0)
    for name in ("ntk", "newton", "fisher", "variational", "short-retrain", "respond-and-finetune", "ssd"):
        assert not METHODS.find(name)()(trained, split).diagnostics.others, name
