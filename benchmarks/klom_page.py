"""KLoM, an attacker and prices out of margins kept by `klom.py`, `klom_serve.py` and `klom_digits.py`.

    python benchmarks/klom_page.py results/klom-margins-*.npz served-*.pt --out results/klom.jsonl    # rows, the table
    python benchmarks/klom_page.py --page       # docs/quality_and_cost.md and its figure, from rows under results/

For each forget set the networks that saw it are originals, the others retrained networks. KLoM (`readouts/klom.py`) for
each row between unlearned and all retrained networks; shown is the 95th percentile over rows. Beside it *fit*, the KL
divergence of Gaussians fitted to the same margins (`readouts/margin_kl.py`), which needs fewer networks. *Chance*:
either for as many draws from one Gaussian, what even equal networks read. *Halves*: between two halves of the
retrained networks, beside the chance of so few. Attacker: for each unlearned network and each retrained one the
likelihood ratio of a row's margin under Gaussians with the row's means over all other networks of either kind; AUC over
rows and networks, 0.5 is as retrained, with a 95 % interval over unlearned networks. He who knows few networks of a
method finds less; so of methods with many there is also what he finds with two of them at a time.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from spotlessnet.auditing.rows import Row, read_rows
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.registry import markdown_table
from spotlessnet.readouts.klom import klom
from spotlessnet.readouts.margin_kl import margin_kl
from spotlessnet.report.figures import MARKS, PALETTE

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.class_features import table as features_table
from benchmarks.common import GREY, Flags, Place, grey_style, save
from benchmarks.klom_margins import joined
from benchmarks.klom_serve import chosen
from benchmarks.klom_words import (
    AUC,
    CHANCE,
    COUNT,
    HALVES,
    MARGIN,
    OFF,
    ORIGINAL,
    PAIRS,
    PARTS,
    RETRAINED,
    SHARE,
    SPREAD,
)
from benchmarks.large_second import table as full_size_table
from benchmarks.sisa_digits import table as shards_table
from benchmarks.statistics_first import table as statistics_table
from benchmarks.usual_table_page import table as usual_table

from benchmarks import klom_words

READINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"P95": klom, "fit, P95": margin_kl}
"""What is read of each row's margins, by the name in front of the part."""

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PICTURE = ROOT / "docs" / "pictures" / "quality_and_cost.svg"
PAGE = ROOT / "docs" / "quality_and_cost.md"

LARGE = ("random, large", "coherent, large")
MANY = 20
"""Networks that a method must have served to be drawn: of fewer divergences are little but chance, AUCs too low."""

APART = (0.0, 0.5, 0.75, 1.0)
"""Standard deviations between margins of either kind, for the table of what the attacker reads."""

COUNTS = (24, 32, 40, 48, 64, 80, 100, 200)
"""Networks a side, for the table of what chance reads."""


def read(paths: list[Path]) -> dict[str, Any]:
    """All networks of several processes; margins that were kept (`.npz`) stand for the networks they are of."""
    found = [torch.load(path, weights_only=True) for path in paths if path.suffix != ".npz"]
    files = [path for path in paths if path.suffix == ".npz"]
    made: dict[str, Any] = {"networks": [one for each in found for one in each.get("networks", [])]}
    made["unlearned"] = [one | {"about": each["about"]} for each in found for one in each.get("unlearned", [])]
    made["about"] = found[0]["about"] if found else ""
    if files:
        networks, about = joined(files)
        others = [each["digest"] for each in found if each.get("digest", about.digest) != about.digest]
        strange = {one["seed"] for one in made["networks"]} - {one["seed"] for one in networks}
        if others or strange:
            raise ValueError(
                "Give kept margins with what was served on the same rows, and with no networks beside them."
            )
        made |= {"networks": networks, "about": about.command}
    return made


def stacked(networks: list[dict[str, Any]], name: str) -> dict[str, Tensor]:
    """Margins by part, a row for each network; the forget set's own are called so."""
    names = {"forget": name, "retain": "retain", "validation": "validation"}
    return {part: torch.stack([one["margins"][key] for one in networks]).double() for part, key in names.items()}


def chance(ours: int, theirs: int, rows: int = 4000, reading: str = "P95") -> float:
    """The 95th percentile between so many and so many draws of one Gaussian."""
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, rows, generator=draw, dtype=torch.float64) for n in (ours, theirs))
    return float(READINGS[reading](a, b).quantile(0.95))


def chance_of(reading: str) -> str:
    """The name of its row."""
    return CHANCE if reading == "P95" else f"{reading.removesuffix(', P95')}, {CHANCE}"


