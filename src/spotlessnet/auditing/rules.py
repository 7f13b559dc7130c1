"""The rules by which groups of networks are judged, and their levels: the same with a bank and without."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from jaxtyping import Float64
from torch import Tensor

from spotlessnet.auditing.beside import Beside
from spotlessnet.auditing.descent import Place, closeness, kinship, near_originals
from spotlessnet.auditing.evidence import Evidence, joined
from spotlessnet.auditing.exchanging import StandingOut, exchangeable, standing_out
from spotlessnet.auditing.likeness import Likeness, resemblance
from spotlessnet.auditing.planted_rows import unnoticed
from spotlessnet.auditing.tuned import Tuned
from spotlessnet.auditing.verdict import (
    FILE_RETAIN_ERROR,
    FILE_TEST_ERROR,
    SHARE,
    TUNED,
    Check,
    CouldHide,
    Outcome,
    State,
)
from spotlessnet.auditing.wording import (
    DIFFERS_AND_COULD_HIDE,
    HALF_COULD_HIDE,
    LIE_APART,
    LIE_NEAR,
    WOULD_NOT_BE_KNOWN,
)
from spotlessnet.core.errors import SettingError, check_positive
from spotlessnet.core.intervals import Interval, quotient_interval

DOUBTS = ("networks_doubt", "rows_doubt", "tuned_doubt", "descent_doubt", "near_doubt")
MANY = 1 / 3
"""Share of single rows that could hide from which on another training is no excuse."""

LARGE, LARGE_IN_ONE = 0.5, 0.75
"""Share of the original's move from which on a move is a large one: of all rows in the mean, or of a single one."""


IN_LOSSES = "mean losses, for the loss knows no wrong answers"
"""The note of an error that is no share."""

ERRORS_OF_FILE = {FILE_TEST_ERROR: "test_error", FILE_RETAIN_ERROR: "retain_error"}
"""Where a single network must not be damaged, and what tells of it."""

AnyRules = TypeVar("AnyRules", bound="Rules")


