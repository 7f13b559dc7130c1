"""What pages say of the gauntlet, from its rows: `python benchmarks/gauntlet_page.py` renews them.

`python benchmarks/gauntlet_page.py --rows rows.jsonl` first takes over the rows of a run; `--many` adds those of many
more audits of a few settings, which have a table of their own: added to the others, they would outweigh them.
`--two-classes` adds those of data sets of two classes. `--anew` adds rows of the test as it is now, of all three kinds:
earlier ones of the same networks in the same settings are kept beside them, others stay where they are.
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
from benchmarks.gauntlet_candidates import CHEATS, ELSEWHERE, HONEST, REPLAYED, SEEDS, TUNED, UNSEEN
from benchmarks.gauntlet_totals import (
    ALL,
    CHANGED,
    KEPT,
    WORDS,
    Row,
    Rows,
    conditions,
    gained,
    in_sequence,
    notes,
    of,
    rate,
    table,
)

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "results" / "audit_gauntlet.jsonl"
PAGE, README = ROOT / "docs" / "reading_the_report.md", ROOT / "README.md"
CHEAPER = ROOT / "docs" / "cheaper_audits.md"
PLACE, SHORT, SEQUENCE = (
    Place.of("gauntlet_page", f"end of the {part}") for part in ("gauntlet", "summary", "sequence")
)
COLUMNS = {
    "retrained": (REPLAYED,),
    "unknown origin": ("retrained",),
    "original": ("original",),
    "other recipes": HONEST,
    "one row kept": KEPT[:1],
    "a tenth kept": KEPT[1:2],
    "noisy copies": KEPT[2:],
    **{name: (name,) for name in TUNED},
    "of other originals": ELSEWHERE,
    "other cheats": tuple(name for name in CHEATS if name not in TUNED),
}
MANY, TWO = "many audits", "two classes"
"""What rows serve that are added to those of a confirming run."""

EARLIER = "earlier test, "
"""Before what rows served that others have taken the place of."""

MORE = (
    "Nine settings whose audits take seconds were audited 100 times, each time with networks of its own. **That was "
    "the test before it tuned any networks**, so retrained ones were asked as those of known origin are now. Those of "
    "persons are four in which earlier audits had mostly come to a verdict: of harder ones the table above tells."
)

OLDER = (
    "Nine settings were audited [100 times each](docs/reading_the_report.md#how-often-it-is-right), by the test as it "
    "was before it asked whether networks look tuned."
)

OF_TWO = (
    "The settings with two classes, in sequence (the product of two signs among ten numbers, scikit-learn's "
    "`make_gaussian_quantiles`, and whether a digit of MNIST is odd):"
)

BEFORE = (
    "What changed when the test began to ask how close networks lie to the originals that it gave to the method, and "
    "to look for tuned networks among these. Before, those of tuned networks were others:"
)

ORIGINS = (REPLAYED, "retrained")
"""Networks that were retrained, as an audit that ran the method itself knows them, and as anybody may bring them."""

AIMS = dict.fromkeys(ORIGINS, ("forgotten", 0.95, 1)) | {"original": ("not forgotten", 0.99, 1)}
"""The word that is right, its share, and whether at least or at most so often."""
AIMS |= dict.fromkeys(HONEST, ("not forgotten", 0.02, -1)) | dict.fromkeys(
    (*CHEATS, *ELSEWHERE), ("forgotten", 0.10, -1)
)


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


def audited_anew(runs: Sequence[Path]) -> None:
    """Rows of a test that has changed take the place of those of the same networks in the same settings."""
    before = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    take_over(runs)
    about, *rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    told = before[0]["about"]
    about["about"]["commands"] = sorted({*told["commands"], *about["about"]["commands"]})
    machines = (name for one in (told, about["about"]) for name in one["machine"].split("; "))
    about["about"]["machine"] = "; ".join(dict.fromkeys(machines))
    anew = {(row["used_for"], row["setting"], row["candidate"]) for row in rows}
    kept = []
    for row in before[1:]:
        is_again = (row["used_for"], row["setting"], row["candidate"]) in anew
        as_it_was = row["used_for"] == MANY or row["used_for"].startswith(EARLIER)
        kept.append(row if as_it_was else row | {"earlier": True} | (
            {"used_for": f"{EARLIER}{row['used_for']}"} if is_again else {}
        ))  # fmt: skip
    ROWS.write_text("".join(json.dumps(row) + "\n" for row in (about, *rows, *kept)), encoding="utf-8")


def _name_of(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("setting", "candidate", "method", "audit"))


def read() -> list[Row]:
    """Of the settings that were not used for choosing."""
    return _rows("confirming")


def _rows(used_for: str) -> list[Row]:
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row.get("used_for") == used_for]


def changed() -> str:
    """What the same networks got before the test asked how close they lie to originals, and what they get now."""
    now, old = (
        [row for used_for in ("confirming", TWO) for row in _rows(f"{prefix}{used_for}")] for prefix in ("", EARLIER)
    )
    again = {(row["setting"], row["candidate"]) for row in old}
    told = [in_sequence(old), in_sequence([row for row in now if (row["setting"], row["candidate"]) in again])]
    made = ["| networks in the same settings, in sequence: what counts | aim | before | now |", "|---|---|---|---|"]
    for line in CHANGED:
        if line.of(told[0]):
            made.append(f"| {line.label} | {line.wanted} | {' | '.join(line.cell(rows) for rows in told)} |")
    return "\n".join(made)


def before() -> list[Row]:
    """What the same networks had got in these settings before the test changed."""
    return _rows(f"{EARLIER}confirming")


def of_two_classes() -> list[Row]:
    """Of data sets of two classes."""
    return _rows(TWO)


def two_classes() -> str:
    """Verdicts in sequence on data of two classes, setting by setting."""
    return by_setting(in_sequence(of_two_classes()))


def many() -> str:
    """How often the right word came, in each setting of which there are many audits, at once and in sequence."""
    once = _rows(MANY)
    again = in_sequence(once)
    names = list(dict.fromkeys(row["candidate"] for row in once))
    lines = [f"| setting | {' | '.join(f'{name}: {AIMS[name][0]}, one look | in sequence' for name in names)} |"]
    lines.append(f"|---|{'---|---|' * len(names)}")
    for setting in dict.fromkeys(row["setting"] for row in once):
        here = [[row for row in rows if row["setting"] == setting] for rows in (once, again)]
        cells = [rate(of(rows, (name,)), AIMS[name][0]) for name in names for rows in here]
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_setting(rows: Rows) -> str:
    """Verdicts of every kind of candidate, setting by setting."""
    lines = [f"| setting | audits | {' | '.join(COLUMNS)} |", f"|---|{'---|' * (len(COLUMNS) + 1)}"]
    rows = [row for row in rows if not row["method"]]
    for setting in dict.fromkeys(row["setting"] for row in rows):
        here = [row for row in rows if row["setting"] == setting]
        audits = len({row["audit"] for row in here if not row.get("earlier")} or {row["audit"] for row in here})
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
    for name in dict.fromkeys((*ORIGINS, "original", *HONEST, *KEPT, *CHEATS, *ELSEWHERE, *UNSEEN)):
        here = of(rows, (name,))
        if not here:
            continue
        word, aim, sign = AIMS.get(name, ("forgotten", None, -1))
        # Of persons another share is aimed at: the table before this one tells them apart.
        wanted = "above" if sign > 0 else "–" if aim is None else f"≤ {100 * aim:.0f} %"
        files = [row["file"] for row in here if row.get("file")]
        passes = f"{files.count('same')} of {len(files)}" if files else "–"
        lines.append(f"| {name} | {_slashed(here)} | {word} {rate(here, word)} | {wanted} | {passes} |")
    return "\n".join(lines)


def by_method(rows: Rows) -> str:
    """What the package's own methods get, with their usual settings."""
    rows = [row for row in rows if row["method"]]
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    lines = [f"| method | {' | '.join(settings)} |", f"|---|{'---|' * len(settings)}"]
    for name in sorted({row["candidate"] for row in rows}):
        cells = [_slashed([row for row in of(rows, (name,)) if row["setting"] == s]) for s in settings]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _slashed(rows: Rows) -> str:
    counts = Counter(row["outcome"] for row in rows)
    return "/".join(str(counts[word]) for word in WORDS) if any(counts[word] for word in WORDS) else "–"


