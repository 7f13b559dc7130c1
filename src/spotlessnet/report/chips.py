"""Chips: pass, fail or unclear, said of a check; and marks beside readouts that never speak against the verdict."""

import math
from dataclasses import dataclass

from spotlessnet.auditing.summary import RETRAINED, Line
from spotlessnet.auditing.verdict import (
    ATTACK,
    FILE,
    FILE_RETAIN_ERROR,
    FILE_TEST_ERROR,
    FORGET_ERROR,
    FOUND,
    RETAIN_ERROR,
    ROWS,
    SHARE,
    TEST_ERROR,
    TUNED,
    Check,
    Checks,
    Verdict,
)
from spotlessnet.report.number import number, without_codes


@dataclass(frozen=True)
class Chip:
    """A word with a sign and a tone.

    **Arguments:**

    - `tone`: `good`, `bad`, `open`, or `soft` for what nothing depends on.
    - `tip`: what it means, for who points at it.
    """

    sign: str
    word: str
    tone: str
    tip: str = ""


PASS, FAIL, UNCLEAR = Chip("✓", "pass", "good"), Chip("✗", "fail", "bad"), Chip("?", "unclear", "open")
EXCUSED = Chip(
    "✓", "explained", "good", "outside what is allowed, for the network was trained differently or by chance"
)
STATES = {"same": PASS, "different": FAIL, "unclear": UNCLEAR}

CHECKED = {
    "error on forget": (FORGET_ERROR,),
    "error on test": (TEST_ERROR,),
    "error on retain": (RETAIN_ERROR,),
    "margin on forget": (SHARE, ROWS),
}
"""Readouts that checks of the verdict are about; where there are two, the one that came out worse is shown."""

WORST = ("different", "unclear", "same")

MEANING = {
    SHARE: "How much of what the original remembers of the forgotten examples is left: 0 is as retrained, 1 as the "
    "original, below 0 they are avoided.",
    FORGET_ERROR: "How often the answers on the forgotten examples are wrong, beside retrained networks.",
    ROWS: "Whether forgotten examples are answered differently than by networks that never saw them, and more so than "
    "other new examples are. The figure is the probability of chance.",
    TUNED: "Whether networks of which nobody knows how they came about resemble others that know the forgotten "
    "examples and that the audit itself tuned to answer like retrained ones.",
    FILE: "The same of the very network that is taken away.",
    FILE_RETAIN_ERROR: "Whether the very network that is taken away is broken on retained examples.",
    FILE_TEST_ERROR: "Whether the very network that is taken away is broken on new examples.",
    RETAIN_ERROR: "How often the answers on retained examples are wrong: unlearning must not break the network.",
    TEST_ERROR: "How often the answers on new examples are wrong: unlearning must not break the network.",
    ATTACK: "How well an attacker tells forgotten examples from examples that were never seen; 0.5 is guessing.",
    **dict.fromkeys(FOUND.values(), "How many forgotten examples an attacker names with so few false alarms."),
}
"""What each check looks at, in one sentence."""


@dataclass(frozen=True)
class Told:
    """A check as the page shows it."""

    name: str
    chip: Chip
    meaning: str
    figure: str
    limits: str
    allowed: str
    note: str


def chip_of(check: Check) -> Chip:
    """How a check came out; one that passes although its limits lie outside the margin says so."""
    outside = max(abs(check.low), abs(check.high)) > check.margin and not check.guards  # NaN is never outside
    return EXCUSED if check.state == "same" and outside else STATES[check.state]


def told(check: Check) -> Told:
    """A check, its figures as text."""
    has_limits = not math.isnan(check.low)
    return Told(
        check.name,
        chip_of(check),
        MEANING.get(check.name, ""),
        number(check.value),
        f"{number(check.low)} to {number(check.high)}" if has_limits else "–",
        number(check.margin),
        without_codes(check.note),
    )


def self_tests(verdict: Verdict) -> list[tuple[str, Chip]]:
    """What an audit must do before it is believed: catch the original, let retrained networks pass."""
    caught = {"not forgotten": PASS, "forgotten": FAIL}.get(verdict.power, UNCLEAR)
    passed = {"forgotten": PASS, "not forgotten": FAIL}.get(verdict.oracle, UNCLEAR)
    return [("the unchanged original is caught", caught), ("networks that never saw the examples pass", passed)]


def mark(line: Line, checks: Checks, band: tuple[float, float]) -> Chip | None:
    """What stands beside a readout: the chip of the check that decides, or how it lies to retraining, in no colour.

    A difference that is beyond chance may be far smaller than the verdict allows, so it must not look like a failure.

    **Arguments:**

    - `checks`: of the method that the line is about; none where the verdict is about another one.
    - `band`: lowest and highest retrained network.
    """
    # The reference has no side to miss to, and one seed has no interval to miss by.
    if line.method == RETRAINED or not math.isfinite(line.difference.low) or not line.miss:
        return None
    about = [check for name in CHECKED.get(line.readout, ()) if (check := checks.get(name)) is not None]
    if about:
        check = min(about, key=lambda one: WORST.index(one.state))
        chip = chip_of(check)
        return Chip(chip.sign, chip.word, chip.tone, f"check “{check.name}”")
    if line.miss == "as retrained":
        return Chip("=", "as retrained", "soft", "no difference from retrained networks was found")
    tail = f"on average {line.miss} the retrained networks, by more than chance; no check of the verdict"
    if band[0] <= line.mean.value <= band[1]:
        return Chip("≈", "among retrained", "soft", f"among single retrained networks; {tail}")
    return Chip("≠", f"{line.miss} retrained", "soft", f"outside all retrained networks; {tail}")
