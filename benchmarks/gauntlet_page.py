"""What pages say of the gauntlet, from its rows: `python benchmarks/gauntlet_page.py` renews both.

`python benchmarks/gauntlet_page.py --rows rows.jsonl` first takes over the rows of a run; `--many` adds those of many
more audits of a few settings, which have a table of their own: added to the others, they would outweigh them.
`--afterwards` adds those of data that were looked at when all else was settled.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, Place
from benchmarks.gauntlet_candidates import CHEATS, CORE, HONEST, SEEDS, UNSEEN

from spotlessnet.core.intervals import clopper_pearson

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "results" / "audit_gauntlet.jsonl"
PAGE, README = ROOT / "docs" / "reading_the_report.md", ROOT / "README.md"
PLACE, SHORT = Place.of("gauntlet_page", "end of the gauntlet"), Place.of("gauntlet_page", "end of the summary")
WORDS = ("forgotten", "inconclusive", "not forgotten")
KEPT = ("one row kept", "a tenth kept", "noisy copies kept")
COLUMNS = {
    "retrained": ("retrained",),
    "original": ("original",),
    "other recipes": HONEST,
    "one row kept": KEPT[:1],
    "a tenth kept": KEPT[1:2],
    "noisy copies": KEPT[2:],
    "logits matched": ("logits matched",),
    "margins matched": ("margins matched",),
    "other cheats": tuple(name for name in CHEATS if "matched" not in name),
}
MANY, AFTER = "many audits", "afterwards"
"""What rows serve that are added to those of a confirming run."""

MORE = (
    "Nine settings whose audits take seconds were audited 100 times, each time with networks of its own. Those of "
    "persons are four in which earlier audits had mostly come to a verdict: of harder ones the table above tells."
)

AFTERWARDS = "The settings with two classes, in sequence:"

AFTER_ALL = (
    "**With two classes, networks that were tuned to a retrained one pass.** When test, levels and all figures above "
    "were settled, three data sets of two classes were added (scikit-learn's `make_hastie_10_2`, and moons and circles "
    "among eight numbers that tell nothing; eight settings of up to 400 examples, 12 to 52 audits of a network in "
    "each) and audited once, in sequence."
)

AIMS = {"retrained": ("forgotten", 0.95, 1), "original": ("not forgotten", 0.99, 1)}
"""The word that is right, its share, and whether at least or at most so often."""
AIMS |= dict.fromkeys(HONEST, ("not forgotten", 0.02, -1)) | dict.fromkeys(CHEATS, ("forgotten", 0.10, -1))

Row = dict[str, Any]
Rows = Sequence[Row]


def take_over(runs: Sequence[Path], used_for: str = "") -> None:
    """The rows of runs, without what is the same in all; `used_for` something else they join those that there are."""
    found = [json.loads(line) for run in runs for line in run.read_text(encoding="utf-8").splitlines()]
    fields = ("setting", "used_for", "audit", "candidate", "method", "outcome", "file", "could_hide", "power")
    again = ("outcome", "could_hide", "power", "pairs")
    before = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()] if used_for else []
    told: dict[str, Any] = before[0]["about"] if used_for else {"commands": [], "machine": ""}
    # Where rows were written to is of no use elsewhere.
    commands = sorted({*told["commands"], *(re.sub(r"--out \S+", "--out FILE", row["command"]) for row in found)})
    machine = "; ".join(dict.fromkeys(name for name in (told["machine"], found[0]["machine"]) if name))
    rows: list[Row] = [{"about": {"commands": commands, "machine": machine, "seeds": SEEDS}}, *before[1:]]
    known = {_name_of(row) for row in before[1:]}
    for row in found:
        if _name_of(row) in known:
            raise SystemExit(f"{_name_of(row)} is there already: begin another run at another `--first`.")
        kept = {name: row[name] for name in fields if row.get(name) is not None} | (
            {"used_for": used_for} if used_for else {}
        )
        second = row.get("in_sequence")
        if second is not None:
            kept["in_sequence"] = {name: second[name] for name in again if second.get(name) is not None}
        rows.append(kept)
    ROWS.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _name_of(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("setting", "candidate", "method", "audit"))


def read() -> list[Row]:
    """Of the settings that were not used for choosing."""
    return _rows("confirming")


def _rows(used_for: str) -> list[Row]:
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row.get("used_for") == used_for]


def afterwards() -> str:
    """Verdicts in sequence on data that were added afterwards, setting by setting."""
    return by_setting(in_sequence(_rows(AFTER)))


def after_all() -> str:
    """Their totals."""
    rows = in_sequence(_rows(AFTER))
    persons, others = ([row for row in rows if ("/person-" in row["setting"]) == one] for one in (True, False))
    wrong, kept = claims(rows)
    return (
        f"{AFTER_ALL} Retrained networks were *forgotten* in {_told(others, ('retrained',), 'forgotten')}, of persons "
        f"in {_told(persons, ('retrained',), 'forgotten')}; unchanged ones *not forgotten* in "
        f"{_told(rows, ('original',), 'not forgotten')}; honest ones trained otherwise accused in "
        f"{_told(rows, HONEST, 'not forgotten')}; *margins matched* passed in "
        f"{_told(rows, ('margins matched',), 'forgotten')}, *logits matched* in "
        f"{_told(rows, ('logits matched',), 'forgotten')}; a kept example or tenth passed beside a statement that none "
        f"could have in {wrong} of {kept} ({_limits(wrong, kept)})."
    )


def many() -> str:
    """How often the right word came, in each setting of which there are many audits, at once and in sequence."""
    once = _rows(MANY)
    again = in_sequence(once)
    names = list(dict.fromkeys(row["candidate"] for row in once))
    lines = [f"| setting | {' | '.join(f'{name}: {AIMS[name][0]}, one look | in sequence' for name in names)} |"]
    lines.append(f"|---|{'---|---|' * len(names)}")
    for setting in dict.fromkeys(row["setting"] for row in once):
        here = [[row for row in rows if row["setting"] == setting] for rows in (once, again)]
        cells = [_told(rows, (name,), AIMS[name][0]) for name in names for rows in here]
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return "\n".join(lines)


def in_sequence(rows: Rows) -> list[Row]:
    """The same audits as they end with `--sequential`, of candidates that had a second look."""
    return [{**row, **row["in_sequence"]} for row in rows if row["candidate"] in CORE and "in_sequence" in row]


def by_setting(rows: Rows) -> str:
    """Verdicts of every kind of candidate, setting by setting."""
    lines = [f"| setting | audits | {' | '.join(COLUMNS)} |", f"|---|{'---|' * (len(COLUMNS) + 1)}"]
    rows = [row for row in rows if not row["method"]]
    for setting in dict.fromkeys(row["setting"] for row in rows):
        here = [row for row in rows if row["setting"] == setting]
        audits = len({row["audit"] for row in here})
        cells = [_slashed([row for row in here if row["candidate"] in names]) for names in COLUMNS.values()]
        lines.append(f"| {setting} | {audits} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_candidate(rows: Rows) -> str:
    """All settings together: how often the word that counts was said, with exact limits, beside what was aimed at."""
    lines = [
        "| network | forgotten/inconclusive/not forgotten | what counts | aim | file alone, passes |",
        "|---|---|---|---|---|",
    ]
    rows = [row for row in rows if not row["method"]]
    for name in dict.fromkeys(("retrained", "original", *HONEST, *KEPT, *CHEATS, *UNSEEN)):
        here = _of(rows, (name,))
        if not here:
            continue
        word, aim, sign = AIMS.get(name, ("forgotten", None, -1))
        wanted = "–" if aim is None else f"{'≥' if sign > 0 else '≤'} {100 * aim:.0f} %"
        files = [row["file"] for row in here if row.get("file")]
        passes = f"{files.count('same')} of {len(files)}"
        lines.append(f"| {name} | {_slashed(here)} | {word} {_rate(here, word)} | {wanted} | {passes} |")
    return "\n".join(lines)


def by_method(rows: Rows) -> str:
    """What the package's own methods get, with their usual settings."""
    rows = [row for row in rows if row["method"]]
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    lines = [f"| method | {' | '.join(settings)} |", f"|---|{'---|' * len(settings)}"]
    for name in sorted({row["candidate"] for row in rows}):
        cells = [_slashed([row for row in _of(rows, (name,)) if row["setting"] == s]) for s in settings]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def claims(rows: Rows) -> tuple[int, int]:
    """How often rows were kept and a "forgotten" said that no such rows could have been; and of how many audits."""
    kept = _of(rows, KEPT[:2])
    passed = [row for row in kept if row["outcome"] == "forgotten"]
    wrong = [row for row in passed if not row["could_hide"]["single" if row["candidate"] == KEPT[0] else "share"]]
    return len(wrong), len(kept)


