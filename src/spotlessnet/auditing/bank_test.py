"""The equivalence test where originals come from a bank, and only a few networks were retrained without the rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from scipy import stats
from torch import Tensor

from spotlessnet.auditing.beside import Beside
from spotlessnet.auditing.betting import wealth_over_ways
from spotlessnet.auditing.evidence import Evidence, joined
from spotlessnet.auditing.exchanging import Channel, StandingOut
from spotlessnet.auditing.planted_rows import SURELY_NETWORKS, SURELY_ROWS, telling, unnoticed
from spotlessnet.auditing.rules import Rules
from spotlessnet.auditing.verdict import (
    FILE,
    RETAIN_ERROR,
    TEST_ERROR,
    Check,
    Checks,
    CouldHide,
    Outcome,
    State,
    Verdict,
)
from spotlessnet.auditing.wording import NO_TRACE, NOT_BEYOND_CONTROLS, fails_itself, why
from spotlessnet.core.errors import DataError, NeedError
from spotlessnet.core.intervals import Interval

NEEDS_CONTROLS = (
    "An audit from a bank needs test rows as controls, more than 16 of classes that stay: it retrains too few networks "
    "to do without. Give test data, or audit without a bank."
)


@dataclass(frozen=True)
class BankTest(Rules):
    """The same rules as those of `EquivalenceTest`, for groups of different sizes: many originals, few references.

    What rests on pairs of trainings is not asked: the share is that beyond controls, errors of groups are compared by
    Student's interval of two groups, and the error on forgotten rows is left to the row test, a finer look at the same
    answers. The audit is checked with the references themselves: where most of them stand out beside the others,
    nothing is said.

    With several `looks`, networks count as different only by their wealth too (`betting`), which may be looked at after
    every training; all other levels are divided by the number of looks (Bonferroni).

    **Arguments:**

    - `looks`: how often the references that there are will be looked at, at most; 1 decides at once.
    - `networks_doubt`: twice that of a full audit, for beside so few references no network differs as surely. Where
      sixty ordinary digits were forgotten, networks tuned to look so then passed in 4 of 12 instead of 8, retrained
      ones in 10 instead of 11.
    """

    networks_doubt: float = 0.1

    def one_look(self) -> "BankTest":
        """The test of a single look; networks are told apart by their wealth, whose level holds for all looks."""
        return replace(super().one_look(), looks=self.looks, networks_alarm=self.networks_alarm)

    def judge(
        self,
        original: Evidence,
        candidate: Evidence,
        references: Evidence,
        *,
        delivered: Evidence | None = None,
        extra: Sequence[Check] = (),
    ) -> Verdict:
        """Judge scrubbed originals, and the delivered network beside them, by networks that never saw the rows."""
        _check(original, candidate, references)
        test = self.one_look() if self.looks > 1 else self
        return test._judge(original, candidate, references, delivered, extra)

    def _judge(
        self,
        original: Evidence,
        candidate: Evidence,
        references: Evidence,
        delivered: Evidence | None,
        extra: Sequence[Check],
    ) -> Verdict:
        known_rows, theirs = original.channels, references.channels
        if known_rows is None or theirs is None:
            raise NeedError(NEEDS_CONTROLS)
        weights = telling(known_rows, theirs)
        known, beside = (self.beside(group, [references], weights) for group in (original, candidate))
        beside = self.unless_small(beside, known, candidate)
        share = self.share_beside_controls(beside, known, candidate.has_copies)
        files = [] if delivered is None else self._file(delivered, references, known, weights)
        guards = [
            self._guard(name, *(getattr(group, of) for group in (candidate, references, original)))
            for name, of in ((TEST_ERROR, "test_error"), (RETAIN_ERROR, "retain_error"))
            if len(getattr(candidate, of))
        ]
        checks = Checks((share, beside.check(), *guards, *files, *extra))
        outcome = self.outcome(checks)
        damaged = any(guard.state != "same" for guard in guards)
        if outcome == "not forgotten" and damaged and share.state != "different":
            outcome = "inconclusive"  # a broken network strays on single rows too: that is not memory
        power: Outcome = "not forgotten" if self.knows(known) else "inconclusive"
        oracle = self._oracle(references)
        resolution = (share.high - share.low) / 2
        blocked, hidden = "", None
        # A bank that misjudges its own references may neither acquit nor accuse.
        if oracle == "not forgotten":
            blocked = fails_itself(oracle)
        elif outcome != "not forgotten" and power != "not forgotten":
            blocked = NOT_BEYOND_CONTROLS if known.differs else NO_TRACE
        if outcome == "forgotten" and not blocked:
            hidden = self.could_hide(original, candidate, [references])
            blocked = self.withheld(hidden, beside.differs)
        outcome = "inconclusive" if blocked else outcome
        reason = blocked or why(checks)
        seeds, many = len(candidate), len(references)
        return Verdict(outcome, reason, resolution, seeds, oracle, power, checks, hidden, references=many)

    def beside(self, candidate: Evidence, references: Sequence[Evidence], weights: Tensor | None = None) -> Beside:
        """In sequence, networks are told apart by exchanges and by the most that anyone betting on it has ever held.

        A single network gives too little to bet on: it must be the furthest of all, and its rows must stand out.
        """
        beside = super().beside(candidate, references, weights)
        ours, theirs = candidate.channels, [one for group in references if (one := group.channels) is not None]
        if self.looks == 1 or len(candidate) == 1 or ours is None or beside.found is None:
            return beside
        p_networks = _never_more_than_one(wealth_over_ways(ours, joined(theirs), candidate.labels))
        found = replace(beside.found, p_networks=max(p_networks, beside.found.p_networks))
        # Doubt needs no proof that holds at every look: what exchanges make doubtful, wealth does not excuse.
        shown: State = "different" if p_networks <= self.networks_alarm else "unclear"
        state = shown if beside.stands_out else beside.state
        return replace(beside, found=found, p=max(found.p_networks, found.p_rows), state=state)

    def could_hide(self, original: Evidence, candidate: Evidence, references: Sequence[Evidence]) -> CouldHide:
        def noticed(found: StandingOut, planted: Sequence[Channel], theirs: Sequence[Channel]) -> bool:
            # As a candidate would be: the furthest of all exchanges, or in sequence enough wealth as well.
            S, n = len(planted[0].rows), len(theirs[0].rows)
            least = max(SURELY_NETWORKS, 1.001 / math.comb(S + n, n))
            if found.p_networks > least or found.p_rows > SURELY_ROWS:
                return False
            held = [] if self.looks == 1 else wealth_over_ways(planted, theirs, candidate.labels)
            return not held or _never_more_than_one(held) <= self.networks_alarm

        return unnoticed(original, candidate, references, seed=self.seed, noticed=noticed)

    def _file(self, delivered: Evidence, references: Evidence, known: Beside, weights: Tensor | None) -> list[Check]:
        """The very network that is taken away; `known` is what was found of the originals."""
        beside = self.unless_small(self.beside(delivered, [references], weights), known, delivered)
        return [replace(beside.check(), name=FILE), *self.damage_of_file(delivered, [references])]

    def _oracle(self, references: Evidence) -> Outcome:
        """Whether references stand out beside each other: more than half of them must not."""
        every = torch.arange(len(references))
        if len(references) < 3:
            return "inconclusive"
        caught = sum(
            self.beside(references.select(every[every == i]), [references.select(every[every != i])]).stands_out
            for i in range(len(references))
        )
        return "not forgotten" if 2 * caught > len(references) else "forgotten"

    def _guard(self, name: str, ours: Tensor, theirs: Tensor, originals: Tensor) -> Check:
        """An error that must not be higher; its margin from the spread of references and originals."""
        inside, surely = (
            two_sample_interval(ours, theirs, level) for level in (2 * self.level - 1, 1 - self.false_alarm)
        )
        # Two or three references alone would give a margin by chance; networks that saw the rows vary as much.
        free = len(theirs) + len(originals) - 2
        spread = math.sqrt(float((len(theirs) - 1) * theirs.var() + (len(originals) - 1) * originals.var()) / free)
        margin = max(self.points, self.deviations * spread)
        return Check(name, self.state_of(inside, surely, margin, worse_only=True), *inside, margin, guards=True)


def _never_more_than_one(held: Sequence[float]) -> float:
    """The p-value of a wealth that was looked at after every training."""
    return min(1.0, 1 / max(held))


def two_sample_interval(a: Tensor, b: Tensor, level: float) -> Interval:
    """Difference of two means with limits, by one variance for both groups: three networks hardly show their own."""
    x, y = a.double().cpu().numpy(), b.double().cpu().numpy()
    gap = float(x.mean() - y.mean())
    if x.std() == 0 and y.std() == 0:
        return Interval(gap, gap, gap)
    low, high = stats.ttest_ind(x, y, equal_var=True).confidence_interval(level)
    return Interval(gap, float(low), float(high))


def _check(original: Evidence, candidate: Evidence, references: Evidence) -> None:
    if min(len(original), len(candidate), len(references)) < 2:
        raise DataError("A verdict from a bank needs two networks of each kind at least. Use 8 and 3.")
    if not all(bool(group.margins.isfinite().all()) for group in (original, candidate, references)):
        raise DataError("Margins must be finite, but some are not. A network has diverged; lower the learning rate.")
