"""The audits of `audit_gauntlet.py`: what the package says of every candidate, at once and in sequence."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from benchmarks.gauntlet_candidates import REPLAYED, SEEDS, Audits, Setting

from spotlessnet.auditing.equivalence import EquivalenceTest, Gates
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.exchanging import StandingOut
from spotlessnet.auditing.looks import LOOKS, goes_on
from spotlessnet.auditing.tuned import Tuned, tuned_networks
from spotlessnet.auditing.verdict import ROWS, TUNED, CouldHide, Verdict
from spotlessnet.core.scrub import METHODS, declared_by

Row = dict[str, Any]


def looked(setting: Setting, groups: torch.Tensor) -> list[Evidence]:
    """What the networks of each audit answer; all are looked at together, which is faster."""
    A, S, _ = groups.shape
    every = Evidence.of(setting.networks(groups.flatten(0, 1)), setting.split, setting.trained.recipe)
    return [every.select(torch.arange(i * S, (i + 1) * S)) for i in range(A)]


@dataclass(frozen=True)
class SeveralLevels(EquivalenceTest):
    """Shuffles and planted rows are the same at every level: what one test has computed serves the others.

    **Arguments:**

    - `held`: what was found, beside the networks it was found of, so that no others can have their place in memory.
    """

    held: dict[tuple[int, ...], tuple[Any, Any]] = field(default_factory=dict, repr=False, compare=False)

    def _once(self, networks: Sequence[Evidence], make: Callable[[], Any]) -> Any:
        key = tuple(map(id, networks))
        if key not in self.held:
            self.held[key] = networks, make()
        return self.held[key][1]

    def stood_out(
        self, candidate: Evidence, references: Sequence[Evidence], weights: torch.Tensor | None
    ) -> StandingOut | None:
        """Both tests."""
        found: StandingOut | None = self._once(
            [candidate, *references], lambda: super(SeveralLevels, self).stood_out(candidate, references, weights)
        )
        return found

    def could_hide(self, original: Evidence, candidate: Evidence, references: Sequence[Evidence]) -> CouldHide:
        """Planted rows."""
        found: CouldHide = self._once(
            [original, candidate, *references],
            lambda: super(SeveralLevels, self).could_hide(original, candidate, references),
        )
        return found


@dataclass(frozen=True, eq=False)
class Own:
    """Networks that an audit itself has trained by one of its looks, and what every one of its tests says of them."""

    original: Evidence
    references: list[Evidence]
    gates: list[Gates]
    planted: Callable[[], list[Tuned]]

    @staticmethod
    def of(
        original: Evidence,
        references: Evidence,
        tests: Sequence[EquivalenceTest],
        planted: Callable[[], list[Tuned]] = list,
    ) -> "Own":
        """References in halves, as pairs and held-out networks are."""
        halves = [references.select(half) for half in torch.arange(len(references)).chunk(2)]
        return Own(original, halves, [test.gates(original, *halves) for test in tests], planted)

    def join(
        self,
        original: Evidence,
        references: Evidence,
        tests: Sequence[EquivalenceTest],
        planted: Callable[[], list[Tuned]],
    ) -> "Own":
        """With those of the next look."""
        every = references.join(self.references[0]).join(self.references[1])
        both = cache(lambda: [ours.join(more) for ours, more in zip(self.planted(), planted(), strict=True)])
        return Own.of(self.original.join(original), every, tests, both)


class Judges:
    """The audits of one job: each judges a candidate at once, and in sequence with more networks where that is said."""

    def __init__(self, setting: Setting, audits: Audits) -> None:
        self.setting, self.numbers = setting, audits.numbers
        once = [SeveralLevels(seed=number) for number in self.numbers]
        self.tests = [[test, replace(test, looks=LOOKS)] for test in once]
        originals, references, planted = self._own(audits)
        first = [Own.of(*each) for each in zip(originals, references, self.tests, planted, strict=True)]
        self.looks = [dict(enumerate(first)), *({} for _ in range(1, LOOKS))]
        self.seen: dict[tuple[int, int], Evidence] = {}

    def _own(self, audits: Audits) -> tuple[list[Evidence], list[Evidence], list[Callable[[], list[Tuned]]]]:
        """Originals and references of every audit; and how to tune its originals."""
        groups = [audits.group(name) for name in ("audited originals", "references")]
        originals, references = (looked(self.setting, group) for group in groups)
        return originals, references, [cache(partial(self._tuned, *each)) for each in zip(*groups, strict=True)]

    def _tuned(self, originals: torch.Tensor, references: torch.Tensor) -> list[Tuned]:
        setting = self.setting
        made = tuned_networks(
            setting.networks(originals), setting.networks(references[: len(originals)]), setting.split
        )
        return [found for some in made if (found := Tuned.of(some, setting.split)) is not None]

    def rows(self, candidate: str, groups: Sequence[Evidence], *, with_file: bool, again: bool) -> Iterator[Row]:
        """What every audit says of its candidates."""
        found, verdicts = [], {}
        for i, group in enumerate(groups):
            row, verdicts[i] = self._first(i, group, with_file, known=is_known(candidate))
            found.append(row)
        networks = dict(enumerate(groups))
        for look in range(1, LOOKS if again else 1):
            some = [i for i, verdict in verdicts.items() if goes_on(verdict)]
            began = time.perf_counter()
            self._look_again(candidate, look, some, networks, verdicts)
            spent = round((time.perf_counter() - began) / max(1, len(some)), 2)
            for i, row in enumerate(found):
                row["seconds"].append(spent if i in some else 0.0)
        for i, row in enumerate(found):
            finest = self.looks[_look(len(networks[i]))][i].gates[-1].finest
            last = {**told(verdicts[i]), "pairs": len(networks[i]), "finest": _short(finest)}
            if len(networks[i]) == SEEDS:  # the same figures as of one look
                last = {name: value for name, value in last.items() if name not in ("checks", "p")}
            yield {"audit": self.numbers[i], **row, "in_sequence": last}

    def _first(self, i: int, group: Evidence, with_file: bool, *, known: bool) -> tuple[Row, Verdict]:
        began, own, (test, in_sequence) = time.perf_counter(), self.looks[0][i], self.tests[i]
        verdicts = [
            one(own.original, group, *own.references, gates=gates, planted=None if known else own.planted)
            for one, gates in zip((test, in_sequence), own.gates, strict=True)
        ]
        one, found = group.select(torch.tensor([0])), own.gates[0].known.found
        file = test.judge_file(own.original, one, own.references, own.gates[0]).state if with_file else None
        row = {
            **told(verdicts[0]),
            "p_original": None if found is None else [_short(found.p_networks), _short(found.p_rows)],
            "file": file,
            "finest": _short(own.gates[0].finest),
            "seconds": [round(time.perf_counter() - began, 2)],
        }
        return row, verdicts[1]

    def _look_again(
        self, candidate: str, look: int, some: list[int], networks: dict[int, Evidence], verdicts: dict[int, Verdict]
    ) -> None:
        """Twice the networks, of audits that the look before left open."""
        if not some:
            return
        unknown = [i for i in some if i not in self.looks[look]]
        if unknown:
            both = self._own(Audits(self.setting, [self.numbers[i] for i in unknown], look))
            for i, original, references, planted in zip(unknown, *both, strict=True):
                before = self.looks[look - 1][i]
                self.looks[look][i] = before.join(original, references, self.tests[i][1:], planted)
        more = self._more(candidate, look, some)
        for i in some:
            own, networks[i] = self.looks[look][i], networks[i].join(more[i])
            asked = None if is_known(candidate) else own.planted
            verdicts[i] = self.tests[i][1](
                own.original, networks[i], *own.references, gates=own.gates[0], planted=asked
            )

    def _more(self, candidate: str, look: int, some: list[int]) -> dict[int, Evidence]:
        """Further networks of a candidate; those that are known and those that are not are the same retrained ones."""
        name = "retrained" if candidate == REPLAYED else candidate
        found = {i: self.seen[look, i] for i in some if name == "retrained" and (look, i) in self.seen}
        new = [i for i in some if i not in found]
        if new:
            groups = Audits(self.setting, [self.numbers[i] for i in new], look).candidates()[name]()
            found |= dict(zip(new, looked(self.setting, groups), strict=True))
        if name == "retrained":
            self.seen |= {(look, i): group for i, group in found.items()}
        return found


def is_known(candidate: str) -> bool:
    """Whether an audit that made these networks itself knows that nothing of the rows can have reached them."""
    if candidate not in METHODS.names():
        return candidate == REPLAYED
    return all(part.never_sees_forgotten for part in declared_by(METHODS.find(candidate)()))


def told(verdict: Verdict) -> Row:
    """A verdict in plain values."""
    hidden = verdict.could_hide
    return {
        "outcome": verdict.outcome,
        "withheld": withheld(verdict),
        "oracle": verdict.oracle,
        "power": verdict.power,
        "checks": {check.name: [check.state, *(_short(v) for v in (check.value, check.low, check.high))]
                   for check in verdict.checks},
        "p": verdict.checks[ROWS].note,
        "tuned": None if (check := verdict.checks.get(TUNED)) is None else check.note,
        "could_hide": None if hidden is None else vars(hidden),
    }  # fmt: skip


def withheld(verdict: Verdict) -> str:
    """What stood between an inconclusive verdict and a word."""
    if verdict.outcome != "inconclusive":
        return ""
    if verdict.oracle == "not forgotten":
        return "fails its own check"
    if verdict.power != "not forgotten":
        return "no trace"
    if verdict.could_hide is not None:
        return "half could hide" if verdict.could_hide.half else "single rows could hide"
    return ", ".join(f"{check.name} {check.state}" for check in verdict.checks if check.state != "same")


def _look(pairs: int) -> int:
    return (pairs // SEEDS).bit_length() - 1


def _short(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None
