"""`AuditReport`: everything a report tells, as plain values; the page, the model card and the exports are made from
it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.verdict import Checks, Verdict
from spotlessnet.auditing.wording import next_step, utility_decided
from spotlessnet.core.deprecated import AcceptsOldNames, OldName
from spotlessnet.store.receipts import without_figures

LONGEST = 300
"""Signs of a reason where a report is shown in one line."""


@dataclass(frozen=True)
class Cost:
    """What something took, beside one retraining measured in the same run."""

    what: str
    seconds: float
    memory: float = float("nan")
    note: str = ""


@dataclass(frozen=True)
class Curves:
    """What the figures show; an empty part is left out of the page.

    **Arguments:**

    - `trade_off`: per method, points of nats, error and its spread.
    - `roc`: per network, false and true positive rates of the membership attack.
    - `confidence`: per network, the probability given to the label of each forgotten row.
    - `paths`: per network, the way of its weights in the plane of the two main directions.
    - `leak`: per origin of the query, nats that a single answer can tell.
    """

    trade_off: Mapping[str, Sequence[tuple[float, float, float]]] = field(default_factory=dict)
    roc: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    confidence: Mapping[str, Sequence[float]] = field(default_factory=dict)
    paths: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    leak: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class AuditReport(metaclass=AcceptsOldNames):
    """One request from the asking to the evidence.

    **Arguments:**

    - `method`: the name of the row that the verdict is about.
    - `verdict`: none where nothing could be retrained to compare with.
    - `request`: what was asked for: counts and words, never ids.
    - `limits`: what was not shown; printed as it stands.
    - `rerun_command`: the command that makes this report once more.
    - `made`: date, versions and machine, for the foot of the page.
    - `header`: request id, network and digests, for its top.
    """

    title: str
    method: str
    rows: tuple[Row, ...]
    verdict: Verdict | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    assumed: Sequence[str] = ()
    lost: Sequence[str] = ()
    curves: Curves = field(default_factory=Curves)
    costs: Sequence[Cost] = ()
    limits: Sequence[str] = ()
    rerun_command: str = ""
    made: Mapping[str, Any] = field(default_factory=dict)
    header: Mapping[str, Any] = field(default_factory=dict)

    judgement = OldName("verdict")
    again = OldName("rerun_command")

    def __repr__(self) -> str:
        # Rows and curves by the thousand tell nobody anything; `write_report` shows them.
        why = self.reason if len(self.reason) <= LONGEST else f"{self.reason[: LONGEST - 1]}…"
        return f"AuditReport({self.title!r}, method={self.method!r}, {self.outcome}: {why})"

    @property
    def checks(self) -> Checks:
        """The verdict's checks, in order and by name: `report.checks["remembered share"]`; none without a verdict."""
        return Checks() if self.verdict is None else self.verdict.checks

    @property
    def outcome(self) -> str:
        """`forgotten`, `not forgotten`, `inconclusive`, `never saw the rows`, or `not judged` without a verdict."""
        return "not judged" if self.verdict is None else self.verdict.outcome

    @property
    def reason(self) -> str:
        """Why; where there is no verdict, the first limit says what was missing for one."""
        return "; ".join(self.limits[:1]) if self.verdict is None else self.verdict.reason

    @property
    def next_step(self) -> str:
        """What to do now."""
        return next_step(self.outcome, {check.name: check.state for check in self.checks})

    @property
    def is_damaged(self) -> bool:
        """Whether utility decided: then checks that pass say nothing about forgetting."""
        return utility_decided(self.outcome, {check.name: check.state for check in self.checks})

    def record(self) -> list[dict[str, Any]]:
        """The audit section of a receipt: the outcome and why, then each check and how it came out; no figure."""
        head: dict[str, Any] = {"verdict": self.outcome, "reason": without_figures(self.reason)}
        if self.verdict is not None:
            head["seeds"] = self.verdict.seeds
        return [head, *(check.record() for check in self.checks)]

    def figures(self) -> list[dict[str, Any]]:
        """The same with all digits, for the folder `private` alone."""
        head: dict[str, Any] = {"verdict": self.outcome, "reason": self.reason}
        if self.verdict is not None:
            head |= {"seeds": self.verdict.seeds, "resolution": self.verdict.resolution}
            hidden = self.verdict.could_hide
            head |= {} if hidden is None else {"could_hide": vars(hidden)}
        return [head, *(check.figures() for check in self.checks)]

    def _repr_html_(self) -> str:
        """What a notebook shows: the page itself, in a frame of its own so that its style stays inside."""
        from html import escape

        from spotlessnet.report.page import page  # the page is made from reports, so it comes second

        return (
            f'<iframe srcdoc="{escape(page(self))}" style="width:100%;height:45rem;border:0" title="report"></iframe>'
        )
