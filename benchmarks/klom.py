"""KLoM as in EasyDUB: ResNet-9 on CIFAR-10, originals and retrained networks, margins of every row under each.

    python benchmarks/klom.py sets --data DIR                              # results/klom-sets.json, the forget sets
    python benchmarks/klom.py run  --data DIR --out klom-0.pt --first 0 --stop 400      # one GPU; several side by side
    python benchmarks/klom_page.py klom-0.pt klom-1000.pt --out results/klom.jsonl      # P95 over rows, on a CPU
    python benchmarks/klom.py run --tiny --out klom.pt                                  # a CPU, under a minute

Four disjoint forget sets, rebuilt after EasyDUB's description and not its very rows: *random* rows, and *coherent*
ones, those of a class that lie furthest along its first principal component in the last hidden layer of a network
pre-trained on CIFAR-100; 100 and 1,000 rows each. Every network misses a half of the sets, drawn as a full factorial
design: for each set the networks that saw it are its originals and the others its retrained networks, alike in all
else. So each training serves all four sets. Margins are kept of all forget sets, of 1,000 rows that every network saw
and of 1,000 test rows.

Fold models are trained on all rows, a coherent set in one fold; each set of them serves several originals of a run,
which makes unlearned networks a little more alike than fold models of their own would.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spotlessnet.core.buffers import MOST
from spotlessnet.core.data import Data, evenly
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.progress import Meter, quiet
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub, Sizes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.datasets import load
from spotlessnet.experiments.setting import find_weights, on_device
from spotlessnet.methods import Finetune, NegGradPlus, OutOfFoldDistillation, TruncatedRetrain
from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.models.pretrained import load_pretrained
from spotlessnet.operators.precision import matmul
from spotlessnet.precomputed.fold_models import FoldModels, train_fold_models
from spotlessnet.readouts import Error
from spotlessnet.readouts.linear_probe import hidden
from spotlessnet.readouts.margin import margins

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.captured import Captured, CapturedExecutor
from benchmarks.common import Flags, accelerator, cifar10, device_of, note

SETS = Path(__file__).parents[1] / "results" / "klom-sets.json"
COHERENT = {"coherent, small": (1, 100), "coherent, large": (8, 1000)}
RANDOM = {"random, small": 100, "random, large": 1000}
PATTERNS = (0, 15, 5, 10, 3, 12, 6, 9, 1, 14, 2, 13, 4, 11, 7, 8)
"""Which sets a network misses, as bits; each is followed by its complement, so that any even number is balanced."""

OURS = "out-of-fold distillation"


class ResNet9(nn.Module):
    """Four convolutions and two residual pairs, as the fast CIFAR-10 recipes have it."""

    def __init__(self, classes: int, *, channels: int = 3, width: int = 64, pools: int = 3) -> None:
        super().__init__()
        w = width
        halve = [nn.MaxPool2d(2) if i < pools else nn.Identity() for i in range(3)]
        self.first = nn.Sequential(_block(channels, w), _block(w, 2 * w), halve[0])
        self.inner1 = nn.Sequential(_block(2 * w, 2 * w), _block(2 * w, 2 * w))
        self.middle = nn.Sequential(_block(2 * w, 4 * w), halve[1], _block(4 * w, 4 * w), halve[2])
        self.inner2 = nn.Sequential(_block(4 * w, 4 * w), _block(4 * w, 4 * w))
        self.head = nn.Linear(4 * w, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.contiguous(memory_format=torch.channels_last))
        x = self.middle(x + self.inner1(x))
        x = x + self.inner2(x)
        # An eighth, as in the fast recipes: the largest of many entries makes large logits at first.
        return self.head(x.amax(dim=(2, 3))) / 8


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


def shifted(x: Tensor) -> Tensor:
    """Images mirrored and moved by up to four pixels, one draw for each."""
    n, _, h, w = x.shape
    x = torch.where(torch.rand(n, 1, 1, 1, device=x.device) < 0.5, x.flip(3), x)
    by = torch.randint(0, 9, (2, n, 1), device=x.device)
    wide = nn.functional.pad(x, (4, 4, 4, 4))
    rows, columns = (by[i] + torch.arange(size, device=x.device) for i, size in ((0, h), (1, w)))
    each = torch.arange(n, device=x.device)[:, None, None]
    return wide[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Size:
    """What is trained, and what is looked at."""

    data: str
    looked_at: int
    width: int
    pools: int
    recipe: Recipe
    times: float = 1.0
    """What budgets are multiplied by: a hundredth of a tiny training pays for nothing."""


def full(epochs: int, bf16: bool) -> Size:
    """CIFAR-10: meant for 93 % in at most ten seconds on an H200."""
    recipe = Recipe(epochs=epochs, lr=0.4, momentum=0.9, batch_size=512, weight_decay=5e-4, decay_toward="zero",
                    schedule="one-cycle", label_smoothing=0.1, augment=shifted, bf16=bf16,
                    freeze_statistics=False)  # fmt: skip
    return Size("cifar10", 1000, 64, 3, recipe)


def tiny() -> Size:
    """Digits with a narrow network: whether everything runs, not how well anything forgets."""
    recipe = Recipe(epochs=8, lr=0.1, batch_size=32, weight_decay=5e-4, decay_toward="zero", freeze_statistics=False)
    return Size("digits", 50, 4, 1, recipe, times=60.0)


def coherent(inside: Tensor, count: int) -> Tensor:
    """Positions of the rows furthest along the first principal component."""
    away = inside - inside.mean(dim=0)
    score = away @ torch.linalg.svd(away, full_matrices=False).Vh[0]
    # The sign of a component is an accident; the side with the longer tail is taken.
    score = score * (1 if float(score.max()) > -float(score.min()) else -1)
    return score.topk(min(count, len(score))).indices


def forget_sets(train: Data, features: Trained | None, shrink: int = 1) -> dict[str, list[int]]:
    """Row numbers of four disjoint sets; without a pre-trained network pixels are its features."""
    labels, made = train.labels(), {}
    taken = torch.zeros(len(train), dtype=torch.bool)
    for name, (label, count) in COHERENT.items():
        mine = (labels == label).nonzero().squeeze(1)
        rows = train.select(mine)
        x = rows.fetch(rows.rows).x
        assert isinstance(x, Tensor)  # pictures
        inside = x.flatten(1).double() if features is None else hidden(features, rows)
        made[name] = mine[coherent(inside, count // shrink)]
        taken[made[name]] = True
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    order = order[~taken[order]]
    for name, count in RANDOM.items():
        made[name], order = order[: count // shrink], order[count // shrink :]
    return {name: sorted(made[name].tolist()) for name in (*RANDOM, *COHERENT)}


@dataclass(eq=False)
class Run:
    """Networks of one process, what is asked of them, and the file that it all goes to."""

    options: argparse.Namespace
    size: Size
    train: Data
    test: Data
    sets: dict[str, Data]
    device: torch.device
    began: float = field(default_factory=time.perf_counter)
    networks: dict[int, Trained] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=lambda: {"networks": [], "unlearned": []})
    saved: float = 0.0

    @property
    def left(self) -> float:
        """Seconds."""
        return float(self.options.stop) - (time.perf_counter() - self.began)

    @cached_property
    def captured(self) -> Captured:
        return Captured(self.start(0), self.train)

    @cached_property
    def always(self) -> Data:
        """Rows of no forget set: every network saw them."""
        gone = torch.cat([data.rows for data in self.sets.values()])
        return self.train.select((~torch.isin(self.train.rows, gone)).nonzero().squeeze(1))

    @cached_property
    def asked(self) -> dict[str, Data]:
        """Whose margins are kept."""
        count = self.size.looked_at
        others = {"retain": self.always, "validation": self.test}
        return self.sets | {name: data.select(evenly(len(data), count)) for name, data in others.items()}

    def start(self, seed: int) -> Trained:
        """A network of its own for every seed."""
        torch.manual_seed(seed)
        x = self.train.fetch(self.train.rows[:1]).x
        assert isinstance(x, Tensor)  # pictures
        model = ResNet9(10, channels=int(x.shape[1]), width=self.size.width, pools=self.size.pools).to(self.device)
        network = Trained.of(model, recipe=self.size.recipe)
        return replace(network, init=network.weights, init_buffers=buffers_of(network.model))

    def missed(self, seed: int) -> list[str]:
        """The sets that the network of this seed never saw."""
        bits = PATTERNS[seed % len(PATTERNS)]
        return [name for i, name in enumerate(self.sets) if bits >> i & 1]

    def seen(self, seed: int) -> Data:
        """The rows that it did."""
        rows = self.train
        for name in self.missed(seed):
            rows = rows.without(self.sets[name])
        return rows

    def looked(self, network: Trained, *names: str) -> dict[str, Any]:
        """Margins of these rows, and the error on all test rows."""
        kept = {name: margins(network, self.asked[name]).float().cpu() for name in names}
        error = float(Error("test")(network, Split(self.test.select([0]), None, test=self.test)))
        return {"margins": kept, "error": error}

    def trained(self, seed: int) -> float:
        """Train one, look at it, and say how long the training took."""
        with Meter(self.device) as meter:
            made = self.captured.fit(self.start(seed), self.seen(seed), seed=seed)
        self.networks[seed] = made
        told = {"seed": seed, "missed": self.missed(seed), "seconds": meter.seconds}
        self.found["networks"].append(told | self.looked(made, *self.asked))
        error = self.found["networks"][-1]["error"]
        print(f"{seed}: {meter.seconds:.2f} s, test error {error:.2%}, {self.left:.0f} s left", flush=True)
        self.save()
        return meter.seconds

    def fold_models(self, seed: int) -> FoldModels:
        """Beside a network that saw all rows as it were: three on two thirds of all rows each."""
        ids = [str(i) for i in range(len(self.train))]
        for name in COHERENT:
            for i in self.sets[name].rows.tolist():
                ids[i] = name
        beside = self.networks[self.options.first]
        executor = CapturedExecutor(captured=self.captured)
        return train_fold_models(beside, self.train, folds=3, groups=ids, seed=seed, executor=executor)

    def methods(self, network: Trained, folds: FoldModels | None) -> dict[str, Scrub]:
        """Each with the share of a training in its name; what matters most comes first."""
        epochs, few = self.size.recipe.epochs, self.size.recipe.lr / 40
        # Statistics of BatchNorm are estimated anew afterwards, which is paid from the same budget.
        rest = min(MOST, len(self.train)) / (3 * epochs * len(self.train))
        ours: dict[str, Scrub] = {}
        if folds is not None:
            own = replace(folds, origin=network.weights)
            for share, rounds in ((0.05, 5), (0.05, 20), (0.01, 5)):
                budget = self.size.times * share - rest
                name = f"{OURS}, {rounds} rounds, {share:.0%}"
                ours[name] = OutOfFoldDistillation(epochs=rounds, compute_budget=budget, fold_models=own)
        names = list(ours)
        one = f"{1 / epochs:.0%}"
        made = {name: ours[name] for name in names[:1]}
        made[f"truncated retraining, {one}"] = TruncatedRetrain(epoch_fraction=1 / epochs)
        made[f"fine-tuning, {one}"] = Finetune(epochs=1, lr=few)
        made |= {name: ours[name] for name in names[1:]}
        made[f"NegGrad+, {one}"] = NegGradPlus(epochs=1, lr=few)
        made["truncated retraining, 20%"] = TruncatedRetrain(epoch_fraction=0.2)
        return made

    def unlearned(self, method: str, name: str, seed: int, folds: FoldModels | None) -> None:
        """One request to one original."""
        network, forget = self.networks[seed], self.sets[name]
        split = Split(forget, self.seen(seed).without(forget), test=self.test, validation=self.test)
        scrub = self.methods(network, folds)[method].reseeded(seed)
        try:
            with Meter(self.device) as meter:
                done = scrub(network, split)
        except (RuntimeError, SpotlessError) as error:  # a method that breaks is a result too, and others go on
            print(f"{name}, {method}, {seed}: {error}", flush=True)
            return
        sizes = Sizes.of(network, split)
        training = sizes.gradient * len(split.whole) * self.size.recipe.epochs
        extra = 0 if "retraining" in method else min(MOST, len(split.retain)) * sizes.answer
        share = (scrub.cost(network, split).usual + extra) / training
        told = {"seed": seed, "set": name, "method": method, "seconds": meter.seconds, "share": share}
        after = network.at(done.mean, done.buffers)
        self.found["unlearned"].append(told | self.looked(after, name, "retain", "validation"))
        self.save()

    def save(self, *, now: bool = False) -> None:
        """Every few seconds, under another name first: a run that is cut off leaves a whole file."""
        if not now and time.perf_counter() - self.saved < 5:
            return
        about = f"{note('klom')}; {accelerator(self.device)}, {self.size.recipe.epochs} epochs"
        rows = {name: data.rows for name, data in self.asked.items()}
        aside = self.options.out.with_suffix(".part")
        torch.save(self.found | {"about": about, "rows": rows}, aside)
        aside.replace(self.options.out)
        self.saved = time.perf_counter()

    def go(self) -> None:
        """Networks for about half of the time, fold models, then one method after another on all sets."""
        first = self.options.first
        self.trained(first)
        took = self.trained(first + 1)
        count = self.options.networks or max(2, int(0.5 * self.left / took) // 2 * 2)
        for seed in range(first + 2, first + count):
            if self.left < took:
                break
            self.trained(seed)
        folds = [self.fold_models(first + 500 + i) for i in range(self.options.folds) if self.left > 3 * took]
        print(f"{len(folds)} sets of fold models, {self.left:.0f} s left", flush=True)
        for method in self.methods(self.networks[first], folds[0] if folds else None):
            if self.options.only and self.options.only not in method:
                continue
            for name in self.sets:
                for i, seed in enumerate(self.networks):
                    if self.left < 3:
                        break
                    if name not in self.missed(seed):
                        self.unlearned(method, name, seed, folds[i // 2 % len(folds)] if folds else None)
                print(f"{method}, {name}: {self.left:.0f} s left", flush=True)
        self.save(now=True)


def flags() -> Flags:
    parser = Flags(__doc__).data("folder with images and weights").out().device()
    parser.add_argument("what", choices=("sets", "run"))
    parser.add_argument("--tiny", action="store_true", help="digits and a narrow network, for a CPU")
    parser.add_argument("--first", type=int, default=0, help="the first seed, a multiple of 16; others follow")
    parser.add_argument("--networks", type=int, help="how many; as many as fit into half of --stop unless said")
    parser.add_argument("--folds", type=int, default=2, help="sets of fold models, three networks each")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--only", default="", help="methods whose name holds this text")
    parser.add_argument("--stop", type=float, default=inf, help="seconds after which nothing new begins")
    return parser


def opened(options: argparse.Namespace) -> Run:
    """Rows on their device, and the sets that were drawn."""
    device = device_of(options)
    if options.tiny:
        pair = load("digits")
        train, test = (Data.of(tuple(part.fetch(part.rows[:300])[:2])) for part in (pair.train, pair.test))
        numbers = forget_sets(train, None, shrink=50)
        size = tiny()
    else:
        train, test = (on_device(data, device) for data in cifar10(options.data))
        numbers = json.loads(SETS.read_text(encoding="utf-8"))["sets"]
        size = full(options.epochs, device.type == "cuda")
    sets = {name: train.select(rows) for name, rows in numbers.items()}
    return Run(options, size, train, test, sets, device)


def write_sets(options: argparse.Namespace) -> None:
    """Draw the sets once, for all processes."""
    path = find_weights("allcnn-cifar100.safetensors", options.data)
    assert path is not None, "the pre-trained weights are not there"
    features = Trained.of(load_pretrained(AllCNN(10), path))
    found = forget_sets(cifar10(options.data)[0], features)
    said = {"command": note("klom"), "sets": found}
    SETS.write_text(json.dumps(said) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    options = flags().parse_args(arguments)
    with quiet(), matmul("tf32"):
        if options.what == "sets":
            write_sets(options)
        else:
            opened(options).go()


if __name__ == "__main__":
    main()
