"""Forgetting from full CIFAR-10: requests served from statistics, short retraining and rivals, beside retraining.

    python benchmarks/large.py run   --data DIR --out results/large.jsonl --model all-cnn --weight-decay 0.1 --seeds 5
    python benchmarks/large.py clock --data DIR --out results/large-clock.jsonl --model all-cnn
    python benchmarks/large_page.py --out results/large.jsonl   # results/full_size.md

50,000 images, a network pre-trained on CIFAR-100, SGD with decay toward the start. A hundred of the images are
mislabelled. Three requests to one network: 100 images of a class must go (*some*), or the mislabelled ones, which are
pictures of another class (*wrong*), or all 5000 of the class (*class*). Rows are the same for every seed, which draws
head and order. The gap closed is in mean margin and loss on the forgotten rows over paired seeds, and in activation
distance, whose floor is another seed's retrained network. Half of the test images may be looked at by a method, the
other half judges it. On the first seed what is done within an epoch is done again under a counter of floating-point
operations. Margins of a hundred forgotten rows are kept beside the rows, for an attack on single examples: an attacker
who has seen both kinds of network with the other seeds tells a scrubbed from a retrained one, 0.5 is chance.
"""

import argparse
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.core.adapters import Arrays
from spotlessnet.core.data import Data
from spotlessnet.core.files import write_whole
from spotlessnet.core.progress import Meter
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.split import rows as by_number
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.few import some
from spotlessnet.experiments.setting import find_weights, on_device
from spotlessnet.methods import NTK, Finetune, NegGradPlus, OutOfFoldDistillation, ShortRetrain
from spotlessnet.methods.out_of_fold.lesson import NEVER
from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.models.pretrained import RESNET_NAMES, load_pretrained
from spotlessnet.models.resnet import ResNet
from spotlessnet.operators.precision import matmul
from spotlessnet.precomputed.fold_models import FoldModels, train_fold_models
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.readouts import ActivationDistance, Error, Margin, MeanLoss
from spotlessnet.readouts.margin import margins_of
from spotlessnet.training.fit import fit

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, accelerator, cifar10, device_of

COHORTS = ("some", "wrong", "class")
WEIGHTS = {"all-cnn": "allcnn-cifar100.safetensors", "resnet": "resnet18w04-cifar100.safetensors"}
RECIPE = Recipe(epochs=6, lr=0.01, momentum=0.9, batch_size=128, schedule="cosine")
FORGET = 100
RANK, SAMPLE = 100, 2000
"""Of the statistics: directions, and rows that their curvature is taken from."""

HUNDREDTH, TENTH = "unlabel, from fold models, a hundredth", "unlabel, from fold models, a tenth"
ALONE, STATISTICS, FOLD_MODELS = "unlabel, alone, a hundredth", "from the memory", "fold models"
MASKED = "class struck out, nothing learnt"
"""The network itself with the logit of the class set so low that it is never answered; its weights know all."""

DISTANCE = "activation distance on forget"
OPERATIONS = "operations, in trainings"
WRITING, TRAINING = "writing", "training"
ALONE_HERE = "alone on the machine"

Made = TypeVar("Made")


def requests(options: argparse.Namespace, device: torch.device) -> dict[str, Split]:
    """All rows, a hundred of them mislabelled, and what must go."""
    train, test = (some(data, options.rows) for data in cifar10(options.data))
    labels = train.labels()
    of_class, others = ((labels == c % 10).nonzero().squeeze(1) for c in (options.label, options.label + 1))
    ordinary, wrong = (
        rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(i))[: options.forget]]
        for i, rows in enumerate((of_class, others))
    )
    told = labels.clone()
    drawn = torch.randint(2, 10, (len(wrong),), generator=torch.Generator().manual_seed(2))
    told[wrong] = (options.label + drawn) % 10  # neither their own label nor that of the class
    x = train.fetch(train.rows).x
    assert isinstance(x, torch.Tensor)
    whole = on_device(Data(Arrays(x, told), torch.arange(len(told))), device)
    # Half of the images that nobody trains on may be looked at by a method, the other half judges it.
    held, tests = (on_device(test.select(torch.arange(i, len(test), 2)), device) for i in (0, 1))
    return {
        "some": by_number(ordinary.tolist())(whole, tests, validation=held),
        "wrong": by_number(wrong.tolist(), mislabelled=True)(whole, tests, validation=held),
        "class": by_number(of_class.tolist())(whole, tests, validation=held),
    }


