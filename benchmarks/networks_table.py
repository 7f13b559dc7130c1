"""Runs every example of `docs/networks/` and puts what came of it into `docs/networks.md`.

python benchmarks/networks_table.py                 # all nine, minutes; needs the extra `trainers`
python benchmarks/networks_table.py multi_label     # one of them; the others keep their rows
python benchmarks/networks_table.py --table         # the table again, from the rows
"""

import importlib.util
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import spotlessnet as sn
from spotlessnet.auditing.battery import left_out
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.registry import markdown_table
from spotlessnet.core.scrub import METHODS
from spotlessnet.readouts.scores import IN_WORDS, kind_of
from spotlessnet.requests.methods import wraps

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Place

ROOT = Path(__file__).parents[1]
EXAMPLES, ROWS, PAGE = ROOT / "docs" / "networks", ROOT / "results" / "networks.jsonl", ROOT / "docs" / "networks.md"
PLACE = Place("<!-- networks: written by benchmarks/networks_table.py -->", "<!-- end of networks -->")

ORDER = (
    "own_cnn",
    "hugging_face_classifier",
    "vision_transformer",
    "lora",
    "lightning_module",
    "tabular_regression",
    "multi_label",
    "causal_language_model",
    "segmentation",
)
COLUMNS = ("network", "example", "glue lines", "method", "examples are compared by", "verdict", "what cannot be had")
BEGIN, END = "# glue", "# end of glue"


def example(name: str) -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location(f"networks_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def glue(name: str) -> int:
    """Lines that are there for this package alone: its imports, a recipe, and those between the two marks."""
    lines = [line.strip() for line in (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()]
    begin, end = (lines.index(mark) for mark in (BEGIN, END))
    inside = [line for line in lines[begin + 1 : end] if line and not line.startswith("#")]
    outside = [line for line in lines[:begin] if line.startswith(("import spotlessnet", "from spotlessnet"))]
    return len(inside) + len(outside) + sum(line.startswith("recipe = sn.Recipe(") for line in lines[:begin])


def refused(trained: sn.Trained, split: sn.Split) -> list[str]:
    """Methods that say, before any work, that this network or request is not for them."""
    found = []
    # Held-out rows can be given to any of them: a method that only lacks those is for this network.
    split = replace(split, validation=split.validation or split.retain)
    for entry in METHODS.entries():
        if wraps(entry.thing):
            continue
        try:
            entry.thing().check_needs(trained, split)
        except SpotlessError:
            found.append(entry.name)
    return found


def measured(name: str) -> dict[str, Any]:
    """Run an example; what the table says of it."""
    began = time.perf_counter()
    module = example(name)
    done = module.main()
    assert done.plan is not None
    assert done.report is not None
    trained, split = done.plan.opened.trained, done.plan.opened.split
    kind = kind_of(trained, split.forget)
    return {
        "name": name,
        "network": (module.__doc__ or "").strip().rstrip("."),
        "method": done.plan.method,
        "compared_by": IN_WORDS[kind],
        "verdict": done.report.outcome,
        "reason": done.report.reason,
        "left_out": left_out(kind),
        "refused": refused(trained, split),
        "own_training": trained.trainer is not None,
        "seconds": round(time.perf_counter() - began),
        "torch": torch.__version__,
    }


def rows() -> dict[str, dict[str, Any]]:
    """What was measured, by example."""
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def table() -> str:
    """One row an example."""
    known = rows()
    cells = []
    for name in ORDER:
        row = known[name]
        passed = row["verdict"] in ("forgotten", "never saw the rows")
        verdict = row["verdict"] if passed else f"{row['verdict']}: {row['reason']}"
        link = f"[{name}.py](networks/{name}.py)"
        cells.append((row["network"], link, str(glue(name)), row["method"], row["compared_by"], verdict, _missing(row)))
    return markdown_table(COLUMNS, cells)


def _missing(row: dict[str, Any]) -> str:
    said = [row["left_out"]] if row["left_out"] else []
    if row["own_training"]:
        said.append("batches in one order for original and retrained network: the training is your own")
    if row["refused"]:
        said.append(f"{len(row['refused'])} methods, which say so before any work: {', '.join(row['refused'])}")
    return "; ".join(said) or "–"


def main(arguments: list[str]) -> None:
    """Run the examples named, or all, and write rows and page."""
    known = rows()
    for name in [] if "--table" in arguments else arguments or ORDER:
        known[name] = measured(name)
        print(f"{name}: {known[name]['verdict']}, {known[name]['reason']}", flush=True)
        ROWS.write_text("".join(json.dumps(known[n]) + "\n" for n in ORDER if n in known), encoding="utf-8")
    if all(name in known for name in ORDER):
        PLACE.write(PAGE, table())


if __name__ == "__main__":
    main(sys.argv[1:])
