"""Totals of the gauntlet: in how many audits of each kind of network the word that counts was said, beside its aim."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gauntlet_candidates import CHEATS, CORE, ELSEWHERE, HONEST, REPLAYED, SEEDS, TUNED

from spotlessnet.auditing.rules import Rules
from spotlessnet.core.intervals import clopper_pearson

Row = dict[str, Any]
Rows = Sequence[Row]

WORDS = ("forgotten", "inconclusive", "not forgotten")
KEPT = ("one row kept", "a tenth kept", "noisy copies kept")
MISSED = "**{}**"
"""A share that misses its aim is bold."""


def said(word: str) -> Callable[[Row], bool]:
    """Whether an audit ended with a word."""
    return lambda row: bool(row["outcome"] == word)


def denied(row: Row) -> bool:
    """Whether rows were kept, and a "forgotten" said that no such rows could have been."""
    kind = "single" if row["candidate"] == KEPT[0] else "share"
    return row["outcome"] == "forgotten" and not row["could_hide"][kind]


def is_person(row: Row) -> bool:
    """Whether a person's similar rows must go."""
    return "/person-" in row["setting"]


def is_other(row: Row) -> bool:
    """Whether rows of no person must go."""
    return not is_person(row)


def is_single(row: Row) -> bool:
    """Whether no copies of the rows stay in the retained data."""
    return "/twice-" not in row["setting"]


def is_seen(row: Row) -> bool:
    """Whether the audit saw, beside that, that the original knows the rows."""
    return is_single(row) and row["power"] == "not forgotten"


def too_faint(row: Row) -> bool:
    """Whether an audit said that it cannot tell, and could not have told it of retrained networks either."""
    known = row["power"] == "not forgotten" and 0 < (row.get("finest") or 0) <= Rules().share
    return row["outcome"] == "inconclusive" and not known


@dataclass(frozen=True)
class Line:
    """One line of a table: audits of some networks that ended in what counts, and the share that was aimed at.

    **Arguments:**

    - `at_least`: whether the share must be so high, or may be at most so high.
    """

    label: str
    names: Sequence[str]
    counts: Callable[[Row], bool]
    aim: float | None = None
    at_least: bool = False
    where: Callable[[Row], bool] = lambda row: True

    def of(self, rows: Rows) -> list[Row]:
        """The audits that it tells of."""
        return [row for row in of(rows, self.names) if self.where(row)]

    def found(self, rows: Rows) -> tuple[int, int]:
        """How many ended so, of how many."""
        here = self.of(rows)
        return sum(map(self.counts, here)), len(here)

    def cell(self, rows: Rows) -> str:
        """With exact limits; bold where the aim is missed."""
        count, total = self.found(rows)
        if not total:
            return "–"
        wrong = self.aim is not None and (count / total < self.aim if self.at_least else count / total > self.aim)
        return f"{MISSED.format(f'{count} of {total}') if wrong else f'{count} of {total}'} ({limits(count, total)})"

    @property
    def wanted(self) -> str:
        """The aim in words."""
        return "–" if self.aim is None else f"{'≥' if self.at_least else '≤'} {100 * self.aim:.0f} %"


@dataclass(frozen=True)
class Worst(Line):
    """The kind of network that ended so most often; where none did, all kinds together."""

    def cell(self, rows: Rows) -> str:
        kinds = [Line(name, (name,), self.counts, self.aim, self.at_least, self.where) for name in self.names]
        worst = max(kinds, key=lambda line: line.found(rows)[0] / max(1, line.found(rows)[1]))
        return f"*{worst.label}*: {worst.cell(rows)}" if worst.found(rows)[0] else f"none: {super().cell(rows)}"


