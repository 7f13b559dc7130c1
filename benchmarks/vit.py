"""Curvature of a ViT-B/16 within a memory budget: seconds and peak memory beside one epoch in the same precision.

    python benchmarks/vit.py --out results/vit.jsonl
    python benchmarks/vit.py --known results/vit.jsonl --out more.jsonl      # only what was not measured yet
    python benchmarks/vit.py --cells few/tight/product many/tight/exact      # these, in this order, and their epochs
    python benchmarks/vit.py --tiny          # a small ViT and a few rows on any machine, to see that it runs
    python benchmarks/vit_page.py            # measure nothing: the kept rows as tables of `docs/which_method_when.md`

Each part is run once with the default budget and once within `--memory-limit` GiB; a row is written as soon as it is
known. An epoch is a pass there and back over all images, 64 at a time, with torch alone and its fused attention, of
images that lie on the device already; all else reads them from the main memory. Peaks are all that is allocated on the
device, weights included; `begun_gib` is what lay there before. A product and an epoch are timed after one of up to
1,024 of the rows, as solvers and trainings repeat them: batches of a new size first let the device choose its kernels.
Weights and images are random: neither time nor memory depends on what they show. The cheap parts come first; a part
that would outlast `--limit-seconds`, as told by the same part for fewer images, is measured for some of them or left
out, and its row says so.
"""

import argparse
import gc
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.passes import are_halved
from spotlessnet.core.progress import Meter, memory_limit
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Request, Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.ntk import NTK
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.precision import EXACTNESS, matmul
from spotlessnet.operators.solvers import Auto
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.precomputed.statistics import Statistics

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, accelerator, command, device_of

GIB = 2**30
FORGOTTEN = 10

Key = tuple[str, int, float | None]
"""A part, how many rows, and the limit in GiB."""

Part = tuple[Callable[[], Any], dict[str, Any]]
"""What to do, and what else its row should say."""