@dataclass(frozen=True)
class Rules:
    """When something counts as shown.

    **Arguments:**

    - `share`: how much of the original's memory may remain.
    - `points`, `deviations`: the interval of an error's difference must stay within the larger of so much (share of
      rows, and where it guards utility two test rows at least; of the retrained networks' mean loss where there are
      no wrong answers) and so many standard deviations
      between retrained networks. With 8 seeds the interval reaches about one deviation to each side, so three leave two
      to the estimate, and 99.6 % of genuine retrained groups stay inside.
    - `level`: of the one-sided limits that must lie inside the margins.
    - `false_alarm`: significance at which a difference counts as shown by itself, where there are no controls.
    - `networks_alarm`, `rows_alarm`: significance at which networks count as different, and their forgotten rows as
      standing out. Both must, so that either bounds how often an honest network is accused.
    - `rows_sure`: what rows must reach to be called remembered where they moved less than half as far as the
      original's, and no single one three quarters of it: another training alone moves them a little.
    - `networks_doubt`, `rows_doubt`: below both, rows may stand out, and nothing is called forgotten; the number of
      looks does not change them. Where networks differ by the first of them, that another training explains it is
      believed only where most single rows would have been noticed.
    - `tuned_doubt`: below it, candidates resemble networks that were tuned to look retrained, and nothing is called
      forgotten; nor is it where the audit's own tuned networks would not have reached a t of `tuned_noticed`, which is
      twice what is needed, so that one chance in twenty is left.
    - `descent_doubt`, `descent_noticed`: the same of how close networks lie to the originals, which is far easier to
      see, so less doubt is left. Those that lie near can have been tuned, and need more than `near_doubt` instead of
      `tuned_doubt`.
    - `clears_apart`: whether those that lie apart are cleared where the audit could not tell its own tuned ones
      otherwise, unless they lie closer to their own original than to the others (`tuned_doubt`). More retrained
      networks of unknown origin are then called forgotten, and so are some that were tuned and then moved far away.
    - `permutations`, `seed`: of the shuffles.
    - `looks`: how often the networks that there are will be looked at, at most, with more of them each time. Each look
      has its share of every level (Bonferroni), so that stopping at the first verdict means no more errors.
    """

    share: float = 0.2
    points: float = 0.01
    deviations: float = 3.0
    level: float = 0.95
    false_alarm: float = 0.005
    networks_alarm: float = 0.05
    rows_alarm: float = 0.02
    rows_sure: float = 0.005
    networks_doubt: float = 0.05
    rows_doubt: float = 0.1
    tuned_doubt: float = 0.05
    tuned_noticed: float = 3.0
    descent_doubt: float = 0.01
    descent_noticed: float = 5.0
    near_doubt: float = 0.25
    clears_apart: bool = False
    permutations: int = 1999
    seed: int = 0
    looks: int = 1

    def __post_init__(self) -> None:
        for name in ("share", "points", "deviations", "tuned_noticed", "descent_noticed", "permutations", "looks"):
            check_positive(f"{type(self).__name__}.{name}", getattr(self, name))
        for name in (*("level", "false_alarm", "networks_alarm", "rows_alarm", "rows_sure"), *DOUBTS):
            if not 0 < getattr(self, name) < 1:
                found = f"`{type(self).__name__}.{name}` must lie between 0 and 1, but got {getattr(self, name)}"
                raise SettingError(f"{found}.")

    def one_look(self: AnyRules) -> AnyRules:
        """The test of a single look, with its share of every level."""
        few = 1 / self.looks
        return replace(
            self,
            looks=1,
            level=1 - (1 - self.level) * few,
            false_alarm=self.false_alarm * few,
            networks_alarm=self.networks_alarm * few,
            rows_alarm=self.rows_alarm * few,
            rows_sure=self.rows_sure * few,
        )

    def knows(self, original: Beside) -> bool:
        """Whether the original is caught, as a candidate like it would be."""
        by_share = original.found is not None and self.share_beside_controls(original, original).state == "different"
        return original.stands_out or by_share

    def could_hide(self, original: Evidence, candidate: Evidence, references: Sequence[Evidence]) -> CouldHide:
        """Rows planted in the candidates themselves: one trained differently hides more."""
        return unnoticed(original, candidate, references, seed=self.seed)

    @staticmethod
    def withheld(hidden: CouldHide, differs: bool) -> str:
        """Why nothing is called forgotten, by what could have hidden in networks that surely differ or do not."""
        if hidden.half:
            return HALF_COULD_HIDE
        return DIFFERS_AND_COULD_HIDE if differs and hidden.single > MANY * hidden.tried else ""

    def looks_tuned(
        self, original: Evidence, candidate: Evidence, references: Sequence[Evidence], planted: Sequence[Tuned]
    ) -> Check:
        """Whether candidates resemble originals that were tuned to look retrained, by the traits of those.

        It accuses nobody, for another training may lead the same way; but nothing is then called forgotten. Traits tell
        of any original; of networks that lie near those of the audit more is asked. Where traits tell too little, those
        that lie apart are cleared if that is wished (`clears_apart`).

        **Arguments:**

        - `references`: the last of them are of other seeds than the originals.
        """
        if not planted:  # every one burst while it was tuned
            return Check(TUNED, "unclear", math.nan, math.nan, math.nan, math.nan, WOULD_NOT_BE_KNOWN)
        ours, theirs = candidate.traits, [group.traits for group in references]
        assert ours is not None  # as of the planted ones
        known = torch.cat([one for one in theirs if one is not None])
        found = resemblance([one.traits for one in planted], ours, known, **self.shuffles)
        kin = self.descended(original, candidate, references[-1], planted)
        is_near = kin is not None and kin.p <= self.descent_doubt
        own = self.descended(original, candidate, references[-1], planted, by=kinship)
        is_own = own is not None and own.p <= self.tuned_doubt
        is_apart = kin is not None and not (is_near or is_own) and min(kin.noticed) >= self.descent_noticed
        is_faint = min(found.noticed) < self.tuned_noticed
        is_blind = is_faint and not (self.clears_apart and is_apart)
        doubt = self.near_doubt if is_near else self.tuned_doubt
        state: State = "unclear" if is_blind or found.p <= doubt else "same"
        reached = ", ".join(f"{one:.2g}" for one in found.noticed)
        note = f"networks that the audit tuned itself reach t = {reached}"
        told = {WOULD_NOT_BE_KNOWN: is_blind, LIE_APART: is_faint, LIE_NEAR: is_near}
        note = "; ".join([note, *[words for words, holds in told.items() if holds][:1]])
        return Check(TUNED, state, found.p, math.nan, math.nan, math.nan, note)

    def descended(
        self,
        original: Evidence,
        candidate: Evidence,
        others: Evidence,
        planted: Sequence[Tuned],
        by: Callable[[Place, Place], Float64[Tensor, "S D"]] = closeness,
    ) -> Likeness | None:
        """Whether candidates are closer to originals than networks of other seeds; nothing where none are at hand.

        **Arguments:**

        - `by`: how close, to any original or to their own.
        """
        if original.place is None or candidate.place is None or others.place is None:
            return None
        places = (candidate.place, others.place, *(one.place for one in planted))
        ours, theirs, *tuned = (by(one, original.place) for one in places)
        return near_originals(tuned, ours, theirs, **self.shuffles)

    @property
    def shuffles(self) -> dict[str, int]:
        """Their number and their seed."""
        return {"permutations": self.permutations, "seed": self.seed}

    @staticmethod
    def outcome(checks: Sequence[Check]) -> Outcome:
        """What the checks say, before the audit itself was checked."""
        if any(check.state == "different" and not check.guards for check in checks):
            return "not forgotten"
        return "forgotten" if all(check.state == "same" for check in checks) else "inconclusive"

    def beside(self, candidate: Evidence, references: Sequence[Evidence], weights: Tensor | None = None) -> Beside:
        """Candidate networks beside retrained ones, row by row; `weights` are those of the mean move."""
        found = self.stood_out(candidate, references, weights)
        if found is None:
            margins = torch.cat([group.margins for group in references]).double()
            p = exchangeable(candidate.margins.double(), margins, **self.shuffles)
            return Beside(None, p, p <= self.false_alarm, "different" if p <= self.false_alarm else "same")
        return self.judged(found, len(candidate), sum(len(group) for group in references))

    def stood_out(
        self, candidate: Evidence, references: Sequence[Evidence], weights: Tensor | None
    ) -> StandingOut | None:
        """Both tests, whose p-values are the same at every level; nothing where there are no controls."""
        ours, theirs = candidate.channels, [group.channels for group in references]
        if ours is None or any(group is None for group in theirs):
            return None
        known = joined([group for group in theirs if group is not None])
        return standing_out(ours, known, candidate.labels, **self.shuffles, weights=weights)

    def judged(self, found: StandingOut, ours: int, theirs: int) -> Beside:
        """What the p-values of so many networks say."""
        # A single network has but so many to be exchanged with: it must then be the furthest of all.
        least = 1.001 / (1 + theirs) if ours == 1 else 0.0
        alarm, doubt = max(self.networks_alarm, least), max(self.networks_doubt, least)
        differs = found.p_networks <= doubt
        state: State = "same"
        # To be the furthest of a few happens to every honest network in its turn: its rows alone must then raise doubt.
        if differs and found.p_rows <= (self.rows_doubt if ours > 1 else self.rows_alarm):
            surely = found.p_networks <= alarm and found.p_rows <= self.rows_alarm
            state = "different" if surely else "unclear"
        return Beside(found, max(found.p_networks, found.p_rows), differs, state)

    def unless_small(self, candidate: Beside, original: Beside, evidence: Evidence) -> Beside:
        """A small move needs more proof than a large one; where controls are not quite alike, it proves nothing."""
        ours, whole = candidate.found, original.found
        if ours is None or whole is None or candidate.state != "different":
            return candidate
        moved, furthest = (value / max(whole.moved, 1e-12) for value in (abs(ours.moved), ours.furthest))
        is_large = moved >= LARGE or furthest >= LARGE_IN_ONE or ours.p_rows <= self.rows_sure
        # Where a whole class goes, controls are of other classes.
        is_small = moved <= self.share if evidence.has_lost_classes else not is_large
        # Rows whose copies stay are trained on by everyone, each in their own way: no control is like them.
        return replace(candidate, state="unclear") if is_small or evidence.has_copies else candidate

    def share_beside_controls(self, candidate: Beside, original: Beside, has_copies: bool = False) -> Check:
        """The share from what rows have moved beyond their controls."""
        ours, whole = candidate.found, original.found
        assert ours is not None  # both have controls, or neither has
        assert whole is not None
        # Rows of a network that was trained differently stray, each in its own way; of one trained alike they do not.
        error = max(ours.error, ours.error_of_rows) if candidate.differs else ours.error
        inside, surely = (
            quotient_interval(ours.moved, error, whole.moved, whole.error, level, ours.freedom)
            for level in (2 * self.level - 1, 1 - self.false_alarm)
        )
        seen = math.isfinite(surely.low)
        note = "" if seen else "the original's margins do not differ enough from the retrained ones"
        state = self.state_of(inside, surely, self.share) if seen else "unclear"
        # That nothing is remembered must be proved; that rows are not avoided need only not be refuted.
        if seen and -self.share <= inside.value and 0 <= inside.high <= self.share:
            state = "same"
        # Rows may stand out, and more is surely left than may be: together that is enough.
        enough = candidate.state == "unclear" and surely.low > self.share and not has_copies
        if state == "different" and candidate.state != "different" and not enough:
            state = "unclear"  # the rows do not stand out for sure
        return Check(SHARE, state, *inside, self.share, note)

    def damage_of_file(self, delivered: Evidence, references: Sequence[Evidence]) -> list[Check]:
        """Whether one network answers other rows surely worse than one more of the retrained networks would."""
        found = []
        for name, of in ERRORS_OF_FILE.items():
            ours = getattr(delivered, of)
            theirs = torch.cat([getattr(group, of) for group in references])
            if not len(ours) or len(theirs) < 2:
                continue
            spread, gap = float(theirs.std()), float(ours.mean() - theirs.mean())
            error = spread * math.sqrt(1 + 1 / len(theirs))
            low, high = quotient_interval(gap, error, 1.0, 0.0, 1 - self.false_alarm, len(theirs) - 1)[1:]
            points = self._points(delivered, theirs, few=name == FILE_TEST_ERROR)
            margin = max(points, self.deviations * spread)
            state: State = "different" if low > 0 and gap > margin else "same"
            note = IN_LOSSES if delivered.errors_are_losses else ""
            found.append(Check(name, state, gap, low, high, margin, note, guards=True))
        return found

    def _points(self, candidate: Evidence, theirs: Tensor, *, few: bool) -> float:
        """How far an error may rise that retrained networks have: of few test rows none is a large share."""
        if candidate.errors_are_losses:
            return self.points * float(theirs.abs().mean())
        least = 2 / candidate.unseen.margins.shape[1] if few and candidate.unseen is not None else 0.0
        return max(self.points, least)

    @staticmethod
    def state_of(inside: Interval, surely: Interval, margin: float, worse_only: bool = False) -> State:
        """Of a difference by two intervals, one that must lie inside the margin and a wider one."""
        # Same only if the whole interval is within the margin: a wide one proves nothing.
        if inside.high <= margin and (worse_only or inside.low >= -margin):
            return "same"
        # A guard is against damage, which shows: one odd network among eight is none.
        if worse_only and inside.low <= 0 and inside.value <= margin:
            return "same"
        return "different" if surely.low > 0 or (surely.high < 0 and not worse_only) else "unclear"
