"""The tables of `docs/forgettable.md`, from the rows in `results/`.

python benchmarks/forgettable_page.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Place

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "forgettable.md"
ROWS = ROOT / "results" / "forgettable-cifar.jsonl"
TEXT = ROOT / "results" / "forgettable-text.jsonl"


def rows(path: Path = ROWS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def pick(**wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows() if all(row.get(k) == v for k, v in wanted.items())]


def accuracy() -> str:
    tuned = pick(what="fine-tuning")
    lines = [
        "| model | core data | seeds | test error | against fine-tuning | against fine-tuning with mirrored images |",
        "|---|---|---|---|---|---|",
    ]
    plain, both = mean(r["error"] for r in tuned), mean(r["error_mirrored"] for r in tuned)
    lines.append(f"| ordinary fine-tuning, all images | – | {len(tuned)} | {plain:.2f} % | – | (has {both:.2f} %) |")
    for share in (0.1, 0.25):
        found = pick(what="forgettable", core=share)
        seeds = {r["seed"] for r in found}
        base = mean(r["error"] for r in tuned if r["seed"] in seeds)
        mirrored = mean(r["error_mirrored"] for r in tuned if r["seed"] in seeds)
        for name, key in (
            ("core model alone", "error_core_alone"),
            ("forgettable, pooled features", "error_pooled"),
            ("**forgettable, with tangent features**", "error"),
        ):
            e = mean(r[key] for r in found)
            more = f"{e - base:+.2f} points | {e - mirrored:+.2f} points"
            lines.append(f"| {name} | {100 * share:.0f} % | {len(found)} | {e:.2f} % | {more} |")
    for row in pick(what="SISA"):
        base = next(r for r in tuned if r["seed"] == row["seed"])
        more, mirrored = row["error"] - base["error"], row["error_mirrored"] - base["error_mirrored"]
        name = f"SISA, {row['shards']} shards (mirrored too in the last column)"
        lines.append(f"| {name} | – | 1 | {row['error']:.2f} % | {more:+.2f} points | {mirrored:+.2f} points |")
    return "\n".join(lines)


def requests() -> str:
    tune = pick(what="fine-tuning", seed=0)[0]["seconds"]
    lines = [
        "| request | time | share of one fine-tuning | weights against solving anew | certified bound, relative |",
        "|---|---|---|---|---|",
    ]
    for row in pick(what="request", seed=0, core=0.1):
        name = "a class, " if row["examples"] > 1000 else ""
        equal = "equal, bit for bit" if row["weights_equal"] else f"{row['distance_over_moved']:.0e} of the way"
        lines.append(
            f"| {name}{row['examples']:,} image{'s' if row['examples'] > 1 else ''} | {1000 * row['seconds']:.0f} ms | "
            f"{100 * row['seconds'] / tune:.2f} % | {equal} | {row['bound'] / row['moved']:.0e} of the way moved |"
        )
    return "\n".join(lines)


def attacks() -> str:
    lines = ["| model | AUC, ordinary images | AUC, mislabelled images |", "|---|---|---|"]
    for row in pick(what="attack"):
        lines.append(f"| {row['model']} | {row['auc_ordinary']:.3f} | {row['auc_mislabelled']:.3f} |")
    return "\n".join(lines)


def text() -> str:
    lines = ["| model of banking77 | accuracy | training |", "|---|---|---|"]
    for row in rows(TEXT):
        if "accuracy" in row:
            lines.append(f"| {row['model']} | {row['accuracy']:.1f} % | {row['seconds']:.0f} s, {row['where']} |")
    return "\n".join(lines)


TABLES = {"accuracy": accuracy, "requests": requests, "attacks": attacks, "text": text}


def filled(page: str) -> str:
    """The page with its tables written anew."""
    for name, make in TABLES.items():
        place = Place(f"<!-- {name}: written by benchmarks/forgettable_page.py -->", f"<!-- end of {name} -->")
        page = place.fill(page, make())
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
