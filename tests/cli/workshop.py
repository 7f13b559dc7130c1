"""A newcomer's folder: a network, its checkpoint, data, and a list of what must go."""

import io
import shutil
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from spotlessnet.cli import main

NETS = """
from torch import nn
def build():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def normed():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
"""

DATA = """
import torch
def some(seed, n):
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=draw)
    x = torch.randn(n, 4, generator=draw) + 2 * torch.nn.functional.one_hot(y, 4)
    return x, y, [f"person-{i}" for i in range(n)]
def train():
    return some(0, 60)
def test():
    return some(1, 40)
"""

FORGET = ("person-1", "person-5", "person-7")


@cache
def _template() -> Path:
    folder = Path(mkdtemp())
    (folder / "nets.py").write_text(NETS)
    (folder / "mydata.py").write_text(DATA)
    (folder / "forget.csv").write_text("id\n" + "\n".join(FORGET) + "\n")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    save_file(model.state_dict(), folder / "start.safetensors")
    space: dict[str, Any] = {}
    exec(DATA, space)
    x, y, _ = space["train"]()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder


def furnish(folder: Path) -> Path:
    """The folder with everything in it."""
    return Path(shutil.copytree(_template(), folder, dirs_exist_ok=True))


BASE = (
    "--model",
    "nets.py:build",
    "--weights",
    "model.safetensors",
    "--data",
    "mydata.py:train",
    "--forget",
    "forget.csv",
)
RECIPE = (
    "--init",
    "start.safetensors",
    "--epochs",
    "5",
    "--lr",
    "0.05",
    "--weight-decay",
    "1e-3",
    "--batch-size",
    "16",
)
QUICK = ("--method", "fisher", "--set", "strength=1e-8")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def spotless(*arguments: str | Path) -> Ended:
    """Run the command in this process, as the entry point does."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Ended(code, out.getvalue(), err.getvalue())
