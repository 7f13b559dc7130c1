"""Sentences of `docs/quality_and_cost.md` that hold figures of CIFAR-10, from the rows alone; `klom_page.py` asks."""

import json
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from spotlessnet.auditing.rows import Row

OURS = "out-of-fold-distillation"
ORIGINAL, RETRAINED = "original", "retrained"
PARTS = ("forget", "retain", "validation")
AUC, SHARE, COUNT = "AUC of a row", "share of training FLOPs", "networks"
CHANCE, HALVES = "chance alone", "retrained against retrained, halves"
MARGIN, PAIRS = "mean margin on forget", f"{AUC}, two networks at a time"
OFF, SPREAD = "means of rows off, root mean square", "variance of a row beside retraining's, median"
Cell = Callable[[str, str], Row | None]


def filled(text: str, indent: str = "") -> str:
    """In lines as wide as those of the page."""
    return textwrap.fill(text, 138, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def number(row: Row | None, shape: str = ".2f") -> str:
    return "?" if row is None else format(row.value, shape)


def interval(row: Row | None) -> str:
    """A mean with its interval."""
    return "?" if row is None else f"{row.value:.2f} [{row.low:.2f}, {row.high:.2f}]"


def three(cell: Cell, method: str, reading: str) -> str:
    """On forgotten, retained and new rows."""
    return " / ".join(number(cell(method, f"{reading} on {part}")) for part in PARTS)


def of_method(cell: Cell, method: str) -> str:
    """What is read of one method, each beside what chance reads."""
    chance = [number(cell(method, name)) for name in (CHANCE, f"fit, {CHANCE}")]
    told = [f"KLoM {three(cell, method, 'P95')} ({chance[0]} by chance)"]
    if cell(method, "fit, P95 on forget") is not None:
        told.append(f"fit {three(cell, method, 'fit, P95')} ({chance[1]})")
    told.append(f"attacker {interval(cell(method, AUC))}")
    return ", ".join(told)


def of_way(cell: Cell, method: str) -> list[str]:
    """How far the mean margin went from the untouched network's towards retraining's; nothing where no row says."""
    here, start, end = (cell(name, MARGIN) for name in (method, ORIGINAL, RETRAINED))
    if here is None or start is None or end is None:
        return []
    told = [f"Its mean margin went {(start.value - here.value) / (start.value - end.value):.0%} of the way."]
    off, before, spread = cell(method, OFF), cell(ORIGINAL, OFF), cell(method, SPREAD)
    if off is not None and before is not None and spread is not None:
        told.append(
            f"Means of rows are {off.value:.2f} logits off (untouched {before.value:.2f}), and a row varies "
            f"{spread.value:.1f} times as much as in retraining (variance, median)."
        )
    return told


def of_pairs(cell: Cell, methods: Sequence[str]) -> list[str]:
    """What the attacker finds who knows two networks of a method; nothing unless that is known of ours."""
    found = [f"{interval(cell(method, PAIRS))} ({method})" for method in methods if cell(method, PAIRS) is not None]
    if len(found) < 2:
        return []
    return [f"To compare methods of two networks with: {', '.join(found)}, two networks at a time."]


def of_set(rows: Sequence[Row], experiment: str) -> str:
    """One forget set: the untouched network, ours, and whom of all others the attacker finds least."""
    known = {row.key: row for row in rows}

    def cell(method: str, readout: str) -> Row | None:
        return known.get((experiment, method, readout, 0))

    counts = [number(cell(method, COUNT), ".0f") for method in (ORIGINAL, RETRAINED)]
    name = experiment.removeprefix("CIFAR-10, ")
    told = [f"- *{name}*, {counts[0]} originals and {counts[1]} retrained networks."]
    told.append(f"Untouched: {of_method(cell, ORIGINAL)}.")
    methods = [row.method for row in rows if row.experiment == experiment and row.readout == SHARE]
    for method in methods:
        if method.startswith(OURS):
            paid = number(cell(method, SHARE), ".1%")
            count = number(cell(method, COUNT), ".0f")
            told.append(f"{method} ({count} networks, {paid} of FLOPs): {of_method(cell, method)}.")
            told += of_way(cell, method)
    others = [row for row in rows if row.experiment == experiment and row.readout == AUC
              and row.method in methods and not row.method.startswith(OURS)]  # fmt: skip
    if others:
        best = min(others, key=lambda row: abs(row.value - 0.5))
        paid, count = number(cell(best.method, SHARE), ".1%"), number(cell(best.method, COUNT), ".0f")
        said = f"{best.method}: {interval(best)} ({count} networks, {paid})"
        told.append(f"Of all others the attacker finds least after {said}.")
        told += of_pairs(cell, [ORIGINAL, *(method for method in methods if method.startswith(OURS))])
    return filled(" ".join(told), "  ")


def of_settings(path: Path, chosen: Callable[[Path], dict[tuple[str, str], dict[str, object]]]) -> str:
    """Which of ours was chosen, among how many and on how many originals."""
    if not path.exists():
        return "Settings were not chosen on this network."
    found = [f"*{name}* {told}" for (method, name), told in chosen(path).items() if method == OURS]
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    mine = [one for one in lines if one["method"] == OURS]
    settings, sets = (len({one[key] for one in mine}) for key in ("settings", "set"))
    each = len({(one["set"], one["seed"]) for one in mine}) // max(1, sets)
    return filled(
        "Settings were chosen on other rows and networks by the distance of margins to the mean of retrained networks "
        f"among those that keep the test error within a point (`results/{path.name}`): of {settings} of ours, each "
        f"tried on {each} originals of a set, {'; '.join(found)}."
    )


def of_recipe(rows: Sequence[Row]) -> str:
    """The longest recipe that was tried of each network: seconds of a network, and errors."""
    return "\n".join(_longest(rows, network) for network in ("resnet-9", "resnet-9-whitened")).strip()


def _longest(rows: Sequence[Row], network: str) -> str:
    found = [row for row in rows if row.experiment == network and row.readout.startswith("error on test")]
    if not found:
        return ""
    longest = max((row.method for row in found), key=lambda method: int(method.split()[0]))
    told = []
    for readout in dict.fromkeys(row.readout for row in found if row.method == longest):
        mine = [row.value for row in found if (row.method, row.readout) == (longest, readout)]
        told.append(f"{readout} {sum(mine) / len(mine):.2%} ({min(mine):.2%} to {max(mine):.2%}, {len(mine)} networks)")
    took = max(row.seconds for row in found if row.method == longest)
    said = f"The longest recipe tried with {network}: {longest}, {took:.1f} s a network: {'; '.join(told)}."
    return filled(f"- {said}", "  ")
