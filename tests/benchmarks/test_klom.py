"""The KLoM benchmark at its smallest size: everything runs, and retrained networks read less than the original."""

from pathlib import Path

import pytest
import torch

from benchmarks import klom
from spotlessnet.auditing.rows import read_rows


@pytest.mark.slow
def test_tiny(tmp_path: Path) -> None:
    out, keep = tmp_path / "rows.jsonl", tmp_path / "kept"
    methods = ["truncated-retrain", klom.OURS]
    klom.main(["--tiny", "--out", str(out), "--keep", str(keep), "--device", "cpu", "--methods", *methods])
    rows = read_rows(out)
    known = {row.key: row.value for row in rows}
    assert {row.method for row in rows} == {"original", "floor: retrained again", *methods}
    assert {row.experiment for row in rows} == {"KLoM, random, small", "KLoM, coherent, small"}
    for name in ("random, small", "coherent, small"):
        for part in klom.PARTS:
            assert known[f"KLoM, {name}", "original", f"P95 on {part}", 0] >= 0
    assert len(list(keep.iterdir())) == 4 + 2 * 8  # originals, and two groups of retrained networks for each set
    assert klom.table(rows).count("| KLoM, ") == 8
    # A second run trains nothing and reads the same.
    before = {path: path.stat().st_mtime_ns for path in keep.iterdir()}
    again = tmp_path / "again.jsonl"
    klom.main(
        ["--tiny", "--out", str(again), "--keep", str(keep), "--device", "cpu", "--methods", "--sets", "random, small"]
    )
    assert {path: path.stat().st_mtime_ns for path in keep.iterdir()} == before
    found = {row.key: row.value for row in read_rows(again)}
    assert all(known[key] == value for key, value in found.items())


def test_images_are_moved_as_a_loop_would() -> None:
    x = torch.arange(2 * 3 * 5 * 5, dtype=torch.float32).reshape(2, 3, 5, 5)
    torch.manual_seed(0)
    found = klom.shifted(x)
    torch.manual_seed(0)
    flips = torch.rand(2, 1, 1, 1) < 0.5
    by = torch.randint(0, 9, (2, 2, 1))
    for n in range(2):
        wide = torch.nn.functional.pad(x[n].flip(2) if bool(flips[n]) else x[n], (4, 4, 4, 4))
        i, j = int(by[0, n]), int(by[1, n])
        assert torch.equal(found[n], wide[:, i : i + 5, j : j + 5])
