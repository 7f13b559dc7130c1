"""Curvature on a large GPU: the kernel, a Gauss-Newton product over 50,000 images, and its strongest directions.

    python benchmarks/gpu_operators.py --out results/gpu-operators.jsonl
    python benchmarks/gpu_operators.py --only product --exactness tf32
    python benchmarks/gpu_operators.py --tiny          # a few rows on any machine, to see that it runs

Prints one JSON line per figure: the median of several runs after a warm-up, the device waited for at both ends.
Operations are counted from one forward pass `F`: a Gauss-Newton product takes `6 F` per row (the network twice, its
tangents twice, and back twice), `2 F + 4 K F` for `K` vectors at once. The ceiling is the rate of a large matrix
product in the same run. Images are random: the time does not depend on what they show.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained
from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.models.resnet import ResNet
from spotlessnet.operators.compiled import Compiled
from spotlessnet.operators.gauss_newton import TOGETHER, GaussNewton
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.low_rank import low_rank
from spotlessnet.operators.precision import matmul

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, accelerator, command, device_of

PARTS = ("ceiling", "kernel", "product", "directions")


def seconds(run: Callable[[], Any], device: torch.device, repeats: int, warm_up: int = 1) -> float:
    """The median time of `run`, waiting for the device before and after."""
    times = []
    for i in range(warm_up + repeats):
        _wait(device)
        began = time.perf_counter()
        run()
        _wait(device)
        if i >= warm_up:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def images(count: int, classes: int, device: torch.device) -> Data:
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(count, 3, 32, 32, generator=generator, device=device).contiguous(memory_format=torch.channels_last)
    return Data.of((x, torch.randint(classes, (count,), generator=generator, device=device)))


def matmul_rate(size: int, dtype: torch.dtype, device: torch.device) -> float:
    """Operations per second of a square matrix product."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, device, repeats=10, warm_up=3)


def forward_operations(trained: Trained) -> int:
    """Floating-point operations of one forward pass for one row."""
    x = torch.zeros(1, 3, 32, 32, device=trained.device)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        trained.outputs(x)
    return counter.get_total_flops()


class Report:
    """Prints and keeps JSON lines, each with what it takes to run it again."""

    def __init__(self, device: torch.device, exactness: str, out: Path | None) -> None:
        self.diagnostics = {
            "exactness": exactness,
            "torch": torch.__version__,
            "device": accelerator(device),
            "command": command("gpu_operators"),
        }
        self.out = out
        self.device = device

    def __call__(self, what: str, **figures: Any) -> None:
        """One line."""
        if self.device.type == "cuda":
            figures["peak_gib"] = round(torch.cuda.max_memory_allocated(self.device) / 2**30, 2)
            torch.cuda.reset_peak_memory_stats(self.device)
        line = json.dumps({"what": what, **figures, **self.diagnostics})
        print(line, flush=True)
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            with self.out.open("a") as file:
                file.write(line + "\n")


def rated(operations: float, taken: float, ceiling: float) -> dict[str, float]:
    lr = operations / taken
    return {"seconds": round(taken, 4), "tflops": round(lr / 1e12, 3), "share_of_ceiling": round(lr / ceiling, 3)}


def flags() -> Flags:
    parser = Flags(__doc__).out(help="add the lines to this file").device()
    parser.add_argument("--tiny", action="store_true", help="a few rows, to see that it runs")
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part; may be given several times")
    parser.add_argument("--exactness", choices=("float32", "tf32"), default="float32")
    parser.add_argument("--rows", type=int, default=50_000, help="rows of the Gauss-Newton product")
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--rank", type=int, default=200)
    parser.add_argument("--direction-rows", type=int, help="rows for the directions; as many as --rows unless given")
    parser.add_argument("--oversample", type=int, default=24)
    parser.add_argument("--compiled", action="store_true", help="compile the product of several vectors")
    parser.add_argument("--repeats", type=int, default=3)
    return parser


def main() -> None:
    options = flags().parse_args()
    if options.tiny:
        options.rows, options.batch_size = 6, 3
        options.rank, options.oversample = 2, 2
        options.repeats = 1
    device = device_of(options)
    if device.type == "cpu" and not options.tiny:
        print("No GPU here, so nothing was timed; `--tiny` runs the same code on a few rows.")
        return
    report = Report(device, options.exactness, options.out)
    with matmul(options.exactness):
        run_all(options, device, report)


