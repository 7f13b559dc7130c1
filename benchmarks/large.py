"""Forgetting from full CIFAR-10: requests served from a memory, short retraining and rivals, beside retraining.

    python benchmarks/large.py run   --data DIR --out results/large.jsonl --model all-cnn --decay 0.1 --seeds 0 1 2 3 4
    python benchmarks/large.py table --out results/large.jsonl

50,000 images, a network pre-trained on CIFAR-100, SGD with decay toward the start. 100 images of class 0 must go, as
they are (*some*) or with wrong labels (*wrong*), or all 5000 of it (*class*). *some* and *wrong* name the same rows, so
that one retrained network is the reference for both; they are the same for every seed, which draws head and order. The
gap closed is in mean margin and loss on the forgotten rows over paired seeds, and in activation distance, whose floor
is another seed's retrained network. The first cohort of the first seed is done twice, the second time under a counter
of floating-point operations.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from spotlessnet.core.cohorts import rows as by_number
from spotlessnet.core.data import Arrays, Data
from spotlessnet.core.memory import Memory
from spotlessnet.core.meter import Meter
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub, chain
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.experiments.few import FromFew, fewer, some
from spotlessnet.experiments.setting import on_device
from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.models.pretrained import RESNET_NAMES, load_pretrained
from spotlessnet.models.resnet import ResNet
from spotlessnet.operators.precision import matmul
from spotlessnet.operators.remember import remember
from spotlessnet.readouts import ActivationDistance, Error, Margin, MeanLoss
from spotlessnet.report.rows import Row, append_rows, read_rows
from spotlessnet.scrubs import NTK, Finetune, NegGradPlus, ShortRetrain
from spotlessnet.training.fit import fit
from spotlessnet.verdict import ratio_interval

COHORTS = ("some", "wrong", "class")
WEIGHTS = {"all-cnn": "allcnn-cifar100.safetensors", "resnet": "resnet18w04-cifar100.safetensors"}
RECIPE = Recipe(epochs=10, rate=0.01, momentum=0.9, batch=128)
FORGET = 100
RANK, SAMPLE, CORESET = 100, 2000, 5000
"""Of the memory: directions, rows that its curvature is taken from, and retained rows it may polish on."""

DISTANCE = "activation distance on forget"
OPERATIONS = "operations, in trainings"
WRITING, TRAINING = "writing", "training"

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class World:
    """The rows of each cohort, with the network before training, and what one training takes in operations."""

    splits: dict[str, Split]
    start: Trained

    @property
    def training(self) -> float:
        """Operations of one training on all rows: back takes twice as many as forth."""
        data, recipe = self.splits["some"].whole, self.start.recipe
        assert recipe is not None  # given below
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            self.start.outputs(self.start.fetch(data, data.rows[:1]).x)
        return 3.0 * counter.get_total_flops() * len(data) * recipe.epochs


def world(options: argparse.Namespace, seed: int, device: torch.device) -> World:
    """All-CNN or ResNet-18 ×0.4 under a head of the seed, and the three requests."""
    pair = load("cifar10", options.data)
    train, test = (some(data, options.rows) for data in (pair.train, pair.test))
    labels = train.labels()
    of_class = (labels == 0).nonzero().squeeze(1)
    forget = of_class[torch.randperm(len(of_class), generator=torch.Generator().manual_seed(0))[: options.forget]]
    wrong = labels.clone()
    wrong[forget] = torch.randint(1, 10, (len(forget),), generator=torch.Generator().manual_seed(1))
    x = train.fetch(train.rows).x
    assert isinstance(x, torch.Tensor)
    right, false = (on_device(Data(Arrays(x, y), torch.arange(len(y))), device) for y in (labels, wrong))
    tests, gone = on_device(test, device), forget.tolist()
    network = AllCNN(10, seed=seed) if options.model == "all-cnn" else ResNet(10, width=0.4, seed=seed)
    rename = RESNET_NAMES if options.model == "resnet" else None
    network = load_pretrained(network, options.data / WEIGHTS[options.model], rename=rename).to(device)
    recipe = RECIPE.but(decay=options.decay, epochs=options.epochs)
    splits = {
        "some": by_number(gone)(right, tests),
        "wrong": by_number(gone, mislabelled=True)(false, tests),
        "class": by_number(of_class.tolist())(right, tests),
    }
    return World(splits, Trained.of(network, start=network, recipe=recipe))


def methods(memory: Memory) -> dict[str, Callable[[Trained, Split], Trained]]:
    """Every method as a function of the original and the split."""

    def scrubbed(scrub: Scrub) -> Callable[[Trained, Split], Trained]:
        return lambda original, split: original.at(scrub(original, split).mean)

    def recalled(original: Trained, split: Split) -> Trained:
        # Nothing but the forgotten rows is at hand.
        return original.at(NTK(memory=memory)(original, Split(forget=split.forget)).mean)

    def polished(original: Trained, split: Split) -> Trained:
        return scrubbed(Finetune(epochs=1))(recalled(original, split), fewer(split, CORESET))

    step = FromFew(NTK(solution="primal", tolerance=1e-2, max_iterations=20), 1000, thin=False)
    return {
        "from the memory": recalled,
        "from the memory, then a tenth of an epoch": polished,
        "a step on 1000 rows, then an epoch": scrubbed(chain(step, Finetune(epochs=1))),
        "fine-tune, an epoch": scrubbed(Finetune(epochs=1)),
        "negative gradient +, an epoch": scrubbed(NegGradPlus(epochs=1)),
        "short retraining, in stages": scrubbed(ShortRetrain()),
    }


def looks(name: str, method: str, seed: int, network: Trained, reference: Trained, split: Split) -> Iterator[Row]:
    """One row per readout; errors on 5000 of the retained rows."""
    small = replace(split, kept=some(split.retain, 5000))
    for readout in (ActivationDistance(reference), MeanLoss("forget"), Margin("forget"), Error("forget")):
        yield Row(name, method, readout.name, seed, float(readout(network, small)), unit=readout.unit)
    for error in (Error("retain"), Error("test")):
        yield Row(name, method, error.name, seed, float(error(network, small)), unit=error.unit)


def run(options: argparse.Namespace) -> None:
    """All seeds; rows that are there are not measured again, and each cohort's are written when they are known."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before: dict[str, Trained] = {}
    for seed in options.seeds:
        here = world(options, seed, device)
        retrained: dict[str, Trained] = {}
        originals: dict[bool, tuple[Trained, Memory]] = {}
        for cohort in options.cohorts:
            with matmul("tf32"):
                one_cohort(options, here, cohort, seed, originals, retrained, before)
        before = retrained


