"""What pages say of the gauntlet, from its rows: `python benchmarks/gauntlet_page.py` renews both.

`python benchmarks/gauntlet_page.py --rows rows.jsonl` first takes over the rows of a run; `--many` adds those of many
more audits of a few settings, which have a table of their own: added to the others, they would outweigh them.
`--two-classes` adds those of data sets of two classes.
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
from benchmarks.gauntlet_candidates import CHEATS, CORE, HONEST, REPLAYED, SEEDS, TUNED, UNSEEN

from spotlessnet.auditing.rules import Rules
from spotlessnet.core.intervals import clopper_pearson

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "results" / "audit_gauntlet.jsonl"
PAGE, README = ROOT / "docs" / "reading_the_report.md", ROOT / "README.md"
CHEAPER = ROOT / "docs" / "cheaper_audits.md"
PLACE, SHORT, SEQUENCE = (
    Place.of("gauntlet_page", f"end of the {part}") for part in ("gauntlet", "summary", "sequence")
)
WORDS = ("forgotten", "inconclusive", "not forgotten")
KEPT = ("one row kept", "a tenth kept", "noisy copies kept")
COLUMNS = {
    "retrained": (REPLAYED,),
    "unknown origin": ("retrained",),
    "original": ("original",),
    "other recipes": HONEST,
    "one row kept": KEPT[:1],
    "a tenth kept": KEPT[1:2],
    "noisy copies": KEPT[2:],
    **{name: (name,) for name in TUNED},
    "other cheats": tuple(name for name in CHEATS if name not in TUNED),
}
MANY, TWO = "many audits", "two classes"
"""What rows serve that are added to those of a confirming run."""

MORE = (
    "Nine settings whose audits take seconds were audited 100 times, each time with networks of its own, before audits "
    "tuned any: so retrained ones are those of known origin. Those of persons are four in which earlier audits had "
    "mostly come to a verdict: of harder ones the table above tells."
)

OF_TWO = "The settings with two classes, in sequence:"

TWO_ALL = (
    "**Two classes**, where tuned networks were hardest to tell: three more data sets that served to choose nothing "
    "(the product of two signs among ten numbers, scikit-learn's `make_gaussian_quantiles`, and whether a digit of "
    "MNIST is odd; up to 400 examples), audited once, in sequence."
)

ORIGINS = {REPLAYED: "where it is known how they came about (`retrain`)", "retrained": "where nobody says how"}
"""Networks that were retrained, as an audit that ran the method itself knows them, and as anybody may bring them."""

AIMS = dict.fromkeys(ORIGINS, ("forgotten", 0.95, 1)) | {"original": ("not forgotten", 0.99, 1)}
"""The word that is right, its share, and whether at least or at most so often."""
AIMS |= dict.fromkeys(HONEST, ("not forgotten", 0.02, -1)) | dict.fromkeys(CHEATS, ("forgotten", 0.10, -1))

Row = dict[str, Any]
Rows = Sequence[Row]


def take_over(runs: Sequence[Path], used_for: str = "") -> None:
    """The rows of runs, without what is the same in all; `used_for` something else they join those that there are."""
    found = [json.loads(line) for run in runs for line in run.read_text(encoding="utf-8").splitlines()]
    fields = ("setting", "used_for", "audit", "candidate", "method", "outcome", "file", "could_hide", "power",
              "finest")  # fmt: skip
    again = ("outcome", "could_hide", "power", "pairs", "finest")
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


def two_classes() -> str:
    """Verdicts in sequence on data of two classes, setting by setting."""
    return by_setting(in_sequence(_rows(TWO)))


def two_classes_in_all() -> str:
    """Their totals."""
    return f"{TWO_ALL} {'; '.join(_told_in_sequence(in_sequence(_rows(TWO))))}.".replace(". retr", ". Retr")


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
    for name in dict.fromkeys((*ORIGINS, "original", *HONEST, *KEPT, *CHEATS, *UNSEEN)):
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
    wrong, of = claims(judged)
    told = [
        *(
            f"{'retrained networks were *forgotten*, ' if name == REPLAYED else ''}{where}, in "
            f"{_told(others, (name,), 'forgotten')}, of one person's twelve similar examples in "
            f"{_told(persons, (name,), 'forgotten')}"
            for name, where in ORIGINS.items()
        ),
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
    told = _told_in_sequence(in_sequence([row for row in rows if not row["method"]]))
    return f"The same audits with `--sequential` (16 pairs where 8 were inconclusive, then 32): {'; '.join(told)}."


def _told_in_sequence(judged: Rows) -> list[str]:
    persons, others = ([row for row in judged if ("/person-" in row["setting"]) == one] for one in (True, False))
    once = [row for row in judged if "/twice-" not in row["setting"]]
    traced = [row for row in once if row["power"] == "not forgotten"]
    felt = [row for row in persons if not too_faint(row)]
    wrong, of = claims(judged)
    return [
        *(
            f"{'retrained networks were *forgotten*, ' if name == REPLAYED else ''}{where}, in "
            f"{_told(others, (name,), 'forgotten')}, of persons in {_told(persons, (name,), 'forgotten')}, without "
            f"those told that their examples left too little trace in {_told(felt, (name,), 'forgotten')}, from "
            f"{_pairs(_of(judged, (name,))):.1f} pairs in the mean"
            for name, where in ORIGINS.items()
        ),
        f"unchanged ones *not forgotten* in {_told(once, ('original',), 'not forgotten')}, and where the audit saw "
        f"that they know them in {_told(traced, ('original',), 'not forgotten')}",
        f"honest networks trained otherwise accused in {_told(judged, HONEST, 'not forgotten')} (and *forgotten* in "
        f"{_told(judged, HONEST, 'forgotten')})",
        *(f"*{name}* passed in {_told(judged, (name,), 'forgotten')}" for name in TUNED),
        f"a kept example or tenth passed beside a statement that none could have in {wrong} of {of} "
        f"({_limits(wrong, of)})",
    ]


def gained(rows: Rows) -> str:
    """What further looks bring, as one sentence."""
    judged = [row for row in rows if not row["method"]]
    both = [judged, in_sequence(judged)]

    def counts(names: Sequence[str], word: str, person: bool) -> list[tuple[int, int]]:
        here = [[row for row in _of(some, names) if person == ("/person-" in row["setting"])] for some in both]
        return [(sum(row["outcome"] == word for row in some), len(some)) for some in here]

    told = []
    for name, where in ORIGINS.items():
        (first, _), (last, total) = counts((name,), "forgotten", False)
        (before, _), (after, persons) = counts((name,), "forgotten", True)
        pairs = _pairs(_of(both[1], (name,)))
        told.append(f"{where}, from {first} to {last} of {total}, for persons' examples from {before} to {after} of "
                    f"{persons}, with {pairs:.1f} pairs in the mean")  # fmt: skip
    accused = [len([row for row in _of(some, HONEST) if row["outcome"] == "not forgotten"]) for some in both]
    return (
        f"*Forgotten* for retrained networks rose, {'; '.join(told)}. Honest networks that were trained otherwise were "
        f"accused in {accused[1]} of {len(_of(both[1], HONEST))} instead of {accused[0]}."
    )


def too_faint(row: Row) -> bool:
    """Whether an audit said that it cannot tell, and could not have told it of retrained networks either."""
    is_seen = row["power"] == "not forgotten" and 0 < (row.get("finest") or 0) <= Rules().share
    return row["outcome"] == "inconclusive" and not is_seen


def _pairs(rows: Rows) -> float:
    return sum(row["pairs"] for row in rows) / max(1, len(rows))


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
    return "\n\n".join([summary(rows), *again, *([two_classes_in_all()] if _rows(TWO) else [])])


def made(rows: Rows) -> str:
    """The section of the page."""
    methods = [by_method(rows)] if any(row["method"] for row in rows) else []
    more = [MORE, many()] if _rows(MANY) else []
    more += [OF_TWO, two_classes()] if _rows(TWO) else []
    return "\n\n".join([short(rows), by_candidate(rows), by_setting(rows), *more, *methods])


def main() -> None:
    flags = Flags(__doc__)
    flags.add_argument("--rows", type=Path, nargs="+", help="the rows of runs, which replace those that are kept")
    flags.add_argument("--many", type=Path, nargs="+", help="the rows of many more audits of a few settings")
    flags.add_argument("--two-classes", type=Path, nargs="+", help="the rows of data sets of two classes")
    given = flags.parse_args()
    if given.rows is not None:
        take_over(given.rows)
    if given.many is not None:
        take_over(given.many, MANY)
    if given.two_classes is not None:
        take_over(given.two_classes, TWO)
    rows = read()
    PLACE.write(PAGE, made(rows))
    SHORT.write(README, short(rows))
    SEQUENCE.write(CHEAPER, gained(rows))


if __name__ == "__main__":
    main()
