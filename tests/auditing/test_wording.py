"""Every verdict is said in sentences that a reader without statistics understands, numbers included."""

import math
from dataclasses import replace
from importlib import import_module
from typing import get_args

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.auditing.run_audit import by_construction, never_sees
from spotlessnet.auditing.verdict import NEVER_SAW, Check, Checks, Outcome, State, Verdict
from spotlessnet.auditing.wording import NEXT, next_step, sentence, why
from spotlessnet.core.scrub import METHODS
from spotlessnet.core.split import Request
from spotlessnet.core.trained import Trained
from spotlessnet.requests.audits import LEAST

NAMES = ("remembered share", "error on forgotten rows", "margins row by row", "error on test rows")
UNEXPLAINED = (
    "margin-KL",
    "remembered share",
    "nats",
    "unclear",
    "oracle",
    "held-out",
    "Streisand",
    "paired seeds",
    "p =",
)


def check(name: str, state: State, value: float = 0.3, note: str = "") -> Check:
    return Check(name, state, value, value - 0.1, value + 0.1, 0.2, note, guards=name == "error on test rows")


@pytest.mark.parametrize("state", ["different", "unclear"])
@pytest.mark.parametrize("name", [*NAMES, "attack, area under the curve"])
def test_every_check_is_a_sentence_without_words_of_statistics(name, state):
    notes = ("", "p = 0.1 over networks, 0.001 over rows and controls")
    for value in (0.3, -0.3, 0.0):
        for note in notes:
            # The value of a check without limits is a probability.
            told = sentence(check(name, state, abs(value) if name == "margins row by row" else value, note))
            assert not any(word in told for word in UNEXPLAINED), told
            assert "nan" not in told
            assert "--" not in told
            assert "-" not in told or "attack" in name, told  # a minus is a minus, not a hyphen


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            check("remembered share", "different", 0.5),
            "of what the original network remembers of the forgotten examples, 50 % is left (40 % to 60 %; 20 % is "
            "allowed)",
        ),
        (
            check("remembered share", "different", -0.65),
            "the forgotten examples are avoided, which gives them away: the unlearned networks are further from them "
            "than networks that never saw them, by 65 % of what the original network remembers (55 % to 75 %; 20 % is "
            "allowed)",
        ),
        (
            check("error on forgotten rows", "different", -0.3),
            "the error on the forgotten examples is lower than that of retrained networks, by 30.0 points (20.0 to "
            "40.0; 20.0 is allowed)",
        ),
        (
            check("error on forgotten rows", "different", 0.3, "mean losses, for the loss knows no wrong answers"),
            "the loss on the forgotten examples is higher than that of retrained networks, by 0.3 (0.2 to 0.4; 0.2 is "
            "allowed)",
        ),
        (
            check("error on test rows", "different", 0.3),
            "the error on new examples is higher than that of retrained networks, by 30.0 points (20.0 to 40.0; 20.0 "
            "is allowed): a damaged network proves nothing about forgetting",
        ),
        (
            check("error on test rows", "unclear", 0.05),
            "the error on new examples may be higher than that of retrained networks, by 5.0 points (up to 15.0; 20.0 "
            "is allowed)",
        ),
        (
            Check("margins row by row", "different", 0.001, math.nan, math.nan, math.nan, "p over rows and controls"),
            "forgotten examples are answered differently than by networks that never saw them, and more so than other "
            "new examples are (chance alone would do so with a probability of 0.001)",
        ),
        (
            replace(check("remembered share", "unclear"), low=-math.inf, high=math.inf),
            "the original network is hardly surer of the forgotten examples than networks that never saw them, so this "
            "audit cannot tell how much is remembered",
        ),
        (
            check("remembered share", "unclear", 0.15),
            "of what the original network remembers of the forgotten examples, 5 % to 25 % may be left, too wide a "
            "range to judge (−20 % to 20 % is allowed)",
        ),
    ],
    ids=lambda one: one.name if isinstance(one, Check) else "",
)
def test_what_a_check_says(given, told):
    assert sentence(given) == told


def test_a_check_of_ones_own_is_shown_as_it_is():
    assert sentence(Check("mine", "different", 1.0, 0.5, 1.5, 0.2)) == "mine: different, 1 [0.5, 1.5], may be 0.2"
    assert why([check("remembered share", "same"), check("margins row by row", "same")]).endswith("in every check")


