"""The equivalence test: is a scrubbed network one of those that never saw the forgotten rows?

Forgotten, not forgotten, or unknown: a test against the **distribution** of retrained networks over paired seeds. It
must let genuine retrained networks pass and must catch the untouched original; where it cannot do both, it says so
instead of "forgotten".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spotlessnet.auditing.beside import Beside
from spotlessnet.auditing.evidence import Evidence, joined
from spotlessnet.auditing.planted_rows import telling
from spotlessnet.auditing.rules import IN_LOSSES, Rules
from spotlessnet.auditing.tuned import Tuned
from spotlessnet.auditing.verdict import (
    FILE,
    FORGET_ERROR,
    RETAIN_ERROR,
    SHARE,
    TEST_ERROR,
    Check,
    Checks,
    Outcome,
    Verdict,
)
from spotlessnet.auditing.wording import (
    ALIKE,
    NO_TRACE,
    NOT_BEYOND_CONTROLS,
    fails_itself,
    too_faint,
    too_few,
    why,
)
from spotlessnet.core.errors import DataError, MismatchError
from spotlessnet.core.intervals import quotient_interval, ratio_interval


@dataclass(frozen=True)
class Gates:
    """What the audit says of the original and of held-out retrained networks; and weights of the mean move.

    **Arguments:**

    - `finest`: half the width that the interval of the share has for networks that were retrained.
    """

    known: Beside
    oracle: Outcome
    weights: Tensor | None
    finest: float


@dataclass(frozen=True)
class EquivalenceTest(Rules):
    r"""The equivalence test and its margins.

    1. **rows**: forgotten rows must not stand out. Two tests must agree before they do (`standing_out`): networks
       cannot be exchanged with retrained ones, and rows cannot be exchanged with matched controls. The first without
       the second is a network that was trained differently.
    2. **remembered share** $\rho = \bar\delta / \bar\delta_o$: how far margins lie beyond those of their controls,
       further than retrained networks', in the direction of the original's and as a share of them. 0 as retrained, 1
       as the original, negative is the Streisand effect. Fieller's interval.
    3. **error on $D_f$**, beside retrained networks; excused where rows do not stand out.
    4. **error on test and retained rows**, one-sided: a broken network is not an unlearned one.
    5. **tuned to look retrained**: networks of which nobody knows how they came about must not resemble originals that
       the audit tuned itself; where it could not tell those, they must lie as far from all originals as other trainings
       do, or it says so instead of "forgotten".

    Without test data there are no controls: networks alone are compared, margins stand for themselves, and a network
    that was trained differently cannot be told from one that remembers.

    **Arguments:** those of `Rules`, and `least`: fewer seeds give no verdict.
    """

    least: int = 5

    def __call__(
        self,
        original: Evidence,
        candidate: Evidence,
        retrained: Evidence,
        held_out: Evidence,
        *,
        extra: Sequence[Check] = (),
        gates: Gates | None = None,
        planted: Callable[[], Sequence[Tuned]] | None = None,
    ) -> Verdict:
        """Judge the candidate; each group has one network per seed, in the same order.

        **Arguments:**

        - `held_out`: retrained networks with other seeds, which the audit must let pass.
        - `extra`: further checks of the candidate that count as well, such as `attack_check`.
        - `gates`: where several candidates are judged beside the same networks, what `self.gates` said of those.
        - `planted`: originals that were tuned to look retrained (`tuned`), where candidates may have been;
          asked for only where all else is passed. Of networks that are known to have come another way, nothing.
        """
        _check_groups(original, candidate, retrained, held_out)
        if self.looks > 1:
            return self.one_look()(original, candidate, retrained, held_out, extra=extra, gates=gates, planted=planted)
        seeds = len(candidate)
        gates = gates or self.gates(original, retrained, held_out)
        known, oracle = gates.known, gates.oracle
        beside, own = self._looked_at(original, candidate, retrained, held_out, gates)
        checks = Checks((*own, *extra))
        resolution = (checks[SHARE].high - checks[SHARE].low) / 2

        def unknown(reason: str) -> Verdict:
            return Verdict("inconclusive", reason, resolution, seeds, "inconclusive", "inconclusive", checks)

        if seeds < self.least:
            return unknown(too_few(seeds, self.least))
        if _all_alike(retrained, held_out):
            return unknown(ALIKE)
        # The audit is checked before it is believed: it must catch the original and let retrained networks pass. Only
        # "forgotten" needs that; without controls a difference does too, for another training would show it as well.
        power: Outcome = "not forgotten" if self.knows(known) else "inconclusive"
        outcome = self.outcome(checks)
        hidden = None
        if outcome == "not forgotten" and candidate.channels is not None:
            return Verdict(outcome, why(checks), resolution, seeds, oracle, power, checks)
        blocked = ""
        if oracle == "not forgotten":
            blocked = fails_itself(oracle)
        elif power != "not forgotten":
            blocked = NOT_BEYOND_CONTROLS if known.differs else NO_TRACE
        elif outcome == "inconclusive" and checks[SHARE].state == "unclear" and self.share < gates.finest < math.inf:
            blocked = too_faint(seeds, math.ceil(seeds * (gates.finest / self.share) ** 2))
        if outcome == "forgotten" and not blocked and planted is not None:
            checks = Checks((*checks, self.looks_tuned(original, candidate, [retrained, held_out], planted())))
            outcome = self.outcome(checks)
        if outcome == "forgotten" and not blocked:
            hidden = self.could_hide(original, candidate, [retrained, held_out])
            blocked = self.withheld(hidden, beside.differs)
        if blocked:
            return Verdict("inconclusive", blocked, resolution, seeds, oracle, power, checks, hidden)
        return Verdict(outcome, why(checks), resolution, seeds, oracle, power, checks, hidden)

    def gates(self, original: Evidence, retrained: Evidence, held_out: Evidence) -> Gates:
        """What the audit says of networks whose outcome is known: the same for every candidate."""
        if self.looks > 1:
            return self.one_look().gates(original, retrained, held_out)
        checks = self.checks(original, held_out, retrained, held_out)
        # Held-out networks have half the references that candidates have.
        finest = math.sqrt(3 / 4) * (checks[SHARE].high - checks[SHARE].low) / 2
        weights = _weights(original, [retrained, held_out])
        known = self.beside(original, [retrained, held_out], weights)
        return Gates(known, self.outcome(checks), weights, finest)

    def checks(
        self,
        original: Evidence,
        candidate: Evidence,
        retrained: Evidence,
        held_out: Evidence,
        gates: Gates | None = None,
    ) -> Checks:
        """All comparisons of a candidate with networks that were retrained, the held-out ones included."""
        return self._looked_at(original, candidate, retrained, held_out, gates)[1]

    def _looked_at(
        self, original: Evidence, candidate: Evidence, retrained: Evidence, held_out: Evidence, gates: Gates | None
    ) -> tuple[Beside, Checks]:
        # Nobody is a reference for itself.
        is_held_out = torch.equal(candidate.margins, held_out.margins)
        references = [retrained] if is_held_out else [retrained, held_out]
        in_losses = retrained.errors_are_losses
        weights = gates.weights if gates and not is_held_out else _weights(original, references)
        beside = self.beside(candidate, references, weights)
        error = self._error(FORGET_ERROR, *_errors("forget_error", candidate, references), in_losses=in_losses)
        share = self._share(original, candidate, retrained)
        if beside.found is not None:
            known = gates.known if gates else self.beside(original, references, weights)
            beside = self.unless_small(beside, known, candidate)
            share = self.share_beside_controls(beside, known, candidate.has_copies)
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
        return beside, Checks((share, error, beside.check(), *guards))

    def _share(self, original: Evidence, candidate: Evidence, retrained: Evidence) -> Check:
        base = retrained.margins.mean(dim=1)
        a, b = candidate.margins.mean(dim=1) - base, original.margins.mean(dim=1) - base
        # Two one-sided limits at `level`: a two-sided interval at 2·level − 1 (TOST). A difference needs a wider one.
        inside, surely = ratio_interval(a, b, 2 * self.level - 1), ratio_interval(a, b, 1 - self.false_alarm)
        seen = math.isfinite(surely.low)
        note = "" if seen else "the original's margins do not differ enough from the retrained ones"
        state = self.state_of(inside, surely, self.share)
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
        note = IN_LOSSES if in_losses else ""
        return Check(name, self.state_of(inside, surely, margin, worse_only), *inside, margin, note)

    def judge_file(
        self, original: Evidence, delivered: Evidence, references: Sequence[Evidence], gates: Gates | None = None
    ) -> Check:
        """One network beside retrained ones: the very file that is taken away."""
        if self.looks > 1:
            return self.one_look().judge_file(original, delivered, references, gates)
        weights = gates.weights if gates else _weights(original, references)
        known = gates.known if gates else self.beside(original, references, weights)
        beside = self.unless_small(self.beside(delivered, references, weights), known, delivered)
        return replace(beside.check(), name=FILE)


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
