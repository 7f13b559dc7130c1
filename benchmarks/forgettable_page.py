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
EARLIER = ROOT / "results" / "forgettable-cifar-earlier.jsonl"
TEXT = ROOT / "results" / "forgettable-text.jsonl"
SPEED = ROOT / "results" / "forgettable-speed.jsonl"


def rows(path: Path = ROWS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def pick(path: Path = ROWS, **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows(path) if all(row.get(k) == v for k, v in wanted.items())]


def tuned(seeds: set[int], key: str = "error") -> float:
    """Fine-tuning's error: the mean over seeds, and for a seed that was trained twice, of both."""
    found = {seed: [r[key] for r in pick(what="fine-tuning", seed=seed) if key in r] for seed in seeds}
    return mean(mean(values) for values in found.values())


def same_views(row: dict[str, Any]) -> float:
    """Fine-tuning's error where it answers from the same views as this model: mirrored, or enlarged too."""
    if "zooms" not in row:
        return tuned({row["seed"]}, "error_mirrored")
    seen = next(r["error_views"] for r in pick(what="fine-tuning", seed=row["seed"]) if "error_views" in r)
    return float(seen[str(row["core"])])


def accuracy() -> str:
    lines = [
        "| model | core data | views | seeds | test error | fine-tuning, same seeds | seed 0 against fine-tuning that "
        "answers from the same views |",
        "|---|---|---|---|---|---|---|",
        f"| ordinary fine-tuning, all images | – | 1 | 3 | {tuned({0, 1, 2}):.2f} % | – | – |",
    ]
    names = {"error_core_alone": "core model alone", "error_pooled": "forgettable, pooled features"}
    names["error"] = "**forgettable, with tangent features**"
    for share in (0.1, 0.25):
        for path in (EARLIER, ROWS):
            found = pick(path, what="forgettable", core=share)
            seeds = {r["seed"] for r in found}
            first = next(r for r in found if r["seed"] == 0)
            views = 2 * len(first.get("zooms", [0]))
            for key, name in names.items():
                e = mean(r[key] for r in found)
                lines.append(
                    f"| {name} | {100 * share:.0f} % | {views} | {len(found)} | {e:.2f} % | "
                    f"{e - tuned(seeds):+.2f} points | {first[key] - same_views(first):+.2f} points |"
                )
    for row in pick(what="SISA"):
        more, same = row["error"] - tuned({row["seed"]}), row["error_mirrored"] - tuned({row["seed"]}, "error_mirrored")
        lines.append(
            f"| SISA, {row['shards']} shards | – | 1 | 1 | {row['error']:.2f} % | {more:+.2f} points | "
            f"{same:+.2f} points (mirrored) |"
        )
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
            f"{100 * row['seconds'] / tune:.3f} % | {equal} | {row['bound'] / row['moved']:.0e} of the way moved |"
        )
    return "\n".join(lines)


def attacks() -> str:
    lines = [
        "| model | AUC, ordinary images | AUC, mislabelled images | KLoM, ordinary | KLoM, mislabelled |",
        "|---|---|---|---|---|",
    ]
    for row in pick(what="attack"):
        areas = [
            f"{row[f'auc_{group}']:.3f} [{row[f'auc_{group}_interval'][0]:.3f}, {row[f'auc_{group}_interval'][1]:.3f}]"
            for group in ("ordinary", "mislabelled")
        ]
        lines.append(
            f"| {row['model']} | {areas[0]} | {areas[1]} | {row['klom_ordinary']:.3f} | {row['klom_mislabelled']:.3f} |"
        )
    return "\n".join(lines)


def sizes() -> str:
    lines = [
        "| machine | features | examples, streamed | summing | inverse | 1 example goes | 100 go | 1,000 go | memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows(SPEED):
        times = [row["requests"].get(size) for size in ("1", "100", "1000")]
        # On a shared processor waiting would be most of it.
        on_cpu = row["where"].startswith("CPU")
        told = " | ".join("–" if t is None else f"{t['cpu_seconds']:.1f} CPU s" if on_cpu else
                          f"{1000 * t['seconds']:.0f} ms" for t in times)  # fmt: skip
        lines.append(
            f"| {row['where']} | {row['features']:,} | {row['examples']:,} | {row['seconds_streaming']:.1f} s | "
            f"{row['seconds_inverse']:.1f} s | {told} | {row['peak_gib']:.1f} GiB |"
        )
    return "\n".join(lines)


def text() -> str:
    lines = [
        "| model of banking77 | accuracy | training, given embeddings | features | a request |",
        "|---|---|---|---|---|",
    ]
    for row in rows(TEXT):
        if "accuracy" in row:
            asked = f"{1000 * row['cpu_seconds_median']:.0f} ms of CPU" if "requests" in row else "–"
            lines.append(
                f"| {row['model']} | {row['accuracy']:.1f} % | {row['seconds']:.0f} s, {row['where']} | "
                f"{row.get('features', '–')} | {asked} |"
            )
    return "\n".join(lines)


def one_off() -> str:
    """What is paid before the first request, beside fine-tuning on a machine that was as busy."""
    lines = [
        "| core data | seed | the GPU was | core model | features | fit | together | one fine-tuning | share |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    tuning = pick(what="fine-tuning")
    for row in pick(what="forgettable"):
        shared = row.get("shared_gpu")
        beside = mean(r["seconds"] for r in tuning if r.get("shared_gpu") == shared)
        parts = [row[f"seconds_{part}"] for part in ("core", "features", "fit")]
        told = " | ".join(f"{seconds:.0f} s" for seconds in (*parts, sum(parts), beside))
        lines.append(
            f"| {100 * row['core']:.0f} % | {row['seed']} | {'shared' if shared else 'its own'} | {told} | "
            f"{sum(parts) / beside:.2f} |"
        )
    return "\n".join(lines)


TABLES = {
    "accuracy": accuracy,
    "requests": requests,
    "one-off": one_off,
    "attacks": attacks,
    "sizes": sizes,
    "text": text,
}


def filled(page: str) -> str:
    """The page with its tables written anew."""
    for name, make in TABLES.items():
        place = Place(f"<!-- {name}: written by benchmarks/forgettable_page.py -->", f"<!-- end of {name} -->")
        page = place.fill(page, make())
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