def begin(options: argparse.Namespace, seed: int, device: torch.device) -> Trained:
    """All-CNN or ResNet-18 ×0.4 under a head of the seed, before training."""
    network: torch.nn.Module = AllCNN(10, seed=seed) if options.model == "all-cnn" else ResNet(10, width=0.4, seed=seed)
    rename = RESNET_NAMES if options.model == "resnet" else None
    path = find_weights(WEIGHTS[options.model], options.data) or options.data / WEIGHTS[options.model]
    network = load_pretrained(network, path, rename=rename).to(device)
    recipe = RECIPE.but(weight_decay=options.weight_decay, epochs=options.epochs)
    return Trained.of(network, init=network, recipe=recipe)


@dataclass(frozen=True, eq=False)
class Prepared:
    """The networks of a seed, what was made once for all requests, and how long everything took."""

    seed: int
    start: Trained
    network: Trained
    fold_models: FoldModels
    statistics: Statistics | None
    retrained: dict[str, Trained]
    took: dict[str, float]


def methods(options: argparse.Namespace, made: Prepared) -> dict[str, Scrub]:
    """Every method by its name."""
    few, many = (
        OutOfFoldDistillation(
            epochs=options.rounds,
            examples_per_epoch=rows,
            compute_budget=cost if rows is None else None,
            max_step_scale=options.stretch,
        )
        for rows, cost in ((options.few, 0.01), (options.many, 0.1))
    )
    found: dict[str, Scrub] = {
        HUNDREDTH: replace(few, fold_models=made.fold_models),
        TENTH: replace(many, fold_models=made.fold_models),
        ALONE: few,
        "fine-tune, an epoch": Finetune(epochs=1),
        "negative gradient +, an epoch": NegGradPlus(epochs=1),
        "short retraining, in stages": ShortRetrain(),
    }
    if made.statistics is not None:
        found[STATISTICS] = NTK(statistics=made.statistics)
    return {name: scrub for name, scrub in found.items() if name not in options.without}


def scrubbed(scrub: Scrub, method: str, original: Trained, split: Split) -> Trained:
    """The network after a scrub; one that works from statistics is shown nothing but the forgotten rows."""
    return original.at(scrub(original, Split(forget=split.forget) if method == STATISTICS else split).mean)


class Masked(torch.nn.Module):
    """A network that never answers one class."""

    def __init__(self, network: torch.nn.Module, label: int) -> None:
        super().__init__()
        self.network, self.label = network, label

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answers: torch.Tensor = self.network(x)
        return answers.index_fill(1, torch.tensor([self.label], device=answers.device), NEVER)


def masked(name: str, seed: int, network: Trained, reference: Trained, split: Split) -> Iterator[Row]:
    """How near it comes, and what errors it makes, to cover the class up."""
    label = int(split.forget.labels()[0])
    cover = Trained.of(Masked(network.module(), label))
    for row in looks(name, MASKED, seed, cover, reference, split):
        if row.readout in (DISTANCE, "error on retain", "error on test"):
            yield row


def looks(name: str, method: str, seed: int, network: Trained, reference: Trained, split: Split) -> Iterator[Row]:
    """One row per readout; errors on 5000 of the retained rows."""
    small = replace(split, kept=some(split.retain, 5000))
    for readout in (ActivationDistance(reference), MeanLoss("forget"), Margin("forget"), Error("forget")):
        yield Row(name, method, readout.name, seed, float(readout(network, small)), unit=readout.unit)
    for error in (Error("retain"), Error("test")):
        yield Row(name, method, error.name, seed, float(error(network, small)), unit=error.unit)


def run(options: argparse.Namespace) -> None:
    """All seeds. The floor of each is the next one's retrained network, and the first's for the last."""
    device = device_of(options)
    seen: list[Prepared] = []
    splits = requests(options, device)
    with matmul("tf32"):
        for seed in options.seeds:
            seen.append(prepare(options, splits, seed, device))
            if len(seen) > 1:
                compare(options, splits, seen[-2], seen[-1].retrained)
                seen[1:-1] = []
        floor = seen[0].retrained
        if len(seen) == 1:
            floor = {c: fit(seen[0].start, splits[c].retain, seed=seed + 1000, order_of=splits[c].whole) for c in floor}
        compare(options, splits, seen[-1], floor)