def short(rows: Rows) -> str:
    """What the front page says: totals of one look, and in sequence."""
    two = of_two_classes()
    return "\n\n".join([conditions(rows, two), table(rows, two), notes(rows, two), OLDER])


def made(rows: Rows) -> str:
    """The section of the page."""
    methods = [by_method(rows)] if any(row["method"] for row in rows) else []
    more = [MORE, many()] if _rows(MANY) else []
    more += [OF_TWO, two_classes()] if of_two_classes() else []
    more += [BEFORE, changed()] if before() else []
    two = of_two_classes()
    first = [conditions(rows, two), table(rows, two, ALL), notes(rows, two)]
    return "\n\n".join([*first, by_candidate(rows), by_setting(rows), *more, *methods])


def main() -> None:
    flags = Flags(__doc__)
    flags.add_argument("--rows", type=Path, nargs="+", help="the rows of runs, which replace those that are kept")
    flags.add_argument("--many", type=Path, nargs="+", help="the rows of many more audits of a few settings")
    flags.add_argument("--two-classes", type=Path, nargs="+", help="the rows of data sets of two classes")
    flags.add_argument("--anew", type=Path, nargs="+", help="the rows of the test after it has changed")
    given = flags.parse_args()
    if given.rows is not None:
        take_over(given.rows)
    if given.many is not None:
        take_over(given.many, MANY)
    if given.two_classes is not None:
        take_over(given.two_classes, TWO)
    if given.anew is not None:
        audited_anew(given.anew)
    rows = read()
    PLACE.write(PAGE, made(rows))
    SHORT.write(README, short(rows))
    SEQUENCE.write(CHEAPER, gained(rows))


if __name__ == "__main__":
    main()
