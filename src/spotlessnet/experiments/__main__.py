"""`python -m spotlessnet.experiments NAME`: run an experiment with nothing but the standard library's parser."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spotlessnet.experiments import EXPERIMENTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one experiment, or draw its figures from rows that are there."""
    parser = argparse.ArgumentParser(prog="python -m spotlessnet.experiments", description=__doc__)
    parser.add_argument("name", choices=sorted(EXPERIMENTS), metavar="NAME", help=", ".join(sorted(EXPERIMENTS)))
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--full", action="store_true", help="the paper's own size; a toy otherwise")
    sizes.add_argument("--tiny", action="store_true", help="the full path on a few rows: a rehearsal")
    parser.add_argument("--data", type=Path, help="the folder with data sets and pre-trained weights")
    parser.add_argument("--out", type=Path, default=Path("reproduced"), help="rows go to OUT/NAME")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seeds", type=int, help="how many seeds; the experiment's own number unless given")
    seeds.add_argument(
        "--seed",
        type=int,
        action="append",
        help="this seed alone, or several; processes with other seeds may share OUT",
    )
    parser.add_argument("--draw", action="store_true", help="only draw the figures of the rows that are there")
    given = parser.parse_args(arguments)
    experiment, place = EXPERIMENTS[given.name], given.out / given.name
    if given.draw:
        for path in experiment.draw(place):
            print(path)
        return 0
    settings = experiment.full() if given.full else experiment.tiny() if given.tiny else experiment.toy()
    settings = replace(settings, device=given.device)
    if given.seeds is not None:
        settings = replace(settings, seeds=tuple(range(given.seeds)))
    if given.seed is not None:
        settings = replace(settings, seeds=tuple(given.seed))
    rows = experiment.run(settings, place, given.data)
    print(f"{len(rows)} rows in {place}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