def prepare(options: argparse.Namespace, splits: dict[str, Split], seed: int, device: torch.device) -> Prepared:
    """The original, one retrained network for every request, fold models and, where asked for, statistics."""
    start, split, statistics = begin(options, seed, device), splits["some"], None
    keep = partial(kept, options, seed)
    _, original = keep("original", partial(weights_of, start, split.whole, seed=seed))
    network, took, retrained = start.at(original["weights"]), {}, {}
    for cohort in options.cohorts:
        again = partial(weights_of, start, splits[cohort].retain, seed=seed, order_of=split.whole)
        took[cohort], other = keep(f"retrained-{cohort}", again)
        retrained[cohort] = start.at(other["weights"])
    train = partial(train_fold_models, folds=options.folds, repeats=options.repeats, held=split.validation, seed=seed)
    what = f"fold-models-{options.folds}-{options.repeats}"
    took[FOLD_MODELS], known = keep(what, lambda: apart(train(network, split.whole)))
    keys = RowKeys(bytes.fromhex(known.pop("salt")), known["keys"])
    fold_models = FoldModels(**known | {"weights": known["weights"].to(device), "keys": keys})
    if options.statistics:
        took["memory"], statistics = measured(
            lambda: precompute(network, split.whole, rank=options.rank, sample=options.sample, diagonal=None), device
        )
    print(f"{options.model}, decay {options.weight_decay:g}, seed {seed} trained", flush=True)
    return Prepared(seed, start, network, fold_models, statistics, retrained, took)


def weights_of(start: Trained, data: Data, *, seed: int, order_of: Data | None = None) -> dict[str, Any]:
    """Of a network that is trained now."""
    return {"weights": fit(start, data, seed=seed, order_of=order_of).weights}


def apart(fold_models: FoldModels) -> dict[str, Any]:
    """As plain values, which a file can hold."""
    return vars(fold_models) | {"keys": fold_models.keys.digests, "salt": fold_models.keys.salt.hex()}


def kept(
    options: argparse.Namespace, seed: int, what: str, make: Callable[[], dict[str, Any]]
) -> tuple[float, dict[str, Any]]:
    """How long it took, and what was made: now or, with `--keep`, by an earlier run."""
    if options.keep is None:
        return measured(make, device_of(options))
    told = (
        options.model,
        options.weight_decay,
        options.epochs,
        options.rows,
        options.label,
        options.forget,
        seed,
        what,
    )
    path = options.keep / f"{'-'.join(map(str, told))}.pt"
    if not path.exists():
        found = io.BytesIO()
        torch.save(measured(make, device_of(options)), found)
        write_whole(path, found.getvalue(), replace=True)  # another run may have been faster, to the same bytes
    took, made = torch.load(path, map_location="cpu", weights_only=True)
    return took, made


def compare(options: argparse.Namespace, splits: dict[str, Split], ready: Prepared, floors: dict[str, Trained]) -> None:
    """Every request by every method; each request's rows are written when they are known."""
    for cohort, retrained in ready.retrained.items():
        one_cohort(options, splits[cohort], cohort, ready, retrained, floors[cohort])


def one_cohort(
    options: argparse.Namespace, split: Split, cohort: str, ready: Prepared, retrained: Trained, floor: Trained
) -> None:
    """One request by every method."""
    seed, device = ready.seed, ready.start.device
    name = f"{options.model}, decay {options.weight_decay:g}, {cohort}"
    done = {row.key for row in read_rows(options.out)}
    took = ready.took[cohort]
    made = [Row(name, "retrained", TRAINING, seed, took, unit="seconds", seconds=took)]
    made += [
        Row(name, what, WRITING, seed, ready.took[what], unit="seconds", seconds=ready.took[what])
        for what in (FOLD_MODELS, "memory")
        if what in ready.took
    ]
    seen, count = {"original": ready.network, "retrained": retrained, "floor": floor}, seed == options.seeds[0]
    for method, network in seen.items():
        made += looks(name, method, seed, network, retrained, split)
    if cohort == "class":
        made += masked(name, seed, ready.network, retrained, split)
    for method, scrub in methods(options, ready).items():
        work = partial(scrubbed, scrub, method, ready.network, split)
        try:
            took, network = measured(work, device)
        except ArithmeticError as error:  # a method that breaks is a result too
            print(f"{name}, {method}, seed {seed}: {error}", flush=True)
            continue
        seen[method] = network
        made += [replace(row, seconds=took) for row in looks(name, method, seed, network, retrained, split)]
        if count and method in (HUNDREDTH, TENTH, ALONE, STATISTICS):
            made.append(counted(work, ready.start, split.whole, name, method, seed))
    append_rows(options.out, [replace(row, note=about(options, device)) for row in made if row.key not in done])
    keep_margins(options.out, name, seed, seen, some(split.forget, FORGET))
    print(f"{name}, seed {seed} done", flush=True)


def about(options: argparse.Namespace, device: torch.device) -> str:
    """Machine, epochs and what the methods were told, for the record."""
    paid = f"{options.few} or {options.many} rows" if options.few else "what a hundredth or a tenth pays for"
    return (
        f"torch {torch.__version__}, {accelerator(device)}, TF32, {options.epochs} epochs; "
        f"{options.folds * options.repeats} fold models; {options.rounds} rounds of {paid}"
    )


