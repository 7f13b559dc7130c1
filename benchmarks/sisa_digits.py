"""SISA on digits: what shards cost in accuracy, and what a request of 1, 10 or 40 rows then costs.

    python benchmarks/sisa_digits.py --out results/sisa-digits.jsonl
    python benchmarks/sisa_digits.py --out results/sisa-digits.jsonl --table

The problem is that of `benchmarks/klom_digits.py`. The epochs of a shard's training are chosen for each number of
shards on other rows and seeds (draw 61), by held-out rows; errors are those of draw 62 and its judging rows, five
seeds. Cost: FLOPs of the request beside those of training all shards anew on what is left, by count of rows. That
unlearned networks are those that sharded training gives without the rows is checked on the first seed's requests.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from spotlessnet.auditing.rows import Row, read_rows
from spotlessnet.core.progress import quiet
from spotlessnet.core.registry import markdown_table
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.sisa import SISA
from spotlessnet.readouts import Error
from spotlessnet.training.fit import train
from spotlessnet.training.sharded import Sharded, ShardTrainer

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, collect, mean_and_half, use_threads, values_of
from benchmarks.frontier_second import PROBLEMS, rows_of

PROBLEM = PROBLEMS["digits"]
SHARDS = (1, 2, 5, 10, 20)
LENGTHS = (1, 2, 4)
"""Times the recipe's epochs: a shard's network takes fewer steps an epoch."""

REQUESTS = (1, 10, 40)
SEEDS = tuple(range(6200, 6205))
ERROR, COST, EPOCHS = "error on test", "share of training FLOPs", "epochs"


def begun(seed: int, shards: int, times: int) -> Trained:
    """Shards before training."""
    model = Sharded(PROBLEM.network(seed), shards)
    recipe = PROBLEM.recipe.but(epochs=times * PROBLEM.recipe.epochs)
    return Trained.of(model, init=model, trainer=ShardTrainer(recipe))


def split_of(draw: int, count: int) -> Split:
    """A request for so many of one person's rows; held-out rows and those that judge."""
    data, test, chosen = rows_of(PROBLEM, None, draw)
    forget = data.select(chosen["some"][:count])
    half = len(test) // 2
    held, judged = test.select(range(half)), test.select(range(half, len(test)))
    return Split(forget, data.without(forget), test=judged, validation=held)


def longest(shards: int) -> int:
    """How many times the epochs serve best on held-out rows."""
    split = split_of(61, 1)
    assert split.validation is not None
    chosen = replace(split, test=split.validation)
    errors = {
        times: sum(float(Error("test")(train(begun(s, shards, times), split.whole, seed=s), chosen)) for s in (0, 1))
        for times in LENGTHS
    }
    return min(errors, key=errors.__getitem__)


def measured(shards: int) -> Iterator[Row]:
    """One number of shards, five seeds."""
    times = longest(shards)
    name = f"{shards} shards"
    yield Row("digits", name, EPOCHS, 0, times * PROBLEM.recipe.epochs)
    for seed in SEEDS:
        split = split_of(62, 1)
        start = begun(seed, shards, times)
        network = train(start, split.whole, seed=seed)
        yield Row("digits", name, ERROR, seed, float(Error("test")(network, split)), unit="share")
        for count in REQUESTS:
            split = split_of(62, count)
            if seed == SEEDS[0]:
                check_exact(start, network, split, seed)
            yield Row("digits", name, f"{COST}, {count} rows", seed, share(network, split), unit="share")


def check_exact(start: Trained, network: Trained, split: Split, seed: int) -> None:
    """Raise unless the request gives what sharded training gives without the rows."""
    expected = train(start, split.retain, seed=seed)
    assert torch.equal(SISA(seed=seed)(network, split).mean, expected.weights), "not what sharded training gives"


def share(network: Trained, split: Split) -> float:
    """Of a training on what is left. A row goes through one network, so FLOPs are as the rows that are visited."""
    assert isinstance(network.trainer, ShardTrainer)
    assert isinstance(network.model, Sharded)
    K = len(network.model)
    part = network.trainer.shard_of(split.retain, K)
    touched = network.trainer.shard_of(split.forget, K).unique()
    return float(torch.isin(part, touched).double().mean())


def table(rows: list[Row]) -> str:
    """One line a number of shards."""
    made = []
    for name in dict.fromkeys(row.method for row in rows):
        error = mean_and_half([100 * v for v in values_of(rows, "digits", name, ERROR)])
        costs = [values_of(rows, "digits", name, f"{COST}, {count} rows") for count in REQUESTS]
        [epochs] = values_of(rows, "digits", name, EPOCHS)
        made.append([name, f"{epochs:.0f}", f"{error} %", *(f"{sum(c) / len(c):.0%}" for c in costs)])
    return markdown_table(("shards", "epochs", "test error", *(f"request of {c}" for c in REQUESTS)), made)


def run(options: argparse.Namespace) -> list[Row]:
    with quiet():
        return collect(options, "sisa_digits", (measured(shards) for shards in SHARDS))


def main(arguments: list[str] | None = None) -> None:
    options = Flags(__doc__).out(required=True).table().parse_args(arguments)
    use_threads()
    print(table(run(options) if not options.table else read_rows(options.out)))


if __name__ == "__main__":
    main()