PASSED, ACCUSED = said("forgotten"), said("not forgotten")
RETRAINED = (
    Line("retrained, origin known: *forgotten*", (REPLAYED,), PASSED, 0.95, True, is_other),
    Line("retrained, origin not known: *forgotten*", ("retrained",), PASSED, 0.95, True, is_other),
    Line("one person's twelve examples, origin known: *forgotten*", (REPLAYED,), PASSED, 0.80, True, is_person),
    Line("one person's twelve examples, origin not known: *forgotten*", ("retrained",), PASSED, 0.80, True, is_person),
)
UNCHANGED = Line("unchanged: *not forgotten*", ("original",), ACCUSED, 0.99, True, is_single)
SEEN = Line("unchanged, and the audit saw a trace: *not forgotten*", ("original",), ACCUSED, where=is_seen)
OTHERWISE = Line("honest, trained in five other ways: accused", HONEST, ACCUSED, 0.02)
WORST = Worst("made to look as if it had forgotten, the worst way: passed", CHEATS, PASSED, 0.10)
OWN = Worst("the same, of originals that a method trains itself, the worst way: passed", ELSEWHERE, PASSED, 0.10)
DENIED = Line("a row or a tenth kept, beside *none could have been*", KEPT[:2], denied, 0.05)
FRONT = (*RETRAINED, UNCHANGED, SEEN, OTHERWISE, WORST, OWN, DENIED)
"""What the front page tells."""


def felt(row: Row) -> bool:
    """Of a person whose rows left enough trace."""
    return is_person(row) and not too_faint(row)


ALL = (
    *RETRAINED,
    Line("one person's twelve examples that left enough trace, origin known: *forgotten*", (REPLAYED,), PASSED,
         where=felt),
    Line("one person's twelve examples that left enough trace, origin not known: *forgotten*", ("retrained",), PASSED,
         where=felt),
    UNCHANGED,
    SEEN,
    Line("unchanged, and copies stay in the retained data: *not forgotten*", ("original",), ACCUSED,
         where=lambda row: not is_single(row)),
    OTHERWISE,
    Line("honest, trained in five other ways: *forgotten*", HONEST, PASSED),
    WORST,
    *(Line(f"{name}: passed", (name,), PASSED, 0.10) for name in TUNED),
    Line("tuned in these four ways, a person's twelve examples: passed", TUNED, PASSED, 0.10, where=is_person),
    *(Line(f"{name}: passed", (name,), PASSED, 0.10) for name in ELSEWHERE),
    Line("tuned so, of other originals, a person's twelve examples: passed", ELSEWHERE, PASSED, 0.10, where=is_person),
    Line("a row or a tenth kept: passed", KEPT[:2], PASSED),
    DENIED,
)  # fmt: skip
"""The whole record."""


CHANGED = (
    *RETRAINED,
    *(Line(f"{name}: passed", (name,), PASSED, 0.10) for name in TUNED),
    Line("a row or a tenth kept: passed", KEPT[:2], PASSED),
    DENIED,
)
"""What another test of where networks come from can change."""


def in_sequence(rows: Rows) -> list[Row]:
    """The same audits as they end with `--sequential`, of candidates that had a second look."""
    return [{**row, **row["in_sequence"]} for row in rows if row["candidate"] in CORE and "in_sequence" in row]


def conditions(rows: Rows, two: Rows) -> str:
    """Under which conditions the table was measured, as one sentence."""
    judged = [row for row in rows if not row["method"]]
    settings = {row["setting"] for row in judged}
    more = {row["setting"] for row in two}
    also = f", and {len(more)} on {len(_sets(more))} more, of two classes" if more else ""
    return (
        f"{len(settings)} settings on {len(_sets(settings))} data sets{also}; none served to choose anything (small "
        f"networks, up to 400 examples, {SEEDS} pairs of trainings, in sequence up to {4 * SEEDS}; **bold** misses "
        "the aim):"
    )


