"""The equivalence test: is a scrubbed network one of those that never saw the forgotten rows?

Forgotten, not forgotten, or unknown: a test against the **distribution** of retrained networks over paired seeds. It
must let genuine retrained networks pass and must catch the untouched original; where it cannot do both, it says so
instead of "forgotten".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spotlessnet.auditing.beside import Beside
from spotlessnet.auditing.evidence import Evidence, joined
from spotlessnet.auditing.exchanging import StandingOut, exchangeable, standing_out
from spotlessnet.auditing.planted_rows import telling, unnoticed
from spotlessnet.auditing.verdict import (
    FILE,
    FORGET_ERROR,
    RETAIN_ERROR,
    SHARE,
    TEST_ERROR,
    Check,
    Checks,
    CouldHide,
    Outcome,
    State,
    Verdict,
)
from spotlessnet.auditing.wording import (
    ALIKE,
    HALF_COULD_HIDE,
    NO_TRACE,
    NOT_BEYOND_CONTROLS,
    fails_itself,
    too_few,
    why,
)
from spotlessnet.core.errors import DataError, MismatchError, SettingError, check_positive
from spotlessnet.core.intervals import Interval, quotient_interval, ratio_interval

DOUBTS = ("networks_doubt", "rows_doubt")
LARGE, LARGE_IN_ONE = 0.5, 0.75
"""Share of the original's move from which on a move is a large one: of all rows in the mean, or of a single one."""


@dataclass(frozen=True)
class Gates:
    """What the audit says of the original and of held-out retrained networks; weights of rows and labels in the mean move."""

    known: Beside
    oracle: Outcome
    weights: Tensor | None


