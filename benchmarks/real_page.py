"""What `real_faces.py` and `real_text.py` measured, as the table of `docs/networks.md` and as a figure.

python benchmarks/real_page.py   # from results/real_networks: its figure, and the section of docs/networks.md
"""

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from spotlessnet.core.intervals import t_interval
from spotlessnet.core.registry import markdown_table
from spotlessnet.report.figures import MARKS, PALETTE

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import GREY, Flags, Place, grey_style
from benchmarks.real_verdicts import ORIGINAL, OTHER, RETRAINED

KEPT = Path(__file__).parents[1] / "results" / "real_networks"
PAGE = Path(__file__).parents[1] / "docs" / "networks.md"
PLACE = Place("<!-- real networks: written by benchmarks/real_page.py -->", "<!-- end of real networks -->")
FIGURE = "networks.svg"
NEXT = "## What an audit compares"
COLUMNS = (
    "request", "method", "verdict", "error on forgotten / retained / test", "LiRA, AUC", "seconds", "of a retraining",
    "FLOPs, of a retraining",
)  # fmt: skip
NETWORKS = {
    "faces": "EfficientNet-Lite0 with ImageNet weights on `faces10`, web photographs of ten people, 32 pixels wide and "
    "enlarged to 128, trained by a recipe: AdamW, warm-up and cosine, flips, shifts and changes of light, BatchNorm "
    "statistics that move",
    "text": "MiniLM on Banking77, texts of bank customers with 77 intents, cut at 32 tokens, trained by the `Trainer` "
    "of Hugging Face through `HuggingFaceTrainer`: AdamW, warm-up, dropout",
}
READING = (
    "Errors are means over seeds. LiRA attacks with the networks retrained at other seeds as references: mean area "
    "under the curve over networks with its 95 % interval, 0.5 is chance. Seconds are medians, and shares those of the "
    "median retraining; FLOPs are counted where the method counts them, else as its plan says. Seconds were taken "
    "beside other work on the same GPU, up to seven trainings, which makes them several times as long and leaves their "
    "shares. Original and retrained networks share initial weights but not the order of batches. Methods have default "
    "settings but for the epochs named. Initial weights were packed in half precision."
)
ALT = "What LiRA finds after each method beside the seconds it takes, for a person, fifty texts and an intent"
CAPTION = (
    "Filled marks: the audit's verdict is *forgotten*. Lines: 95 % intervals over networks. Drawn by "
    "`python benchmarks/real_page.py`."
)
NAMES = {
    ORIGINAL: "none: the original",
    OTHER: "retraining, another seed",
}
SINCE = (
    "**Short retraining**, the default, repeats a training of fewer than eight epochs as it is: it does what the row "
    "*retraining, another seed* shows. Stages of one epoch, as in earlier versions, took longer than "
    "retraining and ended worse. **Fine-tuning** and what is built on it go on at a tenth of the highest rate where "
    "Adam's rate had fallen. At that highest rate they had ruined the network of the faces (40 to 81 % of retained "
    "faces wrong); now hardly anything is lost, and hardly anything is forgotten."
)
HIDDEN = (
    "**A wrong answer is not forgetting**: after {method}, {error:.1f} % of the examples of *{request}* are answered "
    "wrong, {partner:.1f} % after retraining, and the verdict is *{outcome}*: {reason}."
)


@dataclass(frozen=True)
class Line:
    """One method of one request, over all seeds that were whole."""

    network: str
    request: str
    method: str
    outcome: str
    reason: str
    pairs: int
    errors: dict[str, float]
    lira: list[float]
    seconds: float
    share: float
    flops: float | None

    @property
    def area(self) -> tuple[float, float, float]:
        """Of the attack: mean over networks, with the limits of its 95 % interval."""
        found = t_interval(self.lira)
        return found.value, max(0.0, found.low), min(1.0, found.high)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of one run."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def lines_of(rows: list[dict[str, Any]]) -> list[Line]:
    """Every method with its verdict; seconds are medians, a retraining's is that of the partners and the others."""
    found = []
    for row in (row for row in rows if row["what"] == "verdict"):
        request, method, seeds = row["request"], row["method"], set(row["seeds"])
        of = [one for one in rows if one["what"] == "network" and one["request"] == request and one["seed"] in seeds]
        mine = [one for one in of if one["method"] == method]
        whole = statistics.median(one["seconds"] for one in of if one["method"] in (RETRAINED, OTHER))
        seconds = statistics.median(one["seconds"] for one in mine)
        errors = {part: statistics.mean(one[f"error_{part}"] for one in mine) for part in ("forget", "retain", "test")}
        found.append(
            Line(
                row["network"], request, method, row["outcome"], row["reason"], row["pairs"], errors, row["lira"],
                seconds, seconds / whole, _flops(rows, mine, request, method),
            )
        )  # fmt: skip
    return found


def _flops(rows: list[dict[str, Any]], mine: list[dict[str, Any]], request: str, method: str) -> float | None:
    """As a share of one retraining: counted where the method counts, else as its plan says."""
    counted = [one["measured_share"] for one in mine if one.get("measured_share") is not None]
    if counted:
        return statistics.mean(counted)
    planned = [
        row["usual_share"] for row in rows
        if row["what"] == "plan" and (row["request"], row["method"]) == (request, method) and "usual_share" in row
    ]  # fmt: skip
    return planned[0] if planned else None