def test_a_network_that_was_trained_differently_is_told_in_one_reading():
    """The fault before: a sentence about what is left beyond what is left, and a turn at its end."""
    told = why([check("remembered share", "same", note="trained differently, but remembers no more")])
    assert told == (
        "the unlearned networks know no more of the forgotten examples than networks that never saw them; they differ "
        "from those in other ways, because they were trained differently"
    )


def test_every_outcome_has_a_next_step():
    assert set(NEXT) == {*get_args(Outcome), "not judged"}


@pytest.mark.parametrize("name", ["error on retained rows", "error on test rows"])
def test_more_trainings_are_not_advised_for_a_damaged_network(name):
    step = next_step("inconclusive", {"remembered share": "same", name: "different"})
    assert "more trainings do not change that" in step
    assert "--sequential" not in step
    assert next_step("inconclusive", {name: "unclear"}) == NEXT["inconclusive"]
    assert next_step("not forgotten", {name: "different"}) == NEXT["not forgotten"]


def verdict(outcome: Outcome, *checks: Check) -> Verdict:
    return Verdict(outcome, "because", 0.1, LEAST, "forgotten", "inconclusive", Checks(checks))


def test_a_method_that_never_sees_the_rows_needs_no_proof():
    same = [check(name, "same") for name in NAMES]
    found = by_construction(verdict("inconclusive", *same))
    assert found.outcome == NEVER_SAW
    assert found.reason == (
        "the method trains on the other examples alone: no trace of the forgotten ones could be expected, and none was "
        "detected. By itself the audit would have been inconclusive: because"
    )
    assert by_construction(verdict("forgotten", *same)).outcome == "forgotten"
    # What the audit shows still counts.
    assert by_construction(verdict("not forgotten", check(NAMES[0], "different"))).outcome == "not forgotten"
    worse = by_construction(verdict("inconclusive", check(NAMES[3], "different")))
    assert worse.outcome == "inconclusive"
    # It was told alone that the forgotten examples left no trace, which is what lets other such methods through.
    assert "The method trains on the other examples alone, but the error on " in worse.reason
    # Networks that may be worse, as few seeds leave open, are no sign that the rows were seen.
    assert by_construction(verdict("inconclusive", *same[:3], check(NAMES[3], "unclear"))).outcome == NEVER_SAW
    for name in NAMES[:3]:
        red = by_construction(verdict("inconclusive", *(check(n, "different" if n == name else "same") for n in NAMES)))
        assert red.outcome == "inconclusive"
        assert "and yet" in red.reason
    assert by_construction(verdict("inconclusive", *same), "it knows them").reason.endswith("and yet it knows them")


def problem(copies: int = 0, model: nn.Module | None = None) -> tuple[Trained, sn.Split]:
    data = sn.Data.of((torch.randn(20, 4), torch.arange(20) % 3))
    split = replace(sn.rows([0, 1])(data), request=Request("rows", 2, copies=copies))
    return Trained.of(model or nn.Linear(4, 3), recipe=sn.Recipe(epochs=1), init=model or nn.Linear(4, 3)), split


@pytest.mark.parametrize("name", METHODS.names())
def test_only_retraining_never_sees_them(name):
    entry = METHODS.entry(name)
    assert entry.never_sees_forgotten == (name in ("retrain", "short-retrain", "truncated-retrain"))
    if name in ("mixed-linear", "within-budget"):
        return
    trained, split = problem()
    assert never_sees(entry.thing(), trained, split) == entry.never_sees_forgotten
    assert not never_sees(sn.chain(sn.Retrain(), sn.NTK()), trained, split)


def test_copies_and_running_statistics_may_bring_them_back():
    assert not never_sees(sn.Retrain(), *problem(copies=1))
    trained, split = problem(model=nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)))
    assert never_sees(sn.Retrain(), trained, split)
    assert not never_sees(sn.Retrain(), replace(trained, init_buffers=None), split)


def test_those_methods_read_nothing_of_the_forget_set():
    """By construction, and seen: every row that they fetch is a retained one."""
    data_module = import_module("spotlessnet.core.data")
    trained, split = problem()
    gone, fetched = set(split.forget.rows.tolist()), []
    usual = data_module.Data.fetch

    def watched(self, rows):
        fetched.extend(rows.tolist())
        return usual(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_module.Data, "fetch", watched)
        for method in (sn.Retrain(), sn.ShortRetrain()):
            method.shift(trained, split, import_module("spotlessnet.core.scrub").Notes())
            assert fetched
            assert not gone & {*fetched}
            fetched.clear()
