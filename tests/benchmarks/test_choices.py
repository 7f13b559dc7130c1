"""A benchmark's settings are chosen by its rows: the gap that is closed, but never at the retained rows' expense."""

from pathlib import Path

from benchmarks.frontier import MODELS
from benchmarks.frontier_taught import BATCHES, RISE, TAUGHT, Setting, choose, everything

from spotlessnet.report.rows import Row, append_rows

DISTANCE, KEPT = "activation distance on forget", "error on retain"


def test_the_best_for_both_networks_that_keeps_the_retained_rows(tmp_path: Path) -> None:
    plain, better, ruinous, uneven = list(everything(TAUGHT, "wrong").items())[:4]
    left: dict[str, tuple[float, float, float]] = {
        # Distances that are left with the two networks, and the error on retained rows.
        plain[0]: (0.5, 0.5, 0.0),
        better[0]: (0.4, 0.4, RISE / 2),
        ruinous[0]: (0.1, 0.1, 2 * RISE),
        uneven[0]: (0.1, 0.6, 0.0),
        "original": (1.0, 1.0, 0.0),
        "retrained": (0.0, 0.0, 0.0),
        "floor": (0.1, 0.1, 0.0),
    }
    for i, model in enumerate(MODELS):
        for method, values in left.items():
            append_rows(
                tmp_path / "rows.jsonl",
                [
                    Row(f"{model} wrong", method, DISTANCE, 0, values[i], seconds=1.0),
                    Row(f"{model} wrong", method, KEPT, 0, values[2], seconds=1.0),
                ],
            )
    found: dict[tuple[str, str], Setting] = choose(str(tmp_path / "rows.jsonl"))
    assert found[TAUGHT, "wrong"] == better[1]
    assert set(found) == {(method, cohort) for method in BATCHES for cohort in ("some", "wrong", "class")}
