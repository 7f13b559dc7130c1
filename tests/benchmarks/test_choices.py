"""A benchmark's settings are chosen by its rows: the gap that is closed, but never at the retained rows' expense."""

from pathlib import Path

from benchmarks.frontier import MODELS
from benchmarks.frontier_taught import BATCHES, RISES, TAUGHT, Setting, choose, everything

from spotlessnet.auditing.rows import Row, append_rows

DISTANCE, KEPT, TEST = "activation distance on forget", "error on retain", "error on test"


def write(path: Path, left: dict[str, tuple[float, float, float, float]], seed: int = 0) -> None:
    """Distances that are left with the two networks, and errors on retained and on test rows."""
    for i, model in enumerate(MODELS):
        name = f"{model} wrong"
        for method, values in left.items():
            readouts = {DISTANCE: values[i], KEPT: values[2], TEST: values[3]}
            append_rows(path, [Row(name, method, r, seed, v, seconds=1.0) for r, v in readouts.items()])


def test_the_best_for_both_networks_that_keeps_retained_and_test_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    plain, better, ruinous, stale, uneven = list(everything(TAUGHT, "wrong").items())[:5]
    left = {
        plain[0]: (0.5, 0.5, 0.0, 0.2),
        better[0]: (0.4, 0.4, RISES["retain"] / 2, 0.2 + RISES["test"] / 2),
        ruinous[0]: (0.1, 0.1, 2 * RISES["retain"], 0.2),
        stale[0]: (0.1, 0.1, 0.0, 0.2 + 2 * RISES["test"]),
        uneven[0]: (0.1, 0.6, 0.0, 0.2),
        "original": (1.0, 1.0, 0.0, 0.2),
        "retrained": (0.0, 0.0, 0.0, 0.2),
        "floor": (0.1, 0.1, 0.0, 0.2),
    }
    write(path, left)
    found: dict[tuple[str, str], Setting] = choose(str(path))
    assert found[TAUGHT, "wrong"] == better[1]
    assert set(found) == {(method, cohort) for method in BATCHES for cohort in ("some", "wrong", "class")}
    # An original that lost retained rows itself says nothing of what methods cost; nor does a seed without a row pass.
    write(path, {method: (*values[:2], 0.1, 0.3) for method, values in left.items() if method != "retrained"}, seed=1)
    write(path, {"retrained": left["retrained"]}, seed=1)
    assert choose(str(path))[TAUGHT, "wrong"] == better[1]
    write(path, {method: values for method, values in left.items() if method != better[0]}, seed=2)
    assert choose(str(path))[TAUGHT, "wrong"] == plain[1]
