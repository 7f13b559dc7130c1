"""`Unlearned`: what `sn.unlearn` gives back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.core.errors import count_of
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.requests.planning import Plan
from spotlessnet.store.pretrained import save_pretrained


@dataclass(frozen=True, eq=False, repr=False)
class Unlearned:
    """What came of a request to forget.

    **Arguments:**

    - `receipt`: what was run, on what, with what result; written to disk only where a folder was asked for.
    - `plan`: what was checked before the work, and what it was estimated to cost beside retraining; `None` if `again`.
    - `report`: the audit's, if there was one.
    - `statistics`: for the next request, where this one was served from such; never those given.
    - `folder`: where everything was written, if anywhere.
    - `salt`: opens the commitments of the receipt: keep it as private as the list of what was forgotten.
    - `again`: the request had been served before, and this is that receipt.
    - `exact`: what was measured with all digits, as private as the salt: it would confirm a guess at the rows.
    """

    receipt: dict[str, Any]
    load_model: Callable[[], nn.Module]
    plan: Plan | None = None
    report: AuditReport | None = None
    statistics: Statistics | None = None
    folder: Path | None = None
    salt: bytes = b""
    again: bool = False
    exact: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        told = self.receipt["predicate"]
        verdict = "no audit" if self.report is None else self.report.outcome
        where = "nothing written" if self.folder is None else f"folder={str(self.folder)!r}"
        return (
            f"Unlearned({told['method']}, {count_of(told['request']['matched'], 'row')} forgotten, {verdict}, {where})"
        )

    @cached_property
    def model(self) -> nn.Module:
        """The scrubbed network: an ordinary module, a copy of the one that was given, in eval mode."""
        return self.load_model()

    def save_pretrained(self, folder: str | Path, *, merge: bool = False) -> None:
        """Write the scrubbed network as a folder that `from_pretrained` reads, where it is one of Hugging Face.

        **Arguments:**

        - `merge`: add LoRA adapters into the weights they go on; otherwise they are written alone, as PEFT reads them.
        """
        save_pretrained(self.model, Path(folder), merge=merge)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """What the method measured and assumed on the way, seconds, and the cost in utility; exact while kept."""
        return dict(self.receipt["predicate"]["about"] if self.exact is None else self.exact)
