"""The table on real networks: shares are of one retraining, and rows of seeds that no verdict saw do not count."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks.real_verdicts import ORIGINAL, OTHER, RETRAINED

from benchmarks import real_page


def network(method: str, seed: int, seconds: float, error: float, **more: Any) -> dict[str, Any]:
    errors = {f"error_{part}": error for part in ("forget", "retain", "test")}
    return {
        "what": "network",
        "request": "a person",
        "method": method,
        "seed": seed,
        "seconds": seconds,
        **errors,
    } | more


def rows() -> list[dict[str, Any]]:
    found = []
    for seed in (0, 1, 2):
        late = seed == 2  # whose verdicts were never reached
        found += [
            network(ORIGINAL, seed, 10.0, 0.1),
            network(RETRAINED, seed, 99.0 if late else 8.0, 0.2),
            network(OTHER, seed, 8.0, 0.3),
            network("short", seed, 2.0, 0.9 if late else 0.25, measured_share=0.3),
            network("fine", seed, 4.0, 0.5, measured_share=None),
        ]
    found.append({"what": "plan", "request": "a person", "method": "fine", "usual_share": 0.125})
    for method in (ORIGINAL, "short", "fine", OTHER):
        found.append(
            {"what": "verdict", "network": "net", "request": "a person", "method": method, "pairs": 2, "seeds": [0, 1],
             "outcome": "forgotten", "reason": "", "lira": [0.5, 0.6]}
        )  # fmt: skip
    return found


def test_shares_errors_and_counts_by_hand() -> None:
    lines = {line.method: line for line in real_page.lines_of(rows())}
    assert list(lines) == [ORIGINAL, "short", "fine", OTHER]
    assert (lines["short"].share, lines["fine"].share) == (0.25, 0.5)
    assert lines["short"].errors == {"forget": 0.25, "retain": 0.25, "test": 0.25}
    assert lines["short"].flops == pytest.approx(0.3)
    assert (lines["fine"].flops, lines[OTHER].flops) == (0.125, None)


def test_the_table_says_them_and_the_figure_is_drawn(tmp_path: Path) -> None:
    lines = real_page.lines_of(rows())
    assert "| net, a person | short | forgotten | 25.0 / 25.0 / 25.0 % |" in real_page.table(lines)
    assert "| 2.0 | 25% | 30% |" in real_page.table(lines)
    real_page.draw(lines, tmp_path / "x.svg")
    assert "net, a person" in (tmp_path / "x.svg").read_text(encoding="utf-8")
