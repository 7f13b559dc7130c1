"""Choosing on validation rows: core recipes, views, targets, weights of core rows, ridges. No test image takes part.

    python benchmarks/forgettable_choose.py --data folder --out choose.jsonl --core 0.1 --recipe mixup --name A

5,000 training rows of seed 100 are held out and scored; core rows are a share of the other 45,000.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, device_of

from benchmarks import forgettable_cifar as cifar

STRONG = {"optimizer": "adamw", "lr": 4e-4, "weight_decay": 0.05, "strength": "strong", "mixup": 0.2, "ema": 0.998}
RECIPES: dict[str, dict[str, Any]] = {
    "mixup": STRONG,
    "cutmix": {**STRONG, "cutmix": 0.5},
    "slow": {**STRONG, "cutmix": 0.3, "lr": 2.5e-4, "ema": 0.999},
}
SKETCHES = {
    "m4": {"skip": 14, "rank_in": 40, "rank_out": 8, "m": 4, "power": 0.0},
    "m9": {"skip": 14, "rank_in": 33, "rank_out": 4, "m": 9, "power": 0.0},
    "pooled": {"skip": 32, "rank_in": 1, "rank_out": 1, "m": 1, "power": 0.0},
}


def gram(q: Tensor, weights: Tensor | None = None) -> Tensor:
    out = torch.zeros(q.shape[1], q.shape[1], dtype=torch.float64, device=q.device)
    for i in range(0, len(q), 4096):
        part = q[i : i + 4096].double()
        scaled = part if weights is None else part * weights[i : i + 4096, None]
        out.addmm_(scaled.T, part)
    return out


def times(q: Tensor, t: Tensor) -> Tensor:
    out = torch.zeros(q.shape[1], t.shape[1], dtype=torch.float64, device=q.device)
    for i in range(0, len(q), 4096):
        out.addmm_(q[i : i + 4096].double().T, t[i : i + 4096].double())
    return out


def answer(q: Tensor, W: Tensor) -> Tensor:
    return torch.cat([part.double() @ W for part in q.split(4096)])


class Problem:
    """Codes of core, user and validation rows, and what the core model alone says about them."""

    def __init__(self, q: Tensor, y: Tensor, logits: Tensor, parts: tuple[Tensor, Tensor, Tensor], say: Any) -> None:
        self.core, self.user, self.val = parts
        self.q, self.y, self.logits, self.say = q, y, logits.double(), say
        self.hot = nn.functional.one_hot(y, 10).double()

    def wrong(self, scores: Tensor) -> float:
        return round(100 * cifar.error(scores, self.y[self.val]), 2)

    def tried(self, name: str, ridges: tuple[float, ...], core_weights: tuple[float, ...]) -> dict[str, Tensor]:
        """Squared error on the classes, and on what the core model leaves over, at several temperatures."""
        q_core, q_user, q_val = self.q[self.core], self.q[self.user], self.q[self.val]
        G_core, G_user = gram(q_core), gram(q_user)
        soft = {T: (self.logits / T).softmax(1) for T in (0.5, 1.0)}
        goals = {"class": self.hot, **{f"rest{T}": self.hot - p for T, p in soft.items()}}
        cross = {k: (times(q_core, t[self.core]), times(q_user, t[self.user])) for k, t in goals.items()}
        kept: dict[str, tuple[float, Tensor]] = {}
        for weight in core_weights:
            G = G_user + weight * G_core
            mean, errors = float(G.diagonal().mean()), {k: {} for k in goals}
            for ridge in ridges:
                A = G.clone()
                A.diagonal().add_(ridge * mean)
                L = torch.linalg.cholesky(A)
                W = torch.cholesky_solve(torch.cat([u + weight * c for c, u in cross.values()], 1), L)
                for kind, out in zip(goals, answer(q_val, W).split(10, 1), strict=True):
                    scores = out if kind == "class" else out + soft[float(kind[4:])][self.val]
                    errors[kind][ridge] = self.wrong(scores)
                    if kind not in kept or errors[kind][ridge] < kept[kind][0]:
                        kept[kind] = (errors[kind][ridge], scores.float().cpu())
            self.say(features=name, d=len(G), core_weight=weight, errors=errors)
        return {k: v for k, (_, v) in kept.items()}

    def newton(self, name: str, ridges: tuple[float, ...], core_weight: float) -> Tensor:
        """One Newton step of the cross-entropy at the core model, with one curvature per row."""
        p = self.logits.softmax(1)
        curve = (p * (1 - p)).sum(1) / 2
        best = (100.0, p)
        for floor in (0.02, 0.1):
            w = curve.clamp(min=floor)
            G = gram(self.q[self.user], w[self.user]) + core_weight * gram(self.q[self.core], w[self.core])
            rest = self.hot - p
            C = times(self.q[self.user], rest[self.user]) + core_weight * times(self.q[self.core], rest[self.core])
            mean, errors = float(G.diagonal().mean()), {}
            for ridge in ridges:
                A = G.clone()
                A.diagonal().add_(ridge * mean)
                scores = self.logits[self.val] + answer(
                    self.q[self.val], torch.cholesky_solve(C, torch.linalg.cholesky(A))
                )
                errors[ridge] = self.wrong(scores)
                best = min(best, (errors[ridge], scores.softmax(1)), key=lambda pair: pair[0])
            self.say(features=name, targets="newton", floor=floor, core_weight=core_weight, errors=errors)
        return best[1].float().cpu()


def view_sets(problem: Problem, by_zoom: dict[float, Tensor], sets: list[str]) -> None:
    """Errors where features are averaged over each of these sets of enlargements and their mirror images."""
    for chosen in sets:
        codes = [by_zoom[float(zoom)] for zoom in chosen.split(",")]
        mean = codes[0].clone()
        for i in range(0, len(mean), 4096):
            total = sum(one[i : i + 4096].float() for one in codes)
            mean[i : i + 4096] = (total / len(codes)).round().to(mean.dtype)
        whole = Problem(mean, problem.y, problem.logits, (problem.core, problem.user, problem.val), problem.say)
        whole.tried(f"tangent, enlarged by {chosen}", (0.03, 0.1, 0.3), (1.0,))


def flags() -> Flags:
    parser = Flags(__doc__).data("the folder with cifar10.pt", required=True).out(required=True).device()
    parser.add_argument("--name", required=True)
    parser.add_argument("--core", type=float, default=0.1)
    parser.add_argument("--recipe", default="mixup", choices=RECIPES)
    parser.add_argument("--epochs", type=int, default=70)
    parser.add_argument("--seed", type=int, default=100, help="of the training; rows are split with seed 100")
    parser.add_argument("--pixels", type=int, default=128)
    parser.add_argument("--sketch", default="m4", choices=SKETCHES)
    parser.add_argument("--zoom", type=float, default=0.0, help="a second view of every image, enlarged by so much")
    parser.add_argument(
        "--view-sets", nargs="+", help="compare these sets of enlargements, as 0,0.15, and nothing else"
    )
    parser.add_argument("--newton", action="store_true")
    parser.add_argument("--tiny", type=int, default=0)
    return parser


def main() -> None:
    args = flags().parse_args()
    device = device_of(args)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    began = time.time()
    x, y, _, _ = cifar.load(args.data, device)
    if args.tiny:
        x, y = x[: args.tiny], y[: args.tiny]
    settings = {k: getattr(args, k) for k in ("name", "core", "recipe", "epochs", "seed", "pixels", "sketch")}

    def say(**row: Any) -> None:
        line = json.dumps({**settings, **row, "at": round(time.time() - began, 1)})
        print(line, flush=True)
        with args.out.open("a") as out:
            out.write(line + "\n")

    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(100)).to(device)
    held = len(x) // 10
    val, rest = order[:held], order[held:]
    core, user = rest[: int(args.core * len(rest))], rest[int(args.core * len(rest)) :]
    how = cifar.recipe(args.pixels, **RECIPES[args.recipe], epochs=args.epochs, graph=True)
    clock = time.time()
    network = cifar.train(x, y, core, how, args.pixels, args.seed)
    took = time.time() - clock
    logits = cifar.answers(network, x, True) / 2
    problem_parts = (core, user, val)
    wrong = 100 * cifar.error(logits[val], y[val])
    say(what="core model", seconds=took, error=wrong, error_core=100 * cifar.error(logits[core], y[core]))
    clock = time.time()
    sketch = SKETCHES[args.sketch] if not args.tiny else {"skip": 31, "rank_in": 4, "rank_out": 2, "m": 2, "power": 0.0}
    made = cifar.sketch_of(network, x, core, seed=args.seed, **sketch)
    q, point = cifar.codes(made, x, core, args.pixels)
    say(what="features", seconds=time.time() - clock)
    if args.view_sets:
        by_zoom = {0.0: q}
        for zoom in sorted({float(one) for names in args.view_sets for one in names.split(",")} - {0.0}):
            clock = time.time()
            by_zoom[zoom] = torch.full_like(q, int(q[0, -1]))
            cifar.encoded(made, point, x, args.pixels, by_zoom[zoom], zooms=(zoom,))
            say(what="features", zoom=zoom, seconds=time.time() - clock)
        view_sets(Problem(q, y, logits, (core, user, val), say), by_zoom, args.view_sets)
        return
    pooled = torch.cat([torch.arange(1280), torch.tensor([q.shape[1] - 1])]).to(device)
    ridges = (0.03, 0.1, 0.3, 1.0)
    kept = {"logits": logits[val].float().cpu(), "y": y[val].cpu()}
    small = Problem(q[:, pooled].contiguous(), y, logits, problem_parts, say)
    kept |= {f"pooled {k}": v for k, v in small.tried("pooled", (0.003, *ridges), (1.0, 0.3, 0.0)).items()}
    if args.newton:
        kept["pooled newton"] = small.newton("pooled", (0.003, *ridges), 0.3)
    if args.sketch != "pooled":
        big = Problem(q, y, logits, problem_parts, say)
        kept |= big.tried("tangent", ridges, (1.0, 0.3, 0.0))
        torch.save(kept, args.out.with_suffix(f".{args.name}.pt"))
        if args.newton:
            kept["newton"] = big.newton("tangent", ridges, 0.3)
        del big
    torch.save(kept, args.out.with_suffix(f".{args.name}.pt"))
    if args.zoom:
        clock = time.time()
        second = torch.full_like(q, int(q[0, -1]))
        cifar.encoded(made, point, x, args.pixels, second, zooms=(args.zoom,))
        say(what="features of the second view", seconds=time.time() - clock)
        for i in range(0, len(q), 4096):
            q[i : i + 4096] = ((q[i : i + 4096].float() + second[i : i + 4096].float()) / 2).round().to(q.dtype)
        del second
        big = Problem(q, y, logits, problem_parts, say)
        kept |= {f"zoom {k}": v for k, v in big.tried("tangent, two views", ridges, (1.0, 0.3)).items()}
    torch.save(kept, args.out.with_suffix(f".{args.name}.pt"))


if __name__ == "__main__":
    main()
