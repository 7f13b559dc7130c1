"""What an attacker with shadows still finds after a scrub: U-LiRA, beside retrained and untouched networks.

    python benchmarks/attack.py --out results/attack-digits.jsonl --docs docs/which_method_when.md
    python benchmarks/attack.py --data DIR --out results/attack-cifar.jsonl

The demo's network and its 25 mislabelled digits; or with DIR, which holds shards and weights, 500 CIFAR-10 images,
25 of them mislabelled, and a pre-trained ResNet-18 ×0.4. As many rows that stay are watched. Shadows are trained on
random halves of both, then each is scrubbed with the same method and settings; the attacker knows the others when it
judges one. 0.5 is chance. What it finds among the rows that stay should be what it found before the scrub.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time

import torch

from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.shadow_attack import attack_shadows
from spotlessnet.auditing.shadows import train_shadows
from spotlessnet.core.chaining import chain
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.demo import problem
from spotlessnet.methods import NTK, SCRUB, Finetune, Fisher, NegGradPlus, SalUn, ShortRetrain

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, Place, collect, device_of, show, use_threads
from benchmarks.labels import in_the_fields_words

METHODS: dict[str, Scrub] = {
    "short retraining, the default": ShortRetrain(),
    "NTK, then 3 epochs": chain(NTK(), Finetune(epochs=3)),
    "NTK": NTK(),
    "fine-tune, 10 epochs": Finetune(epochs=10),
    "Fisher noise": Fisher(strength=1e-7, cap=0.3),
    "negative gradient +": NegGradPlus(),
    "SCRUB": SCRUB(),
    "SalUn": SalUn(),
}
FORGOTTEN, RETAINED = "AUC on forgotten rows", "AUC on retained rows"
PLACE = Place.of("attack", "end of the attack")


def small_cifar(folder: Path, epochs: int, seed: int, device: torch.device) -> tuple[Trained, Split]:
    """The mislabelled images of `benchmarks/frontier.py`, and the network that will learn them."""
    # Only here: the page of the frontier, which imports that script, shows this one's table too.
    from benchmarks.frontier import RECIPE, split_of, start_of

    pair = load("cifar10", folder)
    began = start_of("resnet", folder, seed, device)
    recipe = RECIPE.but(epochs=epochs, patience=None)
    return replace(began, recipe=recipe), split_of("wrong", pair.train, pair.test, seed, device)


def measure(
    name: str, began: Trained, split: Split, methods: Mapping[str, Scrub], shadows: int, seed: int
) -> Iterator[Row]:
    """All methods against the same shadows."""
    targets = split.forgotten.nonzero().squeeze(1)
    others = (~split.forgotten).nonzero().squeeze(1)
    watched = others[torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[: len(targets)]]
    made = train_shadows(began, split.whole, targets, bystanders=watched.sort().values, shadows=shadows, seed=seed)
    for method in ("original", *methods, "retrained"):
        clock = process_time()
        if method in methods:
            networks: Sequence[Trained] | None = made.scrubbed(methods[method])
        else:
            networks = None if method == "original" else made.retrained()
        seconds = (process_time() - clock) / shadows
        found = attack_shadows(made, networks)
        assert found.retained is not None  # bystanders were asked for
        for readout, attack in ((FORGOTTEN, found.forgotten), (RETAINED, found.retained)):
            value, low, high = attack.auc
            yield Row(f"U-LiRA, {name}", method, readout, seed, value, low, high, "AUC", "as retrained", seconds)
        print(f"{method}\n{found}\n", flush=True)


def table(rows: Sequence[Row]) -> str:
    """Markdown, with 95 % intervals over shadows."""
    lines = ["| method | AUC, forgotten rows | AUC, rows that stay |", "|---|---:|---:|"]
    by_key = {(row.method, row.readout): row for row in rows}
    for method in dict.fromkeys(row.method for row in rows):
        cells = [by_key[method, readout] for readout in (FORGOTTEN, RETAINED)]
        lines.append(f"| {method} | " + " | ".join(f"{c.value:.3f} [{c.low:.3f}, {c.high:.3f}]" for c in cells) + " |")
    return in_the_fields_words("\n".join(lines))


def flags() -> Flags:
    parser = Flags(__doc__).data("folder with image shards and weights; digits without it").out().page().device()
    parser.add_argument("--shadows", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=25, help="of each CIFAR-10 shadow")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    return parser


def main() -> None:
    given = flags().parse_args()
    use_threads()
    if given.data is None:
        name = "digits"
        began, split = problem()
    else:
        name = "small CIFAR-10"
        began, split = small_cifar(given.data, given.epochs, given.seed, device_of(given))
    methods = {method: METHODS[method] for method in given.only}
    rows = collect(given, "attack", [measure(name, began, split, methods, given.shadows, given.seed)])
    show(given, table(rows), PLACE)


if __name__ == "__main__":
    main()
