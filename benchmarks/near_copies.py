"""A forgotten row with a wrong label, then its near copy with the right one: does that request bring the first back?

    python benchmarks/near_copies.py --seeds $(seq 200 239) --out results/near_copies.jsonl --docs results/requests.md

Sequences made to fail, on scikit-learn's digits: one row is another with a little noise, or brighter, and a wrong
label; it is asked for first, its original later, alone or with ordinary rows. Every seed draws its network (8, 16 or 32
units, or twice 16), its decay (1e-2, 1e-3, 3e-4) and how near the copy lies. Where the tool says *retrain now* a
sequence ends. `unguarded` leaves out what this page is about: `precomputed/near_copies.py`.

    python benchmarks/near_copies.py --ordinary --seeds $(seq 700 709) --out results/near_copies_ordinary.jsonl

says what that costs where nothing was made to fail: the sequences of `benchmarks/sequences.py`, with it and without.
"""

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from spotlessnet.auditing.rows import Row, read_rows
from spotlessnet.core.data import Data
from spotlessnet.core.files import write_whole
from spotlessnet.core.progress import track
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import rows
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.models.mlp import MLP
from spotlessnet.precomputed import step
from spotlessnet.report.exports import as_json_lines
from spotlessnet.training.fit import fit

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.labels import in_the_fields_words
from benchmarks.sequences import AT_HAND, FOLD_MODELS, NOISE, PURGED, RETRAINED, SAMPLE, networks

from benchmarks import sequences

ROWS = 300
HIDDEN = ((8,), (16,), (32,), (16, 16))
DECAYS = (1e-2, 1e-3, 3e-4)
NEAR = (0.05, 0.1, 0.2, None)
"""Noise on the copy, in deviations of all inputs; `None` for one that is a tenth brighter."""

SHAPES = {
    "alone": (0, 0, 0),
    "four others with the first": (4, 0, 0),
    "five others between": (0, 5, 0),
    "four others with the copy": (0, 0, 4),
    "nineteen others with the copy": (0, 0, 19),
}
"""How many ordinary rows go with the first, between the two, and with the copy."""

UNGUARDED = ", unguarded"
METHODS = (AT_HAND + UNGUARDED, AT_HAND, SAMPLE + UNGUARDED, SAMPLE, PURGED + UNGUARDED, PURGED, FOLD_MODELS, RETRAINED)
SERVED, LOST, BACK = "the copy's request was served", "the first request did something", "taken back"
BEGIN, END = "<!-- written by benchmarks/near_copies.py -->", "<!-- end of near copies -->"


def problem(shape: tuple[int, int, int], seed: int) -> tuple[Trained, Data, list[list[int]]]:
    """A start, all rows (the wrong label, its original, others), and who goes, request by request."""
    draw = torch.Generator().manual_seed(seed)

    def one_of(choices: Sequence[object]) -> int:
        return int(torch.randint(len(choices), (1,), generator=draw))

    hidden, decay, near = HIDDEN[one_of(HIDDEN)], DECAYS[one_of(DECAYS)], NEAR[one_of(NEAR)]
    pair = load("digits")
    chosen = torch.randperm(len(pair.train), generator=draw)[:ROWS]
    batch = next(iter(pair.train.select(chosen).batches(ROWS)))
    assert isinstance(batch.x, Tensor)
    x, y = batch.x.flatten(1).clone(), batch.y.clone()
    x[0] = 1.1 * x[1] if near is None else x[1] + near * x.std() * torch.randn(x.shape[1], generator=draw)
    y[0] = (y[1] + torch.randint(1, 10, (), generator=draw)) % 10
    recipe = Recipe(epochs=150, lr=0.1, weight_decay=decay, batch_size=50, schedule="cosine")
    fresh = Trained.of(MLP(x.shape[1], 10, hidden=hidden, seed=seed), recipe=recipe, weight_decay=decay)
    first, between, last = ([*range(at, at + size)] for at, size in zip((10, 20, 30), shape, strict=True))
    cohorts = [part for part in ([0, *first], between, [1, *last]) if part]
    return replace(fresh, init=fresh.weights), Data.of((x, y)), cohorts


@contextmanager
def guard(method: str) -> Iterator[str]:
    """The name of the method without the guard, and the guard left out where it says so."""
    if not method.endswith(UNGUARDED):
        yield method
        return
    with patch.object(step, "labels_back", lambda *_: torch.zeros(1, 1, dtype=torch.bool)):
        yield method.removesuffix(UNGUARDED)


