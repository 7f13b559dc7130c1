"""Settings tried at full size: one network, of another class and seed than those that are reported, and many requests.

    python benchmarks/large_trials.py --data DIR --out results/large-trials.jsonl --keep NETWORKS --model all-cnn

Original, tutors of two kinds, retrained networks and floors are trained once, as in `benchmarks/large.py`; a request
then takes a second at most. One line per trial: how much of the way was gone in mean margin, loss and activation
distance, and what errors are left.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import torch

from spotlessnet.core.data import Data
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.precision import matmul
from spotlessnet.report.rows import Row, append_rows
from spotlessnet.scrubs import Unlabel
from spotlessnet.scrubs.unlabel import NEVER
from spotlessnet.training.tutors import Tutors

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.large import DEVICE, RECIPE, WEIGHTS, Prepared, kept, looks, measured, prepare, requests, weights_of

LABEL, SEED = 3, 100
KINDS = (2, 2), (3, 1)
"""Of tutors that take two trainings: parts and divisions."""

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
    for share, T, speed in ((0.5, 3, 0.3), (0.6, 3, 0.3), (0.75, 3, 0.3), (0.6, 3, 0.5), (0.5, 1, 0.3), (0.6, 1, 0.5)):
        yield "some", {"share": share, "temperature": T, "speed": speed}, 0.0
    for share, T, speed, own in (
        (0.25, 3, 0.3, 0.0), (0.25, 3, 0.3, 0.25), (0.25, 3, 0.3, 0.5), (0.4, 3, 0.3, 0.0),
        (0.4, 3, 0.3, 0.25), (0.25, 3, 0.5, 0.0), (0.25, 1, 0.5, 0.0), (0.4, 1, 0.3, 0.25),
    ):  # fmt: skip
        yield "wrong", {"share": share, "temperature": T, "speed": speed}, own
    for share, speed, lift in ((0.1, 0.3, 1.0), (0.1, 0.3, 0.0), (0.05, 0.3, 1.0), (0.2, 0.3, 1.0), (0.1, 0.2, 1.0)):
        yield "class", {"share": share, "speed": speed, "lift": lift}, 0.0


def values(network: Trained, reference: Trained, split: Split) -> dict[str, float]:
    return {row.readout: row.value for row in looks("", "", 0, network, reference, split)}


def told(before: dict[str, float], now: dict[str, float], goal: dict[str, float]) -> str:
    """The share of the way that was gone, and errors."""
    ways = [f"{(before[r] - now[r]) / (before[r] - goal[r]):.0%}" for r in READOUTS]
    errors = [f"{100 * now[f'error on {part}']:.2f}" for part in ("retain", "test")]
    return f"margin {ways[0]} loss {ways[1]} distance {ways[2]}, errors {' / '.join(errors)}"


def run(options: argparse.Namespace) -> None:
    splits = requests(options, DEVICE)
    with matmul("tf32"):
        for options.parts, options.divisions in KINDS:
            ready = prepare(options, splits, SEED, DEVICE)
            keep = partial(kept, options, SEED)
            start, goals = {}, {}
            for cohort, split in splits.items():
                again = partial(weights_of, ready.start, split.retain, seed=SEED + 1000, order_of=split.whole)
                _, floor = keep(f"floor-{cohort}", again)
                retrained = ready.retrained[cohort]
                start[cohort] = values(ready.network, retrained, split)
                goals[cohort] = values(retrained, retrained, split)
                goals[cohort][READOUTS[2]] = values(ready.start.at(floor["weights"]), retrained, split)[READOUTS[2]]
                print(f"{cohort}: original {start[cohort]}, goal {goals[cohort]}", flush=True)
            for cohort, settings, own in trials():
                tutors = WithOwn(**{f.name: getattr(ready.tutors, f.name) for f in fields(Tutors)}, own=own)
                for cost, rows in (("a hundredth", options.few), ("a tenth", options.many)):
                    scrub = replace(Unlabel(rows=rows, epochs=options.rounds, tutors=tutors), **settings)
                    name = f"{cost}, {' '.join(f'{k}={v:g}' for k, v in settings.items())} own={own:g}"
                    told = f"{len(tutors.weights)} tutors, {name}"
                    tried(options, scrub, told, ready, (cohort, splits[cohort]), start[cohort], goals[cohort])


def tried(
    options: argparse.Namespace,
    scrub: Unlabel,
    name: str,
    ready: Prepared,
    request: tuple[str, Split],
    start: dict[str, float],
    goal: dict[str, float],
) -> None:
    """One request, written down and told."""
    cohort, split = request
    try:
        took, found = measured(lambda: scrub(ready.network, split), DEVICE)
    except ArithmeticError as error:  # a setting that breaks is a result too
        print(f"{cohort}, {name}: {error}", flush=True)
        return
    now = values(ready.network.at(found.mean), ready.retrained[cohort], split)
    where = f"{options.model}, decay {options.decay:g}, {cohort}"
    append_rows(options.out, [Row(where, name, r, SEED, v, seconds=took) for r, v in now.items()])
    print(f"{cohort}, {name}: {told(start, now, goal)}, {took:.2f} s", flush=True)


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
    parser.add_argument("--keep", type=Path, required=True, help="folder where trained networks are kept")
    parser.set_defaults(label=LABEL, memory=False, cohorts=["some", "wrong", "class"])
    run(parser.parse_args())


if __name__ == "__main__":
    main()
