"""What `benchmarks/frontier.py` measured, as tables, as the page on the frontier and as its figure.

python benchmarks/frontier_page.py --out results/frontier-confirm.jsonl   # results/frontier.md and the figure
"""

import statistics
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

from spotlessnet.auditing.rows import Row, read_rows
from spotlessnet.core.intervals import ratio_interval
from spotlessnet.report.figures import MARKS, PALETTE

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
import benchmarks.attack
from benchmarks.common import GREY, Flags, grey_style
from benchmarks.frontier import COHORTS, MODELS, OPERATIONS, gaps
from benchmarks.labels import in_the_fields_words

PAGE = Path(__file__).with_name("frontier.md")
ATTACK = "results/attack-cifar.jsonl"
TUTORED = "results/frontier-taught.jsonl"
EARLIER = "results/frontier-earlier.jsonl"
"""Methods that ask fold models; short retraining; what six fold models gave before answers had a temperature."""

FIFTH = "results/frontier-fifth.jsonl"
"""Twelve fold models, other seeds, a fifth of the epochs; of classes that is more than a quarter of operations."""

CPU = "results/frontier-cpu.jsonl"
"""Some settings on a processor alone, where a step costs what it computes and not what it takes to launch."""


def gap_table(paths: list[str], settings: list[str]) -> str:
    """Markdown: gap closed per method and setting, and the median cost by the clock and, if counted, in operations."""
    found = {full: by_setting for path in paths for full, by_setting in gaps(path).items()}
    counted: dict[str, list[float]] = defaultdict(list)
    for row in (row for path in paths for row in read_rows(path) if row.readout == OPERATIONS):
        counted[row.method].append(row.value)
    lines = ["| method | " + " | ".join(settings) + " | cost | operations |", "|---" * (len(settings) + 3) + "|"]
    for full, by_setting in sorted(found.items()):
        cells = []
        for setting in settings:
            won, prize, _ = by_setting[setting]
            gap = ratio_interval(torch.tensor(won), torch.tensor(prize), 0.95)
            left_out = "" if len(won) == 5 else f" ({len(won)} seeds)"
            cells.append(f"{gap.value:.0%} [{gap.low:.0%}, {gap.high:.0%}]{left_out}")
        cost = statistics.median(c for _, _, costs in by_setting.values() for c in costs)
        share = f"{statistics.median(counted[full]):.0%}" if counted[full] else ""
        lines.append(f"| {full.partition(' | ')[0]} | " + " | ".join(cells) + f" | {cost:.0%} | {share} |")
    return in_the_fields_words("\n".join(lines))


def cost_table(path: str, settings: list[str]) -> str:
    """Markdown: what a request costs by the clock and in operations beside retraining, in the mean over seeds."""
    counted: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in read_rows(path):
        if row.readout == OPERATIONS:
            counted[row.method, row.experiment].append(row.value)
    lines = ["| method | " + " | ".join(settings) + " |", "|---" * (len(settings) + 1) + "|"]
    for full, by_setting in sorted(gaps(path).items()):
        both = [(by_setting[name][2], counted[full, name]) for name in settings]
        cells = [" / ".join(f"{statistics.mean(each):.0%}" for each in pair) for pair in both]
        lines.append(f"| {full.partition(' | ')[0]} | " + " | ".join(cells) + " |")
    return in_the_fields_words("\n".join(lines))


def error_table(rows: list[Row], settings: list[str]) -> str:
    """Markdown: errors on retained and on test rows, means over seeds in percent."""
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        errors[row.method.partition(" | ")[0], row.experiment, row.readout].append(100 * row.value)
    lines = ["| method | " + " | ".join(settings) + " |", "|---" * (len(settings) + 1) + "|"]
    left_out = {"floor", "fold models", "six fold models"}
    for method in sorted({row.method.partition(" | ")[0] for row in rows} - left_out):
        cells = [
            " / ".join(f"{statistics.mean(errors[method, s, f'error on {part}']):.1f}" for part in ("retain", "test"))
            for s in settings
        ]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return in_the_fields_words("\n".join(lines))


def write_page(path: str) -> None:
    """The record `results/frontier.md` and the figure, from the rows alone."""
    found = {full.partition(" | ")[0]: found for each in (path, TUTORED, EARLIER) for full, found in gaps(each).items()}
    settings = [f"{model} {cohort}" for model in MODELS for cohort in COHORTS]
    rows = read_rows(path)
    on_cpu = [name for name in settings if any(row.experiment == name for row in read_rows(CPU))]
    text = PAGE.read_text().format(
        machine=rows[0].note.split(";")[0],
        seeds=", ".join(str(seed) for seed in sorted({row.seed for row in rows})),
        table=gap_table([path, TUTORED, EARLIER], settings),
        costs=cost_table(TUTORED, settings),
        taught=error_table(read_rows(TUTORED), settings),
        fifth=f"{gap_table([FIFTH], settings)}\n\n{error_table(read_rows(FIFTH), settings)}",
        earlier=error_table(read_rows(EARLIER), settings),
        errors=error_table(rows, settings),
        here=gap_table([CPU], on_cpu) + "\n\n" + error_table(read_rows(CPU), on_cpu),
        there=read_rows(CPU)[0].note.split(";")[0].removesuffix(", TF32"),
        attack=benchmarks.attack.table(read_rows(ATTACK)),
        command=f"python benchmarks/frontier.py confirm --data DIR --out {path} --chosen results/frontier-choose.jsonl",
    )
    Path("results/frontier.md").write_text(text)

    with mpl.rc_context(grey_style()):
        figure = Figure(figsize=(10, 6), layout="constrained")
        for i, setting in enumerate(settings):
            axes = figure.add_subplot(2, 3, i + 1)
            for j, (method, by_setting) in enumerate(sorted(found.items())):
                won, prize, costs = by_setting[setting]
                gap = ratio_interval(torch.tensor(won), torch.tensor(prize), 0.95)
                cost, colour = statistics.median(costs), PALETTE[(j + j // 7) % 7]
                axes.plot([cost, cost], [max(-2, gap.low), min(2, gap.high)], lw=1, color=colour, alpha=0.6)
                name = in_the_fields_words(f"| {method} |").strip("| ")
                axes.plot(cost, gap.value, MARKS[j % 7], ms=7, color=colour, label=name)
            axes.axhline(1, lw=1, color=PALETTE[2])
            axes.axvline(1, lw=1, ls=":", color=GREY)
            axes.set(xscale="log", title=setting, ylim=(-0.6, 1.8))
            axes.set_xticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
            axes.minorticks_off()
            axes.set_xlabel("cost, 1 = one retraining")
            axes.set_ylabel("gap closed, 1 = as retrained")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
        figure.savefig("docs/pictures/frontier.svg", metadata={"Date": None})


def flags() -> Flags:
    return Flags(__doc__).out(required=True, help="the rows")


def main() -> None:
    write_page(str(flags().parse_args().out))


if __name__ == "__main__":
    main()
