"""What a tenant has decided: how long a request may take, who approves, what is audited, what is destroyed when."""

from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Any

from spotlessnet.core.errors import SettingError

PASSING = ("forgotten", "never saw the rows", "exact")
"""Verdicts with which a rule may approve; every other one waits for a person."""


@dataclass(frozen=True)
class Policy:
    """The rules of one tenant.

    **Arguments:**

    - `days`: from receiving a request until it is due; a month unless said, as the GDPR gives.
    - `warn_days`: before that date, from when on an open request counts as urgent and starts its batch at once.
    - `approval`: `"person"`, or `"rule"`: a passing verdict is enough.
    - `approver_differs`: whoever submitted a request may not approve its result.
    - `audit_seeds`: pairs of trainings of the audit; 0 audits nothing, so that no rule can approve.
    - `batch_minutes`: how long a request waits for others that can be served by the same work.
    - `replay_share`: the share of jobs that are done a second time and compared, before they are approved.
    - `destroy_private`: destroy what opens a receipt's commitments at once; otherwise when its date has come.
    """

    days: int = 30
    warn_days: int = 5
    approval: str = "person"
    approver_differs: bool = False
    audit_seeds: int = 8
    batch_minutes: float = 0.0
    destroy_private: bool = True
    replay_share: float = 0.0

    def __post_init__(self) -> None:
        if self.approval not in ("person", "rule"):
            raise SettingError(f"The policy's approval must be person or rule, but got {self.approval[:40]!r}.")
        if not 1 <= self.days <= 3650 or not 0 <= self.warn_days <= self.days:
            raise SettingError("The policy's days must be 1 to 3650, and warn_days at most as many.")
        if self.audit_seeds and not 5 <= self.audit_seeds <= 1000:
            raise SettingError("The policy's audit_seeds must be 0 for no audit, or 5 to 1000: fewer give no verdict.")
        if not 0 <= self.batch_minutes <= 60 * 24 * 365:
            raise SettingError("The policy's batch_minutes must be 0 up to those of a year.")

        if not 0 <= self.replay_share <= 1:
            raise SettingError("The policy's replay_share must be 0 (none) to 1 (every job).")

    @staticmethod
    def of(values: dict[str, Any]) -> "Policy":
        """From what the database or a form says."""
        unknown = sorted(values.keys() - {field.name for field in fields(Policy)})
        if unknown:
            known = ", ".join(field.name for field in fields(Policy))
            raise SettingError(f"A policy has no {unknown[0][:40]!r}. It has {known}.")
        for field in fields(Policy):
            value = values.get(field.name, field.default)
            kind = type(field.default)
            fits = isinstance(value, (int, float) if kind is float else kind)
            if not fits or (isinstance(value, bool) and kind is not bool):
                raise SettingError(f"The policy's {field.name} must be {kind.__name__}, but got {str(value)[:40]!r}.")
        return Policy(**values)

    def record(self) -> dict[str, Any]:
        """For the database."""
        return asdict(self)

    @property
    def time(self) -> timedelta:
        """From receiving to due."""
        return timedelta(days=self.days)

    @property
    def warning(self) -> timedelta:
        """Before due, when a request becomes urgent."""
        return timedelta(days=self.warn_days)

    def approves(self, verdict: str | None) -> bool:
        """Whether a rule lets this verdict through without a person."""
        return self.approval == "rule" and verdict in PASSING
