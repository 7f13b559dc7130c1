"""Curvature beside the naive way: All-CNN (1.4 M weights, 5 outputs), CIFAR-shaped rows, two threads.

    python benchmarks/operators.py            # the whole table, about ten minutes on two cores
    python benchmarks/operators.py --quick    # without the largest kernel

Each figure comes from a process of its own: CPU-seconds of all threads (waiting threads sleep), and the peak of memory
above what the process held once the network, the data and a first small call were there. The naive way is one
`autograd.grad` per sample and output, with the rows of the Jacobian kept and stacked.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained
from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.kernel import kernel

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags

CLASSES = 5
THREADS = 2
MIB = 2**20


class Row(NamedTuple):
    """One line of the table: what is timed, what it is held against, and the most it may take."""

    what: str
    case: str
    against: str | None
    most_time: float | None = None
    most_memory: float | None = None
    most_rss_gib: float | None = None


TABLE = [
    Row("one forward and backward pass, N=100", "gradient", None),
    Row("Gauss-Newton product, N=100", "gauss-newton", "gradient", most_time=3.0),
    Row("Gauss-Newton product, linearisation kept, N=100", "gauss-newton kept", "gradient", most_time=1.8),
    Row("Fisher diagonal, exact, N=20", "fisher exact", "fisher naive", most_time=0.8),
    Row("Fisher diagonal, Monte Carlo, N=20", "fisher monte carlo", "fisher naive", most_time=0.3),
    Row("kernel, N=100", "kernel 100", "kernel naive 100", most_time=0.7, most_memory=0.35),
    Row("kernel, N=500", "kernel 500", None, most_rss_gib=6.0),
]


def rows_of_data(count: int) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, 32, 32, generator=generator)
    return Data.of((x, torch.randint(CLASSES, (count,), generator=generator)))


def naive_rows(trained: Trained, x: Tensor, log: bool) -> list[list[Tensor]]:
    """One gradient per sample and output, one after another."""
    network = trained.module()
    parameters = list(network.parameters())
    everything = []
    for sample in x.split(1):
        out = network(sample)[0]
        out = out.log_softmax(dim=0) if log else out
        grads = [torch.autograd.grad(o, parameters, retain_graph=True) for o in out]
        everything.append([torch.cat([g.reshape(-1) for g in one]) for one in grads])
    return everything


def naive_kernel(trained: Trained, data: Data) -> Tensor:
    rows = [row for sample in naive_rows(trained, data.fetch(data.rows).x, log=False) for row in sample]  # type: ignore[arg-type]  # one tensor here
    J = torch.stack(rows)
    return J @ J.T


def naive_fisher(trained: Trained, data: Data) -> Tensor:
    network = trained.module()
    parameters = list(network.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for sample in data.fetch(data.rows).x.split(1):  # type: ignore[union-attr]  # one tensor here
        log_p = network(sample)[0].log_softmax(dim=0)
        for one in log_p:
            grads = torch.autograd.grad(one, parameters, retain_graph=True)
            for t, g in zip(total, grads, strict=True):
                t += one.exp().detach() * g.square()
    return torch.cat([t.reshape(-1) for t in total])


def case_of(name: str, trained: Trained) -> tuple[Callable[[], Any], int]:
    """What to run, and how often."""
    kind, *rest = name.split()
    if kind == "kernel":
        data = rows_of_data(int(rest[-1]))
        return (lambda: naive_kernel(trained, data) if rest[0] == "naive" else kernel(trained, data)), 1
    if kind == "fisher":
        data, how = rows_of_data(20), " ".join(rest)
        if how == "naive":
            return (lambda: naive_fisher(trained, data)), 3
        return (lambda: fisher_diagonal(trained, data, kind=how, generator=torch.Generator().manual_seed(0))), 3
    data = rows_of_data(100)
    if kind == "gradient":
        return (lambda: gradient(trained, data, batch_size=50)), 5
    v = torch.randn(trained.size, generator=torch.Generator().manual_seed(0))
    G = GaussNewton(trained, data, keep=bool(rest), batch_size=50)
    if rest:
        G.multiply(v)  # linearises; its time is not counted, the memory it keeps is
    return (lambda: G.multiply(v)), 5


def measure(name: str, save: str) -> dict[str, float]:
    """Run one case in this process."""
    torch.set_num_threads(THREADS)
    trained = Trained.of(AllCNN(CLASSES))
    few = rows_of_data(2)
    gradient(trained, few)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    run, repeats = case_of(name, trained)
    seconds, wall, result = [], [], None
    for _ in range(repeats):
        began, began_wall = time.process_time(), time.perf_counter()
        result = run()
        seconds.append(time.process_time() - began)
        wall.append(time.perf_counter() - began_wall)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    torch.save(result, save)
    return {"cpu": min(seconds), "wall": min(wall), "extra": (peak - base) / MIB, "rss": peak / MIB}


def in_own_process(name: str, folder: Path) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "PASSIVE"}
    save = folder / f"{name.replace(' ', '-')}.pt"
    command = [sys.executable, "-W", "ignore", __file__, "--case", name, "--save", str(save)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def difference(folder: Path, case: str, against: str | None) -> str:
    """How far two ways to the same answer lie apart, relative to its norm."""
    if against is None or "naive" not in against or "monte" in case:
        return ""
    a, b = (torch.load(folder / f"{name.replace(' ', '-')}.pt") for name in (case, against))
    return f"{float((a - b).norm() / b.norm()):.0e}"


def verdict(row: Row, mine: dict[str, float], other: dict[str, float] | None) -> str:
    held = [
        (row.most_time is None or other is None or mine["cpu"] <= row.most_time * other["cpu"]),
        (row.most_memory is None or other is None or mine["extra"] <= row.most_memory * other["extra"]),
        (row.most_rss_gib is None or mine["rss"] <= row.most_rss_gib * 1024),
    ]
    return "yes" if all(held) else "NO"


def table(quick: bool) -> None:
    names = ("what", "CPU-s", "beside", "ratio", "most", "MiB", "beside", "ratio", "most", "differs by", "held")
    widths = (48, 7, 7, 6, 5, 7, 7, 6, 8, 10, 4)
    line = "  ".join(f"{{:{'<' if i == 0 else '>'}{w}}}" for i, w in enumerate(widths))
    print(f"torch {torch.__version__}, {THREADS} threads, AllCNN({CLASSES})")
    print(line.format(*names))
    done: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for row in TABLE:
            if quick and row.case == "kernel 500":
                continue
            for name in (row.case, row.against):
                if name is not None and name not in done:
                    done[name] = in_own_process(name, folder)
            mine, other = done[row.case], None if row.against is None else done[row.against]
            time_ratio = f"{mine['cpu'] / other['cpu']:.2f}" if other else ""
            memory_ratio = f"{mine['extra'] / other['extra']:.2f}" if other else ""
            limit = row.most_memory or (f"{row.most_rss_gib} GiB" if row.most_rss_gib else "")
            print(
                line.format(
                    row.what,
                    f"{mine['cpu']:.2f}",
                    f"{other['cpu']:.2f}" if other else "",
                    time_ratio,
                    row.most_time or "",
                    f"{mine['rss' if row.most_rss_gib else 'extra']:.0f}",
                    f"{other['extra']:.0f}" if other else "",
                    memory_ratio,
                    limit,
                    difference(folder, row.case, row.against),
                    verdict(row, mine, other),
                ),
                flush=True,
            )


def flags() -> Flags:
    parser = Flags(__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out the largest kernel")
    parser.add_argument("--case", help="run one case in this process and print its figures")
    parser.add_argument("--save", default=os.devnull)
    return parser


def main() -> None:
    given = flags().parse_args()
    if given.case:
        print(json.dumps(measure(given.case, given.save)))
    else:
        table(given.quick)


if __name__ == "__main__":
    main()