def summary(rows: Rows) -> str:
    """Totals with exact limits, as one sentence."""
    judged = [row for row in rows if not row["method"]]
    settings = {row["setting"] for row in judged}
    sets, kinds = ({name.split("/")[i] for name in settings} for i in (0, 1))
    # Persons leave fewer traces, and their aim is another one: they are told apart.
    persons = [row for row in judged if "/person-" in row["setting"]]
    others = [row for row in judged if "/person-" not in row["setting"]]
    twice = [row for row in judged if "/twice-" in row["setting"]]
    once = [row for row in judged if "/twice-" not in row["setting"]]
    silent = [row for row in _of(judged, ("retrained",)) if row["power"] != "not forgotten"]
    wrong, of = claims(judged)
    told = [
        f"retrained networks were *forgotten* in {_told(others, ('retrained',), 'forgotten')}, of one person's twelve "
        f"similar examples in {_told(persons, ('retrained',), 'forgotten')} ({len(silent)} of the others were told "
        "that the original itself left too little trace for any verdict)",
        f"unchanged ones *not forgotten* in {_told(once, ('original',), 'not forgotten')}, and where copies of the "
        f"examples stay in the retained data in {_told(twice, ('original',), 'not forgotten')}",
        f"honest networks trained in five other ways accused in {_told(judged, HONEST, 'not forgotten')} (and "
        f"*forgotten* in {_told(judged, HONEST, 'forgotten')})",
        f"networks made to look as if they had forgotten passed in {_told(judged, CHEATS, 'forgotten')}, the worst of "
        f"the ways, {_worst(judged)} (of persons' examples in {_told(persons, (_worst_name(judged),), 'forgotten')})",
        f"a kept example or tenth passed in {_told(judged, KEPT[:2], 'forgotten')}, beside a statement that none could "
        f"have in {wrong} of {of} ({_limits(wrong, of)})",
    ]
    audits = Counter((row["setting"], row["candidate"]) for row in judged).values()
    conditions = (
        f"{', '.join(sorted(sets))}; {', '.join(sorted(kinds))}; up to 400 examples, {SEEDS} seeds, {min(audits)} to "
        f"{max(audits)} audits of a network in a setting, none of which share networks, all of the same examples"
    )
    return (
        f"In {len(settings)} settings on {len(sets)} data sets that were not used for choosing the test ({conditions}) "
        f"{'; '.join(told)}."
    )


