"""The figures of `docs/full_size.md` and `docs/requests.md`, from the rows under `results/`.

python benchmarks/page_figures.py   # docs/pictures/full_size.svg, docs/pictures/requests.svg
"""

import statistics
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from spotlessnet.report.figures import MARKS, PALETTE

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import GREY, grey_style
from benchmarks.large import COHORTS, DISTANCE, HUNDREDTH, TENTH
from benchmarks.large_page import gap_closed, values_of
from benchmarks.requests import LOOK

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
    """A hundred requests in a row from fold models: distance to retraining on everything that is gone so far."""
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


if __name__ == "__main__":
    full_size(Path("results/large.jsonl"), PICTURES / "full_size.svg")
    requests(Path("results/tutored.jsonl"), PICTURES / "requests.svg")