def one_cohort(
    options: argparse.Namespace,
    here: World,
    cohort: str,
    seed: int,
    originals: dict[bool, tuple[Trained, Memory]],
    retrained: dict[str, Trained],
    before: dict[str, Trained],
) -> None:
    """One request by every method. Originals, their memories and retrained networks are kept for the next cohort."""
    split, device = here.splits[cohort], here.start.device
    name = f"{options.model}, decay {options.decay:g}, {cohort}"
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    about = f"torch {torch.__version__}, {machine}, TF32, {options.epochs} epochs, memory from {options.sample} rows"
    done = {row.key for row in read_rows(options.out)}
    made, count = [], cohort == options.cohorts[0] and seed == options.seeds[0]
    if (cohort == "wrong") not in originals:
        network = fit(here.start, split.whole, seed=seed)
        writing, written = measured(lambda: write(options, network, split), device)
        made.append(Row(name, "memory", WRITING, seed, writing, unit="seconds", seconds=writing))
        if count:
            made.append(counted(lambda: write(options, network, split), here, name, "memory", seed))
        originals[cohort == "wrong"] = network, written
    original, memory = originals[cohort == "wrong"]
    kind = "class" if cohort == "class" else "rows"
    if kind not in before:
        before[kind] = fit(here.start, split.retain, seed=seed + 1000, order_of=split.whole)
    if kind not in retrained:
        took, retrained[kind] = measured(lambda: fit(here.start, split.retain, seed=seed, order_of=split.whole), device)
        made.append(Row(name, "retrained", TRAINING, seed, took, unit="seconds", seconds=took))
    for method, network in (("original", original), ("retrained", retrained[kind]), ("floor", before[kind])):
        made += looks(name, method, seed, network, retrained[kind], split)
    for method, apply in methods(memory).items():
        if (name, method, DISTANCE, seed) in done:
            continue
        work = partial(apply, original, split)
        try:
            took, network = measured(work, device)
        except ArithmeticError as error:  # a method that breaks is a result too
            print(f"{name}, {method}, seed {seed}: {error}", flush=True)
            continue
        found = looks(name, method, seed, network, retrained[kind], split)
        made += [replace(row, seconds=took) for row in found]
        if count:
            made.append(counted(work, here, name, method, seed))
    append_rows(options.out, [replace(row, note=about) for row in made if row.key not in done])
    print(f"{name}, seed {seed} done", flush=True)


