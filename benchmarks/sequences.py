"""A hundred sequences of ten requests: does a later request take back what an earlier one did?

    python benchmarks/sequences.py --out results/sequences.jsonl --docs results/requests.md

`--workers 16` shares the sequences out among processes of one thread each; `--stop-after 500` begins none after so many
seconds, and with `--add` the same command goes on where it stopped.

Small networks on scikit-learn's digits, seven settings, twenty seeds each; a request removes one to twenty rows, in the
sixth setting one. After every request all cohorts that went before are looked at: their mean loss, and a U-LiRA score
(how much likelier their margins are among networks that were trained on the rows than among networks that were not).
A cohort that its own request moved by more than `NOISE` is *looked at again* after each later one, and counts as *taken
back* if then it is nearer to the original by more than half of what its own request did. Some of that is no memory of
the rows: rows are alike, so every request moves all a little. How much is seen on **retraining**, coupled and each time
without all rows gone so far, by the same count; and on groups of as many **strangers**, rows that nobody was trained
on: *beyond unseen examples* are those taken back by more than any of a hundred such groups moved the same way between
the same two networks. Where the tool says *retrain now* a sequence ends, as the command then refuses.
"""

import argparse
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from spotlessnet.auditing.rows import Row, read_rows
from spotlessnet.core.data import Data
from spotlessnet.core.files import write_whole
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.progress import track
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.methods import NTK, OutOfFoldDistillation
from spotlessnet.models.mlp import MLP
from spotlessnet.precomputed.after_request import after_request
from spotlessnet.precomputed.effect import Effect
from spotlessnet.precomputed.fold_models import train_fold_models
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.precomputed.step import step_from_statistics
from spotlessnet.readouts.margin import margins
from spotlessnet.report.exports import as_json_lines
from spotlessnet.training.fit import fit
from spotlessnet.training.fit_many import fit_many

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.labels import in_the_fields_words
from benchmarks.sequence_shares import shares

ROWS, STRANGERS, REQUESTS, SHADOWS, RANK, LARGEST, GROUPS, SOME = 500, 150, 10, 16, 40, 20, 100, 150
NOISE = 0.05
"""Less than this, in nats, is no effect that could be taken back."""

RECIPE = Recipe(epochs=15, lr=0.1, batch_size=50, schedule="cosine")
AT_HAND, SAMPLE = "memory, all rows at hand", "memory, 150 rows at hand"
PURGED = "memory, effects purged"
FOLD_MODELS = "fold models"
JOINT = "planted fault: everything asked for again"
RETRAINED = "retrained each time"
METHODS = (AT_HAND, SAMPLE, PURGED, FOLD_MODELS, RETRAINED)
LOSS, SCORE, SERVED = "loss taken back", "score taken back", "requests served"
LOOKED, BEYOND = {LOSS: "losses looked at again", SCORE: "scores looked at again"}, ", beyond unseen examples"
FURTHEST = "largest share of the loss taken back"
AS_FAR = ", by retraining as far as this one was served"
BEGIN, END = "<!-- written by benchmarks/sequences.py -->", "<!-- end of sequences -->"


@dataclass(frozen=True)
class Setting:
    """A kind of problem."""

    name: str
    hidden: tuple[int, ...] = ()
    weight_decay: float = 1e-2
    wrong: bool = False
    in_turn: bool = False
    squared: bool = False
    rows: int = ROWS
    largest: int = LARGEST
    epochs: int = RECIPE.epochs


SETTINGS = (
    Setting("linear, squared loss", squared=True),
    Setting("linear, softmax", weight_decay=1e-3),
    Setting("hidden layer, strong decay", hidden=(16,)),
    Setting("hidden layer, weak decay", hidden=(16,), weight_decay=1e-3),
    Setting("hidden layer, wrong labels", hidden=(16,), weight_decay=1e-3, wrong=True),
    # Trained until every wrong label is learnt by heart: requests differ most in how far they reach.
    Setting("one wrong label at a time", (8,), weight_decay=1e-3, wrong=True, rows=300, largest=1, epochs=150),
    # What an ordinary row has lost is little beside how far a wrong label moves the network.
    Setting("wrong and right labels in turn", (16,), weight_decay=1e-3, wrong=True, in_turn=True, epochs=50),
)


