"""The figures of `docs/full_size.md` and `docs/requests.md`, from the rows under `results/`.

python benchmarks/page_figures.py   # full_size.svg and requests.svg in docs/pictures, results/hundred_requests.svg
"""

import statistics
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from spotlessnet.auditing.rows import read_rows
from spotlessnet.report.figures import MARKS, PALETTE

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import GREY, grey_style
from benchmarks.labels import in_the_fields_words
from benchmarks.large import COHORTS, DISTANCE, HUNDREDTH, TENTH
from benchmarks.large_page import gap_closed, values_of
from benchmarks.requests import LOOK
from benchmarks.sequences import LOOKED, LOSS, METHODS, SCORE, SERVED

PICTURES = Path("docs/pictures")
CURVES = {"original": "original", "one by one": "requests one by one", "joint": "one joint request"}
"""By the name in the rows: the name in the figure. The floor is another retrained network."""


def full_size(rows: Path, place: Path) -> None:
    """The gap closed on full CIFAR-10 with weight decay 5e-4, at 1 % and 10 % of training FLOPs."""
    value = values_of(rows)
    with mpl.rc_context(grey_style()):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        for at, cohort in enumerate(COHORTS):
            # Retrained networks differ as much from each other on ordinary examples as the original does: no distance.
            readout = "margin on forget" if cohort == "some" else DISTANCE
            axes = figure.add_subplot(1, 3, at + 1)
            for i, network in enumerate(("all-cnn", "resnet")):
                for j, method in enumerate((HUNDREDTH, TENTH)):
                    found = gap_closed(value, f"{network}, decay 0.0005, {cohort}", method, readout)
                    assert found is not None  # measured for every setting that is drawn
                    x = 2.5 * i + j
                    axes.bar(
                        x, found.value, color=PALETTE[j], label=("1 % of FLOPs", "10 % of FLOPs")[j] if i == 0 else None
                    )
                    axes.plot([x, x], [found.low, found.high], color=GREY, lw=1.5)
            axes.axhline(1, lw=1, color=PALETTE[2])
            axes.set_xticks([0.5, 3], ["All-CNN", "ResNet"])
            measure = "margin" if cohort == "some" else "activation distance"
            axes.set(title=f"{cohort} ({measure})", ylim=(0, 1.45))
            if at == 0:
                axes.set_ylabel("gap closed, 1 = as retrained")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        figure.savefig(place, metadata={"Date": None})


def requests(rows: Path, place: Path) -> None:
    """A hundred requests in a row from the same fold models, as was done once: how far from retraining they end."""
    value = values_of(rows)
    names = list(dict.fromkeys(name for name, _, _ in value))
    with mpl.rc_context(grey_style()):
        figure = Figure(figsize=(9, 5.2), layout="constrained")
        for at, name in enumerate(names):
            axes = figure.add_subplot(2, 2, at + 1)
            for j, (method, label) in enumerate({**CURVES, "retrained": "another retrained network"}.items()):
                found = [value[name, method, f"{DISTANCE} after {i}"] for i in LOOK]
                means = [statistics.mean(by_seed.values()) for by_seed in found]
                axes.plot(LOOK, means, marker=MARKS[j], ms=5, color=PALETTE[j], label=label)
            axes.set_title(name.replace("rows", "examples").replace("decay", "weight decay"))
            axes.set(xlabel="requests served, 10 examples each", ylabel="activation distance")
            axes.set_ylim(bottom=0)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        figure.savefig(place, metadata={"Date": None})


def sequences(rows: Path, place: Path) -> None:
    """How often a later request undoes an earlier one, and how many requests are served at all."""
    total: dict[tuple[str, str], float] = defaultdict(float)
    runs: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for row in read_rows(rows):
        total[row.method, row.readout] += row.value
        runs[row.method].add((row.experiment, row.seed))
    methods = [method for method in METHODS if method in runs]
    names = [in_the_fields_words(method) for method in methods]
    with mpl.rc_context(grey_style()):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        undone, served = figure.subplots(1, 2, sharey=True, width_ratios=[2, 1])
        for j, (readout, label) in enumerate({LOSS: "in the loss", SCORE: "in a U-LiRA score"}.items()):
            shares = [100 * total[m, readout] / total[m, LOOKED[readout]] for m in methods]
            at = [i + (j - 0.5) * 0.36 for i in range(len(methods))]
            undone.barh(at, shares, height=0.34, color=PALETTE[j], label=label)
        served.barh(range(len(methods)), [10 * total[m, SERVED] / len(runs[m]) for m in methods], color=PALETTE[2])
        undone.set_yticks(range(len(methods)), names)
        undone.invert_yaxis()
        undone.set(xlabel="undone by more than half, % of looks")
        served.set(xlabel="requests served, %", xlim=(0, 100))
        undone.legend(loc="upper right")
        figure.savefig(place, metadata={"Date": None})


if __name__ == "__main__":
    full_size(Path("results/large.jsonl"), PICTURES / "full_size.svg")
    requests(Path("results/tutored.jsonl"), Path("results/hundred_requests.svg"))
    sequences(Path("results/sequences.jsonl"), PICTURES / "requests.svg")
