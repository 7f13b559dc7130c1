"""Forgettable by design on full CIFAR-10: accuracy, requests, SISA and attacks, beside ordinary fine-tuning.

    python benchmarks/forgettable.py --data folder --out results/forgettable-cifar.jsonl --seeds 0 1 2

`folder` holds `cifar10.pt` with `x`, `y`, `x_test`, `y_test` (bytes `[N, 3, 32, 32]`, class numbers). Settings were
chosen on 5,000 held-out training images of seed 100; the test images are only scored. One GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from spotlessnet.forgettable.certificate import refine
from spotlessnet.forgettable.encoder import Encoder
from spotlessnet.forgettable.examples import Examples
from spotlessnet.forgettable.fixed_point import FixedPoint
from spotlessnet.forgettable.inverse import cholesky, inverse, solve, update_
from spotlessnet.forgettable.model import ForgettableModel
from spotlessnet.forgettable.moments import Moments
from spotlessnet.forgettable.ridge import as_ridge, leave_one_out
from spotlessnet.readouts.attack import attack_over_models
from spotlessnet.readouts.klom import klom
from spotlessnet.readouts.lira import held_out_scores

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, device_of

from benchmarks import forgettable_cifar as cifar

PIXELS = 128
TUNE = {"epochs": 12, "label_smoothing": 0.0, "graph": True}
CORE = {
    "optimizer": "adamw", "lr": 2.5e-4, "weight_decay": 0.05, "strength": "strong", "mixup": 0.2, "cutmix": 0.3,
    "ema": 0.999,
}  # fmt: skip
EPOCHS = {0.1: 50, 0.25: 21}
"""As many as leave the one-off below one fine-tuning; on validation images 50 and 75 epochs erred alike at 10 %."""
ZOOMS = {0.1: (0.0, 0.15, 0.3), 0.25: (0.0, 0.15, 0.3)}
"""Features are averaged over these enlargements and their mirror images."""
RIDGE = {0.1: 0.1, 0.25: 0.1}
"""Shares of the mean diagonal, chosen on the validation part."""
RIDGES = (0.03, 0.1, 0.3, 1.0)


class Run:
    """One process: data on the device, rows of results as they come."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.began = time.time()
        self.device = device_of(args).type
        self.x, self.y, self.x_test, self.y_test = cifar.load(args.data, self.device)
        if args.tiny:
            self.x, self.y = self.x[: args.tiny], self.y[: args.tiny]
            self.x_test, self.y_test = self.x_test[:40], self.y_test[:40]
        self.out = args.out.open("a")
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    def say(self, **row: Any) -> None:
        line = json.dumps({**row, "at": round(time.time() - self.began, 1)})
        print(line, flush=True)
        self.out.write(line + "\n")
        self.out.flush()

    def clock(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def late(self) -> bool:
        return time.time() - self.began > self.args.stop

    def how(self, **changes: Any) -> Any:
        return cifar.recipe(self.args.pixels, **{**changes, **({"epochs": 1} if self.args.tiny else {})})

    def sketch(self) -> dict[str, Any]:
        return {**cifar.SKETCH, **({"skip": 31, "rank_in": 4, "rank_out": 2} if self.args.tiny else {})}

    def train(self, rows: Tensor, seed: int, **changes: Any) -> tuple[nn.Module, float]:
        began = self.clock()
        network = cifar.train(self.x, self.y, rows, self.how(**changes), self.args.pixels, seed)
        return network, self.clock() - began

    def tested(self, scores: Tensor) -> float:
        return 100 * cifar.error(scores, self.y_test)


def tune(run: Run, seed: int) -> None:
    network, seconds = run.train(torch.arange(len(run.x)), seed, **TUNE)
    plain, both = (run.tested(cifar.answers(network, run.x_test, flip)) for flip in (False, True))
    views = {share: run.tested(cifar.answers(network, run.x_test, True, zooms=zooms)) for share, zooms in ZOOMS.items()}
    run.say(what="fine-tuning", seed=seed, seconds=seconds, error=plain, error_mirrored=both, error_views=views, **TUNE)


def sisa(run: Run, seed: int, shards: int) -> None:
    order = torch.randperm(len(run.x), generator=torch.Generator().manual_seed(seed))
    total, seconds = torch.zeros(len(run.x_test), 10, device=run.device), []
    plain = torch.zeros_like(total)
    for i, rows in enumerate(order.tensor_split(shards)):
        network, took = run.train(rows, 1000 * seed + i, **TUNE)
        total += cifar.answers(network, run.x_test, True).softmax(dim=1)
        plain += cifar.answers(network, run.x_test, False).softmax(dim=1)
        seconds.append(took)
        if run.late():
            run.say(what="stopped", part="sisa", seed=seed, shards=shards, trained=i + 1)
            return
    run.say(
        what="SISA", seed=seed, shards=shards, seconds=sum(seconds), seconds_per_shard=sum(seconds) / shards,
        error=run.tested(plain), error_mirrored=run.tested(total), epochs=TUNE["epochs"],
    )  # fmt: skip


def encoder_stub() -> Encoder:
    return Encoder(nn.Identity(), FixedPoint(torch.ones(1)), 10)


def fitted(q: Tensor, y: Tensor, user: Tensor, share: float) -> ForgettableModel:
    """A model of all rows, in which those of users are examples that can go; ids are row numbers."""
    targets = nn.functional.one_hot(y, 10).to(torch.int16)
    moments = Moments.zero(q.shape[1], 10, q.device)
    moments.add(q, targets)
    ones = torch.ones(len(user), dtype=torch.long)
    examples = Examples(targets[user][:, None], y[user].cpu(), ones, user.tolist(), q[user][:, None])
    ridge = as_ridge(share, float(moments.gram.diagonal().mean()))
    P = inverse(moments.gram, ridge)
    model = ForgettableModel(encoder_stub(), moments, ridge, examples, P, P @ moments.cross)
    model._settle("fit", time.perf_counter(), len(y), refactored=True)
    return model


def choose(q: Tensor, y: Tensor, user: Tensor) -> dict[float, float]:
    """Leave-one-out errors of a quarter of the user rows, per ridge: the test images take no part."""
    moments = Moments.zero(q.shape[1], 10, q.device)
    targets = nn.functional.one_hot(y, 10)
    moments.add(q, targets)
    mean, errors, some = float(moments.gram.diagonal().mean()), {}, user[::4]
    for share in RIDGES:
        L = cholesky(moments.gram, as_ridge(share, mean))
        W = solve(L, moments.cross)
        away = leave_one_out(L, W, q[some], targets[some])
        errors[share] = 100 * cifar.error(away, y[some])
    return errors


def scores(q: Tensor, W: Tensor) -> Tensor:
    return torch.cat([part.double() @ W for part in q.split(2000)])


def cores(run: Run, seed: int, share: float) -> None:
    order = torch.randperm(len(run.x), generator=torch.Generator().manual_seed(seed)).to(run.device)
    core, user = order[: int(share * len(order))], order[int(share * len(order)) :]
    epochs = run.args.core_epochs or EPOCHS[share]
    network, took = run.train(core, seed, epochs=epochs, graph=True, **CORE)
    zooms = tuple(run.args.zooms or ZOOMS[share])
    alone = run.tested(cifar.answers(network, run.x_test, True, zooms=zooms))
    began = run.clock()
    made = cifar.sketch_of(network, run.x, core, seed=seed, **run.sketch())
    q, point = cifar.codes(made, run.x, core, run.args.pixels, zooms=zooms)
    featured = run.clock() - began
    test = torch.full((len(run.x_test), q.shape[1]), q[0, -1].item(), dtype=torch.int16, device=q.device)
    cifar.encoded(made, point, run.x_test, run.args.pixels, test, zooms=zooms)
    ridge, loo = RIDGE[share], choose(q, run.y, user) if run.args.loo else {}
    pooled = torch.cat([torch.arange(1280), torch.tensor([q.shape[1] - 1])]).to(q.device)
    small = fitted(q[:, pooled].contiguous(), run.y, user, 0.003)
    began = run.clock()
    model = fitted(q, run.y, user, ridge)
    solved = run.clock() - began
    run.say(
        what="forgettable", seed=seed, core=share, error=run.tested(scores(test, model.weights)),
        error_pooled=run.tested(scores(test[:, pooled], small.weights)), error_core_alone=alone, features=q.shape[1],
        ridge=ridge, loo=loo, seconds_core=took, seconds_features=featured, seconds_fit=solved,
        epochs=epochs, zooms=zooms, certificate=model.certificate.relative,
    )  # fmt: skip
    del small, test
    requests(run, seed, share, model, q, user, core)
    first = share == 0.1 and seed == run.args.seeds[0]
    if "sequence" in run.args.parts and first:
        sequence(run, seed, share, model, q, user, core)
    del model
    if "attack" in run.args.parts and first:
        attack(run, seed, q, core, user, ridge)


def requests(run: Run, seed: int, share: float, model: ForgettableModel, q: Tensor, user: Tensor, core: Tensor) -> None:
    """Requests of several sizes, each compared with solving anew and then undone by adding the rows again."""
    for size, times in ((1, 5), (100, 5), (1000, 2), (0, 1)) if run.args.all else ((100, 3), (0, 1)):
        took, rest = [], {}
        for i in range(times):
            gone = user[run.y[user] == 3] if size == 0 else user[i * size : (i + 1) * size]
            if not len(gone):
                continue
            rows = gone.cpu().tolist()
            kept = q[gone].clone()
            began = run.clock()
            request = model.forget(rows)
            took.append(run.clock() - began)
            if i == 0:
                rest = anew(run, model, q[core], run.y[core], request.moved)
                rest |= {"bound": request.certificate.bound, "moved": request.moved, "refactored": request.refactored}
            put_back(run, model, kept, gone)
        if took:
            run.say(what="request", seed=seed, core=share, examples=len(gone), seconds=sorted(took)[len(took) // 2],
                    all_seconds=took, **rest)  # fmt: skip


def put_back(run: Run, model: ForgettableModel, codes: Tensor, rows: Tensor) -> None:
    """Add rows whose features are at hand."""
    y, ones = run.y[rows], torch.ones(len(rows), dtype=torch.long)
    targets = nn.functional.one_hot(y, 10).to(torch.int16)[:, None]
    model._change(
        "add", time.perf_counter(), codes[:, None], targets, ones, 1,
        lambda: model.examples.append(codes[:, None], targets, y, ones, rows.tolist()),
    )  # fmt: skip


def sequence(run: Run, seed: int, share: float, model: ForgettableModel, q: Tensor, user: Tensor, core: Tensor) -> None:
    """Requests of mixed sizes in a row, forgetting and adding; the state at the end against solving anew."""
    draw = torch.Generator().manual_seed(seed + 3)
    inside, outside, took = user.tolist(), [], []
    first = model.weights.clone()
    for _ in range(run.args.length):
        size = int(torch.randint(1, 101, (), generator=draw))
        adding = len(outside) > size and (len(inside) < 200 or bool(torch.rand((), generator=draw) < 0.4))
        source, goal = (outside, inside) if adding else (inside, outside)
        picked = {int(i) for i in torch.randperm(len(source), generator=draw)[:size]}
        rows = [source[i] for i in picked]
        source[:] = [row for i, row in enumerate(source) if i not in picked]
        goal += rows
        began = run.clock()
        if adding:
            there = torch.tensor(rows, device=run.device)
            put_back(run, model, q[there].clone(), there)
        else:
            model.forget(rows)
        took.append(run.clock() - began)
    quarter = max(1, len(took) // 4)
    rest = anew(run, model, q[core], run.y[core], float((model.weights - first).norm()))
    run.say(
        what="sequence", seed=seed, core=share, requests=len(took),
        refactored=sum(r.refactored for r in model.requests[-len(took):]),
        seconds_first_quarter=median(took[:quarter]), seconds_last_quarter=median(took[-quarter:]),
        seconds_longest=max(took), left=len(model), bound=model.certificate.bound, **rest,
    )  # fmt: skip


def anew(run: Run, model: ForgettableModel, q_core: Tensor, y_core: Tensor, moved: float) -> dict[str, Any]:
    """The same problem from its rows, and how far the model is from it."""
    live, kept = model.examples.all(), model.examples
    assert kept.codes is not None
    moments = Moments.zero(model.moments.gram.shape[0], 10, run.device)
    moments.add(q_core, nn.functional.one_hot(y_core, 10))
    for part in live.split(4096):
        here = part.to(run.device)
        moments.add(kept.codes[here, 0], nn.functional.one_hot(kept.labels[part], 10).to(run.device))
    began = run.clock()
    P = inverse(moments.gram, model.ridge)
    found = refine(moments, model.ridge, P, P @ moments.cross)
    gap = float((found.weights - model.weights).norm())
    return {
        "moments_equal": bool(torch.equal(moments.gram, model.moments.gram)),
        "weights_equal": bool(torch.equal(found.weights, model.weights)),
        "weights_equal_float32": bool(torch.equal(found.weights.float(), model.weights.float())),
        "distance_to_anew": gap,
        "distance_over_moved": gap / moved,
        "inverse_gap": float((P - model.inverse).norm() / P.norm()),
        "seconds_inverse_and_solve": run.clock() - began,
    }


def attack(run: Run, seed: int, q: Tensor, core: Tensor, user: Tensor, ridge: float) -> None:
    """Margins of 200 targets, half of them mislabelled, under models that held, forgot or never held them.

    Shadows come in pairs, the second of which holds the targets that the first does not; so every target is inside
    half of them. Each shadow has a random half of the other user rows. Part of the features leaves time for 64.
    """
    draw = torch.Generator().manual_seed(seed + 7)
    some = user[torch.randperm(len(user), generator=draw)[: min(200, len(user) // 2)].to(user.device)]
    y = run.y.clone()
    wrong = some[: len(some) // 2]
    y[wrong] = (y[wrong] + 1 + torch.randint(0, 9, (len(wrong),), generator=draw).to(y.device)) % 10
    others = user[~torch.isin(user, some)]
    targets = nn.functional.one_hot(y, 10)
    step = max(1, (q.shape[1] - 1281) // 4720)
    columns = torch.cat([torch.arange(1280), torch.arange(1280, q.shape[1] - 1, step), torch.tensor([q.shape[1] - 1])])
    q = q[:, columns.to(q.device)].contiguous()
    kept: dict[str, list[Tensor]] = {"held": [], "forgotten": [], "retrained": [], "inside": []}
    inside = torch.zeros(len(some), dtype=torch.bool, device=q.device)
    for i in range(8 if run.args.tiny else run.args.shadows):
        inside = ~inside if i % 2 else torch.rand(len(some), generator=draw).to(user.device) < 0.5
        base = others[torch.rand(len(others), generator=draw).to(user.device) < 0.5]
        never = Moments.zero(q.shape[1], 10, q.device)
        for part in torch.cat([core, base]).split(4096):
            never.add(q[part], targets[part])
        r = as_ridge(ridge, float(never.gram.diagonal().mean()))
        P = inverse(never.gram, r)
        anew_ = refine(never, r, P, P @ never.cross).weights
        held = never.clone()
        X, T = q[some[inside]], targets[some[inside]]
        held.add(X, T)
        # The model that holds them begins from an inverse of its own, not from the one without them.
        P = inverse(held.gram, r)
        before = refine(held, r, P, P @ held.cross).weights
        held.remove(X, T)
        moved = update_(P, X.double(), -1, T.double() - X.double() @ before)
        assert moved is not None
        after = refine(held, r, P, before + moved, near=True).weights
        for name, W in (("held", before), ("forgotten", after), ("retrained", anew_)):
            out = scores(q[some], W)
            right = out.gather(1, y[some][:, None])[:, 0]
            other = out.scatter(1, y[some][:, None], float("-inf")).amax(dim=1)
            kept[name].append((right - other).cpu())
        kept["inside"].append(inside.cpu())
    found = {name: torch.stack(values) for name, values in kept.items()}
    attacked(run, seed, found, len(wrong), q.shape[1])


def attacked(run: Run, seed: int, found: dict[str, Tensor], wrong: int, features: int) -> None:
    """U-LiRA and KLoM of the library on these margins."""
    member = found["inside"]
    names = {"held": "holding the images", "forgotten": "after forgetting them"}
    names["retrained"] = "never having held them (solved anew)"
    half = int(member.sum(dim=0)[0])

    def of(margins: Tensor, mask: Tensor) -> Tensor:
        """Per target, the margins under the shadows of the mask: half of them for every target."""
        return torch.stack([margins[mask[:, i], i] for i in range(margins.shape[1])], dim=1)[:half]

    for name, text in names.items():
        row: dict[str, Any] = {}
        for group, part in (("mislabelled", slice(0, wrong)), ("ordinary", slice(wrong, None))):
            phi, seen = found[name][:, part], member[:, part]
            result = attack_over_models(held_out_scores(phi, seen), seen, together=2, seed=seed)
            row[f"auc_{group}"], row[f"auc_{group}_interval"] = result.auc.value, [result.auc.low, result.auc.high]
            row[f"klom_{group}"] = float(klom(of(phi, seen), of(found["retrained"][:, part], ~seen)).mean())
        run.say(
            what="attack", model=text, seed=seed, core=0.1, shadows=len(member), targets=member.shape[1],
            features=features, klom_models_a_side=half,
            largest_margin_gap_to_anew=float((found[name] - found["retrained"]).abs().max()), **row,
        )  # fmt: skip


def warm(run: Run) -> None:
    """A little of all that is timed: kernels are chosen and libraries loaded once in a process."""
    few = torch.arange(min(2000, len(run.x)))
    run.train(few, 0, **{**TUNE, "epochs": 1})
    network, _ = run.train(few, 0, graph=True, **{**CORE, "epochs": 1})
    made = cifar.sketch_of(network, run.x, few.to(run.device), seed=0, **run.sketch())
    cifar.codes(made, run.x[few.to(run.device)], few.to(run.device), run.args.pixels, zooms=ZOOMS[0.1])
    run.say(what="warm")


def flags() -> Flags:
    parser = (
        Flags(__doc__).data("the folder with cifar10.pt", required=True).out(required=True).seeds(range(3)).device()
    )
    parser.add_argument("--parts", nargs="+", default=["tune", "cores", "sequence", "attack", "sisa"])
    parser.add_argument("--cores", type=float, nargs="+", default=[0.1, 0.25])
    parser.add_argument("--core-epochs", type=int, default=0, help="of the core model, in place of the chosen number")
    parser.add_argument("--zooms", type=float, nargs="+", help="enlargements, in place of the chosen ones")
    parser.add_argument("--pixels", type=int, default=PIXELS)
    parser.add_argument("--shadows", type=int, default=64)
    parser.add_argument("--shards", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--loo", action="store_true", help="also leave-one-out errors")
    parser.add_argument("--all", action="store_true", help="requests of all sizes")
    parser.add_argument("--length", type=int, default=250, help="requests in a row, in `sequence` (first seed)")
    parser.add_argument("--stop", type=float, default=1e9, help="begin nothing new after so many seconds")
    parser.add_argument(
        "--warm", action="store_true", help="a little of all first, so that no time holds what a process does once"
    )
    parser.add_argument("--tiny", type=int, default=0)
    return parser


def main() -> None:
    run = Run(flags().parse_args())
    if run.args.warm:
        warm(run)
    for seed in run.args.seeds if "tune" in run.args.parts else ():
        if not run.late():
            tune(run, seed)
    for share in run.args.cores if "cores" in run.args.parts else ():
        for seed in run.args.seeds:
            if not run.late():
                cores(run, seed, share)
    for seed in run.args.seeds if "sisa" in run.args.parts else ():
        for shards in run.args.shards:
            if not run.late():
                sisa(run, seed, shards)


if __name__ == "__main__":
    main()