class Block(nn.Module):
    """One layer of a vision transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        q, k, v = (one(h).unflatten(2, (self.heads, -1)).transpose(1, 2) for one in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class PlainViT(nn.Module):
    """Dosovitskiy et al. (2021) in torch alone; 12 layers of 768 with 12 heads on patches of 16 are ViT-B/16."""

    def __init__(self, pixels: int, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 1 + (pixels // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], dim=1) + self.place
        return self.head(self.norm(self.blocks(h))[:, 0])


def network(options: argparse.Namespace) -> nn.Module:
    """With random weights."""
    torch.manual_seed(0)
    pixels, patch, width, heads, layers = (32, 8, 16, 2, 2) if options.tiny else (224, 16, 768, 12, 12)
    if options.network == "plain":
        return PlainViT(pixels, patch, width, heads, layers, options.classes)
    # The network needs no torchvision, and one that was built for another torch would break the import.
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes |= {"image_size": pixels, "patch_size": patch, "intermediate_size": 4 * width}
    sizes |= {"num_labels": options.classes}
    config = ViTConfig(**sizes)
    return ViTForImageClassification(config)


def images(count: int, pixels: int, classes: int, device: torch.device) -> Data:
    """Random images in half the bytes, kept in the main memory: batches go to the device one by one."""
    draw = torch.Generator(device).manual_seed(0)
    parts = [
        torch.randn(min(500, count - i), 3, pixels, pixels, generator=draw, device=device).to(torch.bfloat16).cpu()
        for i in range(0, count, 500)
    ]
    return Data.of((torch.cat(parts), torch.randint(classes, (count,), generator=draw, device=device).cpu()))


def on_device(data: Data, device: torch.device) -> Data:
    """The same rows where the network lives, so that an epoch waits for none of them."""
    x, y, _ = data.fetch(data.rows)
    assert isinstance(x, Tensor)
    return Data.of((x.to(device), y.to(device)))


def epoch(trained: Trained, data: Data, batch_size: int) -> None:
    """Forward and backward over all rows, as training does it."""
    model = trained.model
    for one in trained.batches(data, batch_size):
        with torch.autocast(trained.device.type, torch.bfloat16, enabled=are_halved()):
            answer = model(one.x)
        nn.functional.cross_entropy(getattr(answer, "logits", answer).float(), one.y).backward()
    model.zero_grad()


def ntk(trained: Trained, data: Data, iterations: int, statistics: Statistics | None = None) -> None:
    """A step without `FORGOTTEN` rows, whose length is not searched: with random weights there is none to find."""
    forget = data.select(range(min(FORGOTTEN, len(data) // 2)))
    split = Split(forget=forget, kept=data.without(forget), request=Request("benchmark"))
    solver = Auto(tolerance=1e-4, max_iterations=iterations)
    settings: dict[str, Any] = {"damping": 0.1} if statistics is None else {"statistics": statistics, "damping": 0.1}
    found = NTK(solver=solver, search=False, **settings).shift(trained, split, Notes())
    assert found.isfinite().all()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise when the block takes longer, where the system can tell."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"cut off after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Report:
    """Prints and keeps JSON lines; knows what parts took, to tell what others will take."""

    def __init__(self, options: argparse.Namespace, trained: Trained) -> None:
        self.options, self.device = options, trained.device
        self.began = time.perf_counter()
        self.taken: dict[Key, float] = {}
        self.iterations: dict[Key, int] = {}
        self.about = {
            "network": f"{options.network} ViT, random weights",
            "weights": trained.size,
            "classes": options.classes,
            "exactness": options.exactness,
            "torch": torch.__version__,
            "device": accelerator(trained.device),
            "command": command(
                "vit", [word if "/" not in word or _is_cell(word) else Path(word).name for word in sys.argv[1:]]
            ),
        }

    def learn(self, row: dict[str, Any]) -> None:
        """What a part took, here or in an earlier run."""
        if "seconds" in row and row.get("exactness", self.options.exactness) == self.options.exactness:
            key = (row["what"], row["rows"], row["memory_limit_gib"])
            self.taken[key] = row["seconds"]
            self.iterations[key] = row.get("iterations", 0)

    def expected(self, what: str, rows: int, limit: float | None, iterations: int) -> float:
        """Seconds, from the same part with other rows before; nothing where it is the first of its kind."""
        known = [
            # Beside its products, a step has a gradient and a curvature along itself.
            seconds * self._growth(what, key[1], rows) * (2 + iterations) / (2 + self.iterations[key])
            for key, seconds in self.taken.items()
            if (key[0], key[2]) == (what, limit)
        ]
        return min(known, default=0.0)

    def _growth(self, what: str, before: int, now: int) -> float:
        # Statistics take their curvature from as many rows, whatever the rest; only the gradient is of all.
        return 1.2 if what == STATISTICS else max(1.0, now / before)

    def run(self, what: str, data: Data, make: Callable[[Data], Part], limit: float | None) -> Any:
        """Do it and write a row; where the time is too short for all rows, for some of them, and the row says so."""
        left = min(self.options.limit_seconds - (time.perf_counter() - self.began), self.options.part_seconds)
        rows, more = len(data), make(data)[1]
        expected = self.expected(what, rows, limit, more.get("iterations", 0))
        row = {"what": what, "rows": rows, "memory_limit_gib": limit, **more}
        share = min(1.0, 0.8 * left / expected) if 0 < left < expected else float(left > 0)
        if share < FEWEST or (share < 1 and what == STATISTICS):
            self.write({**row, "left_out": f"about {expected:.0f} s, but {max(0.0, left):.0f} s are left"})
            return None
        some = data if share == 1 else data.select(range(int(share * rows)))
        self.warm(what, some, make, limit)
        work, failure, found = make(some)[0], "", None
        if self.device.type == "cuda":
            row["begun_gib"] = round(torch.cuda.memory_allocated(self.device) / GIB, 2)
        with memory_limit(limit * GIB) if limit else nullcontext(), Meter(self.device) as meter:
            try:
                with at_most(left):
                    found = work()
            except (RuntimeError, SpotlessError, TimeoutError) as error:  # a part that fails must not cost the others
                failure = f"{type(error).__name__}: {error}"[:300]
        peak = torch.cuda.max_memory_allocated(self.device) / GIB if self.device.type == "cuda" else meter.memory / 1024
        if failure:
            self.write({**row, "failed": failure, "peak_gib": round(peak, 2)})
            return None
        one = self.taken.get((EPOCH, rows, None))
        if share < 1:
            told: dict[str, Any] = {"images_measured": len(some), "seconds_measured": round(meter.seconds, 3)}
            told["seconds_extrapolated"] = round(meter.seconds * rows / len(some), 1)
        else:
            told = {"seconds": round(meter.seconds, 3)}
            self.learn({**row, **told})
            one = self.taken.get((EPOCH, rows, None))
        epochs = {"epochs": round(meter.seconds * rows / len(some) / one, 2)} if one else {}
        self.write({**row, **told, **epochs, "peak_gib": round(peak, 2)})
        return found

    def warm(self, what: str, data: Data, make: Callable[[Data], Part], limit: float | None) -> None:
        """A first time lets the device choose its kernels, and take memory, for parts of these sizes."""
        gc.collect()  # what an earlier part left in cycles must not count
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if what in (EPOCH, PRODUCT):
            with memory_limit(limit * GIB) if limit else nullcontext():
                make(data.select(range(min(WARM, len(data)))))[0]()

    def write(self, row: dict[str, Any]) -> None:
        """One line, at once."""
        line = json.dumps({**row, **self.about})
        print(line, flush=True)
        if self.options.out is not None:
            self.options.out.parent.mkdir(parents=True, exist_ok=True)
            with self.options.out.open("a") as file:
                file.write(line + "\n")


def parts(options: argparse.Namespace, trained: Trained, data: Data) -> dict[str, Part]:
    """What is done to so many rows, by name, with what else its row should say."""
    draw = partial(torch.Generator, trained.device)
    v = torch.randn(trained.size, generator=draw().manual_seed(1), device=trained.device)
    rows, sample = len(data), min(options.sample, len(data))
    iterations = options.iterations if rows <= 1000 else options.few_iterations
    mc = partial(fisher_diagonal, trained, data, kind="monte carlo", generator=draw().manual_seed(2))
    return {
        EPOCH: (partial(epoch, trained, data, options.batch_size), {}),
        PRODUCT: (partial(GaussNewton(trained, data).multiply, v), {}),
        MONTE_CARLO: (mc, {}),
        EXACT: (partial(fisher_diagonal, trained, data), {}),
        STEP: (partial(ntk, trained, data, iterations), {"iterations": iterations}),
        # The gradient of all rows, then curvature of some of them: hundreds of products over all would be hours.
        STATISTICS: (
            partial(precompute, trained, data, rank=options.rank, sample=sample),
            {"rank": options.rank, "sample": sample},
        ),
    }


EPOCH, PRODUCT, STEP, STATISTICS = "one epoch", "Gauss-Newton product", "NTK step", "statistics"
MONTE_CARLO, EXACT = "Fisher diagonal, Monte Carlo", "Fisher diagonal, exact"

NAMES = {
    "epoch": EPOCH, "product": PRODUCT, "montecarlo": MONTE_CARLO, "exact": EXACT, "ntk": STEP, "statistics": STATISTICS
}  # fmt: skip
"""Of parts, in `--cells`."""

FEWEST = 0.1
"""The smallest share of the rows from which the rest is extrapolated."""

WARM = 1024
"""Rows of a product or an epoch before the one that is timed."""

FEW, MANY, FREE, TIGHT = 0, -1, False, True
ORDER = (
    *((FEW, what, tight) for what in (EPOCH, PRODUCT, MONTE_CARLO, EXACT) for tight in (FREE, TIGHT)),
    *((MANY, what, tight) for what in (EPOCH, PRODUCT, MONTE_CARLO) for tight in (FREE, TIGHT)),
    (MANY, EXACT, FREE),
    (FEW, STEP, TIGHT),
    (FEW, STATISTICS, FREE),
    (MANY, STEP, FREE),
    (FEW, STATISTICS, TIGHT),
    (FEW, STEP, FREE),
    (MANY, STATISTICS, FREE),
    (MANY, EXACT, TIGHT),
    (MANY, STEP, TIGHT),
    (MANY, STATISTICS, TIGHT),
)
"""The cheap parts first, so that a run that ends early has said as much as it could."""


def asked_for(options: argparse.Namespace) -> list[tuple[int, str, bool]]:
    """The parts in their order: all of them, those with a word, or the cells that were named, behind their epochs."""
    if options.cells:
        cells = [cell.split("/") for cell in options.cells]
        found = [({"few": FEW, "many": MANY}[which], NAMES[what], how == "tight") for which, how, what in cells]
        epochs = {(which, EPOCH, FREE) for which, _, _ in found}
        return [*sorted(epochs, key=lambda one: -one[0]), *found]
    wanted = [
        one for one in ORDER if not options.only or one[1] == EPOCH or any(word in one[1] for word in options.only)
    ]
    return [one for one in wanted if one[0] == FEW or len(options.rows) > 1]


def measure(options: argparse.Namespace, trained: Trained, report: Report) -> None:
    pixels = 32 if options.tiny else 224
    everything = images(max(options.rows), pixels, options.classes, trained.device)
    few = everything.select(range(min(64, len(everything))))
    epoch(trained, few, options.batch_size)  # once, so that what follows is warm
    GaussNewton(trained, few).multiply(torch.ones_like(trained.weights))
    before = set(report.taken)
    sets = {rows: everything.select(range(rows)) for rows in options.rows}
    for which, what, tight in asked_for(options):
        if what == EPOCH and tight:
            continue
        rows = options.rows[which]
        limit = options.memory_limit if tight else None
        anew = bool(options.cells) or what == EPOCH or any(word in what for word in options.again or ())
        if not anew and (what, rows, limit) in before:
            continue
        data = on_device(sets[rows], trained.device) if what == EPOCH else sets[rows]
        found = report.run(what, data, lambda some, what=what: parts(options, trained, some)[what], limit)  # type: ignore[misc]  # bound at once
        if isinstance(found, Statistics) and options.request:
            step: Part = (partial(ntk, trained, sets[rows], 1, found), {"rank": options.rank, "sample": options.sample})
            report.run(f"{STEP} from statistics", sets[rows], lambda _, step=step: step, limit)  # type: ignore[misc]
            del step
        del found


def _is_cell(word: str) -> bool:
    """Whether it is a word of `--cells`, no path."""
    return word.rsplit("/", maxsplit=1)[-1] in NAMES and word.count("/") == 2


def flags() -> Flags:
    parser = Flags(__doc__).out(help="add the lines to this file").device()
    parser.add_argument("--tiny", action="store_true", help="a small ViT and a few rows, to see that it runs")
    parser.add_argument("--network", choices=("transformers", "plain"), default="transformers")
    parser.add_argument("--exactness", choices=tuple(EXACTNESS), default="tf32")
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000], help="how many images")
    parser.add_argument("--batch-size", type=int, default=64, help="of the epoch")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rank", type=int, default=50)
    parser.add_argument("--sample", type=int, default=200, help="images that directions and diagonal are taken from")
    parser.add_argument("--iterations", type=int, default=10, help="products of an NTK step, up to 1,000 images")
    parser.add_argument("--few-iterations", type=int, default=3, help="the same for more images")
    parser.add_argument("--memory-limit", type=float, default=8.0, help="GiB of the second run of every part")
    parser.add_argument("--limit-seconds", type=float, default=340.0, help="after which no further part is begun")
    parser.add_argument("--part-seconds", type=float, default=float(10**6), help="after which a part is cut off")
    parser.add_argument("--request", action="store_true", help="a step from the statistics, too")
    parser.add_argument("--known", type=Path, help="rows of an earlier run, whose parts are not measured again")
    parser.add_argument("--again", action="append", help="parts with this word are measured again, though known")
    parser.add_argument("--only", action="append", help="parts with this word; may be given several times")
    parser.add_argument(
        "--cells", nargs="+", help=f"few or many/free or tight/{', '.join(NAMES)}: these alone, in this order"
    )
    return parser


def main() -> None:
    options = flags().parse_args()
    if options.tiny:
        options.rows, options.rank, options.sample, options.memory_limit = [6, 12], 3, 4, 0.001
    device = device_of(options)
    if device.type == "cpu" and not options.tiny:
        print("No GPU here, so nothing was timed; `--tiny` runs the same code on a few rows.")
        return
    trained = Trained.of(network(options).to(device).eval(), weight_decay=1e-3)
    trained.model.requires_grad_(True)
    with matmul(options.exactness):
        report = Report(options, trained)
        if options.known is not None:
            for line in options.known.read_text(encoding="utf-8").splitlines():
                report.learn(json.loads(line))
        measure(options, trained, report)


if __name__ == "__main__":
    main()