def run_all(options: argparse.Namespace, device: torch.device, report: Report) -> None:
    parts, size = options.only or PARTS, 64 if options.tiny else 8192
    ceiling = matmul_rate(size, torch.float32, device)
    if "ceiling" in parts:
        report(f"matrix product {size} cubed", tflops=round(ceiling / 1e12, 3), format="float32")
        half = matmul_rate(size, torch.bfloat16, device)
        report(f"matrix product {size} cubed", tflops=round(half / 1e12, 3), format="bfloat16")
    if "kernel" in parts:
        time_kernel(options, device, report, ceiling)
    if "product" in parts or "directions" in parts:
        trained = Trained.of(ResNet(10, width=0.1 if options.tiny else 1.0).to(device))
        one_row = forward_operations(trained)
        if "product" in parts:
            time_product(options, matrix(options, trained, options.rows), one_row, report, ceiling)
        if "directions" in parts:
            rows = options.rows if options.direction_rows is None else options.direction_rows
            time_directions(options, matrix(options, trained, rows), one_row, report, ceiling)


def time_kernel(options: argparse.Namespace, device: torch.device, report: Report, ceiling: float) -> None:
    rows = 6 if options.tiny else 500
    trained = Trained.of(AllCNN(5, filters=(4, 8) if options.tiny else (96, 192)).to(device))
    data = images(rows, 5, device)
    taken = seconds(lambda: kernel(trained, data, batch_size=min(rows, 125)), device, options.repeats)
    # Forward, back to every layer and into J for each of 5 outputs, then half of J times itself.
    operations = rows * forward_operations(trained) * (1 + 2 * 5) + (rows * 5) ** 2 * trained.size
    report(
        "kernel, All-CNN, 5 outputs", rows=rows, weights=trained.size, target=0.5, **rated(operations, taken, ceiling)
    )


def matrix(options: argparse.Namespace, trained: Trained, rows: int) -> Compiled | GaussNewton:
    """The Gauss-Newton matrix over so many random images."""
    G = GaussNewton(trained, images(rows, 10, trained.device), batch_size=options.batch_size)
    return Compiled(G) if options.compiled else G


def time_product(
    options: argparse.Namespace, G: Compiled | GaussNewton, one_row: int, report: Report, ceiling: float
) -> None:
    plain = G.plain if isinstance(G, Compiled) else G
    device, rows = plain.trained.device, len(plain.data)
    v, about = torch.randn_like(plain.trained.weights), {"rows": rows, "weights": plain.size}
    if not options.compiled:  # one vector takes the plain way
        taken = seconds(lambda: G.multiply(v), device, options.repeats)
        report("Gauss-Newton product, ResNet-18", **about, vectors=1, **rated(6 * one_row * rows, taken, ceiling))
    block = torch.randn(TOGETHER, plain.size, device=device)
    taken = seconds(lambda: G.multiply(block), device, 1)
    figures = rated((2 + 4 * TOGETHER) * one_row * rows, taken, ceiling)
    report("Gauss-Newton product, ResNet-18", **about, vectors=TOGETHER, compiled=options.compiled, **figures)


def time_directions(
    options: argparse.Namespace, G: Compiled | GaussNewton, one_row: int, report: Report, ceiling: float
) -> None:
    plain = G.plain if isinstance(G, Compiled) else G
    trained, rows = plain.trained, len(plain.data)
    found: list[Any] = []

    def run() -> None:
        generator = torch.Generator(trained.device).manual_seed(0)
        settings: dict[str, Any] = {"oversample": options.oversample, "like": trained.weights}
        found.append(low_rank(G, options.rank, generator=generator, **settings))

    taken = seconds(run, trained.device, repeats=1, warm_up=0)  # minutes; compilation, where asked for, is part of it
    basis = found[-1]
    worst: Tensor = basis.residuals.max() / basis.values.max()
    figures = rated(basis.products * (4 + 2 / TOGETHER) * one_row * rows, taken, ceiling)
    report(
        f"rank-{options.rank} eigenbasis of the Gauss-Newton matrix, ResNet-18",
        rows=rows,
        weights=trained.size,
        products=basis.products,
        compiled=options.compiled,
        largest_residual=float(worst),
        **figures,
    )


if __name__ == "__main__":
    main()
