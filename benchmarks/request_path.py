"""Which files does one request visit? The way of `sn.unlearn` and of `spotless scrub`, in order of the first call.

    python benchmarks/request_path.py            # both ways
    python benchmarks/request_path.py --mermaid  # the way of `sn.unlearn`, as a picture

How it counts: digits, a linear network, the default method, no audit. The same request is made twice, and the second is
traced (`sys.setprofile`), so that what runs while modules are imported does not count. A file of the package is visited
when a function that is written in it is called. Everything counts, from the call to the receipt: also what the method
itself calls (training, curvature, noise).
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from inspect import CO_OPTIMIZED
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor, float32, manual_seed, nn, tensor

import spotlessnet as sn
from spotlessnet.cli import main as command
from spotlessnet.core.progress import quiet

PACKAGE = os.path.dirname(sn.__file__) + os.sep
RECIPE = sn.Recipe(epochs=5, lr=0.05)
FORGET = list(range(20))
NETS = "from torch import nn\ndef build():\n    return nn.Linear(64, 10)\n"
DATA = (
    "import torch\nfrom sklearn.datasets import load_digits\n"
    "def train():\n    x, y = load_digits(return_X_y=True)\n"
    "    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)\n"
)


ONLY_WHEN_SLOW = "core/display.py"
"""Shows how far work is that takes long, so that whether it is visited depends on the machine."""


def visited(work: Callable[[], object]) -> list[str]:
    """The files of the package in which some work calls a function, in order of the first call."""
    seen: dict[str, None] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # Bodies of modules and classes are no functions: they lack the flag for fast local variables.
        if event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(PACKAGE):
            file = code.co_filename.removeprefix(PACKAGE).replace(os.sep, "/")
            if file != ONLY_WHEN_SLOW:
                seen.setdefault(file)

    # On a busy machine work may last so long that it shows itself, which is no part of a request.
    with quiet():
        sys.setprofile(look)
        try:
            work()
        finally:
            sys.setprofile(None)
    return list(seen)


def digits() -> tuple[Tensor, Tensor]:
    """All rows, from 0 to 1."""
    x, y = load_digits(return_X_y=True)
    return tensor(x / 16, dtype=float32), tensor(y)


def networks() -> tuple[nn.Module, nn.Module]:
    """A network as it began and as it was trained."""
    manual_seed(0)
    start = nn.Linear(64, 10)
    trained = sn.fit(sn.Trained.of(start, init=start, recipe=RECIPE), sn.Data.of(digits()), RECIPE)
    return start, trained.module()


def way_of_unlearn() -> list[str]:
    """The way of one `sn.unlearn` in memory."""
    (start, model), data = networks(), digits()

    def ask() -> None:
        sn.unlearn(model, data, forget=FORGET, init=start, recipe=RECIPE)

    ask()
    return visited(ask)


def way_of_scrub() -> list[str]:
    """The way of one `spotless scrub`, from the command line to the files of its folder."""
    start, model = networks()
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("nets.py").write_text(NETS)
            Path("mydata.py").write_text(DATA)
            Path("forget.txt").write_text("\n".join(map(str, FORGET)))
            save_file(start.state_dict(), "start.safetensors")
            save_file(model.state_dict(), "model.safetensors")
            _scrub("first")
            return visited(lambda: _scrub("second"))
        finally:
            os.chdir(before)


def _scrub(out: str) -> None:
    words = "scrub --model nets.py:build --weights model.safetensors --init start.safetensors --data mydata.py:train"
    words += " --forget forget.txt --id-column row --epochs 5 --lr 0.05 --out"
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = command([*words.split(), out])
    if code:
        raise SystemExit(f"`spotless scrub` ended with {code}: {said.getvalue()}")


def mermaid(files: list[str]) -> str:
    """The files as a chain of boxes."""
    boxes = [f'  f{i}["{i}. {file}"]' for i, file in enumerate(files, start=1)]
    arrows = "  " + " --> ".join(f"f{i}" for i in range(1, len(boxes) + 1))
    return "\n".join(["flowchart TD", *boxes, arrows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mermaid", action="store_true")
    if parser.parse_args().mermaid:
        print(mermaid(way_of_unlearn()))
        return
    for name, files in (("sn.unlearn", way_of_unlearn()), ("spotless scrub", way_of_scrub())):
        print(f"{name}: {len(files)} files")
        for i, file in enumerate(files, start=1):
            print(f"{i:3} {file}")


if __name__ == "__main__":
    main()