def chance_table() -> str:
    """What equal networks read, by how many there are; the last column is what `margin_kl` reads in truth."""
    shift = 1.0
    draw = torch.Generator().manual_seed(1)
    made = []
    for n in COUNTS:
        a, b = (torch.randn(n, 4000, generator=draw, dtype=torch.float64) for _ in range(2))
        moved = [f"{float(read(a + shift, b).mean()):.2f}" for read in READINGS.values()]
        made.append([str(n), *(f"{chance(n, n, reading=reading):.2f}" for reading in READINGS), *moved])
    head = ("networks a side", "KLoM, P95 by chance", "fit, P95 by chance", "KLoM, mean, half a nat apart",
            "fit, mean, half a nat apart")  # fmt: skip
    return markdown_table(head, made)


def attacked(ours: Tensor, theirs: Tensor) -> list[float]:
    """An AUC for each of our networks, against all of theirs; every network is judged by means over the others."""
    groups = ours, theirs
    means = [group.mean(dim=0) for group in groups]
    spread = torch.cat([group - mean for group, mean in zip(groups, means, strict=True)]).std()
    scores = []
    for k, group in enumerate(groups):
        n = len(group)
        own = (n * means[k] - group) / (n - 1)  # without the network itself
        both = (own, means[1].expand_as(own)) if k == 0 else (means[0].expand_as(own), own)
        scores.append((both[0] - both[1]) * (group - (both[0] + both[1]) / 2) / spread**2)
    theirs_sorted = scores[1].flatten().sort().values
    below = torch.searchsorted(theirs_sorted, scores[0], right=False)
    upto = torch.searchsorted(theirs_sorted, scores[0], right=True)
    return ((below + upto).double().mean(dim=1) / 2 / len(theirs_sorted)).tolist()


def attacked_in_pairs(ours: Tensor, theirs: Tensor) -> list[float]:
    """An AUC for each two of our networks, as if there were no others: what two of another method are comparable to."""
    return [statistics.mean(attacked(two, theirs)) for two in ours.split(2) if len(two) == 2]


