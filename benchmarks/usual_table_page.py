"""The usual table out of what `benchmarks/usual_table.py` keeps.

    python benchmarks/usual_table_page.py trained-0.pt served-*.pt --data DIR --out results/usual-table.jsonl

All in points. *UA*: errors on forgotten rows. *RA*, *TA*: right answers on retained and on test rows, those of the
class left out where one was forgotten. *MIA*: the share of forgotten rows that an attacker takes for rows never seen;
he knows the probability of the label and draws one line where retained and test rows, equally many, are told apart
best (the papers fit a support vector machine to that one number, which draws a line too). *Avg. Gap*: the mean over
these four of the distance to the network retrained with the same seed. *RMIA*: area under the curve of forgotten
against test rows, with the retrained networks of other seeds as references; 0.5 is as never seen. For a class the
test rows are those of the class.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spotlessnet.auditing.rows import Row, read_rows
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.registry import markdown_table
from spotlessnet.datasets import load
from spotlessnet.readouts.rmia import log_mean_probability, rmia_scores

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, cifar10, mean_and_half, save, values_of
from benchmarks.usual_table import APART, CLASS, LABEL, RANDOM

ORIGINAL, RETRAINED = "original", "retrained"
FOUR = ("UA", "RA", "TA", "MIA")
GAP, RMIA, SHARE, TIME = "Avg. Gap", "RMIA", "share of training FLOPs", "share of a training's time"
TITLES = {RANDOM: "10 % random", CLASS: "one class"}


def best_line(members: Tensor, others: Tensor) -> float:
    """Between which values to tell members, who lie above, from others with the fewest mistakes of either kind.

    >>> best_line(torch.tensor([3.0, 4.0, 5.0]), torch.tensor([0.0, 1.0, 3.5]))
    2.0
    """
    every = torch.cat([members, others]).double().unique()
    lines = torch.cat([every[:1] - 1, (every[1:] + every[:-1]) / 2, every[-1:] + 1])
    ranked = [side.double().sort().values for side in (members, others)]
    above, below = (torch.searchsorted(side, lines) for side in ranked)
    right = (len(members) - above) / len(members) + below / len(others)
    return float(lines[int(right.argmax())])


def auc(inside: Tensor, outside: Tensor) -> float:
    """Of scores that are higher for members."""
    ordered = outside.sort().values
    ranks = torch.searchsorted(ordered, inside) + torch.searchsorted(ordered, inside, right=True)
    return float(ranks.double().mean()) / 2 / len(outside)


def measured(one: dict[str, Any], name: str, references: list[dict[str, Any]], of_class: Tensor) -> dict[str, float]:
    """Of one network, for one request."""
    log_p, right = one["log_p"], one["right"]
    alike = of_class if name == CLASS else torch.ones_like(of_class)
    counts = ~of_class if name == CLASS else torch.ones_like(of_class)
    new = log_p["validation"].double()[counts]
    known = log_p["retain"].double()
    fair = min(len(new), len(known))
    line = best_line(known[:fair].exp(), new[:: max(1, len(new) // fair)][:fair].exp())
    found = {
        "UA": 100 * (1 - float(right[name].double().mean())),
        "RA": 100 * one["retained"],
        "TA": 100 * float(right["validation"][counts].double().mean()),
        "MIA": 100 * float((log_p[name].double().exp() < line).double().mean()),
    }
    if references:
        gains = {}
        for part in (name, "validation"):
            outside = torch.stack([other["log_p"][part].double() for other in references])
            gains[part] = log_p[part].double() - log_mean_probability(outside)
        fresh = gains["validation"][alike]
        scores = (rmia_scores(g, fresh[::2]) for g in (gains[name], fresh[1::2]))
        found[RMIA] = auc(*scores)
    return found


def rows_of(found: list[dict[str, Any]], of_class: Tensor) -> Iterator[Row]:
    """Everything that is known of every request, method and seed."""
    networks = {one["seed"]: one for each in found for one in each.get("networks", [])}
    about = next(each["about"] for each in found if each.get("networks"))
    for kind, name in enumerate((RANDOM, CLASS), start=1):
        retrained = {seed % APART: one for seed, one in networks.items() if seed // APART == kind}
        groups: list[tuple[str, int, dict[str, Any], dict[str, float]]]
        groups = [(ORIGINAL, seed, one, {}) for seed, one in networks.items() if seed < APART]
        groups += [(RETRAINED, seed, one, {}) for seed, one in retrained.items()]
        for each in found:
            for one in each.get("unlearned", []):
                if one["set"] == name:
                    paid = {SHARE: one["share"], TIME: one["seconds"] / one["training"]}
                    groups.append((one["method"], one["seed"], one, paid))
        for method, seed, one, paid in groups:
            if seed not in retrained:
                continue
            others = [other for at, other in retrained.items() if at != seed]
            mine = measured(one, name, others, of_class)
            goal = measured(retrained[seed], name, others, of_class)
            mine[GAP] = sum(abs(mine[m] - goal[m]) for m in FOUR) / len(FOUR)
            for readout, value in (mine | paid).items():
                yield Row(TITLES[name], method, readout, seed, value, seconds=one["seconds"], note=about)


def table(rows: list[Row]) -> str:
    """Means over seeds with half of their 95 % intervals."""
    made = []
    for experiment in dict.fromkeys(row.experiment for row in rows):
        methods = dict.fromkeys(row.method for row in rows if row.experiment == experiment)
        gaps = {m: sum(v) / len(v) for m in methods if (v := values_of(rows, experiment, m, GAP))}
        first = {RETRAINED: -2.0, ORIGINAL: -1.0}
        for method in sorted(methods, key=lambda m: first.get(m, gaps[m])):
            cells = [mean_and_half(values_of(rows, experiment, method, readout)) for readout in (*FOUR, GAP)]
            area = values_of(rows, experiment, method, RMIA)
            mean, low, high = t_interval(area) if area else (float("nan"),) * 3
            rmia = f"{mean:.3f} [{low:.3f}, {high:.3f}]" if len(area) > 1 else f"{mean:.3f}"
            paid = [values_of(rows, experiment, method, readout) for readout in (SHARE, TIME)]
            told = [f"{sum(v) / len(v):.1%}" if v else "" for v in paid]
            made.append([experiment, method, str(len(area)), *cells, rmia, *told])
    return markdown_table(("request", "method", "seeds", *FOUR, GAP, RMIA, "FLOPs", "time"), made)


def main(arguments: list[str] | None = None) -> None:
    parser = Flags(__doc__).data("folder with images; digits of a tiny run unless given").out(required=True)
    parser.add_argument("kept", type=Path, nargs="+", help="files of answers")
    options = parser.parse_args(arguments)
    found = [torch.load(path, weights_only=True) for path in options.kept]
    test = load("digits").test.select(range(300)) if options.data is None else cifar10(options.data)[1]
    of_class = test.labels()[1::2] == LABEL
    save(options.out, list(rows_of(found, of_class)))
    print(table(read_rows(options.out)))


if __name__ == "__main__":
    main()
