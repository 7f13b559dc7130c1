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

LATEST = 3
"""The first seed of the latest run, whose requests, sequence and attacks are shown."""

GROUPS = (
    (0.1, EARLIER, 70, 2), (0.1, ROWS, 75, 4), (0.1, ROWS, 50, 4), (0.1, ROWS, 50, 6),
    (0.25, EARLIER, 24, 2), (0.25, ROWS, 30, 6), (0.25, ROWS, 21, 6),
)  # fmt: skip
"""Runs by share of core data, file, epochs of the core model and views."""


def rows(path: Path = ROWS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def pick(path: Path = ROWS, **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows(path) if all(row.get(k) == v for k, v in wanted.items())]


def tuned(seeds: set[int], key: str = "error") -> float:
    """Fine-tuning's error: the mean over seeds, and for a seed that was trained twice, of both."""
    found = {seed: [r[key] for r in pick(what="fine-tuning", seed=seed) if key in r] for seed in seeds}
    return mean(mean(values) for values in found.values())


def means(found: list[dict[str, Any]], key: str = "error") -> dict[int, float]:
    """By seed; where a seed was run twice, the mean of both."""
    seeds = sorted({row["seed"] for row in found})
    return {seed: mean(row[key] for row in found if row["seed"] == seed) for seed in seeds}


def more(found: list[dict[str, Any]], key: str = "error") -> dict[int, float]:
    """By how much the error is above that of fine-tuning with the same seed, in points."""
    return {seed: error - tuned({seed}) for seed, error in means(found, key).items()}


def told(points: dict[int, float]) -> str:
    """The mean over seeds, and where there are several the lowest and the highest."""
    # Halves of a hundredth are not rounded down by what binary numbers cannot hold.
    lowest, highest = min(points.values()) + 1e-9, max(points.values()) + 1e-9
    spread = f" ({lowest:+.2f} to {highest:+.2f})" if len(points) > 1 else ""
    return f"{mean(points.values()) + 1e-9:+.2f}{spread}"


def touched(shards: int, examples: int) -> float:
    """The share of shards that so many examples, drawn at random, are expected to lie in."""
    return 1 - (1 - 1 / shards) ** examples


def latest(seed: int = LATEST) -> dict[int, dict[str, Any]]:
    """Timed requests at 10 % core data, by size, in a process that had trained before."""
    return {row["examples"]: row for row in pick(what="request", seed=seed, core=0.1, process="warm")}


def alone(seed: int = LATEST) -> float:
    """The seconds of fine-tuning with this seed in that process, nothing else on the GPU."""
    [row] = pick(what="fine-tuning", seed=seed, process="warm")
    return float(row["seconds"])


def same_views(row: dict[str, Any]) -> float | None:
    """Fine-tuning's error where it answers from the same views as this model: mirrored, or enlarged too."""
    if "zooms" not in row:
        return tuned({row["seed"]}, "error_mirrored")
    seen = [r["error_views"] for r in pick(what="fine-tuning", seed=row["seed"]) if "error_views" in r]
    return mean(views[str(row["core"])] for views in seen) if seen else None


def more_than_same_views(found: list[dict[str, Any]], key: str) -> dict[int, float]:
    """By seed, how far the error is above that of fine-tuning with the same views, where that was scored."""
    return {
        seed: error - base
        for seed, error in means(found, key).items()
        if (base := same_views(next(row for row in found if row["seed"] == seed))) is not None
    }


def views_of(row: dict[str, Any]) -> int:
    """An image and its mirror image, at every enlargement."""
    return 2 * len(row.get("zooms", [0]))


def accuracy() -> str:
    timed = [f"{latest()[size]['seconds'] / alone():.3%}".replace("%", " %") for size in (1, 100)]
    lines = [
        "| model | core data, epochs | views | seeds | test error | above fine-tuning, same seeds: mean (lowest to "
        "highest) | above fine-tuning that answers from the same views | 1 / 100 images go for, of one fine-tuning |",
        "|---|---|---|---|---|---|---|---|",
        f"| ordinary fine-tuning, all images | –, 12 | 1 | 6 | {tuned(set(range(6))):.2f} % | – | – | 100 % / 100 % |",
    ]
    names = {"error_core_alone": "core model alone", "error_pooled": "forgettable, pooled features"}
    names["error"] = "**forgettable, with tangent features**"
    for share, path, epochs, views in GROUPS:
        runs = pick(path, what="forgettable", core=share, epochs=epochs)
        found = [row for row in runs if views_of(row) == views]
        for key, name in names.items():
            errors = means(found, key)
            cost = " / ".join(timed) if (key, share, epochs, views) == ("error", 0.1, 50, 6) else "–"
            lines.append(
                f"| {name} | {100 * share:.0f} %, {epochs} | {views} | {len(errors)} | {mean(errors.values()):.2f} % | "
                f"{told(more(found, key))} | {told(more_than_same_views(found, key))} | {cost} |"
            )
    return "\n".join(lines + [sisa(shards) for shards in (5, 20)])


def sisa(shards: int) -> str:
    """A row of the table: the cost is the work of the shards to train anew, which was not timed by itself."""
    found = pick(what="SISA", shards=shards)
    errors = means(found)
    mirrored = means(found, "error_mirrored")[0] - tuned({0}, "error_mirrored")
    cost = " / ".join(f"{touched(shards, size):.0%}".replace("%", " %") for size in (1, 100))
    return (
        f"| SISA, {shards} shards | –, 12 | 1 | {len(errors)} | {mean(errors.values()):.2f} % | {told(more(found))} | "
        f"{mirrored:+.2f} (mirrored) | {cost} |"
    )


def requests() -> str:
    tune = alone()
    lines = [
        "| request | time | share of one fine-tuning | weights against solving anew | certified bound, relative |",
        "|---|---|---|---|---|",
    ]
    for row in latest().values():
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
    for row in pick(what="attack", seed=LATEST):
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
        "| model of banking77 | accuracy | training (embeddings not counted) | features | a request |",
        "|---|---|---|---|---|",
    ]
    for row in rows(TEXT):
        if "accuracy" in row:
            asked = f"{1000 * row['cpu_seconds_median']:.0f} ms of CPU" if "requests" in row else "–"
            where = row["where"] + (", shared" if row.get("shared_gpu") else "")
            lines.append(
                f"| {row['model']} | {row['accuracy']:.1f} % | {row['seconds']:.0f} s, {where} | "
                f"{row.get('features', '–')} | {asked} |"
            )
    return "\n".join(lines)


