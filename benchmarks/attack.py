"""What an attacker with shadows still finds after a scrub: U-LiRA, beside retrained and untouched networks.

    python benchmarks/attack.py --out results/attack-digits.jsonl --docs docs/which_method_when.md
    python benchmarks/attack.py --data DIR --out results/attack-cifar.jsonl

The demo's network and its 25 mislabelled digits; or with DIR, which holds shards and weights, 500 CIFAR-10 images,
25 of them mislabelled, and a pre-trained ResNet-18 ×0.4. As many rows that stay are watched. Shadows are trained on
random halves of both, then each is scrubbed with the same method and settings; the attacker knows the others when it
judges one. 0.5 is chance. What it finds among the rows that stay should be what it found before the scrub.
"""

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time

import torch

from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.shadow_attack import attack_shadows
from spotlessnet.auditing.shadows import train_shadows
from spotlessnet.core.files import write_whole
from spotlessnet.core.scrub import Scrub, chain
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.demo import problem
from spotlessnet.methods import NTK, SCRUB, Finetune, Fisher, NegGradPlus, SalUn, ShortRetrain
from spotlessnet.report.exports import as_json_lines

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
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
BEGIN, END = "<!-- written by benchmarks/attack.py -->", "<!-- end of the attack -->"


def small_cifar(folder: Path, epochs: int, seed: int) -> tuple[Trained, Split]:
    """The mislabelled images of `benchmarks/frontier.py`, and the network that will learn them."""
    # A script beside this one, found where this one was started from.
    from frontier import RECIPE, split_of, start_of  # type: ignore[import-not-found]

    device, pair = "cuda" if torch.cuda.is_available() else "cpu", load("cifar10", folder)
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
            weights = made.scrubbed(methods[method])
        else:
            weights = made.weights if method == "original" else made.retrained()
        seconds = (process_time() - clock) / shadows
        found = attack_shadows(made, weights)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shadows", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="folder with image shards and weights; digits without it")
    parser.add_argument("--epochs", type=int, default=25, help="of each CIFAR-10 shadow")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--docs", type=Path, help="the page whose table is renewed")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    note = (
        f"python benchmarks/attack.py {f'--data DIR --epochs {given.epochs} ' if given.data else ''}"
        f"--shadows {given.shadows} --seed {given.seed}; {platform.system()} "
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    began, split = small_cifar(given.data, given.epochs, given.seed) if given.data else problem()
    name, methods = "small CIFAR-10" if given.data else "digits", {m: METHODS[m] for m in given.only}
    found = measure(name, began, split, methods, given.shadows, given.seed)
    rows = [replace(row, note=note) for row in found]
    made = table(rows)
    print(made)
    if given.out:
        write_whole(given.out, as_json_lines(rows).encode(), replace=True)
    if given.docs:
        page = given.docs.read_text(encoding="utf-8")
        before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        given.docs.write_text(f"{before}\n\n{made}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