@dataclass(frozen=True)
class EquivalenceTest:
    r"""The equivalence test and its margins.

    1. **rows**: forgotten rows must not stand out. Two tests must agree before they do (`standing_out`): networks
       cannot be exchanged with retrained ones, and rows cannot be exchanged with matched controls. The first without
       the second is a network that was trained differently.
    2. **remembered share** $\rho = \bar\delta / \bar\delta_o$: how far the labels' margins lie above those of their
       controls, beyond retrained networks', as a share of the original's. 0 as retrained, 1 as the original, negative
       is the Streisand effect. Fieller's interval.
    3. **error on $D_f$**, beside retrained networks; excused where rows do not stand out.
    4. **error on test and retained rows**, one-sided: a broken network is not an unlearned one.

    Without test data there are no controls: networks alone are compared, margins stand for themselves, and a network
    that was trained differently cannot be told from one that remembers.

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
    - `networks_doubt`, `rows_doubt`: below both, rows may stand out, and nothing is called forgotten; how often one looks
      does not change them.
    - `permutations`, `seed`: of the shuffles.
    - `least`: fewer seeds give no verdict.
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
    permutations: int = 1999
    least: int = 5
    seed: int = 0
    looks: int = 1

    def __post_init__(self) -> None:
        for name in ("share", "points", "deviations", "permutations", "looks"):
            check_positive(f"EquivalenceTest.{name}", getattr(self, name))
        for name in (*("level", "false_alarm", "networks_alarm", "rows_alarm", "rows_sure"), *DOUBTS):
            if not 0 < getattr(self, name) < 1:
                raise SettingError(f"`EquivalenceTest.{name}` must lie between 0 and 1, but got {getattr(self, name)}.")

    def one_look(self) -> "EquivalenceTest":
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

    def __call__(
        self,
        original: Evidence,
        candidate: Evidence,
        retrained: Evidence,
        held_out: Evidence,
        *,
        extra: Sequence[Check] = (),
        gates: Gates | None = None,
    ) -> Verdict:
        """Judge the candidate; each group has one network per seed, in the same order.

        **Arguments:**

        - `held_out`: retrained networks with other seeds, which the audit must let pass.
        - `extra`: further checks of the candidate that count as well, such as `attack_check`.
        - `gates`: where several candidates are judged beside the same networks, what `self.gates` said of those.
        """
        _check_groups(original, candidate, retrained, held_out)
        if self.looks > 1:
            return self.one_look()(original, candidate, retrained, held_out, extra=extra, gates=gates)
        seeds = len(candidate)
        gates = gates or self.gates(original, retrained, held_out)
        known, oracle = gates.known, gates.oracle
        checks = Checks((*self.checks(original, candidate, retrained, held_out, gates), *extra))
        resolution = (checks[SHARE].high - checks[SHARE].low) / 2

        def unknown(reason: str) -> Verdict:
            return Verdict("inconclusive", reason, resolution, seeds, "inconclusive", "inconclusive", checks)

        if seeds < self.least:
            return unknown(too_few(seeds, self.least))
        if _all_alike(retrained, held_out):
            return unknown(ALIKE)
        # The audit is checked before it is believed: it must catch the original and let retrained networks pass. Only
        # "forgotten" needs that; without controls a difference does too, for another training would show it as well.
        power: Outcome = "not forgotten" if self._knows(known) else "inconclusive"
        outcome = self.outcome(checks)
        reason = why(checks)
        hidden = None
        if outcome == "not forgotten" and candidate.channels is not None:
            return Verdict(outcome, reason, resolution, seeds, oracle, power, checks)
        blocked = ""
        if oracle == "not forgotten":
            blocked = fails_itself(oracle)
        elif power != "not forgotten":
            blocked = NOT_BEYOND_CONTROLS if known.differs else NO_TRACE
        if outcome == "forgotten" and not blocked:
            hidden = self._could_hide(original, candidate, [retrained, held_out])
            blocked = HALF_COULD_HIDE if hidden.half else ""
        if blocked:
            return Verdict("inconclusive", blocked, resolution, seeds, oracle, power, checks, hidden)
        return Verdict(outcome, reason, resolution, seeds, oracle, power, checks, hidden)

    def gates(self, original: Evidence, retrained: Evidence, held_out: Evidence) -> Gates:
        """What the audit says of networks whose outcome is known: the same for every candidate."""
        if self.looks > 1:
            return self.one_look().gates(original, retrained, held_out)
        oracle = self.outcome(self.checks(original, held_out, retrained, held_out))
        weights = _weights(original, [retrained, held_out])
        return Gates(self._beside(original, [retrained, held_out], weights), oracle, weights)

    def _knows(self, original: Beside) -> bool:
        """Whether the original is caught, as a candidate like it would be."""
        by_share = original.found is not None and self._share_beside_controls(original, original).state == "different"
        return original.stands_out or by_share

    def _could_hide(self, original: Evidence, candidate: Evidence, references: Sequence[Evidence]) -> CouldHide:
        """Rows planted in the candidates themselves: one trained differently hides more."""
        return unnoticed(original, candidate, references, seed=self.seed)

    @property
    def _shuffles(self) -> dict[str, int]:
        return {"permutations": self.permutations, "seed": self.seed}

    def checks(
        self,
        original: Evidence,
        candidate: Evidence,
        retrained: Evidence,
        held_out: Evidence,
        gates: Gates | None = None,
    ) -> Checks:
        """All comparisons of a candidate with networks that were retrained, the held-out ones included."""
        # Nobody is a reference for itself.
        is_held_out = torch.equal(candidate.margins, held_out.margins)
        references = [retrained] if is_held_out else [retrained, held_out]
        in_losses = retrained.errors_are_losses
        weights = gates.weights if gates else _weights(original, references)
        beside = self._beside(candidate, references, weights)
        error = self._error(FORGET_ERROR, *_errors("forget_error", candidate, references), in_losses=in_losses)
        share = self._share(original, candidate, retrained)
        if beside.found is not None:
            known = gates.known if gates else self._beside(original, references, weights)
            beside = self._unless_small(beside, known, candidate)
            share = self._share_beside_controls(beside, known, candidate.has_copies)
            error = beside.excuse(error)
        # Of few test rows none is a large share.
        few = 0.0 if candidate.unseen is None else 2 / candidate.unseen.margins.shape[1]
        coarse = replace(self, points=max(self.points, few))
        guards = [
            replace(coarse._error(name, *errors, worse_only=True, in_losses=in_losses), guards=True)
            for name, errors in (
                (TEST_ERROR, _errors("test_error", candidate, references)),
                (RETAIN_ERROR, _errors("retain_error", candidate, references)),
            )
            if all(len(column) for column in errors)
        ]
        return Checks((share, error, beside.check(), *guards))

    @staticmethod
    def outcome(checks: Sequence[Check]) -> Outcome:
        """What the checks say, before the audit itself was checked."""
        if any(check.state == "different" and not check.guards for check in checks):
            return "not forgotten"
        return "forgotten" if all(check.state == "same" for check in checks) else "inconclusive"

    def _share(self, original: Evidence, candidate: Evidence, retrained: Evidence) -> Check:
        base = retrained.margins.mean(dim=1)
        a, b = candidate.margins.mean(dim=1) - base, original.margins.mean(dim=1) - base
        # Two one-sided limits at `level`: a two-sided interval at 2·level − 1 (TOST). A difference needs a wider one.
        inside, surely = ratio_interval(a, b, 2 * self.level - 1), ratio_interval(a, b, 1 - self.false_alarm)
        seen = math.isfinite(surely.low)
        note = "" if seen else "the original's margins do not differ enough from the retrained ones"
        state = self._state(inside, surely, self.share)
        return Check(SHARE, state if seen else "unclear", *inside, self.share, note)

    def _error(
        self, name: str, ours: Tensor, theirs: Tensor, *, worse_only: bool = False, in_losses: bool = False
    ) -> Check:
        gap = float(ours.mean() - theirs.mean())
        # Of retrained networks among themselves: the candidate must not widen its margin by its own.
        spread = math.sqrt(float(theirs.var()))
        error = math.sqrt(float(ours.var()) / len(ours) + float(theirs.var()) / len(theirs))
        freedom = len(ours) + len(theirs) - 2
        inside, surely = (
            quotient_interval(gap, error, 1.0, 0.0, level, freedom)
            for level in (2 * self.level - 1, 1 - self.false_alarm)
        )
        # A loss has no unit of its own: points are of what retrained networks have.
        points = self.points * float(theirs.abs().mean()) if in_losses else self.points
        margin = max(points, self.deviations * spread)
        note = "mean losses, for the loss knows no wrong answers" if in_losses else ""
        return Check(name, self._state(inside, surely, margin, worse_only), *inside, margin, note)

    def _beside(self, candidate: Evidence, references: Sequence[Evidence], weights: Tensor | None = None) -> Beside:
        """Candidate networks beside retrained ones, row by row; `weights` are those of the mean move."""
        ours, theirs = candidate.channels, [group.channels for group in references]
        if ours is None or any(group is None for group in theirs):
            margins = torch.cat([group.margins for group in references]).double()
            p = exchangeable(candidate.margins.double(), margins, **self._shuffles)
            return Beside(None, p, p <= self.false_alarm, "different" if p <= self.false_alarm else "same")
        known = joined([group for group in theirs if group is not None])
        found = standing_out(ours, known, candidate.labels, **self._shuffles, weights=weights)
        return self._judged(found, len(candidate), len(known[0].rows))

    def _judged(self, found: StandingOut, ours: int, theirs: int) -> Beside:
        """What the p-values of so many networks say."""
        # A single network has but so many to be exchanged with: it must then be the furthest of all.
        least = 1.001 / (1 + theirs) if ours == 1 else 0.0
        alarm, doubt = max(self.networks_alarm, least), max(self.networks_doubt, least)
        differs = found.p_networks <= doubt
        state: State = "same"
        if differs and found.p_rows <= self.rows_doubt:
            surely = found.p_networks <= alarm and found.p_rows <= self.rows_alarm
            state = "different" if surely else "unclear"
        return Beside(found, max(found.p_networks, found.p_rows), differs, state)

    def _unless_small(self, candidate: Beside, original: Beside, evidence: Evidence) -> Beside:
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

    def _share_beside_controls(self, candidate: Beside, original: Beside, has_copies: bool = False) -> Check:
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
        state = self._state(inside, surely, self.share) if seen else "unclear"
        # That nothing is remembered must be proved; that rows are not avoided need only not be refuted.
        if seen and -self.share <= inside.value and 0 <= inside.high <= self.share:
            state = "same"
        # Rows may stand out, and more is surely left than may be: together that is enough.
        enough = candidate.state == "unclear" and surely.low > self.share and not has_copies
        if state == "different" and candidate.state != "different" and not enough:
            state = "unclear"  # the rows do not stand out for sure
        return Check(SHARE, state, *inside, self.share, note)

    def judge_file(
        self, original: Evidence, delivered: Evidence, references: Sequence[Evidence], gates: Gates | None = None
    ) -> Check:
        """One network beside retrained ones: the very file that is taken away."""
        weights = gates.weights if gates else _weights(original, references)
        known = gates.known if gates else self._beside(original, references, weights)
        beside = self._unless_small(self._beside(delivered, references, weights), known, delivered)
        return replace(beside.check(), name=FILE)

    @staticmethod
    def _state(inside: Interval, surely: Interval, margin: float, worse_only: bool = False) -> State:
        # Same only if the whole interval is within the margin: a wide one proves nothing.
        if inside.high <= margin and (worse_only or inside.low >= -margin):
            return "same"
        # A guard is against damage, which shows: one odd network among eight is none.
        if worse_only and inside.low <= 0 and inside.value <= margin:
            return "same"
        return "different" if surely.low > 0 or (surely.high < 0 and not worse_only) else "unclear"


def _weights(original: Evidence, references: Sequence[Evidence]) -> Tensor | None:
    """Of the rows in the mean move; the same for all that are held beside these networks."""
    known, unknown = original.channels, [group.channels for group in references]
    if known is None or any(group is None for group in unknown):
        return None
    return telling(known, joined([group for group in unknown if group is not None]))


def _errors(name: str, candidate: Evidence, references: Sequence[Evidence]) -> tuple[Tensor, Tensor]:
    return getattr(candidate, name), torch.cat([getattr(group, name) for group in references])


def _all_alike(retrained: Evidence, held_out: Evidence) -> bool:
    """Whether seeds make no difference to speak of: trainings in one batch, or none at all."""
    margins = torch.cat([retrained.margins, held_out.margins])
    return float(margins.std(dim=0).median()) <= 1e-5 * max(1e-12, float(margins.abs().median()))


def _check_groups(*groups: Evidence) -> None:
    sizes, rows = {len(group) for group in groups}, {group.margins.shape[1] for group in groups}
    if len(sizes) > 1 or len(rows) > 1 or len({len(group.test_error) for group in groups}) > 1:
        raise MismatchError(
            f"All groups must hold one network per seed and the same rows, but have {sorted(sizes)} networks and "
            f"{sorted(rows)} rows. Train them with `train_pairs`."
        )
    if not all(bool(group.margins.isfinite().all()) for group in groups):
        raise DataError("Margins must be finite, but some are not. A network has diverged; leave its seed out.")
    if min(sizes) < 2:
        raise DataError("A verdict needs at least two seeds to know any spread, but got one. Use 8.")
