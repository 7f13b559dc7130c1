"""The rows of `benchmarks/vit.py` as tables of `docs/which_method_when.md`, with what follows from them in words.

python benchmarks/vit_page.py
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Place
from benchmarks.vit import EPOCH, EXACT, MONTE_CARLO, PRODUCT, STATISTICS, STEP

ROOT = Path(__file__).parents[1]
KEPT, PAGE = ROOT / "results" / "vit.jsonl", ROOT / "docs" / "which_method_when.md"
PLACES = {
    "bfloat16": Place("<!-- ViT, bfloat16: written by benchmarks/vit.py -->", "<!-- end of ViT, bfloat16 -->"),
    "tf32": Place("<!-- ViT: written by benchmarks/vit.py -->", "<!-- end of ViT -->"),
}


def table(found: list[dict[str, Any]], exactness: str) -> str:
    """What was measured, by itself and within the limit; a dash where nothing was, a sign where it is extrapolated."""
    lines = [
        "| part | images | seconds | epochs | peak | within 8 GiB: seconds | epochs | peak |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    rows = [row for row in in_epochs(found) if row["exactness"] == exactness and "epochs" in row]
    known = {(row["what"], row["rows"], row["memory_limit_gib"]): row for row in rows}
    every = (PRODUCT, MONTE_CARLO, EXACT, STEP, STATISTICS)
    for count, what in itertools.product(sorted({key[1] for key in known}), every):
        pair = [known.get((what, count, limit)) for limit in (None, 8.0)]
        if any(pair):
            lines.append(f"| {_name(pair)} | {count:,} | {' | '.join(map(_cells, pair))} |")
    return "\n".join(lines)


def in_epochs(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in epochs of their own run, which machine and company made as fast; else of the last one measured."""
    epoch = {(row["exactness"], row["rows"]): row["seconds"] for row in found if row["what"] == EPOCH}
    return [
        {"epochs": row["seconds"] / epoch[row["exactness"], row["rows"]], **row} if "seconds" in row else row
        for row in found
    ]


def summary(found: list[dict[str, Any]], exactness: str) -> str:
    """The table, and what follows from its rows in words."""
    done = {
        (row["what"], row["rows"], row["memory_limit_gib"]): row
        for row in in_epochs(found)
        if row["exactness"] == exactness and "seconds" in row
    }
    epochs = [f"{row['seconds']:.2f} s for {key[1]:,}" for key, row in sorted(done.items(), key=str) if key[0] == EPOCH]
    products = [
        f"{row['epochs']:.2f} for {key[1]:,} images{'' if key[2] is None else f' within {key[2]:.0f} GiB'}"
        for key, row in sorted(done.items(), key=str)
        if key[0] == PRODUCT
    ]
    slower = [
        row["epochs"] / done[what, rows, None]["epochs"]
        for (what, rows, limit), row in done.items()
        if limit and (what, rows, None) in done and not _is_beside(row)
    ]
    peaks = [max(row["peak_gib"] for key, row in done.items() if bool(key[2]) == tight) for tight in (False, True)]
    said = (
        f"An epoch, a pass there and back in batches of 64, takes {', '.join(epochs)}. A product takes "
        f"{', '.join(products)} epochs. Peaks are at most {peaks[0]:.1f} GiB, and {peaks[1]:.1f} GiB where 8 were "
        f"asked for, which made parts {min(slower):.1f} to {max(slower):.1f} times slower."
    )
    if not any("memory" in row.get("failed", "").lower() for row in found if row["exactness"] == exactness):
        said += " No part ran out of memory."
    if any(_is_beside(row) for row in done.values()):
        said += " \\* Beside other trainings on the same GPU, in epochs taken beside them too."
    cut = [
        f"{row['what']} for {row['rows']:,} images ({row['failed'].removeprefix('TimeoutError: ')}, peak so far "
        f"{row['peak_gib']:.1f} GiB)"
        for row in found
        if row["exactness"] == exactness and "failed" in row and "seconds" not in row
    ]
    if cut:
        said += f" Not measured to the end within 8 GiB, beside that work: {', '.join(cut)}."
    return f"{table(found, exactness)}\n\n{said}"


def _is_beside(row: dict[str, Any]) -> bool:
    """Whether what else went on makes its seconds those of nothing else."""
    return "on the GPU" in row.get("beside", "")


def _name(pair: list[dict[str, Any] | None]) -> str:
    row = next(row for row in pair if row is not None)
    if row["what"] == STEP:
        return f"{STEP}, {row['iterations']} products"
    return f"{STATISTICS}, rank {row['rank']}, {row['sample']} images" if row["what"] == STATISTICS else row["what"]


def _cells(row: dict[str, Any] | None) -> str:
    if row is None:
        return "– | – | –"
    sign = " \\*" if _is_beside(row) else ""
    if "seconds" in row:
        return f"{row['seconds']:.1f}{sign} | {row['epochs']:.1f}{sign} | {row['peak_gib']:.1f} GiB"
    share = f"({row['images_measured']:,} images measured)"
    seconds = f"≈ {row['seconds_extrapolated']:.0f}{sign} {share}"
    return f"{seconds} | ≈ {row['epochs']:.1f}{sign} | {row['peak_gib']:.1f} GiB"


def main() -> None:
    """Write both tables."""
    found = [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]
    for exactness, place in PLACES.items():
        place.write(PAGE, summary(found, exactness))


if __name__ == "__main__":
    main()