def write(options: argparse.Namespace, original: Trained, split: Split) -> Memory:
    """The memory that requests are served from."""
    return remember(original, split.whole, rank=options.rank, sample=options.sample, diagonal=None)


def measured(work: Callable[[], Made], device: torch.device) -> tuple[float, Made]:
    """How long it took, and what came of it."""
    with Meter(device) as meter:
        made = work()
    return meter.seconds, made


def counted(work: Callable[[], object], here: World, name: str, method: str, seed: int) -> Row:
    """The same once more, under a counter of floating-point operations, in units of one training."""
    with FlopCounterMode(display=False) as counter:
        work()
    return Row(name, method, OPERATIONS, seed, counter.get_total_flops() / here.training, unit="trainings")


def table(path: Path) -> str:
    """Markdown: the gap closed by each measure, errors, and cost in seconds and operations, per setting."""
    value: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    seconds: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in read_rows(path):
        value[row.experiment, row.method, row.readout][row.seed] = row.value
        if not math.isnan(row.seconds):
            seconds[row.experiment, row.method][row.seed] = row.seconds
    lines = []
    for name in dict.fromkeys(key[0] for key in value):
        here = [method for experiment, method, readout in value if (experiment, readout) == (name, DISTANCE)]
        lines += [f"**{name}**\n", "| method | margin | loss | distance | D_r / test error | seconds | operations |"]
        lines.append("|---|---:|---:|---:|---:|---:|---:|")
        for method in here:
            gaps = [_gap(value, name, method, readout) for readout in ("margin on forget", "loss on forget", DISTANCE)]
            errors = [_mean(value[name, method, f"error on {part}"]) for part in ("retain", "test")]
            cost = _mean(seconds[name, method]) / _mean(seconds[name, "retrained"])
            counted = _mean(value[name, method, OPERATIONS])
            cells = [*gaps, f"{100 * errors[0]:.1f} / {100 * errors[1]:.1f} %", f"{cost:.1%}"]
            lines.append(f"| {method} | {' | '.join(cells)} | {'' if math.isnan(counted) else f'{counted:.1%}'} |")
        written, took = _mean(value[name, "memory", "writing"]), _mean(seconds[name, "retrained"])
        operations = _mean(value[name, "memory", OPERATIONS])
        lines.append(
            f"\nOne training takes {took:.1f} s, writing the memory {written / took:.2f} trainings by the clock and "
            f"{operations:.2f} by operations. {len(seconds[name, 'retrained'])} seeds.\n"
        )
    return "\n".join(lines)


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values) if values else math.nan


def _gap(value: dict[tuple[str, str, str], dict[int, float]], name: str, method: str, readout: str) -> str:
    """How much of the way from the original to retraining was gone, with Fieller's interval over paired seeds."""
    if method in ("original", "retrained", "floor"):
        return f"({_mean(value[name, method, readout]):.3g})"
    goal = "floor" if readout == DISTANCE else "retrained"
    before, now, then = (value[name, m, readout] for m in ("original", method, goal))
    seeds = sorted(before.keys() & now.keys() & then.keys())
    won, prize = (torch.tensor([before[s] - other[s] for s in seeds]) for other in (now, then))
    sign = 1.0 if float(prize.sum()) > 0 else -1.0  # the loss grows as the margin falls
    gap = ratio_interval(sign * won, sign * prize, 0.95)
    return f"{gap.value:.0%} [{gap.low:.0%}, {gap.high:.0%}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--data", type=Path, help="folder with image shards and weights")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=sorted(WEIGHTS), default="all-cnn")
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--cohorts", nargs="+", choices=COHORTS, default=list(COHORTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="rows that the memory's curvature is taken from")
    parser.add_argument("--rank", type=int, default=RANK, help="directions that the memory keeps")
    parser.add_argument("--forget", type=int, default=FORGET)
    parser.add_argument("--rows", type=int, help="the most training rows, for a rehearsal")
    options = parser.parse_args()
    if options.what == "run":
        run(options)
    print(table(options.out))


if __name__ == "__main__":
    main()