def keep_margins(out: Path, name: str, seed: int, seen: dict[str, Trained], rows: Data) -> None:
    """One line per cohort and seed: margins of the same forgotten rows under every network."""
    found = margins_of(seen.values(), rows)
    line = {m: [round(float(v), 3) for v in row] for m, row in zip(seen, found, strict=True)}
    with margins_file(out).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"experiment": name, "seed": seed, "margins": line}) + "\n")


def margins_file(out: Path) -> Path:
    """Where margins are kept beside the rows."""
    return out.with_name(f"{out.stem}-margins.jsonl")


def measured(work: Callable[[], Made], device: torch.device) -> tuple[float, Made]:
    """How long it took, and what came of it."""
    with Meter(device) as meter:
        made = work()
    return meter.seconds, made


def counted(work: Callable[[], object], start: Trained, data: Data, name: str, method: str, seed: int) -> Row:
    """The same once more, under a counter of floating-point operations, in units of one training."""
    with FlopCounterMode(display=False) as counter:
        work()
    return Row(name, method, OPERATIONS, seed, counter.get_total_flops() / operations(start, data), unit="trainings")


def operations(start: Trained, data: Data) -> float:
    """Of one training on all rows: back takes twice as many as forth."""
    assert start.recipe is not None  # given by `begin`
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        start.outputs(start.fetch(data, data.rows[:1]).x)
    return 3.0 * counter.get_total_flops() * len(data) * start.recipe.epochs


def clock(options: argparse.Namespace) -> None:
    """What a request takes on a machine that does nothing else, beside an epoch of training. Weights do not matter."""
    device = device_of(options)
    splits, start = requests(options, device), begin(options, options.seeds[0], device)
    whole, epoch = splits["some"].whole, RECIPE.but(epochs=1, weight_decay=options.weight_decay)
    part = torch.stack([torch.arange(len(whole)) % options.folds + d * options.folds for d in range(options.repeats)])
    fold_models = FoldModels(start.weights.repeat(options.folds * options.repeats, 1), RowKeys.of(whole), part)
    ready = Prepared(options.seeds[0], start, start, fold_models, None, {}, {})
    with matmul("tf32"):
        fit(start, some(whole, 2560), epoch)  # kernels are chosen on first use
        training = options.epochs * measured(lambda: fit(start, whole, epoch), device)[0]
        rows = [Row(f"{options.model}, {ALONE_HERE}", "retrained", TRAINING, 0, training, unit="seconds")]
        for method, scrub in methods(options, ready).items():
            for cohort in splits:
                work = partial(scrubbed, scrub, method, start, splits[cohort])
                work()
                for i in range(5):
                    took = measured(work, device)[0]
                    rows.append(Row(f"{options.model}, {ALONE_HERE}", method, cohort, i, took, unit="seconds"))
    append_rows(options.out, [replace(row, note=about(options, device)) for row in rows])


def flags() -> Flags:
    parser = Flags(__doc__).data("folder with image shards and weights").out(required=True).seeds(range(5)).device()
    parser.add_argument("what", choices=("run", "clock"))
    parser.add_argument("--model", choices=sorted(WEIGHTS), default="all-cnn")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--cohorts", nargs="+", choices=COHORTS, default=list(COHORTS))
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="rows that their curvature is taken from")
    parser.add_argument("--rank", type=int, default=RANK, help="directions that the statistics keep")
    parser.add_argument("--forget", type=int, default=FORGET)
    parser.add_argument("--label", type=int, default=0, help="the class that is forgotten, in part or whole")
    parser.add_argument("--rows", type=int, help="the most training rows, for a rehearsal")
    parser.add_argument("--statistics", action="store_true", help="write statistics too, and serve requests from it")
    parser.add_argument("--keep", type=Path, help="folder where trained networks are kept and found again")
    parser.add_argument("--without", nargs="+", default=[], metavar="METHOD", help="methods to leave out")
    parser.add_argument("--few", type=int, help="rows of a round; what a hundredth of a training pays for unless said")
    parser.add_argument("--many", type=int, help="rows of a round; what a tenth of a training pays for unless said")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--stretch", type=float, help="what a step is at most multiplied by; as usual unless said")
    parser.add_argument("--folds", type=int, default=3, help="of the rows; each fold model is trained without one")
    parser.add_argument("--repeats", type=int, default=1, help="so many times the rows are divided for them")
    return parser


def main() -> None:
    options = flags().parse_args()
    (run if options.what == "run" else clock)(options)


if __name__ == "__main__":
    main()