def problem(setting: Setting, seed: int) -> tuple[Trained, Data, list[list[int]]]:
    """A start, all rows (those to train on, then strangers), and the numbers of those that go, request by request."""
    draw = torch.Generator().manual_seed(seed)
    pair = load("digits")
    chosen = torch.randperm(len(pair.train), generator=draw)[: setting.rows + STRANGERS]
    batch = next(iter(pair.train.select(chosen).batches(len(chosen))))
    assert isinstance(batch.x, Tensor)
    x, y = batch.x.flatten(1), batch.y.clone()
    sizes = torch.randint(1, setting.largest + 1, (REQUESTS,), generator=draw).tolist()
    order = torch.randperm(setting.rows, generator=draw)[: sum(sizes)]
    if setting.wrong:
        told_wrong = [part for i, part in enumerate(order.split(sizes)) if not (setting.in_turn and i % 2)]
        wrong = torch.cat(
            [*told_wrong, torch.arange(setting.rows, len(y))]
        )  # strangers too, so that the two can be compared
        y[wrong] = (y[wrong] + torch.randint(1, 10, (len(wrong),), generator=draw)) % 10
    loss = SquaredError() if setting.squared else None
    told = torch.nn.functional.one_hot(y, 10).to(x) if setting.squared else y
    lr = 0.02 if setting.squared else RECIPE.lr
    recipe = RECIPE.but(weight_decay=setting.weight_decay, lr=lr, epochs=setting.epochs)
    fresh = Trained.of(
        MLP(x.shape[1], 10, hidden=setting.hidden, seed=seed), loss, recipe=recipe, weight_decay=setting.weight_decay
    )
    cohorts = [part.tolist() for part in order.split(sizes)]
    return replace(fresh, init=fresh.weights), Data.of((x, told)), cohorts


def networks(method: str, original: Trained, data: Data, cohorts: list[list[int]]) -> Iterator[Trained]:
    """The network after each request, until the tool refuses."""
    if method == RETRAINED:
        yield from _retrained(original, data, cohorts)
        return
    if method == FOLD_MODELS:
        yield from _distilled(original, data, cohorts)
        return
    memory = written = precompute(original, data, rank=RANK, diagonal=None)
    network, kept, ridge = original, data, 0.0
    for i, cohort in enumerate(cohorts):
        forget = rows(cohort)(data).forget
        kept = kept.without(forget)
        done = NTK(statistics=memory)(network, Split(forget=forget, kept=kept))
        if done.diagnostics["retrain_now"] and method != JOINT:
            return
        network, before = network.at(done.mean), network
        if method == JOINT:
            # As requests once were served: all of them at the first weights, with the largest damping so far.
            ridge = max(ridge, done.diagnostics["statistics_ridge"])
            together = rows([row for part in cohorts[: i + 1] for row in part])(data).forget
            network = original.at(
                original.weights + step_from_statistics(written, original, together, ridge, Notes()).step
            )
        rest = kept.select(range(SOME)) if method == SAMPLE else kept
        memory = after_request(memory, before, forget, network.weights, retain=rest)
        memory = replace(memory, effects=None) if method == PURGED else memory
        yield network


def _distilled(original: Trained, data: Data, cohorts: list[list[int]]) -> Iterator[Trained]:
    """From fold models that are trained anew for every request, on the rows that are left."""
    network, kept, effects = original, data, list[Effect]()
    for i, cohort in enumerate(cohorts):
        fold_models = replace(train_fold_models(network, kept, after_requests=i > 0), effects=tuple(effects))
        forget = rows(cohort)(data).forget
        kept = kept.without(forget)
        scrub = OutOfFoldDistillation(fold_models=fold_models, epochs=3, seed=i)
        done = scrub(network, Split(forget=forget, kept=kept))
        if done.diagnostics["retrain_now"]:
            return
        network, before = network.at(done.mean), network
        effect = Effect.of_all(before, network, forget)
        effects += [] if effect is None else [effect]
        yield network