def attackers_table() -> str:
    """What the attacker reads by how many networks of either kind he knows; last, one who knows every mean."""
    draw = torch.Generator().manual_seed(2)
    made = []
    for n in (2, 3, 4, 5, 10, 24, 40):
        cells = [str(n)]
        for apart in APART:
            found = []
            for _ in range(max(4, 120 // n)):
                a, b = (torch.randn(n, 1000, generator=draw, dtype=torch.float64) for _ in range(2))
                found += attacked(a + apart, b)
            cells.append(f"{statistics.mean(found):.2f}")
        made.append(cells)
    made.append(["all", *(f"{statistics.NormalDist().cdf(apart / 2**0.5):.2f}" for apart in APART)])
    return markdown_table(("networks a side", *(f"{apart:g} deviations apart" for apart in APART)), made)


def rows_of(found: dict[str, Any], title: str, least: int) -> Iterator[Row]:
    """Everything that is known of every forget set and method that served so many networks at least."""
    sets = [n for n in found["networks"][0]["margins"] if n not in ("retain", "validation")]
    for name in sets:
        seen = [one for one in found["networks"] if name not in one["missed"]]
        unseen = [one for one in found["networks"] if name in one["missed"]]
        groups = {ORIGINAL: seen, RETRAINED: unseen}
        for one in found["unlearned"]:
            if one["set"] == name:
                groups.setdefault(one["method"], []).append(one)
        theirs = stacked(unseen, name)
        experiment = f"{title}, {name}"
        for method, networks in groups.items():
            if len(networks) >= least:
                about = networks[0].get("about", found["about"])
                yield from method_rows(experiment, method, networks, theirs, name, about)
        half = len(unseen) // 2
        if half >= least:
            for reading, of in READINGS.items():
                for part in PARTS:
                    value = float(of(theirs[part][:half], theirs[part][half:]).quantile(0.95))
                    yield Row(experiment, HALVES, f"{reading} on {part}", 0, value, unit="nats", note=found["about"])
                value = chance(half, len(unseen) - half, reading=reading)
                yield Row(experiment, HALVES, chance_of(reading), 0, value, unit="nats", note=found["about"])
            yield Row(experiment, HALVES, COUNT, 0, half, note=found["about"])


def method_rows(
    experiment: str, method: str, networks: list[dict[str, Any]], theirs: dict[str, Tensor], name: str, about: str
) -> Iterator[Row]:
    """Of one method; retrained networks have errors and a price, and no distance to themselves."""
    took = statistics.mean(one["seconds"] for one in networks)

    def row(readout: str, value: float, low: float = float("nan"), high: float = float("nan"), unit: str = "") -> Row:
        return Row(experiment, method, readout, 0, value, low, high, unit=unit, seconds=took, note=about)

    yield row("error on test", statistics.mean(one["error"] for one in networks), unit="share")
    yield row(COUNT, len(networks))
    ours = stacked(networks, name)
    yield row(MARGIN, float(ours["forget"].mean()), unit="log odds")
    if method == RETRAINED:
        return
    for reading, of in READINGS.items():
        for part in PARTS:
            each = of(ours[part], theirs[part])
            yield row(f"{reading} on {part}", float(each.quantile(0.95)), unit="nats")
            yield row(f"{reading.replace('P95', 'mean')} on {part}", float(each.mean()), unit="nats")
        yield row(chance_of(reading), chance(len(networks), len(theirs["forget"]), reading=reading), unit="nats")
    mine, goal = ours["forget"], theirs["forget"]
    yield row(OFF, float((mine.mean(dim=0) - goal.mean(dim=0)).square().mean().sqrt()), unit="log odds")
    yield row(SPREAD, float((mine.var(dim=0) / goal.var(dim=0)).median()), unit="share")
    yield row(AUC, *t_interval(attacked(mine, goal)), unit="AUC")
    if len(networks) >= MANY:
        yield row(PAIRS, *t_interval(attacked_in_pairs(ours["forget"], theirs["forget"])), unit="AUC")
    if method != ORIGINAL:
        yield row(SHARE, statistics.mean(one["share"] for one in networks), unit="share")


def ranked(rows: list[Row], experiment: str) -> list[str]:
    """Methods of a forget set: the original first, then by how well the attacker does."""
    auc = {row.method: row.value for row in rows if row.experiment == experiment and row.readout == AUC}
    methods = dict.fromkeys(row.method for row in rows if row.experiment == experiment)
    first = {ORIGINAL: -2.0, RETRAINED: -1.0, HALVES: 0.0}
    return sorted(methods, key=lambda method: (first.get(method, 1.0), auc.get(method, 0.0)))


def table(rows: list[Row]) -> str:
    """P95 on forgotten, retained and new rows, the attacker, errors and price."""
    known = {row.key: row for row in rows}

    def cell(experiment: str, method: str, readout: str, shape: str) -> str:
        found = known.get((experiment, method, readout, 0))
        return "" if found is None else format(found.value, shape)

    made = []
    for experiment in dict.fromkeys(row.experiment for row in rows):
        for method in ranked(rows, experiment):
            auc = known.get((experiment, method, AUC, 0))
            attack = "" if auc is None else f"{auc.value:.2f} [{auc.low:.2f}, {auc.high:.2f}]"
            here = experiment, method
            cells = []
            for reading in READINGS:
                each = [cell(*here, f"{reading} on {part}", ".2f") for part in PARTS]
                cells += [" / ".join(each) if any(each) else "", cell(*here, chance_of(reading), ".2f")]
            made.append(
                [*here, cell(*here, COUNT, ".0f"), *cells, attack, cell(*here, "error on test", ".1%"),
                 cell(*here, SHARE, ".1%")]
            )  # fmt: skip
    head = ("forget set", "method", "networks", "KLoM, P95", "by chance", "fit, P95", "by chance", "attacker's AUC",
            "test error", "FLOPs")  # fmt: skip
    return markdown_table(head, made)


def write_page(page: Path = PAGE) -> None:
    """All tables of the page from the rows under `results/`, and the figure."""
    digits, cifar = read_rows(RESULTS / "klom-digits.jsonl"), read_rows(RESULTS / "klom.jsonl")
    # Rows of earlier runs, with fewer networks, stay in files of their own.
    before = [row for row in read_rows(RESULTS / "klom-second.jsonl") if row.method not in (RETRAINED, HALVES)]
    usual = RESULTS / "usual-table.jsonl"
    sets = [klom_words.of_set(cifar, each) for each in dict.fromkeys(row.experiment for row in cifar)]
    settings = klom_words.of_settings(RESULTS / "klom-choose.jsonl", chosen)
    made = {
        "digits": table(digits),
        "CIFAR-10": table(cifar),
        "CIFAR-10 before": table(before),
        "chance": chance_table(),
        "attackers": attackers_table(),
        "full size": full_size_table([RESULTS / "large-second.jsonl"]),
        "shards": shards_table(read_rows(RESULTS / "sisa-digits.jsonl")),
        "CIFAR-10 in words": "\n".join([settings, "", *sets]),
        "recipe": klom_words.of_recipe(read_rows(RESULTS / "fleet-speed.jsonl")),
        "features": features_table(read_rows(RESULTS / "class-features.jsonl")),
        "statistics": statistics_table(read_rows(RESULTS / "statistics-first.jsonl")),
        "usual": usual_table(read_rows(usual)) if usual.exists() else "",
    }
    for name, text in made.items():
        Place(f"<!-- {name}: written by benchmarks/klom_page.py -->", f"<!-- end of {name} -->").write(page, text)
    draw(digits + [row for row in cifar if row.experiment.endswith(LARGE)])


def draw(rows: list[Row], place: Path = PICTURE) -> None:
    """KLoM and the fit on the forget set, and the attacker's AUC, against the share of training FLOPs."""
    experiments = list(dict.fromkeys(row.experiment for row in rows))
    lines = (("P95 on forget", "KLoM, P95, nats"), ("fit, P95 on forget", "fit, P95, nats"), (AUC, "attacker's AUC"))
    with mpl.rc_context(grey_style()):
        figure = Figure(figsize=(max(9.0, 3.2 * len(experiments)), 10), layout="constrained")
        for line, (readout, said) in enumerate(lines):
            for column, experiment in enumerate(experiments):
                axes = figure.add_subplot(len(lines), len(experiments), line * len(experiments) + column + 1)
                panel(axes, rows, experiment, readout)
                axes.set_title(experiment if line == 0 else "")
                axes.set_ylabel(said if column == 0 else "")
        legend: dict[str, Any] = {}
        for axes in figure.axes:
            legend |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=4, fontsize=9)
        figure.savefig(place, metadata={"Date": None})


def panel(axes: Axes, rows: list[Row], experiment: str, readout: str) -> None:
    """One forget set: every method whose reading can be told from chance, the untouched network, and chance."""
    known = {row.key: row for row in rows}
    many = {row.method for row in rows if row.readout == COUNT and row.value >= MANY}
    names = sorted({short(row.method) for row in rows if row.readout == SHARE and row.method in many})
    equal = []
    for row in (row for row in rows if row.experiment == experiment and row.readout == SHARE):
        found = known.get((experiment, row.method, readout, 0))
        if found is None or known[experiment, row.method, COUNT, 0].value < MANY:
            continue
        j = names.index(short(row.method))
        colour, mark = PALETTE[(j + j // 7) % 7], MARKS[j % 7]
        if found.low == found.low:
            axes.plot([row.value] * 2, [found.low, found.high], lw=1, color=colour, alpha=0.6)
        axes.plot(row.value, found.value, mark, ms=7, color=colour, label=names[j])
        chance = known.get((experiment, row.method, chance_of(readout.removesuffix(" on forget")), 0))
        equal += [] if chance is None else [chance.value]
    first = known.get((experiment, ORIGINAL, readout, 0))
    if first is not None:
        axes.axhline(first.value, lw=1, ls="--", color=GREY)
    if readout == AUC or equal:
        axes.axhline(0.5 if readout == AUC else max(equal), lw=1, color=PALETTE[2])
    axes.set(xscale="log", xlabel="share of training FLOPs", xlim=(0.01, 0.4))
    axes.set_xticks([0.01, 0.03, 0.1, 0.3], ["1 %", "3 %", "10 %", "30 %"])
    axes.minorticks_off()
    if readout.startswith("fit"):
        axes.set(yscale="log", ylim=(0.05, 200))
        axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    else:
        axes.set_ylim(bottom=0.45 if readout == AUC else 0)


def short(method: str) -> str:
    """Its name without a label of settings.

    >>> short("truncated-retrain, 20%"), short("finetune")
    ('truncated-retrain', 'finetune')
    """
    return method.split(",")[0]


def main(arguments: list[str] | None = None) -> None:
    parser = Flags(__doc__).out()
    parser.add_argument("margins", type=Path, nargs="*", help="files of margins")
    parser.add_argument("--title", default="CIFAR-10")
    parser.add_argument("--least", type=int, default=3, help="networks that a method must have served")
    parser.add_argument("--page", action="store_true", help="write the page and its figure from rows that are there")
    options = parser.parse_args(arguments)
    if options.page:
        write_page()
    else:
        save(options.out, list(rows_of(read(options.margins), options.title, options.least)))
        print(table(read_rows(options.out)))


if __name__ == "__main__":
    main()
