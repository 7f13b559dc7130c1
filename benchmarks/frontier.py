"""Gap closed against cost: our default, the papers' methods and the rivals, beside retraining, in six small settings.

    python benchmarks/frontier.py choose  --data DIR --out results/frontier-choose.jsonl  --seeds 0 1 2
    python benchmarks/frontier.py confirm --data DIR --out results/frontier-confirm.jsonl --seeds 10 11 12 13 14 \
        --chosen results/frontier-choose.jsonl
    python benchmarks/frontier.py table   --out results/frontier-confirm.jsonl
    python benchmarks/frontier_page.py    --out results/frontier-confirm.jsonl   # results/frontier.md and the figure

500 CIFAR-10 images (100 of each of the first five classes), a network pre-trained on CIFAR-100, decay 0.1 toward the
start, trained until five epochs past zero training error. Cohorts: 25 images of class 0 (*some*), the same with wrong
labels (*wrong*), all of class 0 (*class*). The reference is retrained with the same order, forgotten rows left out, for
as many epochs; the floor is another seed's retrained network against it. Every method has a small grid of settings; one
setting per method is chosen for all six settings together, by its smallest gap closed over them on the choosing seeds,
among those within the cost limit. The confirming seeds choose other images, cohorts and orders. DIR holds the image
shards and the pre-trained weights.
"""

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.core.chaining import chain
from spotlessnet.core.data import Data
from spotlessnet.core.intervals import ratio_interval
from spotlessnet.core.progress import Meter
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.methods import NTK, Finetune, GradientAscent
from spotlessnet.methods.bad_teacher import BadTeacher
from spotlessnet.methods.l1_sparse import L1Sparse
from spotlessnet.methods.neg_grad_plus import NegGradPlus
from spotlessnet.methods.respond_and_finetune import RespondAndFinetune
from spotlessnet.methods.salun import SalUn
from spotlessnet.methods.scrub import SCRUB
from spotlessnet.methods.short_retrain import ShortRetrain
from spotlessnet.methods.ssd import SSD
from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.models.pretrained import RESNET_NAMES, load_pretrained
from spotlessnet.models.resnet import ResNet
from spotlessnet.operators.precision import matmul
from spotlessnet.operators.solvers import Dual
from spotlessnet.readouts import ActivationDistance, Error, MeanLoss
from spotlessnet.training.fit import fit

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, accelerator, device_of

MODELS = ("all-cnn", "resnet")
COHORTS = ("some", "wrong", "class")
RECIPE = Recipe(epochs=60, lr=0.01, momentum=0.9, batch_size=128, weight_decay=0.1, patience=5)
PER_CLASS, CLASSES, FORGET = 100, 5, 25
COST_LIMIT = 0.25
LEAST_PRIZE = 0.1
WRITING, OPERATIONS = "writing", "operations, in retrainings"
OURS = "ours"


def grid() -> dict[str, dict[str, Scrub]]:
    """Every method with the settings it may choose from."""
    ours: dict[str, Scrub] = {
        f"steps={i} rewind={r:g} speed={v:g}": RespondAndFinetune(iterations=i, rewind=r, lr_scale=v, coreset=100)
        for i, r in ((0, 0.0), (0, 0.2), (5, 0.2), (0, 0.4), (5, 0.4), (5, 1.0))
        for v in (2.0, 3.0)
    }
    tuned: dict[str, Callable[[int, float], Scrub]] = {
        "fine-tune": lambda e, v: Finetune(epochs=e, lr=v * RECIPE.lr),
        "negative gradient +": lambda e, v: NegGradPlus(epochs=e, lr=v * RECIPE.lr),
        "SCRUB": lambda e, v: SCRUB(epochs=e, lr=v * RECIPE.lr),
        "SalUn": lambda e, v: SalUn(epochs=e, lr=v * RECIPE.lr),
        "bad teacher": lambda e, v: BadTeacher(epochs=e, lr=v * RECIPE.lr),
        "l1-sparse": lambda e, v: L1Sparse(epochs=e, lr=v * RECIPE.lr),
    }
    rivals = {
        name: {f"ep={e} speed={v:g}": make(e, v) for e in (3, 5) for v in (1.0, 3.0)} for name, make in tuned.items()
    }
    return {
        OURS: ours,
        "short retraining, in stages": {"": ShortRetrain()},
        "NTK, published formula": {"": NTK(variant="published", solver=Dual())},
        "NTK, then 3 epochs": {"": chain(NTK(solver=Dual(), damping=0.0), Finetune(epochs=3))},
        "negative gradient": {"": GradientAscent()},
        "selective dampening": {f"alpha={a:g}": SSD(alpha=a) for a in (2.0, 10.0)},
        **rivals,
    }


