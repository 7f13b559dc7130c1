"""Verdicts on real networks from what was seen of them, which `real.py` keeps in small files beside its rows.

    python benchmarks/real_verdicts.py faces.seen-0.pt --rows results/real_networks/faces.jsonl
    python benchmarks/real_verdicts.py a.seen-0.pt b.seen-0.pt --rows text.jsonl    # of several processes, as one

judges again, on a CPU, and replaces the verdicts among the rows: a changed test needs no new trainings. What several
processes saw of one request, each at other seeds, is judged together.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spotlessnet as sn
from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.core.files import write_whole
from spotlessnet.readouts.lira import tail_auc
from spotlessnet.readouts.matched_controls import matched

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags

ORIGINAL, RETRAINED, OTHER = "original", "retrained partner", "retraining"
"""The network as it was trained, the one it is compared with, and retraining with other seeds: the aim of methods."""

PLAIN = ("answers", "controls", "margins", "rows")
"""Fields that are kept in half precision: margins to three digits, which no verdict turns on."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What one request's networks answered: all that verdicts and attacks need, of each method one network a seed."""

    request: str
    seeds: list[int]
    evidence: dict[str, Evidence]

    @staticmethod
    def of(request: str, networks: Mapping[str, Sequence[sn.Trained]], split: sn.Split, seeds: list[int]) -> Seen:
        """Look at each network once, however many verdicts and attacks it takes part in."""
        recipe = networks[RETRAINED][0].recipe  # of further training: one for all, as an audit does it
        return Seen(request, seeds, {name: Evidence.of(group, split, recipe) for name, group in networks.items()})

    def join(self, others: Seen) -> Seen:
        """The same request at further seeds; methods that not all of them ran are left out."""
        both = {n: one.join(others.evidence[n]) for n, one in self.evidence.items() if n in others.evidence}
        return Seen(self.request, [*self.seeds, *others.seeds], both)

    @property
    def scores(self) -> dict[str, Tensor]:
        """Of the forgotten rows, and of the attack's controls behind them, which networks of other seeds choose."""
        unseen = {name: one.unseen for name, one in self.evidence.items()}
        chosen = unseen[OTHER]
        assert chosen is not None  # both data sets have test rows
        position, label = torch.stack(matched(self.evidence[OTHER].margins, chosen)).flatten(1).unique(dim=1)
        return {
            name: torch.cat([one.margins, unseen[name].margins[:, position, label]], dim=1)  # type: ignore[union-attr]  # the same test rows
            for name, one in self.evidence.items()
        }

    def verdicts(self) -> Iterator[dict[str, Any]]:
        """A row for each method, the untouched original and other retrainings among them."""
        seen = self.evidence
        methods = [name for name in seen if name not in (ORIGINAL, RETRAINED, OTHER)]
        scores, forgotten = self.scores, seen[ORIGINAL].margins.shape[1]
        for name in (ORIGINAL, *methods, OTHER):
            verdict = EquivalenceTest()(seen[ORIGINAL], seen[name], seen[RETRAINED], seen[OTHER])
            # References of the attack must not judge themselves: retraining is shown by the partners instead.
            attacked = scores[RETRAINED if name == OTHER else name]
            areas = [tail_auc(scores[OTHER], one, forgotten).value for one in attacked]
            yield {
                "request": self.request, "method": name, "pairs": len(self.seeds), "seeds": self.seeds,
                "outcome": verdict.outcome, "reason": verdict.reason, "oracle": verdict.oracle, "power": verdict.power,
                "resolution": verdict.resolution, "checks": [_plain(check.figures()) for check in verdict.checks],
                "lira": areas,
            }  # fmt: skip

    def save(self, path: Path) -> None:
        """In half precision; the file is for whoever made it, not to be sent around."""
        small = {name: _packed(one) for name, one in self.evidence.items()}
        torch.save({"request": self.request, "seeds": self.seeds, "evidence": small}, path)

    @staticmethod
    def read(path: Path) -> Seen:
        """What `save` wrote."""
        found = torch.load(path, weights_only=False)
        return Seen(**found | {"evidence": {name: _unpacked(one) for name, one in found["evidence"].items()}})


def _packed(record: Any) -> tuple[type, dict[str, Any]]:
    """A record and the records in it, their margins in half precision."""
    found = {}
    for one in fields(record):
        value = getattr(record, one.name)
        if is_dataclass(value):
            value = _packed(value)
        elif isinstance(value, Tensor) and value.dtype == torch.float64 and one.name in PLAIN:
            value = value.half()
        found[one.name] = value
    return type(record), found


def _unpacked(packed: tuple[type, dict[str, Any]]) -> Any:
    kind, found = packed
    known = {}
    for name, value in found.items():
        if isinstance(value, tuple):
            known[name] = _unpacked(value)
        else:
            known[name] = value.double() if isinstance(value, Tensor) and value.dtype == torch.float16 else value
    return kind(**known)


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}


def judged_again(rows: list[dict[str, Any]], seen: Sequence[Seen]) -> list[dict[str, Any]]:
    """The rows with the verdicts on what was seen in place of those that were there."""
    by_request: dict[str, list[Seen]] = {}
    for one in seen:
        by_request.setdefault(one.request, []).append(one)
    seen = [reduce(Seen.join, group) for group in by_request.values()]
    asked = {one.request for one in seen}
    kept = [row for row in rows if row["what"] != "verdict" or row["request"] not in asked]
    about = {name: value for name, value in rows[0].items() if name in ABOUT}
    new = [{"what": "verdict", **about, **_plain(row)} for one in seen for row in one.verdicts()]
    return [*(row for row in kept if row["what"] != "end"), *new, *(row for row in kept if row["what"] == "end")]


ABOUT = ("network", "data", "rows", "forgotten", "pixels", "training", "device", "threads", "torch", "command")
"""What stands in every row of a run."""


def flags() -> Flags:
    parser = Flags(__doc__)
    parser.add_argument("seen", type=Path, nargs="+", help="the files that were kept")
    parser.add_argument("--rows", type=Path, required=True, help="the rows of the same run")
    return parser


def main() -> None:
    """Replace the verdicts in a file of rows."""
    options = flags().parse_args()
    rows = [json.loads(line) for line in options.rows.read_text(encoding="utf-8").splitlines()]
    found = judged_again(rows, [Seen.read(path) for path in options.seen])
    write_whole(options.rows, "".join(json.dumps(row) + "\n" for row in found).encode(), replace=True)


if __name__ == "__main__":
    main()
