"""What an audit found, in sentences that need no statistics: why the verdict is what it is, and what to do next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spotlessnet.auditing.verdict import (
    ATTACK,
    FILE,
    FILE_RETAIN_ERROR,
    FILE_TEST_ERROR,
    FORGET_ERROR,
    FOUND,
    NEVER_SAW,
    OTHERWISE,
    RETAIN_ERROR,
    ROWS,
    SHARE,
    TEST_ERROR,
    TUNED,
    Check,
    Checks,
)

SAME = "the unlearned networks answer the forgotten examples like networks that never saw them, in every check"
DIFFERENT = (
    "the unlearned networks know no more of the forgotten examples than networks that never saw them; they differ from "
    "those in other ways, because they were trained differently"
)
NO_TRACE = (
    "the forgotten examples left no trace that this audit can see, not even in the original network, so it cannot tell "
    "whether one was removed"
)
NOT_BEYOND_CONTROLS = (
    "the original network answers the forgotten examples otherwise than networks that never saw them, but new examples "
    "almost as much so; this may be no memory of the forgotten ones, and more test examples may tell"
)
HALF_COULD_HIDE = (
    "half of the forgotten examples could have been kept without this audit noticing: they left too little trace"
)
DIFFERS_AND_COULD_HIDE = (
    "the networks were trained differently from retrained ones, or were tuned to look like them: these examples left "
    "too little trace to tell which, for many single ones could have been kept without this audit noticing"
)
WOULD_NOT_BE_KNOWN = "too little to tell them from retrained ones"
"""The note of a check that sees too little to clear anybody."""

LIE_APART = "which tells too little, but the networks lie as far from the originals as other trainings do"
"""The note of a check that sees enough all the same."""

LIE_NEAR = "the networks lie nearer to the originals than other trainings do"
"""The note of a check that clears less easily."""

ALIKE = "retraining with other seeds changes nothing, so nobody sees how much chance would; use smaller batches"

NEXT = {
    "forgotten": "use the new network, and destroy the old one with its copies; keep the receipt",
    "not forgotten": "do not use this network as one that has forgotten; retrain (`retrain`, `short-retrain`), or take "
    "another method",
    "inconclusive": "more pairs of trainings make an audit surer (`--sequential`, `sn.Audit(sequential=True)` trains "
    "them only where they are needed), and so do test data; if that does not help, take the method `retrain`, which "
    "never reads the forgotten examples",
    NEVER_SAW: "use the new network, and destroy the old one with its copies; keep the receipt",
    "not judged": "give the initial weights and the recipe or your own training (`--init` with `--epochs` and `--lr`, "
    "or `--train`), so that networks can be retrained to compare with",
}
"""What to do after each outcome."""

IF_DAMAGED = (
    "do not use this network: it answers worse than retrained ones, and more trainings do not change that. Take the "
    "method `retrain`, or other settings of this one"
)
"""What to do where utility decided: then no number of trainings brings a verdict."""


def next_step(outcome: str, states: Mapping[str, str]) -> str:
    """What to do now, given how each check came out.

    >>> next_step("inconclusive", {RETAIN_ERROR: "different"}).startswith("do not use this network")
    True
    """
    return IF_DAMAGED if utility_decided(outcome, states) else NEXT[outcome]


def utility_decided(outcome: str, states: Mapping[str, str]) -> bool:
    """Whether there is no verdict because the network answers retained or new examples worse than retrained ones."""
    guards = (RETAIN_ERROR, TEST_ERROR, FILE_RETAIN_ERROR, FILE_TEST_ERROR)
    return outcome == "inconclusive" and "different" in [states.get(name) for name in guards]


PASSED = ("forgotten", NEVER_SAW)
"""Outcomes after which the new network may be used."""


def why(checks: Sequence[Check]) -> str:
    """The checks that decided, as one or more sentences."""
    shown = [check for check in checks if check.state == "different" and not check.guards]
    shown = shown or [check for check in checks if check.state != "same"]
    if not shown:
        return DIFFERENT if any(OTHERWISE in check.note for check in checks) else SAME
    text = "; ".join(sentence(check) for check in shown)
    if [check.name for check in shown] == [ROWS] and Checks(checks)[SHARE].state == "same":
        text += ". On the whole no more is remembered than is allowed: "
        text += "a few examples may be, or the training differed"
    return text


def never_saw(reason: str) -> str:
    """Why a method that never reads the forgotten examples needs no proof, and what kept the audit from giving one."""
    return (
        "the method trains on the other examples alone: no trace of the forgotten ones could be expected, and none was "
        f"detected. By itself the audit would have been inconclusive: {reason}"
    )


def not_as_retrained(reason: str, shown: Sequence[str]) -> str:
    """Why a method that never reads the forgotten examples is not believed without proof."""
    return f"{reason}. The method is to train on the other examples alone, and yet {'; and '.join(shown)}"


def not_as_good(reason: str, worse: Sequence[str]) -> str:
    """Why a method that never reads the forgotten examples is not let through: what came out is no retrained network.

    >>> not_as_good("they left no trace", ["the error on retained examples is higher"])
    'they left no trace. The method trains on the other examples alone, but the error on retained examples is higher'
    >>> not_as_good("the error is higher", ["the error is higher"])
    'the error is higher'
    """
    untold = [text for text in worse if text not in reason]
    if not untold:
        return reason
    return f"{reason}. The method trains on the other examples alone, but {'; and '.join(untold)}"


def besides(reason: str, worse: Sequence[str]) -> str:
    """Why there is no verdict, and what else speaks against the network: damage must not stand in the checks alone.

    >>> besides("they left no trace", ["the error is higher"])
    'they left no trace. Besides, the error is higher'
    """
    untold = [text for text in worse if text not in reason]
    return f"{reason}. Besides, {'; and '.join(untold)}" if untold else reason


def too_faint(pairs: int, needed: int) -> str:
    """Of rows that the original knows, by no more than so many trainings can tell apart."""
    return (
        "the original network knows the forgotten examples, but so little beside what chance does in every training "
        f"that {pairs} pairs of trainings cannot show how much of it is left, not even of retrained networks; about "
        f"{needed} pairs might"
    )


def too_few(seeds: int, least: int) -> str:
    """Of a verdict over too few trainings."""
    return f"{seeds} pairs of trainings are too few, at least {least} are needed"


def fails_itself(oracle: str) -> str:
    """Of an audit that does not pass what it must."""
    return (
        f"the audit fails its own check: networks that never saw the forgotten examples come out as {oracle!r}, where "
        "it must call them 'forgotten'"
    )


def sentence(check: Check) -> str:
    """One check in words, its numbers included.

    >>> sentence(Check(SHARE, "different", 0.5, 0.4, 0.6, 0.2))
    'of what the original network remembers of the forgotten examples, 50 % is left (40 % to 60 %; 20 % is allowed)'
    """
    return str(check) if check.name not in SENTENCES else SENTENCES[check.name](check)


def _share(check: Check) -> str:
    if not math.isfinite(check.low) or not math.isfinite(check.high):
        return (
            "the original network is hardly surer of the forgotten examples than networks that never saw them, so this "
            "audit cannot tell how much is remembered"
        )
    limits = f"{_percent(check.low)} to {_percent(check.high)}"
    if check.state == "unclear":
        return (
            f"of what the original network remembers of the forgotten examples, {limits} may be left, too wide a range "
            f"to judge (−{_percent(check.margin)} to {_percent(check.margin)} is allowed)"
        )
    if check.value < 0:
        return (
            "the forgotten examples are avoided, which gives them away: the unlearned networks are further from them "
            f"than networks that never saw them, by {_percent(-check.value)} of what the original network remembers "
            f"({_percent(-check.high)} to {_percent(-check.low)}; {_percent(check.margin)} is allowed)"
        )
    return (
        f"of what the original network remembers of the forgotten examples, {_percent(check.value)} is left ({limits}; "
        f"{_percent(check.margin)} is allowed)"
    )


def _error(check: Check) -> str:
    whose = {FORGET_ERROR: "the forgotten examples", RETAIN_ERROR: "retained examples"}.get(check.name, "new examples")
    if "mean losses" in check.note:
        what, least, unit = f"the loss on {whose}", f"{check.margin:.3g}", ""
        value, low, high = (f"{abs(one):.3g}" for one in _outward(check))
    else:
        what, least, unit = f"the error on {whose}", f"{100 * check.margin:.1f}", " points"
        value, low, high = (f"{100 * abs(one):.1f}" for one in _outward(check))
    side = "lower" if check.value < 0 else "higher"
    span = f"{low} to {high}" if check.low * check.high > 0 else f"up to {high}"
    limits = f"({span}; {least} is allowed)"
    if check.state == "unclear":
        return f"{what} may be {side} than that of retrained networks, by {value}{unit} {limits}"
    worse = ": a damaged network proves nothing about forgetting" if check.guards else ""
    return f"{what} is {side} than that of retrained networks, by {value}{unit} {limits}{worse}"


def _outward(check: Check) -> tuple[float, float, float]:
    """Value and limits, the nearer to zero first."""
    near, far = sorted((check.low, check.high), key=abs)
    return check.value, near, far


def _rows(check: Check) -> str:
    chance = f" (chance alone would do so with a probability of {check.value:.2g})"
    if check.state == "unclear":
        return f"it cannot be told whether single forgotten examples are remembered{chance}"
    beside = ", and more so than other new examples are" if "rows and controls" in check.note else ""
    return f"forgotten examples are answered differently than by networks that never saw them{beside}{chance}"


def _tuned(check: Check) -> str:
    needs_none = "a method that never reads the forgotten examples needs no such proof (`retrain`, `short-retrain`)"
    if WOULD_NOT_BE_KNOWN in check.note:
        return (
            "networks that know the forgotten examples and were tuned by this audit to answer like retrained ones "
            f"could not be told from retrained ones, so the unlearned networks may be of that kind; {needs_none}"
        )
    near = "lie near the original ones, and " if LIE_NEAR in check.note else ""
    return (
        f"the unlearned networks answer like retrained ones, but {near}on the whole they resemble networks that know "
        "the forgotten examples and were tuned to answer so, or trained a little further (chance alone would do so "
        f"with a probability of {check.value:.2g}); {needs_none}"
    )


def _file(check: Check) -> str:
    return f"the delivered network itself: {_rows(check)}"


def _error_of_file(check: Check) -> str:
    whose = {FILE_RETAIN_ERROR: RETAIN_ERROR, FILE_TEST_ERROR: TEST_ERROR}
    return f"the delivered network itself: {_error(replace(check, name=whose[check.name]))}"


def _attack(check: Check) -> str:
    figures = (
        f"area under the curve {check.value:.2f} ({check.low:.2f} to {check.high:.2f}), where 0.50 is guessing and "
        f"{check.margin:.2f} is allowed"
    )
    if check.state == "unclear":
        return f"it cannot be told whether an attacker recognises the forgotten examples: {figures}"
    return f"an attacker recognises the forgotten examples among examples that were never seen: {figures}"


def _found(check: Check) -> str:
    rate = next(rate for rate, name in FOUND.items() if name == check.name)
    limits = f"{_percent(check.low)} to {_percent(check.high)}; {_percent(check.margin)} may be"
    figures = f"{_percent(check.value)} of them ({limits}) at a rate of false alarms of {100 * rate:g} %"
    if check.state == "unclear":
        return f"it cannot be told how many of the forgotten examples an attacker is sure of: {figures}"
    return f"an attacker is sure of some of the forgotten examples: {figures}"


def _percent(share: float) -> str:
    text = f"{100 * share:.0f} %"
    return "0 %" if text == "-0 %" else text.replace("-", "−")


SENTENCES = {
    SHARE: _share,
    FORGET_ERROR: _error,
    TEST_ERROR: _error,
    RETAIN_ERROR: _error,
    ROWS: _rows,
    TUNED: _tuned,
    FILE: _file,
    FILE_RETAIN_ERROR: _error_of_file,
    FILE_TEST_ERROR: _error_of_file,
    ATTACK: _attack,
    **dict.fromkeys(FOUND.values(), _found),
}
"""How each check is told."""
