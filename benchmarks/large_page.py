"""What `benchmarks/large.py` measured, as tables and as the page on full CIFAR-10.

python benchmarks/large_page.py --out results/large.jsonl   # results/full_size.md, and the table of docs/full_size.md
"""

import json
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import torch

from spotlessnet.auditing.rows import read_rows
from spotlessnet.core.intervals import Interval, ratio_interval, t_interval

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, Place
from benchmarks.labels import in_the_fields_words
from benchmarks.large import (
    COHORTS,
    DISTANCE,
    FOLD_MODELS,
    HUNDREDTH,
    OPERATIONS,
    TENTH,
    TRAINING,
    WRITING,
    margins_file,
)
from benchmarks.large_trials import GOAL, ORIGINAL

PAGE = Path(__file__).with_name("large.md")
RECORD, FINDINGS = Path("results/full_size.md"), Path("docs/full_size.md")
PLACE = Place.of("large_page")
HALVES, CLOCK, TRIALS = "large-halves.jsonl", "large-clock.jsonl", "large-trials.jsonl"
BEFORE = "large-trials-before.jsonl"
"""Beside the rows: of other fold models, of a machine that does nothing else, of what was tried, now and before."""

MEASURES = ("margin on forget", "loss on forget", DISTANCE)
COLUMNS = ("method", "margin", "loss", "distance", "attack", "D_r / test error", "seconds", "operations")


Values = dict[tuple[str, str, str], dict[int, float]]
"""By setting, method and readout: a value for each seed."""


def summary(path: Path) -> str:
    """Markdown: the gap closed for a hundredth and for a tenth, a line for every kind of request and decay."""
    value, lines = values_of(path), []
    settings = dict.fromkeys(name.split(", ", 1)[1] for name, _, _ in value)
    networks = dict.fromkeys(name.split(", ")[0] for name, _, _ in value)
    columns = [(network, method) for network in networks for method in (HUNDREDTH, TENTH)]
    lines.append("| request | " + " | ".join(f"{n}, {m.rpartition(', ')[2]}" for n, m in columns) + " |")
    lines.append("|---|" + "---:|" * len(columns))
    for setting in sorted(settings, key=lambda name: COHORTS.index(name.split(", ")[1])):
        weight_decay, cohort = setting.split(", ")
        measures = MEASURES[:2] if cohort == "some" else MEASURES[2:]
        cells = [
            " / ".join(_gap(value, f"{network}, {setting}", method, readout).partition(" [")[0] for readout in measures)
            for network, method in columns
        ]
        lines.append(f"| *{cohort}*, {weight_decay} | " + " | ".join(cells) + " |")
    return in_the_fields_words("\n".join(lines))


def values_of(path: Path) -> Values:
    """All that was read."""
    value: Values = defaultdict(dict)
    for row in read_rows(path):
        value[row.experiment, row.method, row.readout][row.seed] = row.value
    return value


def table(path: Path) -> str:
    """Markdown: the gap closed by each measure, errors, and cost in seconds and operations, per setting."""
    value, rows = values_of(path), read_rows(path)
    seconds: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    told = {row.experiment: row.note.partition("TF32, ")[2] for row in rows}
    for row in rows:
        if not math.isnan(row.seconds):
            seconds[row.experiment, row.method][row.seed] = row.seconds
    lines = []
    for name in dict.fromkeys(key[0] for key in value):
        here = [method for experiment, method, readout in value if (experiment, readout) == (name, DISTANCE)]
        lines += [f"**{name}**\n", f"| {' | '.join(COLUMNS)} |"]
        lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
        trained = value[name, "retrained", TRAINING]
        for method in here:
            gaps = [_gap(value, name, method, readout) for readout in MEASURES]
            errors = [_mean(value[name, method, f"error on {part}"]) for part in ("retain", "test")]
            cost = _mean(seconds[name, method]) / _mean(trained)
            counted = _mean(value[name, method, OPERATIONS])
            both = " / ".join(f"{100 * error:.1f}" for error in errors)
            shares = ["" if math.isnan(share) else f"{share:.1%}" for share in (cost, counted)]
            cells = [method, *gaps, attack(path, name, method), f"{both} %", *shares]
            lines.append(f"| {' | '.join(cells)} |")
        once = value[name, FOLD_MODELS, WRITING]
        lines.append(
            f"\nOne training takes {_mean(trained):.1f} s, the fold models, made once, {_mean(once):.1f} s. "
            f"{len(value[name, 'original', DISTANCE])} seeds, {told[name]}.\n"
        )
    return in_the_fields_words("\n".join(lines))


def clock_table(path: Path) -> str:
    """Markdown: the median of five requests, in trainings, by network and cohort."""
    rows = read_rows(path)
    lines = ["| network | method | one training | some | wrong | class |", "|---|---|---:|---:|---:|---:|"]
    for name in dict.fromkeys(row.experiment for row in rows):
        here = [row for row in rows if row.experiment == name]
        whole = next(row.value for row in here if row.readout == TRAINING)
        for method in dict.fromkeys(row.method for row in here if row.readout != TRAINING):
            took = {c: [r.value for r in here if (r.method, r.readout) == (method, c)] for c in COHORTS}
            cells = [f"{statistics.median(values) / whole:.2%}" for values in took.values()]
            lines.append(f"| {name.partition(',')[0]} | {method} | {whole:.1f} s | {' | '.join(cells)} |")
    return in_the_fields_words("\n".join(lines))