def measure(shape: str, seed: int, methods: Sequence[str]) -> Iterator[Row]:
    """One made sequence by every method."""
    start, data, cohorts = problem(SHAPES[shape], seed)
    original, first = fit(start, data, seed=seed), rows([0])(data).forget

    def loss(network: Trained) -> float:
        one = first.fetch(first.rows)
        return float(network.losses(one.x, one.y).detach())

    for method in methods:
        with guard(method) as plain:
            path = [loss(network) for network in (original, *networks(plain, original, data, cohorts))]
        served = len(path) == len(cohorts) + 1
        did = path[1] - path[0] if len(path) > 1 else 0.0
        back = served and did > NOISE and path[1] - path[-1] > 0.5 * did
        for readout, value in ((SERVED, served), (LOST, served and did > NOISE), (BACK, back)):
            yield Row(shape, method, readout, seed, float(value))


def ordinary(setting: str, seed: int, methods: Sequence[str]) -> Iterator[Row]:
    """A sequence of ten requests that nothing was made for."""
    plain = sequences.networks

    def guarded(method: str, *problem: Any) -> Iterator[Trained]:
        with guard(method) as name:
            yield from plain(name, *problem)

    with patch.object(sequences, "networks", guarded):
        [one] = [each for each in sequences.SETTINGS if each.name == setting]
        yield from sequences.measure(one, seed, methods)


def ordinary_table(all_rows: Sequence[Row]) -> str:
    """Markdown: how many ordinary requests were served, and what they took back."""
    lines = ["| from | sequences | requests served | loss taken back | score taken back |", "|---|---:|---:|---:|---:|"]
    for method in METHODS:
        mine = [r for r in all_rows if r.method == method]
        total = {r.readout: sum(o.value for o in mine if o.readout == r.readout) for r in mine}
        if mine:
            count = sum(r.readout == sequences.SERVED for r in mine)
            served = f"{total[sequences.SERVED]:.0f} of {count * sequences.REQUESTS}"
            back = (f"{total[name]:.0f} of {total[looked]:.0f}" for name, looked in sequences.LOOKED.items())
            lines.append(f"| {method} | {count} | {served} | {' | '.join(back)} |")
    return in_the_fields_words("\n".join(lines) + "\n")


def table(all_rows: Sequence[Row]) -> str:
    """Markdown: how often the copy's request was served, and how often that brought the first row back."""
    told = [m for m in METHODS if not m.endswith(UNGUARDED) and any(r.method == m for r in all_rows)]
    lines = ["| how they go | from | sequences | served | brought back | unguarded: served | brought back |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for shape in (*SHAPES, None):
        for method in told:
            if not any(r.method == method and shape in (r.experiment, None) for r in all_rows):
                continue
            cells = list[str]()
            for name in (method, method + UNGUARDED):
                mine = [r for r in all_rows if r.method == name and shape in (r.experiment, None)]
                total = {
                    readout: sum(r.value for r in mine if r.readout == readout) for readout in (SERVED, LOST, BACK)
                }
                sequences = sum(r.readout == SERVED for r in mine)
                cells += [f"{total[SERVED]:.0f}", f"{total[BACK]:.0f} of {total[LOST]:.0f}"] if mine else ["", ""]
                if name == method:
                    cells = [str(sequences), *cells]
            lines.append(f"| {shape or 'all'} | {method} | {' | '.join(cells)} |")
    return in_the_fields_words("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(200, 230)))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[m for m in METHODS if m != FOLD_MODELS])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="who goes with the two")
    parser.add_argument("--ordinary", action="store_true", help="sequences that nothing was made for")
    parser.add_argument("--out", type=Path, help="rows; what is there already is not measured again")
    parser.add_argument("--docs", type=Path, help="the page whose table is renewed")
    given = parser.parse_args()
    torch.set_num_threads(1)
    note = f"python benchmarks/near_copies.py {platform.system()} {platform.machine()}, torch {torch.__version__}"
    all_rows: list[Row] = read_rows(given.out) if given.out and given.out.is_file() else []
    have = {(row.experiment, row.seed, row.method) for row in all_rows}
    kinds = [setting.name for setting in sequences.SETTINGS] if given.ordinary else given.shapes
    one = ordinary if given.ordinary else measure
    for seed, shape in track([(seed, kind) for seed in given.seeds for kind in kinds], "sequences"):
        left = [method for method in given.methods if (shape, seed, method) not in have]
        all_rows += [replace(row, note=note) for row in (one(shape, seed, left) if left else ())]
        if given.out:  # after each: what was measured is not lost to one interruption
            write_whole(given.out, as_json_lines(all_rows).encode(), replace=True)
    made = ordinary_table(all_rows) if given.ordinary else table(all_rows)
    print(made)
    if given.docs:
        page = given.docs.read_text(encoding="utf-8")
        before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        given.docs.write_text(f"{before}\n\n{made}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
