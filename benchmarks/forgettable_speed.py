"""Requests at full size, with features that are drawn at random: what a size costs, not what it is good for.

    python benchmarks/forgettable_speed.py --out results/forgettable-speed.jsonl --features 30000 --examples 1000000

Examples are streamed: only those that will go are kept. Feature spectra fall like those of real features.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spotlessnet.forgettable.encoder import ONE, Encoder
from spotlessnet.forgettable.examples import Examples
from spotlessnet.forgettable.fixed_point import FixedPoint
from spotlessnet.forgettable.inverse import inverse
from spotlessnet.forgettable.model import ForgettableModel
from spotlessnet.forgettable.moments import Moments
from spotlessnet.forgettable.ridge import as_ridge

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, device_of


class Draw:
    """Rows of codes: a part that all features share, and noise, whose size falls from feature to feature."""

    def __init__(self, d: int, classes: int, device: str) -> None:
        self.d, self.classes, self.device = d, classes, device
        seed = torch.Generator(device).manual_seed(0)
        self.mix = torch.randn(classes, d, generator=seed, device=device)
        self.size = 1500 * (1 + torch.arange(d, device=device)) ** -0.3

    def rows(self, i: int, n: int) -> tuple[Tensor, Tensor]:
        seed = torch.Generator(self.device).manual_seed(i + 1)
        y = torch.randint(0, self.classes, (n,), generator=seed, device=self.device)
        x = torch.randn(n, self.d, generator=seed, device=self.device)
        q = ((x + 0.3 * self.mix[y]) * self.size).round().clamp(-32767, 32767).to(torch.int16)
        q[:, -1] = ONE
        return q, y


class Clock:
    """Seconds, once the device has finished."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def parts(model: ForgettableModel, q: Tensor, clock: Clock) -> dict[str, float]:
    """Seconds of the parts of a request, each by itself."""
    from spotlessnet.forgettable.certificate import refine
    from spotlessnet.forgettable.inverse import update_
    from spotlessnet.forgettable.residual import residual, size_of

    X, T, found = q.to(model.weights), torch.zeros(len(q), model.weights.shape[1], device=q.device).double(), {}
    size = size_of(model.moments.gram, model.ridge)
    todo = {
        "moments": lambda: (model.moments.add(q, T.short()), model.moments.remove(q, T.short())),
        "inverse": lambda: (update_(model.inverse, X, 1, T), update_(model.inverse, X, -1, T)),
        "residual": lambda: residual(model.moments.gram, model.moments.cross, model.ridge, model.weights, size=size),
        "correction": lambda: model.inverse @ model.weights,
        "refine": lambda: refine(model.moments, model.ridge, model.inverse, model.weights, near=True),
    }
    for name, work in todo.items():
        work()
        began = clock()
        for _ in range(3):
            work()
        found[name] = (clock() - began) / (6 if name in ("moments", "inverse") else 3)
    return found


def flags() -> Flags:
    parser = Flags(__doc__).out(required=True).device()
    parser.add_argument("--features", type=int, default=30_000)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--ridge", type=float, default=0.3)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 100, 1000])
    return parser


def main() -> None:
    args = flags().parse_args()
    device = str(device_of(args))
    clock, draw = Clock(device), Draw(args.features, args.classes, device)
    moments = Moments.zero(args.features, args.classes, device)
    kept: list[tuple[Tensor, Tensor]] = []
    began = clock()
    for i, start in enumerate(range(0, args.examples, args.chunk)):
        q, y = draw.rows(i, min(args.chunk, args.examples - start))
        moments.add(q, nn.functional.one_hot(y, args.classes))
        if i == 0:
            kept.append((q[: max(args.sizes)].clone(), y[: max(args.sizes)]))
    streamed = clock() - began
    codes, y = kept[0]
    targets = nn.functional.one_hot(y, args.classes).to(torch.int16)
    ones = torch.ones(len(y), dtype=torch.long)
    examples = Examples(targets[:, None], y.cpu().clone(), ones, list(range(len(y))), codes[:, None].clone())
    ridge = as_ridge(args.ridge, float(moments.gram.diagonal().mean()))
    began = clock()
    P = inverse(moments.gram, ridge)
    inverted = clock() - began
    encoder = Encoder(nn.Identity(), FixedPoint(torch.ones(args.features - 1, device=device)), args.classes, 1024)
    model = ForgettableModel(encoder, moments, ridge, examples, P, P @ moments.cross)
    model._settle("fit", time.perf_counter(), args.examples, refactored=True)
    row: dict[str, Any] = {
        "what": "size", "features": args.features, "examples": args.examples, "classes": args.classes,
        "seconds_streaming": streamed, "seconds_inverse": inverted, "certificate": model.certificate.relative,
        "where": torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        "requests": {}, "parts_100": parts(model, codes[:100], clock),
    }  # fmt: skip
    for size in args.sizes:
        took, cpu, back = [], [], []
        for _ in range(args.times):
            rows = list(range(size))
            before, began = time.process_time(), clock()
            request = model.forget(rows)
            took.append(clock() - began)
            cpu.append(time.process_time() - before)
            # Putting them back is the other kind of request.
            began = clock()
            model.add(codes[:size, :-1].float(), y[:size], ids=rows)
            back.append(clock() - began)
        row["requests"][size] = {
            "seconds": sorted(took)[len(took) // 2], "seconds_adding": sorted(back)[len(back) // 2],
            "cpu_seconds": sorted(cpu)[len(cpu) // 2],
            "bound_over_moved": request.certificate.bound / request.moved, "refactored": request.refactored,
        }  # fmt: skip
    on_cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else on_cpu
    line = json.dumps(row)
    print(line)
    with args.out.open("a") as out:
        out.write(line + "\n")


if __name__ == "__main__":
    main()