def table(rows: Rows, two: Rows, lines: Sequence[Line] = FRONT) -> str:
    """Totals at one look and in sequence, and on data of two classes."""
    judged = [row for row in rows if not row["method"]]
    told = [judged, in_sequence(judged), *([in_sequence(two)] if two else [])]
    heads = [f"{len(_sets({row['setting'] for row in judged}))} data sets, one look", "in sequence"]
    heads += ["two classes, in sequence"] * bool(two)
    made = [f"| networks: what counts | aim | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    return "\n".join([*made, *(f"| {line.label} | {line.wanted} | {_cells(line, told)} |" for line in lines)])


def gained(rows: Rows) -> str:
    """What further looks bring."""
    judged = [row for row in rows if not row["method"]]
    again = in_sequence(judged)
    made = ["| networks: what counts | one look | in sequence | pairs in the mean |", "|---|---|---|---|"]
    for line in (*RETRAINED, OTHERWISE):
        pairs = sum(row["pairs"] for row in line.of(again)) / max(1, len(line.of(again)))
        made.append(f"| {line.label} | {_cells(line, [judged, again])} | {pairs:.1f} |")
    return "\n".join(made)


def notes(rows: Rows, two: Rows) -> str:
    """What the words and the numbers mean."""
    # Methods are no networks of the table.
    once = [row for row in (*rows, *two) if not row["method"]]
    audits = Counter((row["setting"], row["candidate"]) for row in once).values()
    tuned, others = len(TUNED), len(CHEATS)
    settings = len({row["setting"] for row in rows if not row["method"]})
    return (
        "*Origin known*: the audit ran the retraining itself, so nothing can have been tuned. *Not known*: the same "
        "networks, as anybody may bring them. They are asked besides whether they look tuned. "
        f"There were {min(audits)} to {max(audits)} audits of each network in a setting. No two share a "
        "network, but all of a setting are of the same rows: limits are over trainings, and other rows may come out "
        f"differently. Earlier versions of the test had been measured in the same {settings} settings, with other "
        f"networks. Of the {others} ways to look as if forgotten, the {tuned} that tune to a retrained network were "
        f"audited in sequence.{_earlier(once)}"
    )


def _earlier(rows: Rows) -> str:
    """Which networks were audited before the test was what it is now."""
    old = [row for row in rows if row.get("earlier")]
    if not old:
        return ""
    settings, names = (_always(rows, kind) for kind in ("setting", "candidate"))
    more = [row for row in old if row["setting"] not in settings and row["candidate"] not in names]
    parts = [f"all networks of {_listed(settings)}"] * bool(settings)
    parts += [f"in all settings {_listed(names)}"] * bool(names) + [f"{len(more)} more"] * bool(more)
    return (
        " The test now asks how close networks lie to originals. Before it did, these were audited: "
        f"{'; '.join(parts)}. All others were audited with `clears_apart=True`, which is off by default since: "
        f"{sum(bool(row.get('cleared')) for row in rows)} networks that were *forgotten* by that alone at one look, "
        f"and {sum(bool(row.get('in_sequence', {}).get('cleared')) for row in rows)} in sequence, count as "
        "*inconclusive*, though in sequence more of them would have been trained. So of unknown origin at least as "
        "many are *forgotten*."
    )


def _always(rows: Rows, kind: str) -> list[str]:
    """Settings, or candidates, of which all audits are of the earlier test."""
    found: dict[str, bool] = {}
    for row in rows:
        found[row[kind]] = found.get(row[kind], True) and bool(row.get("earlier"))
    return [name for name, is_old in found.items() if is_old]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _cells(line: Line, told: Sequence[Rows]) -> str:
    return " | ".join(line.cell(rows) for rows in told)


def _sets(settings: set[str]) -> set[str]:
    return {name.split("/")[0] for name in settings}


def of(rows: Rows, names: Sequence[str]) -> list[Row]:
    """Audits of some networks that came to a word."""
    return [row for row in rows if row["candidate"] in names and row["outcome"] in WORDS]


def rate(rows: Rows, word: str) -> str:
    """How many said it, with exact limits."""
    count = sum(row["outcome"] == word for row in rows)
    return f"{count} of {len(rows)} ({limits(count, len(rows))})"


def limits(count: int, total: int) -> str:
    """Exact limits of a share at 95 %."""
    if not total:
        return "none tried"
    share = clopper_pearson(count, total)
    return f"{100 * share.low:.1f}–{100 * share.high:.1f} %"