def one_off() -> str:
    """What is paid before the first request, beside fine-tuning on a machine that was as busy."""
    lines = [
        "| core data, epochs | views | seed | the GPU was | core model | features | fit | together | one fine-tuning | "
        "share |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    tuning = pick(what="fine-tuning")
    for row in sorted(
        pick(what="forgettable"), key=lambda row: (row["core"], -row["epochs"], views_of(row), row["seed"])
    ):
        shared, warm = row.get("shared_gpu"), row.get("process") == "warm"
        own = "its own, in a process that had trained before" if warm else "its own"
        busy = f"shared with {row['beside']}" if "beside" in row else "shared" if shared else own
        parts = [row[f"seconds_{part}"] for part in ("core", "features", "fit")]
        times = " | ".join(f"{seconds:.0f} s" for seconds in (*parts, sum(parts)))
        like = [r["seconds"] for r in tuning if (r.get("shared_gpu"), r.get("process") == "warm") == (shared, warm)]
        beside = alone(row["seed"]) if warm else mean(like)
        # No fine-tuning ran in such company: a share would compare how busy the GPU was.
        against = "– | –" if shared and "beside" in row else f"{beside:.0f} s | {sum(parts) / beside:.2f}"
        core = f"{100 * row['core']:.0f} %, {row['epochs']} | {views_of(row)}"
        lines.append(f"| {core} | {row['seed']} | {busy} | {times} | {against} |")
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
