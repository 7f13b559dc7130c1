"""Does the plan hold? Random pairs of a network and a method: time and memory as predicted and as measured.

    python benchmarks/plans.py --out results/plans.jsonl

Each pair is drawn from the networks and methods below, planned as `sn.unlearn` plans it, and then run, in one process
and one after the other. A method is tried on a small network first, so that no plan pays for code that is loaded.
Seconds are the processor's, of one thread, in the plan and in the run: what other programs take of the machine counts
in neither. Memory is what the process holds beyond what it held before; where both are below `FLOOR` it counts as
agreeing, for there the allocator decides. Data are made up: classes around random centres.
"""

import ctypes
import gc
import json
import os
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import nn

from spotlessnet.core.answers import utility_of
from spotlessnet.core.data import Data
from spotlessnet.core.progress import MIB, Meter, quiet
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained
from spotlessnet.methods import (
    NTK,
    SCRUB,
    SSD,
    BadTeacher,
    Finetune,
    Fisher,
    GradientAscent,
    L1Sparse,
    NegGradPlus,
    Newton,
    RandomLabels,
    RespondAndFinetune,
    Retrain,
    SalUn,
    ShortRetrain,
    Variational,
)
from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.models.mlp import MLP
from spotlessnet.models.resnet import ResNet
from spotlessnet.operators.solvers import CG
from spotlessnet.requests.planning import estimate
from spotlessnet.training.fit import fit

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, command, machine, use_threads
from benchmarks.vit import PlainViT

FLOOR = 32 * MIB
CLASSES = 10

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "MLP 64-512-256": (lambda: MLP(64, CLASSES, hidden=(512, 256)), (64,), 2000),
    "MLP 256-2048-1024": (lambda: MLP(256, CLASSES, hidden=(2048, 1024)), (256,), 1000),
    "All-CNN 24-48": (lambda: AllCNN(CLASSES, filters=(24, 48)), (3, 32, 32), 200),
    "ResNet-18 x0.2": (lambda: ResNet(CLASSES, width=0.2), (3, 32, 32), 160),
    "ViT 32 px, 4 layers of 192": (lambda: PlainViT(32, 4, 192, 3, 4, CLASSES), (3, 32, 32), 120),
}
"""What makes a network, the shape of a row, and how many rows."""

METHODS: dict[str, Callable[[], Scrub]] = {
    "retrain": Retrain,
    "short-retrain": ShortRetrain,
    "finetune": lambda: Finetune(epochs=3),
    "gradient-ascent": lambda: GradientAscent(epochs=2),
    "random-labels": lambda: RandomLabels(epochs=2),
    "l1-sparse": lambda: L1Sparse(epochs=2),
    "neg-grad-plus": lambda: NegGradPlus(epochs=2),
    "scrub": lambda: SCRUB(epochs=2),
    "bad-teacher": lambda: BadTeacher(epochs=2),
    "salun": lambda: SalUn(epochs=2),
    "ssd": SSD,
    "fisher": Fisher,
    "fisher, monte carlo": lambda: Fisher(kind="monte carlo"),
    "variational": lambda: Variational(steps=20),
    "respond-and-finetune": lambda: RespondAndFinetune(iterations=10),
    "ntk, 10 products": lambda: NTK(solver=CG(tolerance=1e-12, max_iterations=10), damping=0.1, search=False),
    "newton": lambda: Newton(damping=0.1, search=False),
}


def problem(name: str, seed: int, small: bool = False) -> tuple[Trained, Split]:
    """A network trained for a little while, and a request to forget 10 rows."""
    torch.manual_seed(seed)
    build, shape, count = NETWORKS[name]
    count = 40 if small else count
    y = torch.arange(count) % CLASSES
    x = torch.randn(CLASSES, *shape)[y] + 0.5 * torch.randn(count, *shape)
    recipe = Recipe(epochs=4, lr=0.01, momentum=0.9, batch_size=64, weight_decay=1e-2)
    model = build()
    data = Data.of((x, y))
    trained = fit(Trained.of(model, init=model, recipe=recipe), data, recipe)
    return trained, rows(list(range(10)))(data, test=data.select(range(min(count, 100))))


def compare(name: str, method: str, seed: int) -> dict[str, Any]:
    """One plan and its run."""
    trained, split = problem(name, seed)
    scrub = METHODS[method]()
    plan = estimate(trained, split, scrub, clock=process_time)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not stand in for what is asked for now
    began = process_time()
    with Meter(trained.device) as meter:
        found = scrub(trained, split)
        utility_of(trained, trained.at(found.mean, found.buffers), split)
    seconds = process_time() - began
    predicted, measured = plan.memory, meter.memory * MIB
    both = (max(predicted, FLOOR), max(measured, FLOOR))
    return {
        "network": name,
        "weights": trained.size,
        "rows": len(split.whole),
        "method": method,
        "seconds_predicted": round(plan.seconds, 3),
        "seconds_at_most": round(plan.at_most, 3),
        "seconds_measured": round(seconds, 3),
        "seconds_wall": round(meter.seconds, 3),
        "epoch_predicted": round(plan.epoch, 3),
        "retraining_predicted": round(plan.retraining, 3),
        "time_factor": round(plan.seconds / seconds, 2),
        "mib_predicted": round(predicted / MIB, 1),
        "mib_measured": round(measured / MIB, 1),
        "memory_factor": round(both[0] / both[1], 2),
    }


def flags() -> Flags:
    parser = Flags(__doc__).out()
    parser.add_argument("--plans", type=int, default=20, help="how many pairs are drawn")
    parser.add_argument("--draw", type=int, default=0, help="the seed of the draw")
    return parser


def main() -> None:
    given = flags().parse_args()
    use_threads()
    warnings.simplefilter("ignore")
    pairs = random.Random(given.draw).sample([(n, m) for n in NETWORKS for m in METHODS], given.plans)
    lines = []
    with quiet():
        for seed, (name, method) in enumerate(pairs):
            METHODS[method]()(*problem(name, seed, small=True))
            row = compare(name, method, seed)
            row["load"] = round(os.getloadavg()[0], 1)
            lines.append(json.dumps({**row, "command": command("plans"), "machine": machine()}))
            print(json.dumps(row), flush=True)
    found = [json.loads(line) for line in lines]
    for what in ("time_factor", "memory_factor"):
        print(f"{what}: {sum(0.5 <= row[what] <= 2 for row in found)} of {len(found)} within a factor of two")
    if given.out is not None:
        given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