def table(lines: list[Line]) -> str:
    """A row for each method of each request."""
    cells = []
    for line in lines:
        errors = " / ".join(f"{100 * line.errors[part]:.1f}" for part in ("forget", "retain", "test"))
        untouched = line.method == ORIGINAL
        area, low, high = line.area
        cells.append(
            (
                f"{line.network}, {line.request}", NAMES.get(line.method, line.method), line.outcome, f"{errors} %",
                f"{area:.2f} [{low:.2f}, {high:.2f}]",
                f"{line.seconds:.1f}", "" if untouched else f"{line.share:.0%}",
                "" if line.flops is None or untouched else f"{line.flops:.0%}",
            )
        )  # fmt: skip
    return markdown_table(COLUMNS, cells)


def draw(lines: list[Line], path: Path) -> None:
    """What an attacker still finds beside what a method takes, a panel for each request."""
    panels = list(dict.fromkeys((line.network, line.request) for line in lines))
    methods = list(dict.fromkeys(line.method.partition(",")[0] for line in lines))
    with mpl.rc_context(grey_style()):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        for at, (network, request) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), at + 1)
            axes.axhline(0.5, lw=1, ls="--", color=GREY)
            for line in (one for one in lines if (one.network, one.request) == (network, request)):
                j = methods.index(line.method.partition(",")[0])
                x, (area, low, high) = 0.0 if line.method == ORIGINAL else line.share, line.area
                axes.plot([x, x], [low, high], color=PALETTE[j % len(PALETTE)], lw=1.5)
                filled = PALETTE[j % len(PALETTE)] if line.outcome == "forgotten" else "none"
                axes.plot(
                    x, area, MARKS[j % len(MARKS)], ms=8, color=PALETTE[j % len(PALETTE)], mfc=filled,
                    label=NAMES.get(line.method, line.method).partition(",")[0],
                )  # fmt: skip
            axes.set(title=f"{network}, {request}", xlabel="seconds, of one retraining", ylim=(-0.03, 1.03))
            axes.set_xlim(left=-0.12)
            if at == 0:
                axes.set_ylabel("LiRA, area under the curve")
        unique: dict[str, Any] = {}
        for axes in figure.axes:
            unique |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(list(unique.values()), list(unique), loc="outside lower center", ncols=4)
        figure.savefig(path, metadata={"Date": None})


def all_lines(folder: Path = KEPT) -> list[Line]:
    """Of both runs."""
    return [line for name in NETWORKS for line in lines_of(read(folder / f"{name}.jsonl"))]


def section(folder: Path = KEPT) -> str:
    """What stands in the page: on what it was measured, the table, the figure, and the commands."""
    lines = all_lines(folder)
    said: list[str] = []
    commands: list[str] = []
    for name, what in NETWORKS.items():
        rows = read(folder / f"{name}.jsonl")
        first, seeds = rows[0], {row["request"]: row["seeds"] for row in rows if row["what"] == "verdict"}
        tried = {row["lr"]: row["error_held_out"] for row in rows if row["what"] == "choosing"}
        rate, epochs = min(tried, key=lambda lr: tried[lr]), int(first["training"]["epochs"])
        asked = ", ".join(f"{count} for *{request}*" for request, count in first["forgotten"].items())
        said.append(
            f"- {what}: {first['rows']:,} examples, forget sets of {asked}; {epochs} epochs in batches of "
            f"{first['training']['batch_size']} at rate {rate:g}, the best of {len(tried)} on a tenth of the training "
            f"examples at seed {next(row['seed'] for row in rows if row['what'] == 'choosing')}; "
            + "; ".join(
                f"*{request}*: seeds {', '.join(map(str, used))}, {len(used)} pairs of trainings"
                for request, used in seeds.items()
            )
            + "."
        )
        commands += dict.fromkeys(row["command"] for row in rows if row["what"] in ("network", "verdict"))
    commands.append(
        "python benchmarks/real_verdicts.py faces.seen-0.pt --rows faces.jsonl  # and the same for the texts"
    )
    place = f"Both on one {read(folder / 'faces.jsonl')[0]['device']}, with bfloat16."
    shown = f"![{ALT}](../results/real_networks/{FIGURE})\n\n_{CAPTION}_"
    block = "```sh\n" + "\n".join(commands) + "\n```"
    return "\n\n".join(["\n".join(said), f"{place} {READING}", table(lines), since(lines), shown, block])


def since(lines: list[Line]) -> str:
    """What the table led to, and which method only looks as if it had forgotten."""
    retrained = {line.request: line.errors["forget"] for line in lines if line.method == OTHER}
    said = [
        HIDDEN.format(
            method=line.method, error=100 * line.errors["forget"], request=line.request,
            partner=100 * retrained[line.request], outcome=line.outcome, reason=line.reason,
        )
        for line in lines
        if line.outcome != "forgotten" and abs(line.errors["forget"] - retrained[line.request]) < 0.01
    ]  # fmt: skip
    return " ".join([SINCE, *said])


def flags() -> Flags:
    parser = Flags(__doc__).table()
    parser.add_argument("--rows", type=Path, default=KEPT, help="the folder of faces.jsonl and text.jsonl")
    return parser


def main() -> None:
    """Write the figure beside the rows, and the table into its page."""
    options = flags().parse_args()
    lines = all_lines(options.rows)
    if options.table:
        print(table(lines))
        return
    draw(lines, options.rows / FIGURE)
    page = PAGE.read_text(encoding="utf-8")
    if PLACE.begin not in page:  # the first time: before what follows on how audits compare
        whole = f"## Real networks\n\n{PLACE.begin}\n\n{PLACE.end}\n\n{NEXT}"
        PAGE.write_text(page.replace(NEXT, whole, 1), encoding="utf-8")
    PLACE.write(PAGE, section(options.rows))


if __name__ == "__main__":
    main()