def trial_table(path: Path) -> str:
    """Markdown: what each setting does for a hundredth and for a tenth of a training, by kind of fold models."""
    value = values_of(path)
    tried: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name, method in dict.fromkeys(key[:2] for key in value):
        if method in (ORIGINAL, GOAL):
            continue
        # Of ordinary rows retrained networks differ as much from each other as the original does from them.
        ways = []
        for readout in MEASURES[:2] if name.endswith("some") else MEASURES:
            before, now, goal = (_mean(value[name, m, readout]) for m in (ORIGINAL, method, GOAL))
            ways.append(f"{(before - now) / (before - goal):.0%}")
        errors = [_mean(value[name, m, "error on retain"]) for m in (method, GOAL)]
        fold_models, cost, settings = method.split(", ")
        tried[name, settings][f"{fold_models}, {cost}"] = f"{' / '.join(ways)}; {100 * (errors[0] - errors[1]):+.1f}"
    columns = list(dict.fromkeys(column for found in tried.values() for column in found))
    lines = ["| network | request | settings | " + " | ".join(columns) + " |", "|---|---|---|" + "---:|" * len(columns)]
    for (name, settings), found in tried.items():
        network, _, cohort = name.split(", ")
        cells = [network, cohort, settings, *(found.get(column, "") for column in columns)]
        lines.append(f"| {' | '.join(cells)} |")
    return in_the_fields_words("\n".join(lines))


def attack(path: Path, name: str, method: str) -> str:
    """AUC of telling a scrubbed from a retrained network by one row's margin, with an interval over seeds.

    The attacker knows each row's mean margin under both kinds of network with the other seeds, and their spread.
    """
    lines = [json.loads(line) for line in margins_file(path).read_text(encoding="utf-8").splitlines()]
    known = {line["seed"]: line["margins"] for line in lines if line["experiment"] == name}
    pairs = [(line[method], line["retrained"]) for line in known.values() if method in line]
    if method in ("retrained", "floor") or len(pairs) < 3:
        return ""
    ours, theirs = (torch.tensor(group, dtype=torch.float64) for group in zip(*pairs, strict=True))
    aucs = []
    for s in range(len(pairs)):
        others = [i for i in range(len(pairs)) if i != s]
        spread = torch.cat([group[others] - group[others].mean(dim=0) for group in (ours, theirs)]).std()
        gap, middle = ours[others].mean(0) - theirs[others].mean(0), (ours[others].mean(0) + theirs[others].mean(0)) / 2
        scores = [gap * (group[s] - middle) / spread**2 for group in (ours, theirs)]  # log of the likelihood ratio
        above = scores[0].unsqueeze(1) - scores[1].unsqueeze(0)
        aucs.append(float((above > 0).double().mean() + 0.5 * (above == 0).double().mean()))
    found = t_interval(aucs)
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def write_page(path: Path) -> None:
    """The record `results/full_size.md` and the table of `docs/full_size.md`, from the rows alone."""
    rows = read_rows(path)
    text = PAGE.read_text(encoding="utf-8").format(
        machine=rows[0].note.partition(", TF32")[0],
        summary=summary(path),
        tables=table(path),
        halves=table(path.with_name(HALVES)),
        trials=trial_table(path.with_name(TRIALS)),
        before=trial_table(path.with_name(BEFORE)),
        clock=clock_table(path.with_name(CLOCK)),
    )
    RECORD.write_text(text, encoding="utf-8")
    PLACE.write(FINDINGS, summary(path))


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values) if values else math.nan


def _gap(value: Values, name: str, method: str, readout: str) -> str:
    """How much of the way from the original to retraining was gone, with Fieller's interval over paired seeds."""
    if method in ("original", "retrained", "floor"):
        return f"({_mean(value[name, method, readout]):.3g})"
    if not _seeds_of(value, name, method, readout):
        return ""
    gap = gap_closed(value, name, method, readout)
    return "none" if gap is None else f"{gap.value:.0%} [{gap.low:.0%}, {gap.high:.0%}]"


def gap_closed(value: Values, name: str, method: str, readout: str) -> Interval | None:
    """The gap closed with Fieller's interval over paired seeds; `None` if there is no gap."""
    goal = _goal(readout)
    seeds = _seeds_of(value, name, method, readout)
    before, now, then = (value[name, m, readout] for m in ("original", method, goal))
    won, prize = (torch.tensor([before[s] - other[s] for s in seeds]) for other in (now, then))
    if goal == "floor" and float(prize.sum()) <= 0:
        return None  # another retrained network is further off than the original: nothing is left to go
    sign = 1.0 if float(prize.sum()) > 0 else -1.0  # the loss grows as the margin falls
    return ratio_interval(sign * won, sign * prize, 0.95)


def _goal(readout: str) -> str:
    """What a method should come to: a distance to one retrained network is at best that of another one."""
    return "floor" if readout == DISTANCE else "retrained"


def _seeds_of(value: Values, name: str, method: str, readout: str) -> list[int]:
    """Those that all three networks were read for."""
    found = [value[name, m, readout].keys() for m in ("original", method, _goal(readout))]
    return sorted(found[0] & found[1] & found[2])


def flags() -> Flags:
    parser = Flags(__doc__).out(required=True, help="the rows")
    parser.add_argument("--table", action="store_true", help="print the tables and write nothing")
    return parser


def main() -> None:
    options = flags().parse_args()
    if options.table:
        print(table(options.out))
    else:
        write_page(options.out)


if __name__ == "__main__":
    main()