def start_of(model: str, folder: Path, seed: int, device: torch.device) -> Trained:
    """The pre-trained network with a new head, before fine-tuning."""
    if model == "all-cnn":
        network = load_pretrained(AllCNN(CLASSES, seed=seed), folder / "allcnn-cifar100.safetensors")
    else:
        weights = folder / "resnet18w04-cifar100.safetensors"
        network = load_pretrained(ResNet(CLASSES, width=0.4, seed=seed), weights, rename=RESNET_NAMES)
    trained = Trained.of(network.to(device), recipe=RECIPE)
    return replace(trained, init=trained.weights)


def split_of(cohort: str, train: Data, test: Data, seed: int, device: torch.device) -> Split:
    """500 images drawn with the seed, and the rows that must go."""
    draw = torch.Generator().manual_seed(seed)
    labels, tests = train.labels(), test.labels()
    chosen = [_some(labels, c, PER_CLASS, draw) for c in range(CLASSES)]
    small = train.select(torch.cat(chosen))
    x, y = next(iter(small.batches(len(small))))[:2]
    y = y.clone()
    forget = torch.arange(PER_CLASS) if cohort == "class" else torch.randperm(PER_CLASS, generator=draw)[:FORGET]
    if cohort == "wrong":
        y[forget] = torch.randint(1, CLASSES, (FORGET,), generator=draw)
    seen = test.select((tests < CLASSES).nonzero().squeeze(1))
    x_test, y_test = next(iter(seen.batches(len(seen))))[:2]
    make = [Data.of((a.to(device), b.to(device))) for a, b in ((x, y), (x_test, y_test)) if isinstance(a, torch.Tensor)]
    return rows(forget.tolist(), mislabelled=cohort == "wrong")(make[0], make[1])


def _some(labels: torch.Tensor, label: int, count: int, draw: torch.Generator) -> torch.Tensor:
    of_class = (labels == label).nonzero().squeeze(1)
    return of_class[torch.randperm(len(of_class), generator=draw)[:count]]


def trained_trio(start: Trained, split: Split, seed: int) -> tuple[Trained, Trained, Trained, Meter]:
    """Original, coupled retrained, another retrained, and what one retraining took."""
    epochs: list[int] = []
    original = fit(start, split.whole, seed=seed, watch=lambda epoch, _: epochs.append(epoch))
    recipe = RECIPE.but(epochs=epochs[-1], patience=None)
    begun = replace(start, recipe=recipe)
    with Meter(start.device) as meter:
        retrained = fit(begun, split.retain, seed=seed, order_of=split.whole)
    other = fit(begun, split.retain, seed=seed + 1000, order_of=split.whole)
    return replace(original, recipe=recipe), retrained, other, meter


def measure(
    experiment: str, method: str, seed: int, network: Trained, reference: Trained, split: Split, meter: Meter, note: str
) -> Iterator[Row]:
    """One row per readout."""
    for readout in (
        ActivationDistance(reference), Error("forget"), Error("retain"), Error("test"), MeanLoss("forget"),
    ):  # fmt: skip
        value = float(readout(network, split))
        yield Row(experiment, method, readout.name, seed, value, unit=readout.unit, ideal=readout.ideal,
                  seconds=meter.seconds, memory=meter.memory, note=note)  # fmt: skip


def run(options: argparse.Namespace, methods: dict[str, Scrub]) -> None:
    device = device_of(options)
    about = f"torch {torch.__version__}, {accelerator(device)}, TF32"
    folder: Path = options.data
    pair = load("cifar10", folder)
    done = {row.key for row in read_rows(options.out)}
    warm = True
    for seed in options.seeds:
        for model in options.models:
            for cohort in options.cohorts:
                experiment = f"{model} {cohort}"
                split = split_of(cohort, pair.train, pair.test, seed, device)
                start = start_of(model, folder, seed, device)
                with matmul("tf32"):
                    if warm:  # kernels are chosen on first use; that time belongs to nobody
                        fit(start, split.whole, RECIPE.but(epochs=2, patience=None))
                        warm = False
                    try:
                        original, retrained, other, meter = trained_trio(start, split, seed)
                    except ArithmeticError as error:  # the training itself broke: no reference, no row
                        print(f"{experiment} seed {seed} left out: {error}", flush=True)
                        continue
                    trio = {"original": original, "retrained": retrained, "floor": other}
                    for method, network in trio.items():
                        epochs = f"{about}; {original.recipe.epochs if original.recipe else 0} epochs"
                        found = list(measure(experiment, method, seed, network, retrained, split, meter, epochs))
                        append_rows(options.out, [row for row in found if row.key not in done])
                    for method, scrub in methods.items():
                        if (experiment, method, "activation distance on forget", seed) in done:
                            continue
                        try:
                            with Meter(start.device) as meter:
                                gaussian = scrub(original, split)
                        except ArithmeticError as error:  # a method that breaks is a result too
                            print(f"{experiment} {method} seed {seed}: {error}", flush=True)
                            continue
                        network = original.at(gaussian.mean)
                        found = list(measure(experiment, method, seed, network, retrained, split, meter, about))
                        append_rows(options.out, found)
                print(f"{experiment} seed {seed} done", flush=True)


