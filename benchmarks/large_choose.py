"""Where to begin, what to teach and how to step: variants of out-of-fold distillation on full CIFAR-10, one GPU.

    python benchmarks/large_choose.py --data DIR --out results/large-choose.jsonl --model all-cnn --seeds 320 321 322

Networks and requests are those of `benchmarks/large_second.py`, trained in bfloat16 by `benchmarks/folded.py`. A
variant is a loop of its own, so that it may do what the package does not: begin at the fold model that never saw the
request instead of at the network, visit rows of one kind more often than others, or take a step by a kernel solve. A
line for every variant, seed and request. Logits of forgotten and held-out rows under every network are kept in
`--logits`, so that targets can be compared without a GPU.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from math import cos, inf, pi
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.progress import quiet
from spotlessnet.core.split import Split, joined
from spotlessnet.core.targets import WeightedDistillation
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.few import some
from spotlessnet.methods.out_of_fold.class_bias import suppress_class_bias
from spotlessnet.operators.precision import matmul
from spotlessnet.precomputed.fold_models import FoldModels
from spotlessnet.readouts.linear_probe import LinearProbe

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.captured import WARM
from benchmarks.common import Flags, accelerator, device_of, note
from benchmarks.folded import FoldedCaptured
from benchmarks.large import COHORTS, FORGET, begin, requests
from benchmarks.large_second import Bench, Clock, Seed

READ = 2048
JUDGED = 5000
"""Retained rows whose errors are counted."""

SURE = 30.0
"""The logit that makes a label a target."""


@dataclass(frozen=True)
class Variant:
    """How a request is served. Rates are in units of the training's."""

    budget: float
    begin: str = "own"  # or "fold", or "line A": A of the way from the network to the fold model
    targets: str = "in minus out"  # or "out", "none"
    forget_share: float = 0.25  # of all visits
    forget_weight: float = 1.0  # of a visit
    T: float = inf
    T_retain: float = inf
    hold: str = "own"  # retained rows' targets; or "labels", or "both"
    missed: float = 1 / 3  # share of retained visits to rows that the fold model never saw
    lr: float = 0.1
    momentum: float = 0.9
    batch: int = 128
    reuse: int = 1  # visits to a retained row, whose own answer is read once
    clip: float = inf
    spread: float = 1.0  # class: what other classes' logits are multiplied by
    boost: float = 0.0  # class: what retained rows' own label gains
    kernel: int = 0  # so many kernel solves before the visits
    ridge: float = 0.01  # of them, in units of the kernel's mean diagonal

    @property
    def name(self) -> str:
        plain = asdict(Variant(self.budget))
        return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}"
                         for k, v in asdict(self).items() if k == "budget" or v != plain[k])  # fmt: skip


