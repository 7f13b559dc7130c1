"""Runs every example of `docs/networks/` and puts what came of it into `docs/networks.md`.

python benchmarks/networks_table.py                 # all nine, minutes; needs the extra `trainers`
python benchmarks/networks_table.py multi_label     # one of them; the others keep their rows
python benchmarks/networks_table.py --table         # the table again, from the rows
python benchmarks/networks_table.py --seed 101 --out more.jsonl    # other initial weights, trainings and audits
python benchmarks/networks_table.py --add more.jsonl               # their verdicts beside the others

A run with another seed changes no setting of an example and adds its verdict to the row, `other_seeds`.
"""

import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import spotlessnet as sn
from spotlessnet.auditing.battery import left_out
from spotlessnet.core.errors import DamageError, SpotlessError
from spotlessnet.core.registry import markdown_table
from spotlessnet.core.scrub import METHODS
from spotlessnet.readouts.scores import IN_WORDS, kind_of
from spotlessnet.requests.methods import wraps

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, Place

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
COLUMNS = (
    "network", "example", "glue lines", "method", "examples are compared by", "verdict", "with other seeds",
    "what cannot be had",
)  # fmt: skip
BEGIN, END = "# glue", "# end of glue"
REFUSED = "refused as ruined"
"""Beside the verdicts: the check of what is lost kept the network back, so there was nothing to audit."""


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


@contextmanager
def other_seed(seed: int) -> Iterator[None]:
    """Examples begin, train and are audited with other draws within this block; their data stay as they are."""
    before = torch.manual_seed, sn.fit, sn.unlearn
    torch.manual_seed = lambda seed, more=seed: before[0](seed + more)  # type: ignore[misc]
    sn.fit, sn.unlearn = partial(before[1], seed=seed), partial(before[2], seed=seed)
    try:
        yield
    finally:
        torch.manual_seed, sn.fit, sn.unlearn = before


def of_seed(name: str, seed: int) -> dict[str, Any]:
    """The verdict on an example with another seed, or why its network was not given out."""
    began = time.perf_counter()
    try:
        with other_seed(seed):
            found = measured(name)
    except DamageError as refusal:
        found = {"method": rows()[name]["method"], "verdict": REFUSED, "reason": str(refusal)}
        found["seconds"] = round(time.perf_counter() - began)
    return {"name": name, "seed": seed, **{key: found[key] for key in ("method", "verdict", "reason", "seconds")}}


def with_seed(row: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """The row with one more verdict, in the place of an earlier one of the same seed."""
    others = {known["seed"]: known for known in row.get("other_seeds", [])}
    others[one["seed"]] = {key: value for key, value in one.items() if key != "name"}
    return {**row, "other_seeds": [others[seed] for seed in sorted(others)]}


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
        about = (row["network"], link, str(glue(name)), row["method"], row["compared_by"])
        cells.append((*about, verdict, _others(row), _missing(row)))
    return markdown_table(COLUMNS, cells)


def _others(row: dict[str, Any]) -> str:
    words = Counter(one["verdict"] for one in row.get("other_seeds", []))
    return ", ".join(f"{count} × {word}" for word, count in words.most_common()) or "–"


def _missing(row: dict[str, Any]) -> str:
    said = [row["left_out"]] if row["left_out"] else []
    if row["own_training"]:
        said.append("batches in one order for original and retrained network: the training is your own")
    if row["refused"]:
        said.append(f"{len(row['refused'])} methods, which say so before any work: {', '.join(row['refused'])}")
    return "; ".join(said) or "–"


def write(known: dict[str, dict[str, Any]]) -> None:
    """Rows, and the page where there is one for every example."""
    ROWS.write_text("".join(json.dumps(known[n]) + "\n" for n in ORDER if n in known), encoding="utf-8")
    if all(name in known for name in ORDER):
        PLACE.write(PAGE, table())


def flags() -> Flags:
    parser = Flags(__doc__).out(help="verdicts of `--seed`, a line each").table()
    parser.add_argument("names", nargs="*", choices=(*ORDER, []), help="examples; all unless named")
    parser.add_argument("--seed", type=int, help="another seed than that of the examples")
    parser.add_argument("--add", type=Path, nargs="+", default=[], help="files of `--out`: run nothing")
    return parser


def main() -> None:
    """Run the examples named, or all, and write rows and page."""
    given, known = flags().parse_args(), rows()
    for line in (line for path in given.add for line in path.read_text(encoding="utf-8").splitlines()):
        one = json.loads(line)
        known[one["name"]] = with_seed(known[one["name"]], one)
    for name in () if given.table or given.add else given.names or ORDER:
        found = measured(name) if given.seed is None else of_seed(name, given.seed)
        print(f"{name}: {found['verdict']}, {found['reason']}", flush=True)
        if given.out is not None:
            with given.out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(found) + "\n")
            continue
        known[name] = found if given.seed is None else with_seed(known[name], found)
        write(known)
    if given.table or given.add:
        write(known)


if __name__ == "__main__":
    main()
