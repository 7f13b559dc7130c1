"""`python -m spotlessnet.experiments NAME`: `spotless reproduce` with the standard library's parser alone."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from spotlessnet.experiments import EXPERIMENTS
from spotlessnet.experiments.runner import OUT, draw, find, reproduce, seeds_of, settings_for, size_of


def flags() -> argparse.ArgumentParser:
    """The same names as the command's; a test compares them."""
    parser = argparse.ArgumentParser(prog="python -m spotlessnet.experiments", description=__doc__)
    parser.add_argument("name", choices=sorted(EXPERIMENTS), metavar="NAME", help=", ".join(sorted(EXPERIMENTS)))
    parser.add_argument("--full", action="store_true", help="the paper's own size; a toy otherwise")
    parser.add_argument("--tiny", action="store_true", help="the full path on a few rows: a rehearsal")
    parser.add_argument("--data", type=Path, help="the folder with data sets and pre-trained weights")
    parser.add_argument("--out", "-o", type=Path, default=OUT, help="rows go to OUT/NAME")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--seeds", type=int, help="how many seeds; the experiment's own number unless given")
    alone = "this seed alone, or several; processes with other seeds may share OUT"
    parser.add_argument("--seed", type=int, action="append", help=alone)
    parser.add_argument("--draw", action="store_true", help="only draw the figures of the rows that are there")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one experiment, or draw its figures from rows that are there."""
    given = flags().parse_args(arguments)
    experiment = find(given.name, EXPERIMENTS)
    place = given.out / given.name
    if given.draw:
        found = draw(experiment, place)
    else:
        seeds = seeds_of(given.seeds, given.seed)
        size = size_of(given.full, given.tiny)
        settings = settings_for(experiment, size=size, seeds=seeds, device=given.device)
        found = reproduce(experiment, settings, place, given.data)
        print(f"{len(found.rows)} rows in {place}")
    for path in found.files:
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
