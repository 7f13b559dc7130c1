"""How often sequences of requests took something back, beside retraining on the same sequences, with intervals."""

import random
from collections.abc import Mapping, Sequence

from benchmarks.labels import in_the_fields_words

from spotlessnet.auditing.rows import Row

Pair = tuple[float, float, float, float]
"""Of one sequence: taken back and looked at by a method, then by retraining."""


def shares(
    all_rows: Sequence[Row], methods: Sequence[str], looked: Mapping[str, str], as_far: str, draws: int = 2000
) -> str:
    """Markdown: of all settings together, what share was taken back, and how much more often than by retraining.

    Intervals hold 95 % of what comes out where whole sequences are drawn anew, setting by setting: looks within one
    sequence depend on each other. Retraining is counted on the same sequences, each as far as it was served.

    **Arguments:**

    - `looked`: for each readout that of how many were looked at.
    - `as_far`: what the readouts of retraining end with.
    """
    lines = [
        "| from | readout | taken back | share | retraining as far | difference |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for method in methods:
        for name in looked:
            found = _pairs(all_rows, method, (name, looked[name], name + as_far, looked[name] + as_far))
            if not any(found.values()):
                continue
            draw = random.Random(0)
            drawn = [_shares([draw.choice(pairs) for pairs in found.values() for _ in pairs]) for _ in range(draws)]
            mine, theirs = _shares([pair for pairs in found.values() for pair in pairs])
            counts = [sum(pair[i] for pairs in found.values() for pair in pairs) for i in range(2)]
            ends = [_middle([a for a, _ in drawn]), _middle([b for _, b in drawn]), _middle([a - b for a, b in drawn])]
            cells = [f"{counts[0]:.0f} of {counts[1]:.0f}", f"{mine:.1%} ({ends[0]})", f"{theirs:.1%} ({ends[1]})"]
            lines.append(
                f"| {method} | {name} | {' | '.join(cells)} | {100 * (mine - theirs):+.1f} points ({ends[2]}) |"
            )
    return in_the_fields_words("\n".join(lines) + "\n")


def _pairs(all_rows: Sequence[Row], method: str, readouts: Sequence[str]) -> dict[str, list[Pair]]:
    value = {(r.experiment, r.seed, r.method, r.readout): r.value for r in all_rows}
    found: dict[str, list[Pair]] = {}
    for setting, seed in dict.fromkeys((r.experiment, r.seed) for r in all_rows):
        keys = [(setting, seed, method, readout) for readout in readouts]
        if all(key in value for key in keys):
            a, b, c, d = (value[key] for key in keys)
            found.setdefault(setting, []).append((a, b, c, d))
    return found


def _shares(pairs: Sequence[Pair]) -> tuple[float, float]:
    taken, looked, by_retraining, looked_there = (sum(column) for column in zip(*pairs, strict=True))
    return taken / max(1.0, looked), by_retraining / max(1.0, looked_there)


def _middle(values: list[float]) -> str:
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 40], ordered[-1 - len(ordered) // 40]
    return f"{100 * low:.1f} to {100 * high:.1f}"