def second_look(rows: Rows) -> str:
    """What two and four times the pairs say where fewer were inconclusive, as one sentence."""
    judged = in_sequence([row for row in rows if not row["method"]])
    persons = [row for row in judged if "/person-" in row["setting"]]
    others = [row for row in judged if "/person-" not in row["setting"]]
    once = [row for row in judged if "/twice-" not in row["setting"]]
    traced = [row for row in once if row["power"] == "not forgotten"]
    wrong, of = claims(judged)
    honest = _of(judged, ("retrained",))
    felt = [row for row in persons if row["power"] == "not forgotten"]
    mean = sum(row["pairs"] for row in honest) / max(1, len(honest))
    told = [
        f"retrained networks were *forgotten* in {_told(others, ('retrained',), 'forgotten')}, of persons in "
        f"{_told(persons, ('retrained',), 'forgotten')}, where the audit saw that the original knows the examples in "
        f"{_told(felt, ('retrained',), 'forgotten')}, from {mean:.1f} pairs in the mean",
        f"unchanged ones *not forgotten* in {_told(once, ('original',), 'not forgotten')}, and where the audit saw "
        f"that they know them in {_told(traced, ('original',), 'not forgotten')}",
        f"honest networks trained otherwise accused in {_told(judged, HONEST, 'not forgotten')}",
        *(
            f"*{name}* passed in {_told(judged, (name,), 'forgotten')}"
            for name in ("margins matched", "logits matched")
        ),
        f"a kept example or tenth passed beside a statement that none could have in {wrong} of {of} "
        f"({_limits(wrong, of)})",
    ]
    return f"The same audits with `--sequential` (16 pairs where 8 were inconclusive, then 32): {'; '.join(told)}."


