"""Settings tried at full size: one network, of another class and seed than those that are reported, and many requests.

    python benchmarks/large_trials.py --data DIR --out results/large-trials.jsonl --model all-cnn --decay 5e-4

Original, tutors, retrained networks and floors are trained once, as in `benchmarks/large.py`; a request then takes a
second at most. One line per trial: how much of the way was gone in mean margin, loss and activation distance, and what
errors are left.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path

import torch

from spotlessnet.core.data import Data
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.precision import matmul
from spotlessnet.report.rows import Row, append_rows
from spotlessnet.scrubs import Unlabel
from spotlessnet.scrubs.unlabel import NEVER
from spotlessnet.training.fit import fit
from spotlessnet.training.tutors import Tutors

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.large import RECIPE, WEIGHTS, Prepared, looks, measured, prepare, requests

LABEL, SEED = 3, 100
READOUTS = ("margin on forget", "loss on forget", "activation distance on forget")


@dataclass(frozen=True, eq=False)
class WithOwn(Tutors):
    """Tutors whose answers are mixed with the network's own, the row's label struck out of both."""

    own: float = 0.0

    def answers(self, network: Trained, data: Data) -> torch.Tensor:
        said = super().answers(network, data)
        if not self.own:
            return said
        both = (1 - self.own) * said + self.own * network.predict(data).cpu()
        return both.scatter(1, data.labels().cpu().long().unsqueeze(1), NEVER)


def trials() -> Iterator[tuple[str, dict[str, float], float]]:
    """Cohort, what `Unlabel` is told, and how much the network's own answers count."""
    for share, speed, momentum in product((0.5, 0.6, 0.75), (0.2, 0.3, 0.4), (0.8, 0.9)):
        yield "some", {"share": share, "speed": speed if momentum < 0.9 else speed / 2, "momentum": momentum}, 0.0
    for T in (2.0, 4.0):
        yield "some", {"temperature": T, "share": 0.6}, 0.0
    for own, share, T in product((0.0, 0.25, 0.5, 0.75), (0.25, 0.4), (1.0, 3.0)):
        yield "wrong", {"share": share, "temperature": T}, own
    for share, speed, lift in product((0.05, 0.1), (0.1, 0.3), (0.0, 1.0)):
        yield "class", {"share": share, "speed": speed, "lift": lift}, 0.0


def values(network: Trained, reference: Trained, split: Split) -> dict[str, float]:
    return {row.readout: row.value for row in looks("", "", 0, network, reference, split)}


def told(before: dict[str, float], now: dict[str, float], goal: dict[str, float]) -> str:
    """The share of the way that was gone, and errors."""
    ways = [f"{(before[r] - now[r]) / (before[r] - goal[r]):.0%}" for r in READOUTS]
    errors = [f"{100 * now[f'error on {part}']:.2f}" for part in ("retain", "test")]
    return f"margin {ways[0]} loss {ways[1]} distance {ways[2]}, errors {' / '.join(errors)}"


def run(options: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    splits = requests(options, device)
    with matmul("tf32"):
        ready: Prepared = prepare(options, splits, SEED, device)
        goals, start = {}, {}
        for cohort, split in splits.items():
            retrained = ready.retrained[cohort]
            floor = fit(ready.start, split.retain, seed=SEED + 1000, order_of=split.whole)
            start[cohort] = values(ready.network, retrained, split)
            goals[cohort] = values(retrained, retrained, split)
            goals[cohort][READOUTS[2]] = values(floor, retrained, split)[READOUTS[2]]
            print(f"{cohort}: original {start[cohort]}, goal {goals[cohort]}", flush=True)
        for cohort, settings, own in trials():
            split = splits[cohort]
            tutors = WithOwn(**{f.name: getattr(ready.tutors, f.name) for f in fields(Tutors)}, own=own)
            for cost, rows in (("a hundredth", options.few), ("a tenth", options.many)):
                scrub = replace(Unlabel(rows=rows, epochs=options.rounds, tutors=tutors), **settings)
                name = f"{cost}, {' '.join(f'{k}={v:g}' for k, v in settings.items())} own={own:g}"
                try:
                    took, found = measured(lambda scrub=scrub, split=split: scrub(ready.network, split), device)
                except ArithmeticError as error:
                    print(f"{cohort}, {name}: {error}", flush=True)
                    continue
                now = values(ready.network.at(found.mean), ready.retrained[cohort], split)
                where = f"{options.model}, decay {options.decay:g}, {cohort}"
                append_rows(options.out, [Row(where, name, r, SEED, v, seconds=took) for r, v in now.items()])
                print(f"{cohort}, {name}: {told(start[cohort], now, goals[cohort])}, {took:.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with image shards and weights")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=sorted(WEIGHTS), default="all-cnn")
    parser.add_argument("--decay", type=float, default=5e-4)
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=1200)
    parser.add_argument("--rows", type=int, help="the most training rows, for a rehearsal")
    parser.add_argument("--forget", type=int, default=100)
    parser.set_defaults(label=LABEL, parts=3, divisions=1, memory=False, cohorts=["some", "wrong", "class"])
    run(parser.parse_args())


if __name__ == "__main__":
    main()
