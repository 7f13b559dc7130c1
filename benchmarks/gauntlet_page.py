"""What pages say of the gauntlet, from its rows: `python benchmarks/gauntlet_page.py` renews both."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.audit_gauntlet import HONEST
from benchmarks.common import Place

from spotlessnet.core.intervals import clopper_pearson

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "results" / "audit_gauntlet.jsonl"
PAGE, README = ROOT / "docs" / "reading_the_report.md", ROOT / "README.md"
PLACE, SHORT = Place.of("gauntlet_page", "end of the gauntlet"), Place.of("gauntlet_page", "end of the summary")
WORDS = ("forgotten", "inconclusive", "not forgotten")
KEPT = ("one row kept", "a tenth kept", "noisy copies kept")
CHEATS = ("margins matched", "logits matched", "garbage answers", "gradient ascent", "fine-tuned")

Rows = Sequence[dict[str, Any]]


def read() -> list[dict[str, Any]]:
    """Of the blocks that were not used for choosing."""
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["used_for"] == "confirming"]


def table(rows: Rows) -> str:
    """Verdicts of every candidate, block by block."""
    blocks = list(dict.fromkeys(row["block"] for row in rows))
    lines = [f"| network | {' | '.join(blocks)} | file alone, all |", f"|---|{'---|' * len(blocks)}---|"]
    for name in dict.fromkeys(row["candidate"] for row in rows):
        cells = {row["block"]: _slashed(row["verdicts"], WORDS) for row in rows if row["candidate"] == name}
        files = [row["files"] for row in rows if row["candidate"] == name]
        states = [sum(one.get(state, 0) for one in files) for state in ("same", "unclear", "different")]
        shown = " | ".join(cells.get(block, "–") for block in blocks)
        lines.append(f"| {name} | {shown} | {'/'.join(map(str, states))} |")
    return "\n".join(lines)


def summary(rows: Rows) -> str:
    """Totals with exact limits, as one sentence."""
    blocks = {row["block"] for row in rows}
    audits, seeds = rows[0]["audits"], rows[0]["seeds"]
    told = [
        f"retrained networks were *forgotten* in {_of(rows, ('retrained',), 'forgotten')}",
        f"unchanged ones *not forgotten* in {_of(rows, ('original',), 'not forgotten')}",
        f"honest networks trained in five other ways accused in {_of(rows, tuple(HONEST), 'not forgotten')} "
        f"(and *forgotten* in {_of(rows, tuple(HONEST), 'forgotten')})",
        f"networks made to look as if they had forgotten passed in {_of(rows, CHEATS, 'forgotten')}",
        f"networks that had kept some of the rows in {_of(rows, KEPT, 'forgotten')}",
    ]
    conditions = (
        f"{', '.join(sorted(blocks))}; {audits} audits of {seeds} seeds each, no network in two audits of a cell"
    )
    return f"In {len(blocks)} settings that were not used for choosing the test ({conditions}) {'; '.join(told)}."


def _of(rows: Rows, names: Sequence[str], word: str) -> str:
    chosen = [row for row in rows if row["candidate"] in names]
    count, total = (sum(row["verdicts"].get(word, 0) for row in chosen), sum(row["audits"] for row in chosen))
    share = clopper_pearson(count, total)
    return f"{count} of {total} ({100 * share.low:.0f}–{100 * share.high:.0f} %)"


def _slashed(counts: dict[str, int], names: Sequence[str]) -> str:
    return "/".join(str(counts.get(name, 0)) for name in names)


def main() -> None:
    rows = read()
    PLACE.write(PAGE, f"{summary(rows)}\n\n{table(rows)}")
    SHORT.write(README, summary(rows))


if __name__ == "__main__":
    main()