def _worst_name(rows: Rows) -> str:
    def passed(name: str) -> float:
        here = _of(rows, (name,))
        return sum(row["outcome"] == "forgotten" for row in here) / max(1, len(here))

    return max(CHEATS, key=passed)


def _worst(rows: Rows) -> str:
    name = _worst_name(rows)
    return f"*{name}*, in {_told(rows, (name,), 'forgotten')}"


def _of(rows: Rows, names: Sequence[str]) -> list[Row]:
    return [row for row in rows if row["candidate"] in names and row["outcome"] in WORDS]


def _told(rows: Rows, names: Sequence[str], word: str) -> str:
    here = _of(rows, names)
    return _rate(here, word)


def _rate(rows: Rows, word: str) -> str:
    count = sum(row["outcome"] == word for row in rows)
    return f"{count} of {len(rows)} ({_limits(count, len(rows))})"


def _limits(count: int, total: int) -> str:
    if not total:
        return "none tried"
    share = clopper_pearson(count, total)
    return f"{100 * share.low:.1f}–{100 * share.high:.1f} %"


def _slashed(rows: Rows) -> str:
    counts = Counter(row["outcome"] for row in rows)
    return "/".join(str(counts[word]) for word in WORDS) if any(counts[word] for word in WORDS) else "–"


def short(rows: Rows) -> str:
    """What the front page says: totals of one look, and in sequence."""
    again = [second_look(rows)] if any("in_sequence" in row for row in rows) else []
    return "\n\n".join([summary(rows), *again, *([after_all()] if _rows(AFTER) else [])])


def made(rows: Rows) -> str:
    """The section of the page."""
    methods = [by_method(rows)] if any(row["method"] for row in rows) else []
    more = [MORE, many()] if _rows(MANY) else []
    more += [AFTERWARDS, afterwards()] if _rows(AFTER) else []
    return "\n\n".join([short(rows), by_candidate(rows), by_setting(rows), *more, *methods])


def main() -> None:
    flags = Flags(__doc__)
    flags.add_argument("--rows", type=Path, nargs="+", help="the rows of runs, which replace those that are kept")
    flags.add_argument("--many", type=Path, nargs="+", help="the rows of many more audits of a few settings")
    flags.add_argument("--afterwards", type=Path, nargs="+", help="the rows of data that were added afterwards")
    given = flags.parse_args()
    if given.rows is not None:
        take_over(given.rows)
    if given.many is not None:
        take_over(given.many, MANY)
    if given.afterwards is not None:
        take_over(given.afterwards, AFTER)
    rows = read()
    PLACE.write(PAGE, made(rows))
    SHORT.write(README, short(rows))


if __name__ == "__main__":
    main()