Distances = tuple[list[float], list[float], list[float]]


def gaps(path: str) -> dict[str, dict[str, Distances]]:
    """Per method and setting, over seeds: distance won by the method, distance to be won, and cost."""
    by_key = {row.key: row for row in read_rows(path)}
    distance = next((key[2] for key in by_key if key[2].startswith("activation distance")), "")
    found: dict[str, dict[str, Distances]] = defaultdict(lambda: defaultdict(lambda: ([], [], [])))
    for (experiment, method, readout, seed), row in by_key.items():
        if readout != distance or method in ("original", "retrained", "floor") or not math.isfinite(row.value):
            continue
        before, floor = (by_key[experiment, m, distance, seed].value for m in ("original", "floor"))
        won, prize, cost = found[method][experiment]
        won.append(before - row.value)
        prize.append(before - floor)
        cost.append(row.seconds / by_key[experiment, "retrained", distance, seed].seconds)
    return found


def choose(path: str) -> dict[str, str]:
    """For each method the setting whose smallest gap closed is largest, within the cost limit.

    Settings where the original is hardly further from the reference than another retrained network say nothing about
    a method, and are left out of the choice.
    """
    found = gaps(path)
    seen = {full: sum(len(won) for won, _, _ in by_setting.values()) for full, by_setting in found.items()}
    best: dict[str, tuple[float, str]] = {}
    for full, by_setting in found.items():
        method, _, setting = full.partition(" | ")
        cost = max(statistics.median(cost) for _, _, cost in by_setting.values())
        told = [(won, prize) for won, prize, _ in by_setting.values() if sum(prize) > LEAST_PRIZE * len(prize)]
        score = min(sum(won) / sum(prize) for won, prize in told) if told else -1.0
        # What is too dear, or broke on some seed, may still be chosen, but never against what is not.
        complete = max(count for other, count in seen.items() if other.partition(" | ")[0] == method)
        score -= 100 * (cost > COST_LIMIT) + 1000 * (seen[full] < complete)
        if method not in best or score > best[method][0]:
            best[method] = (score, setting)
    return {method: setting for method, (_, setting) in best.items()}


def table(path: str) -> None:
    """Gap closed, a ratio of means over paired seeds with Fieller's interval, and cost, per method and setting."""
    for method, by_setting in sorted(gaps(path).items()):
        print(method)
        for experiment, (won, prize, cost) in by_setting.items():
            gap = ratio_interval(torch.tensor(won), torch.tensor(prize), 0.95)
            print(
                f"  {experiment:16s} gap closed {gap.value:6.1%} [{gap.low:6.1%}, {gap.high:6.1%}]  "
                f"cost {statistics.median(cost):5.1%}  seeds {len(won)}"
            )


def flags() -> Flags:
    parser = Flags(__doc__).data("folder with image shards and weights").out(required=True).seeds(range(3)).device()
    parser.add_argument("what", choices=("choose", "confirm", "table"))
    parser.add_argument("--chosen", type=Path, help="rows of the choosing run")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--cohorts", nargs="+", choices=COHORTS, default=list(COHORTS))
    parser.add_argument("--only", nargs="+", help="methods of the grid to run")
    return parser


def main() -> None:
    options = flags().parse_args()
    methods = {name: settings for name, settings in grid().items() if not options.only or name in options.only}
    if options.what == "choose":
        run(
            options, {f"{name} | {key}": scrub for name, settings in methods.items() for key, scrub in settings.items()}
        )
        print(json.dumps(choose(options.out), indent=1))
    elif options.what == "confirm":
        alone = {name: next(iter(settings)) for name, settings in methods.items() if len(settings) == 1}
        chosen = alone | choose(options.chosen)
        print(json.dumps(chosen, indent=1))
        run(options, {f"{name} | {chosen[name]}": methods[name][chosen[name]] for name in methods if name in chosen})
        table(options.out)
    else:
        table(options.out)


if __name__ == "__main__":
    main()