@dataclass(eq=False)
class Steps:
    """Steps of distillation on rows of the trainer, captured once for each batch size."""

    trainer: FoldedCaptured
    table: Tensor = field(init=False)
    graphs: dict[int, tuple[Tensor, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        device, n = self.trainer.w.device, len(self.trainer.y)
        self.table = torch.zeros(n, 12, device=device)
        self.momentum, self.clip = torch.zeros((), device=device), torch.zeros((), device=device)

    def step(self, at: Tensor) -> None:
        t = self.trainer
        t.g.zero_()
        WeightedDistillation()(t.answers(at), self.table[at]).mean().backward()
        with torch.no_grad():
            t.g.mul_((self.clip / t.g.norm().clamp(min=1e-30)).clamp(max=1))
            t.v.mul_(self.momentum).add_(t.g)
            t.w.addcmul_(t.v, t.lr, value=-1)

    def graph(self, size: int) -> tuple[Tensor, Any]:
        if size not in self.graphs:
            at = torch.arange(size, device=self.table.device)
            if self.table.device.type != "cuda":
                return at, lambda: self.step(at)
            torch.backends.cudnn.benchmark = True  # two shapes only
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM):
                    self.step(at)
            torch.cuda.current_stream().wait_stream(side)
            made = torch.cuda.CUDAGraph()
            with torch.cuda.graph(made):
                self.step(at)
            self.graphs[size] = at, made.replay
        return self.graphs[size]

    def run(self, begun: Tensor, visits: Tensor, how: Variant, rate: float) -> Tensor:
        """The weights after all visits, at a rate that falls to zero."""
        t = self.trainer
        with torch.enable_grad():
            at, take = self.graph(how.batch)
            t.w.copy_(begun)
            t.v.zero_()
            self.momentum.fill_(how.momentum)
            self.clip.fill_(how.clip)
            batches = visits[: len(visits) // how.batch * how.batch].reshape(-1, how.batch).to(self.table.device)
            for i, rows in enumerate(batches):
                t.lr.fill_(how.lr * rate * 0.5 * (1 + cos(pi * i / len(batches))))
                at.copy_(rows)
                take()
        return t.w.clone()


def kernel_step(network: Trained, rows: Data, change: Tensor, ridge: float) -> Tensor:
    r"""The weights after the shortest linearised step by which centred logits change so much.

    $$w + J^\top (J J^\top + \rho \bar k I)^{-1} \Delta$$
    """

    def centred(w: Tensor, x: Tensor) -> Tensor:
        z = network.outputs(x.unsqueeze(0), w)[0]
        return z - z.mean()

    x = network.fetch(rows, rows.rows).x
    each = [torch.func.vmap(torch.func.jacrev(centred), in_dims=(None, 0))(network.weights, part)
            for part in x.split(20)]  # fmt: skip
    J = torch.cat(each).flatten(0, 1)
    K = (J @ J.T).double()
    K.diagonal().add_(ridge * K.diagonal().mean())
    alpha = torch.linalg.solve(K, (change - change.mean(dim=1, keepdim=True)).double().flatten())
    return network.weights + J.T @ alpha.to(J)


@dataclass(eq=False)
class Asked:
    """What is known of a request before any step: logits of all rows by the network, of forgotten rows by folds."""

    split: Split
    cohort: str
    own: Tensor  # of all rows
    folds: Tensor  # of forgotten rows, by fold model
    out: int | None  # the fold model that saw none of the request
    missed: Tensor  # for every row, whether that fold model missed it

    @property
    def forget(self) -> Tensor:
        return self.split.forget.rows.to(self.own.device)

    def targets(self, how: Variant) -> Tensor:
        own = self.own[self.forget]
        if self.cohort == "class":
            return spread_out(own, int(self.split.forget.labels()[0]), how.spread)
        assert self.out is not None
        inside = torch.stack([z for k, z in enumerate(self.folds) if k != self.out]).mean(dim=0)
        return {"in minus out": own - inside + self.folds[self.out], "out": self.folds[self.out], "none": own}[
            how.targets
        ]

    def table(self, how: Variant, labels: Tensor) -> Tensor:
        """Targets, temperatures and weights of all rows."""
        held = self.own.clone()
        if self.cohort == "class":
            held = spread_out(held, int(self.split.forget.labels()[0]), 1.0)
        sure = torch.full_like(held[:, :1], {"own": how.boost, "labels": SURE, "both": 2.0}[how.hold])
        held = (0 if how.hold == "labels" else held) + torch.zeros_like(held).scatter(1, labels.unsqueeze(1), sure)
        T, weight = torch.full_like(sure, how.T_retain), torch.ones_like(sure)
        held[self.forget], T[self.forget], weight[self.forget] = self.targets(how), how.T, how.forget_weight
        return torch.cat([held, T, weight], dim=1)

    def visits(self, how: Variant, total: float) -> Tensor:
        """Rows in a random order, as many as the budget pays for; a row that is read and visited costs four."""
        draw = torch.Generator().manual_seed(0)
        reads = 0 if how.hold == "labels" else 1 / how.reuse
        share = how.forget_share if how.targets != "none" else 0.0
        paid = how.budget * total - (len(self.folds) + 1) * min(FORGET, len(self.forget)) - 1024
        count = int(paid / (share * 3 + (1 - share) * (3 + reads)))
        parts = [self.forget.cpu()]
        kept, unseen = self.split.retain.rows, self.missed.cpu()[self.split.retain.rows]
        counts = [share * count]
        for chosen, part in ((unseen, how.missed), (~unseen, 1 - how.missed)):
            pool = kept[chosen]
            most = int(part * (count - counts[0]) / how.reuse) + 1
            parts.append(pool[torch.randperm(len(pool), generator=draw)[:most]])
            counts.append(part * (count - counts[0]))
        each = [cycled(rows, int(c), draw) for rows, c in zip(parts, counts, strict=True) if int(c)]
        every = torch.cat(each)
        return every[torch.randperm(len(every), generator=draw)]


def cycled(rows: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """All rows in a random order, again and again."""
    rounds = -(-count // len(rows))
    return torch.cat([rows[torch.randperm(len(rows), generator=draw)] for _ in range(rounds)])[:count]


def spread_out(z: Tensor, label: int, by: float) -> Tensor:
    """Logits with a class as unlikely as the least likely other, the others moved apart about their mean."""
    others = torch.arange(z.shape[1], device=z.device) != label
    mean = z[:, others].mean(dim=1, keepdim=True)
    z = mean + by * (z - mean)
    return torch.where(others, z, z[:, others].amin(dim=1, keepdim=True))


KERNELS = ((1, 0.01, 0.0), (1, 0.1, 0.0), (2, 0.1, 0.0), (1, 0.1, 0.1), (2, 0.1, 0.1))
"""Solves, ridge and the rate of what follows; zero for nothing."""


def variants(cohort: str, quick: bool) -> list[Variant]:
    """For *some* at 1 %, the others at 5 %."""
    if cohort == "class":
        plain = Variant(0.05, T=1.0, T_retain=1.0, forget_share=0.1, lr=0.3, momentum=0.8, boost=1.0)
        square = Variant(0.05, forget_share=0.25)
        tried = [plain, replace(plain, forget_share=0.25), replace(plain, forget_share=0.25, lr=1.0),
                 *(replace(square, T_retain=T, spread=s, lr=lr, boost=b) for T, b in ((inf, 0.0), (1.0, 1.0))
                   for s in (1.0, 1.5, 2.0) for lr in (0.1, 0.3))]  # fmt: skip
    elif cohort == "some":
        plain = Variant(0.01)
        tried = [replace(plain, forget_share=f, T_retain=T, lr=lr)
                 for f in (0.1, 0.3, 0.5) for T in (inf, 1.0, 3.0) for lr in (0.03, 0.1, 0.3)]  # fmt: skip
        tried += [replace(plain, batch=b, momentum=m, lr=lr) for b in (64,) for m in (0.8, 0.9) for lr in (0.03, 0.1)]
        tried += [replace(plain, clip=c, lr=lr) for c in (3.0, 10.0) for lr in (0.3, 1.0)]
        tried += [replace(plain, reuse=4, T_retain=T) for T in (inf, 3.0)]
        tried += [replace(plain, T=T, T_retain=T, lr=lr) for T in (3.0, 10.0) for lr in (0.1, 0.3, 1.0)]
        tried += [replace(plain, targets="out"), replace(plain, begin="line 0.5"), replace(plain, begin="line 0.25")]
        fold = Variant(0.05, begin="fold", targets="none", lr=1.0, T_retain=3.0, missed=0.8)
        tried += [fold, replace(fold, budget=0.01), replace(plain, budget=0.05)]
        tried += [replace(plain, kernel=k, ridge=r, lr=lr) for k, r, lr in KERNELS]
    else:
        plain, fold = Variant(0.05), Variant(0.05, begin="fold", targets="none", lr=1.0)
        tried = [replace(plain, forget_share=f, T_retain=T, lr=lr, clip=10.0)
                 for f in (0.1, 0.3) for T in (inf, 1.0, 3.0) for lr in (0.1, 0.3)]  # fmt: skip
        tried += [replace(fold, T_retain=T, lr=lr, missed=m, hold="own", clip=10.0)
                  for T in (inf, 1.0, 3.0) for lr in (0.3, 1.0) for m in (0.5, 0.8)]  # fmt: skip
        tried += [replace(fold, hold=h, T_retain=1.0, lr=lr, missed=m)
                  for h in ("labels", "both") for lr in (0.3, 1.0) for m in (0.5, 0.8)]  # fmt: skip
        tried += [replace(fold, reuse=3, T_retain=3.0, missed=0.8), replace(fold, batch=64, T_retain=3.0, missed=0.8)]
        tried += [replace(fold, begin=f"line {a}", T_retain=3.0, missed=0.5) for a in (0.5, 0.75, 1.25)]
        tried += [replace(fold, targets="in minus out", forget_share=0.1, T_retain=3.0, missed=0.8)]
        tried += [replace(fold, budget=0.01, T_retain=T, missed=0.9) for T in (3.0, inf)]
        tried += [replace(plain, kernel=k, ridge=r, lr=lr) for k, r, lr in KERNELS]
    return tried[::8] + tried[-2:-1] if quick else tried


@dataclass(eq=False)
class Choosing(Bench):
    """Every variant of every request."""

    def __post_init__(self) -> None:
        assert isinstance(self.captured, FoldedCaptured)
        self.steps = Steps(self.captured)

    def cohort(self, ready: Seed, cohort: str) -> None:
        _, retrained = self.trained(ready.start, cohort, ready.seed)
        split = self.splits[cohort]
        asked = ask(ready.original, ready.folds, split, cohort, ready.folds.part[0, self.keys[1]])
        seen = {"original": ready.original, "retrained": retrained}
        if cohort in self.floors:
            seen["floor"] = self.floors[cohort]
        self.floors[cohort] = retrained
        forget = some(split.forget, FORGET)
        known = {name: network.predict(forget, READ) for name, network in seen.items()}
        first, last = (float(margin(known[k], forget).mean()) for k in ("original", "retrained"))
        self.keep_logits(ready, asked, retrained)
        for name, network in [*seen.items(), *lines(asked, ready)]:
            self.write(ready, cohort, name, self.look(network, split, known["retrained"], first, last), 0.0)
        for how in variants(cohort, self.options.quick):
            if not self.clock.allows(self.options.keep_back):
                break
            began = time.perf_counter()
            try:  # a variant that breaks is a result too, and others go on
                network = self.served(ready, asked, how)
                took = time.perf_counter() - began
                found = self.look(network, split, known["retrained"], first, last)
            except (RuntimeError, ValueError, SpotlessError) as error:
                print(f"{cohort}, {how.name}: {error}", flush=True)
                continue
            self.write(ready, cohort, how.name, found, took)

    def served(self, ready: Seed, asked: Asked, how: Variant) -> Trained:
        """The network after the request."""
        recipe = ready.original.recipe
        assert recipe is not None
        whole = asked.split.whole
        begun = starts(asked, ready, how.begin)
        if asked.cohort == "class":
            label = torch.arange(10) == int(asked.split.forget.labels()[0])
            begun = suppress_class_bias(ready.original, label, asked.split.forget)
        for _ in range(how.kernel):
            held = some(asked.split.retain, FORGET)
            goal = torch.cat([asked.targets(how), asked.own[held.rows.to(begun.device)]])
            there, rows = ready.original.at(begun), joined(asked.split.forget, held)
            begun = kernel_step(there, rows, goal - there.predict(rows, READ), how.ridge)
        self.steps.table.copy_(asked.table(how, whole.labels().to(begun.device).long()))
        visits = asked.visits(how, 3.0 * recipe.epochs * len(whole) * self.options.times)
        return ready.original.at(self.steps.run(begun, visits, how, recipe.lr))

    def look(self, network: Trained, split: Split, retrained: Tensor, first: float, last: float) -> dict[str, Any]:
        """Margins of forgotten rows beside the retrained network's, losses, errors, and the probe for a class."""
        forget = some(split.forget, FORGET)
        z, y = network.predict(forget, READ), forget.labels().to(network.device).long()
        mine, theirs = margin(z, forget), margin(retrained, forget)
        found: dict[str, Any] = {
            "margin": float(mine.mean()),
            "share": (first - float(mine.mean())) / (first - last),
            "off": float((mine - theirs).square().mean().sqrt()),
            "loss": float(torch.nn.functional.cross_entropy(z, y)),
        }
        for name, data in (("retain", some(split.retain, JUDGED)), ("test", split.test)):
            assert data is not None
            wrong = network.predict(data, READ).argmax(dim=1).cpu() != data.labels().cpu()
            found[name] = 100 * float(wrong.double().mean())
        if len(split.forget) > 10 * FORGET:
            found["probe"] = float(LinearProbe()(network, replace(split, kept=some(split.retain, JUDGED))))
        return found | {"margins": [round(float(v), 2) for v in mine]}

    def write(self, ready: Seed, cohort: str, name: str, found: dict[str, Any], took: float) -> None:
        row = {"model": self.options.model, "request": cohort, "seed": ready.seed, "variant": name, "seconds": took}
        with self.options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | found | {"note": f"{note('large_choose')}; {accelerator(ready.start.device)}"}))
            file.write("\n")
        said = ", ".join(f"{k} {v:.3g}" for k, v in found.items() if k != "margins")
        print(f"{self.options.model}, {cohort}, {ready.seed}, {took:.2f} s, {name}: {said}", flush=True)

    def keep_logits(self, ready: Seed, asked: Asked, retrained: Trained) -> None:
        """Of some forgotten and held-out rows under the network, the fold models and the retrained network."""
        assert asked.split.validation is not None
        rows = {"forget": some(asked.split.forget, FORGET), "held": some(asked.split.validation, 1000)}
        networks = [ready.original, retrained, *folds_of(ready)]
        kept = {name: torch.stack([n.predict(d, READ) for n in networks]).cpu().half() for name, d in rows.items()}
        labels = {f"{name} labels": data.labels().cpu() for name, data in rows.items()}
        made = kept | labels | {"out": asked.out}
        torch.save(made, self.options.out.with_name(f"logits-{self.options.model}-{asked.cohort}-{ready.seed}.pt"))


def folds_of(ready: Seed) -> list[Trained]:
    """The fold models."""
    return [ready.folds.fold(ready.original, k) for k in range(len(ready.folds.weights))]


def lines(asked: Asked, ready: Seed) -> Iterator[tuple[str, Trained]]:
    """Networks between the network and the fold model that saw nothing of the request, and a difference of weights."""
    if asked.out is None:
        return
    for a in (0.25, 0.5, 0.75, 1.0):
        yield f"line {a}, no step", ready.original.at(starts(asked, ready, f"line {a}"))
    inside = torch.stack([w for k, w in enumerate(ready.folds.weights) if k != asked.out]).mean(dim=0)
    yield "weights in minus out", ready.original.at(ready.original.weights - inside + ready.folds.weights[asked.out])


def starts(asked: Asked, ready: Seed, where: str) -> Tensor:
    """The weights where a variant begins."""
    if where == "own" or asked.out is None:
        return ready.original.weights
    a = 1.0 if where == "fold" else float(where.removeprefix("line "))
    return torch.lerp(ready.original.weights, ready.folds.weights[asked.out].to(ready.original.weights), a)


def margin(z: Tensor, data: Data) -> Tensor:
    """Of the label, over the largest other."""
    y = data.labels().to(z.device).long().unsqueeze(1)
    return (z.gather(1, y) - z.scatter(1, y, -inf).amax(dim=1, keepdim=True)).squeeze(1)


def ask(original: Trained, folds: FoldModels, split: Split, cohort: str, part: Tensor) -> Asked:
    """Read what is needed for all variants."""
    own = original.predict(split.whole, READ)
    said = torch.stack([folds.fold(original, k).predict(split.forget, READ) for k in range(len(folds.weights))])
    mine = part[split.forget.rows.cpu()].unique()
    out = int(mine) if len(mine) == 1 else None
    missed = part == (-1 if out is None else out)
    return Asked(split, cohort, own, said, out, missed if out is not None else torch.rand(len(part)) < 1 / 3)


def run(options: argparse.Namespace) -> None:
    """All seeds, each with all requests."""
    clock, device = Clock(options.stop), device_of(options)
    splits = requests(options, device)
    with matmul("tf32"), quiet():
        trainer = FoldedCaptured(begin(options, 0, device), splits["some"].whole)
        bench = Choosing(options, splits, trainer, clock)
        for i, seed in enumerate(options.seeds):
            if not clock.allows(4 + options.keep_back):
                break
            ready = bench.prepared(seed)
            for cohort in options.cohorts:
                if clock.allows(1.3 + options.keep_back) and (cohort != "class" or not i):
                    bench.cohort(ready, cohort)
    print(f"done, {clock.left:.0f} s left", flush=True)


def main() -> None:
    parser = Flags(__doc__).data("folder with images and weights").out(required=True).seeds((320, 321)).device()
    parser.add_argument("--model", choices=("all-cnn", "resnet"), default="all-cnn")
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--cohorts", nargs="+", choices=COHORTS, default=["wrong", "some", "class"])
    parser.add_argument("--label", type=int, default=3)
    parser.add_argument("--forget", type=int, default=FORGET)
    parser.add_argument("--rows", type=int, help="the most training rows, for a rehearsal")
    parser.add_argument("--times", type=float, default=1.0, help="budgets multiplied by this, for a rehearsal")
    parser.add_argument("--quick", action="store_true", help="every eighth variant")
    parser.add_argument("--keep-back", type=float, default=0.2, help="in trainings, before the end")
    parser.add_argument("--stop", type=float, default=inf, help="seconds")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
