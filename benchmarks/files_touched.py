"""Count the files that adding a method, readout, bound or data set touches, by adding one to a copy of the package.

    python -m benchmarks.files_touched

Each is written as a newcomer would: its file, its test, a line of the changelog. Then a fresh interpreter looks at the
copy: is it in its registry, among the names of the package, in `spotless list` and in the table of its kind?
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Toy:
    """Something to add: where its registry is, the name it has there, and the text of its file."""

    registry: str
    folder: str
    name: str
    python_name: str
    text: str
    listed: str = ""


METHOD = '''"""A toy method."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.scrub import Work, gradients
from spotlessnet.core.scrub import METHODS, Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


@METHODS.register("toy-method", paper="nobody (2026), Toys", needs=("retained data",), guarantee="none")
@dataclass(frozen=True)
class ToyMethod(Scrub):
    """Leave everything as it is."""

    def cost(self, trained: Trained, split: Split) -> Work:
        return gradients(trained, split, 0)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        return trained.weights
'''

DATA = '''"""A toy data set."""

from pathlib import Path

import torch

from spotlessnet.core.data import Data
from spotlessnet.datasets.pair import DataPair, Normalise
from spotlessnet.datasets.registry import DATASETS, NamedData


@DATASETS.register("toy-data", summary="four points")
class ToyData(NamedData):
    """Four points."""

    @staticmethod
    def load(folder: Path, *, seed: int, verify: bool, normalise: Normalise) -> DataPair:
        data = Data.of((torch.zeros(4, 2), torch.arange(4) % 2))
        return DataPair(data, data.select([]), ("a", "b"))
'''

READOUT = '''"""A toy readout."""

from dataclasses import dataclass
from typing import ClassVar

from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


@READOUTS.register("toy-readout", paper="nobody (2026), Toys")
@dataclass(frozen=True)
class ToyReadout(Readout):
    """The length of the weights."""

    unit: ClassVar[str] = "weights, L2"
    ideal: ClassVar[Ideal] = "as retrained"

    def __call__(self, network: Trained, split: Split) -> Reading:
        return Reading(float(network.weights.norm()))
'''

BOUND = '''"""A toy bound."""

from dataclasses import dataclass

from spotlessnet.core.bound import BOUNDS, Bound
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.readout import Reading
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


@BOUNDS.register("toy-bound", paper="nobody (2026), Toys", guarantee="holds twice")
@dataclass(frozen=True)
class ToyBound(Bound):
    """Twice what the weights tell."""

    def __call__(self, scrubbed: Gaussian, reference: Gaussian, trained: Trained, split: Split) -> Reading:
        return Reading(2 * max(0.0, scrubbed.kl(reference)))
'''

KINDS = {
    "method": Toy("core.scrub.METHODS", "methods", "toy-method", "ToyMethod", METHOD, "methods"),
    "readout": Toy("core.readout.READOUTS", "readouts", "toy-readout", "ToyReadout", READOUT, "readouts"),
    "bound": Toy("core.bound.BOUNDS", "bounds", "toy-bound", "ToyBound", BOUND, "bounds"),
    "data set": Toy("datasets.registry.DATASETS", "datasets", "toy-data", "ToyData", DATA, "datasets"),
}

LOOK = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
import spotlessnet as sn
place, name, python_name, listed = sys.argv[2:]
module, _, registry = place.rpartition(".")
registry = getattr(importlib.import_module("spotlessnet." + module), registry)
from spotlessnet.cli import listing
from spotlessnet.auditing import catalogue
from spotlessnet.methods.catalogue import table
tables = {"methods": table, "readouts": catalogue.readouts, "bounds": catalogue.bounds}
found = {
    "registry": name in registry,
    "list": not listed or name in getattr(listing, listed)(),
    "names": place.startswith("datasets") or getattr(sn, python_name, None) is not None,
    "table": listed not in tables or python_name in tables[listed](),
    "copy": sn.__file__.startswith(sys.argv[1]),
}
print(json.dumps(found))
"""


def touched(kind: str) -> list[str]:
    """The files that were written to add one; an error where some list does not find it."""
    toy = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        written = {
            f"src/spotlessnet/{toy.folder}/{toy.name.replace('-', '_')}.py": toy.text,
            f"tests/{toy.folder}/test_{toy.name.replace('-', '_')}.py": f'"""{toy.python_name} does what it says."""\n',
            "CHANGELOG.md": f"- `{toy.python_name}`.\n",
        }
        for place, text in written.items():
            (copy / place).parent.mkdir(parents=True, exist_ok=True)
            (copy / place).write_text(text, encoding="utf-8")
        found = _look(copy, toy)
    missing = [where for where, there in found.items() if not there]
    if missing:
        raise LookupError(f"A new {kind} must be found everywhere, but it is not in {', '.join(missing)}.")
    return list(written)


def _look(copy: Path, toy: Toy) -> dict[str, bool]:
    words = [str(copy / "src"), toy.registry, toy.name, toy.python_name, toy.listed]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run([sys.executable, "-c", LOOK, *words], capture_output=True, text=True, env=clean)
    if ended.returncode:
        raise RuntimeError(ended.stderr)
    return dict(json.loads(ended.stdout))


def main() -> None:
    for kind in KINDS:
        files = touched(kind)
        print(f"{kind}: {len(files)} files: {', '.join(files)}")


if __name__ == "__main__":
    main()