def _retrained(original: Trained, data: Data, cohorts: list[list[int]]) -> Iterator[Trained]:
    """Without all rows gone so far, each time from the start, in the order of the first training."""
    assert original.init is not None  # as `problem` made it
    kept = data
    for cohort in cohorts:
        kept = kept.without(rows(cohort)(data).forget)
        yield fit(original.at(original.init), kept, order_of=data)


class Shadows:
    """Margins of every row among networks trained on it and among others."""

    def __init__(self, start: Trained, data: Data, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed + 10_000)
        half = torch.stack([torch.randperm(len(data), generator=draw) for _ in range(SHADOWS // 2)]) < len(data) // 2
        keep = torch.cat([half, ~half])  # each row is in one half of the networks
        weights = fit_many(start, data, seeds=range(SHADOWS), keep=keep)
        found = torch.stack([margins(start.at(w), data) for w in weights])
        self.inside, self.outside = (_moments(found, m) for m in (keep, ~keep))

    def scores(self, network: Trained, data: Data) -> Tensor:
        """The logarithm of the likelihood ratio of every row."""
        m = margins(network, data)
        a, b = (_log_density(m, mean, deviation) for mean, deviation in (self.inside, self.outside))
        return a - b


def _moments(found: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of each row, and one deviation for all: eight networks do not tell one for every row."""
    count = which.sum(dim=0)
    mean = (found * which).sum(dim=0) / count
    return mean, (((found - mean).square() * which).sum() / (count - 1).sum()).sqrt()


def _log_density(m: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return -0.5 * ((m - mean) / deviation).square() - deviation.log()


def measure(setting: Setting, seed: int, methods: Sequence[str] = METHODS) -> Iterator[Row]:
    """One sequence by every method: how many cohorts were taken back."""
    start, everything, cohorts = problem(setting, seed)
    data = everything.select(range(setting.rows))
    original = fit(start, data)
    shadows = None if setting.squared else Shadows(start, everything, seed)
    draw = torch.Generator().manual_seed(seed + 20_000)
    groups = torch.stack([torch.randperm(STRANGERS, generator=draw) for _ in range(GROUPS)]) + setting.rows

    def look(network: Trained) -> dict[str, Tensor]:
        """What forgetting raises, for every row."""
        with torch.no_grad():
            found = {LOSS: torch.cat([network.losses(b.x, b.y) for b in network.batches(everything)])}
        return found if shadows is None else found | {SCORE: -shadows.scores(network, everything)}

    def path_of(method: str) -> list[dict[str, Tensor]]:
        return [look(network) for network in (original, *networks(method, original, data, cohorts))]

    retrained = path_of(RETRAINED)
    for method in methods:
        if method == FOLD_MODELS and setting.squared:
            continue
        path = retrained if method == RETRAINED else path_of(method)
        yield Row(setting.name, method, SERVED, seed, float(len(path) - 1))
        for name in path[0]:
            counts = taken_back([seen[name] for seen in path], cohorts, groups)
            readouts = (LOOKED[name], name, name + BEYOND, *([FURTHEST] if name == LOSS else []))
            for readout, count in zip(readouts, counts, strict=False):
                yield Row(setting.name, method, readout, seed, count)
            # Where the tool refused, nothing can be taken back any more: retraining is counted up to there too.
            beside = taken_back([seen[name] for seen in retrained[: len(path)]], cohorts, groups)
            for readout, count in zip((LOOKED[name], name), beside, strict=False):
                yield Row(setting.name, method, readout + AS_FAR, seed, count)


def taken_back(path: Sequence[Tensor], cohorts: list[list[int]], groups: Tensor) -> tuple[float, float, float, float]:
    """Cohorts looked at again, those taken back, those beyond unseen examples, and the largest share taken back.

    **Arguments:**

    - `path`: what forgetting raises, for every row, at first and after each request.
    - `groups`: rows of strangers, as many groups as there are lines.
    """
    looked = taken = beyond = furthest = 0.0
    for i, cohort in enumerate(cohorts[: max(0, len(path) - 2)]):
        own = path[i + 1][cohort].mean()
        did = float(own - path[0][cohort].mean())
        if did <= NOISE:
            continue
        for later in path[i + 2 :]:
            back = float(own - later[cohort].mean())
            strangers = (path[i + 1] - later)[groups[:, : len(cohort)]].mean(dim=1)
            looked, furthest = looked + 1, max(furthest, back / did)
            taken += back > 0.5 * did
            beyond += back > max(0.5 * did, float(strangers.max()))
    return looked, taken, beyond, furthest


def table(all_rows: Sequence[Row]) -> str:
    """Markdown: how many cohorts were taken back, of those looked at after later requests."""
    lines = [
        "| setting | from | sequences | requests served | loss taken back | score taken back | beyond unseen examples |"
    ]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for setting in dict.fromkeys(row.experiment for row in all_rows):
        for method in METHODS:
            mine = [r for r in all_rows if (r.experiment, r.method) == (setting, method)]
            if not mine:
                continue
            total = {r.readout: sum(o.value for o in mine if o.readout == r.readout) for r in mine}
            seeds = len({r.seed for r in mine})
            told = [name for name in (LOSS, SCORE) if name in total]
            cells = [f"{total[name]:.0f} of {total[LOOKED[name]]:.0f}" for name in told] + ["none"] * (2 - len(told))
            cells.append(", ".join(f"{total[name + BEYOND]:.0f}" for name in told))
            served = f"{total[SERVED]:.0f} of {seeds * REQUESTS}"
            lines.append(f"| {setting} | {method} | {seeds} | {served} | {' | '.join(cells)} |")
    return in_the_fields_words("\n".join(lines) + "\n")


def one(setting: int, seed: int, methods: tuple[str, ...]) -> list[Row]:
    """One sequence, in a process of its own."""
    torch.set_num_threads(1)
    note = (
        f"python benchmarks/sequences.py {platform.system()} {platform.machine()}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    return [replace(row, note=note) for row in measure(SETTINGS[setting], seed, methods)]


def every(
    seeds: Sequence[int], methods: Sequence[str], known: list[Row], workers: int, stop_after: float
) -> Iterator[list[Row]]:
    """All sequences that are not known yet, as they come; none is begun after so many seconds."""
    began = time.monotonic()
    have = {(row.experiment, row.seed, row.method) for row in known}
    left = [
        (i, seed, tuple(m for m in methods if (setting.name, seed, m) not in have))
        for seed in seeds
        for i, setting in enumerate(SETTINGS)
    ]
    left = [asked for asked in left if asked[2]]
    if workers == 1:
        for asked in track(left, "sequences"):
            if time.monotonic() - began > stop_after:
                return
            yield one(*asked)
        return
    with ProcessPoolExecutor(workers) as pool:
        begun = [pool.submit(one, *asked) for asked in left]
        for done in as_completed(begun):
            if not done.cancelled():
                yield done.result()
            if time.monotonic() - began > stop_after:
                pool.shutdown(wait=False, cancel_futures=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(20)))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--add", action="store_true", help="keep the rows in --out, and measure what is not among them")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds after which none is begun")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="measure nothing: the table of the rows in --out")
    parser.add_argument("--docs", type=Path, help="the page whose table is renewed")
    given = parser.parse_args()
    torch.set_num_threads(1)
    all_rows: list[Row] = read_rows(given.out) if given.table or (given.add and given.out.is_file()) else []
    seeds = () if given.table else given.seeds
    for rows_of_one in every(seeds, given.methods, all_rows, given.workers, given.stop_after):
        all_rows += rows_of_one
        if given.out:  # after each sequence: what was measured is not lost to one interruption
            write_whole(given.out, as_json_lines(all_rows).encode(), replace=True)
    # Processes end in any order.
    order = [setting.name for setting in SETTINGS]
    all_rows.sort(key=lambda row: (row.seed, order.index(row.experiment), METHODS.index(row.method)))
    if given.out and not given.table:
        write_whole(given.out, as_json_lines(all_rows).encode(), replace=True)
    made = table(all_rows) + "\n" + shares(all_rows, METHODS[:-1], LOOKED, AS_FAR)
    print(made)
    if given.docs:
        page = given.docs.read_text(encoding="utf-8")
        before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        given.docs.write_text(f"{before}\n\n{made}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
