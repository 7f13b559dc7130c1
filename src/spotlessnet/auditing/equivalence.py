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

from spotlessnet.auditing.evidence import Evidence, beyond_controls, row_test
from spotlessnet.auditing.verdict import (
    ATTACK,
    FORGET_ERROR,
    OTHERWISE,
    ROWS,
    SHARE,
    TEST_ERROR,
    Check,
    Checks,
    Outcome,
    State,
    Verdict,
)
from spotlessnet.auditing.wording import ALIKE, NO_TRACE, fails_itself, too_few, why
from spotlessnet.core.errors import DataError, MismatchError, SettingError, check_positive
from spotlessnet.core.intervals import Interval, ratio_interval
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.attack import Attack
from spotlessnet.training.pairs import Trainings

MOST = 0.8
"""A row that kept so much of what the original remembers of it is remembered, however far controls move."""


@dataclass(frozen=True)
class EquivalenceTest:
    r"""The equivalence test and its margins.

    1. **remembered share** $\rho = (\bar\varphi - \bar\varphi_r) / (\bar\varphi_o - \bar\varphi_r)$ of mean margins on
       $D_f$: 0 as retrained, 1 as the original, negative is the Streisand effect. Fieller's interval over seeds.
    2. **error on $D_f$**, paired differences.
    3. **rows**: margin-KL of each row, its mean and 95th percentile over rows, against shuffled networks.
    4. **error on test**, one-sided: a broken network is not an unlearned one.

    Where any of them differs, matched controls tell why: test rows with other labels that retrained networks find as
    likely. A share is counted anew, of how much further than its controls each row has moved. If that holds zero and
    is as small as 1. allows, and no single row goes `max_control_sd`, the network was trained differently and remembers
    no more; if it is too wide, nothing can be told. Fewer errors on $D_f$ than retrained networks make are never
    excused, unless a row has many answers (positions, yes-or-no labels).

    **Arguments:**

    - `share`: how much of the original's memory may remain.
    - `max_control_sd`: standard deviations of controls among themselves that any one row may go further toward the
      original than its controls, or `share` if that is more; never more than most of what the original remembers.
    - `points`, `deviations`: the interval of an error's difference must stay within the larger of so much (share of
      rows; of the retrained networks' mean loss where there are no wrong answers) and so many standard deviations
      between retrained networks. With 8 seeds the interval reaches about one deviation to each side, so three leave two
      to the estimate, and 99.6 % of genuine retrained groups stay inside.
    - `level`: of the one-sided limits that must lie inside the margins.
    - `false_alarm`: significance at which a difference outside the margin counts as shown.
    - `permutations`, `seed`: of the shuffles.
    - `least`: fewer seeds give no verdict.
    """

    share: float = 0.2
    max_control_sd: float = 4.0
    points: float = 0.01
    deviations: float = 3.0
    level: float = 0.95
    false_alarm: float = 0.005
    permutations: int = 1999
    least: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("share", "max_control_sd", "points", "deviations", "permutations"):
            check_positive(f"EquivalenceTest.{name}", getattr(self, name))
        for name in ("level", "false_alarm"):
            if not 0 < getattr(self, name) < 1:
                raise SettingError(f"`EquivalenceTest.{name}` must lie between 0 and 1, but got {getattr(self, name)}.")

    def __call__(
        self,
        original: Evidence,
        candidate: Evidence,
        retrained: Evidence,
        held_out: Evidence,
        *,
        extra: Sequence[Check] = (),
    ) -> Verdict:
        """Judge the candidate; each group has one network per seed, in the same order.

        **Arguments:**

        - `held_out`: retrained networks with other seeds, which the audit must let pass.
        - `extra`: further checks of the candidate that count as well, such as `attack_check`.
        """
        _check_groups(original, candidate, retrained, held_out)
        seeds = len(candidate)
        checks = Checks((*self.checks(original, candidate, retrained, held_out), *extra))
        resolution = (checks[SHARE].high - checks[SHARE].low) / 2

        def unknown(reason: str) -> Verdict:
            return Verdict("inconclusive", reason, resolution, seeds, "inconclusive", "inconclusive", checks)

        if seeds < self.least:
            return unknown(too_few(seeds, self.least))
        if _all_alike(retrained, held_out):
            return unknown(ALIKE)
        # The audit is checked before it is believed: it must catch the original and let retrained networks pass.
        power = self.outcome(self.checks(original, original, retrained, held_out))
        oracle = self.outcome(self.checks(original, held_out, retrained, held_out))
        outcome = self.outcome(checks)
        reason = why(checks)
        if power != "not forgotten":
            outcome = "inconclusive"
            reason = NO_TRACE
        elif oracle != "forgotten":
            outcome = "inconclusive"
            reason = fails_itself(oracle)
        return Verdict(outcome, reason, resolution, seeds, oracle, power, checks)

    def checks(self, original: Evidence, candidate: Evidence, retrained: Evidence, held_out: Evidence) -> Checks:
        """All comparisons of a candidate with the retrained networks; the held-out ones only tell the spread."""
        groups = (candidate, retrained, held_out)
        in_losses = retrained.errors_are_losses
        found = Checks(
            (
                self._share(original, candidate, retrained),
                self._error(FORGET_ERROR, *(group.forget_error for group in groups), in_losses=in_losses),
                self._rows(candidate, retrained),
            )
        )
        if any(check.state != "same" for check in found):
            found = self._beside_controls(found, original, candidate, retrained)
        if not len(retrained.test_error):
            return found
        test = self._error(TEST_ERROR, *(group.test_error for group in groups), worse_only=True, in_losses=in_losses)
        return Checks((*found, replace(test, guards=True)))

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
        self,
        name: str,
        ours: Tensor,
        theirs: Tensor,
        others: Tensor,
        *,
        worse_only: bool = False,
        in_losses: bool = False,
    ) -> Check:
        gaps = ours - theirs
        # Of retrained networks among themselves, from both groups: the candidate must not widen its margin by its own.
        spread = math.sqrt(float(theirs.var() + others.var()) / 2)
        one = torch.ones_like(gaps)
        inside, surely = ratio_interval(gaps, one, 2 * self.level - 1), ratio_interval(gaps, one, 1 - self.false_alarm)
        # A loss has no unit of its own: points are of what retrained networks have.
        points = self.points * float(theirs.abs().mean()) if in_losses else self.points
        margin = max(points, self.deviations * spread)
        note = "mean losses, for the loss knows no wrong answers" if in_losses else ""
        return Check(name, self._state(inside, surely, margin, worse_only), *inside, margin, note)

    def _rows(self, candidate: Evidence, retrained: Evidence) -> Check:
        found = row_test(candidate.margins, retrained.margins, self.permutations, self.seed)
        note = f"nats a row, {found.floor:.2g} by chance; p = {found.p:.2g}"
        state: State = "different" if found.p <= self.false_alarm else "same"
        return Check(ROWS, state, found.nats, math.nan, math.nan, math.nan, note)

    def _beside_controls(self, checks: Checks, original: Evidence, candidate: Evidence, retrained: Evidence) -> Checks:
        """The checks again, in the light of rows that nobody trained on."""
        net = beyond_controls(original, candidate, retrained, 2 * self.level - 1, 1 - self.false_alarm)
        if net is None:
            return checks
        told = [replace(check, note=f"{check.note}; {net}") if check.name == ROWS else check for check in checks]
        # Answers that are more often right than after retraining can only come from the labels themselves. Not so where
        # a row has many answers: a network that is worse throughout is also less wrong about wrong labels.
        no_class = retrained.unseen is not None and retrained.unseen.labels is None
        many_answers = no_class and not retrained.errors_are_losses
        fewer = checks[FORGET_ERROR].state == "different" and checks[FORGET_ERROR].value < 0
        knows_labels = fewer and not many_answers
        one_row = max(self.share, self.max_control_sd * net.chance)
        if net.surely.low > 0 or net.surely.high < 0 or net.single > one_row or knows_labels:
            return Checks(told)
        state: State = "unclear"
        note = "trained differently, and what it remembers is too little to tell"
        if -self.share <= net.share.low and net.share.high <= self.share and net.single <= MOST:
            state, note = "same", OTHERWISE
        return Checks(
            check
            if check.state == "same"
            else replace(check, state=state, note=f"{check.note}: {note}" if check.note else note)
            for check in told
        )

    @staticmethod
    def _state(inside: Interval, surely: Interval, margin: float, worse_only: bool = False) -> State:
        # Same only if the whole interval is within the margin: a wide one proves nothing.
        if inside.high <= margin and (worse_only or inside.low >= -margin):
            return "same"
        return "different" if surely.low > 0 or (surely.high < 0 and not worse_only) else "unclear"


def attack_check(attack: Attack, *, limit: float = 0.55) -> Check:
    """An attack on the scrubbed networks as one more check: its area under the curve must surely stay below a limit.

    Only areas above one half speak of memory; an interval that holds one half but exceeds the limit is unclear.
    """
    value, low, high = attack.auc
    state: State = "unclear"
    if high <= limit:
        state = "same"
    elif low > 0.5:
        state = "different"
    return Check(ATTACK, state, value, low, high, limit)


def judge_networks(
    scrubbed: Sequence[Trained],
    trainings: Trainings,
    split: Split,
    *,
    test: EquivalenceTest | None = None,
    extra: Sequence[Check] = (),
) -> Verdict:
    """Judge networks that were scrubbed already, one for each pair of trainings."""
    groups = (trainings.original, scrubbed, trainings.retrained, trainings.held_out)
    return (test or EquivalenceTest())(*(Evidence.of(group, split) for group in groups), extra=extra)


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
