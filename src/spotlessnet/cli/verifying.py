"""`spotless verify`: check everything that a receipt says against what lies beside it."""

import html
import json as to_json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from spotlessnet.cli.console import Console
from spotlessnet.cli.options import AsJson, Debug, Quiet
from spotlessnet.core.errors import DataError, IntegrityError

Receipt = Annotated[Path, typer.Argument(help="receipt.json, or the folder that holds it.")]
List = Annotated[Path | None, typer.Option("--forget", help="Also check that this list is the one it was written for.")]
Column = Annotated[str, typer.Option("--id-column", help="The list's column that holds the ids.")]

UNSIGNED = "who wrote the receipt: it is not signed, and whoever holds `private` could write another"
UNSEALED = "that nobody rewrote the receipt whole: that needs the folder `private`, which lies with the asker"
PURGED = "the list, and that nobody rewrote the receipt: the folder `private` was purged"


def verify(
    path: Receipt,
    forget: List = None,
    id_column: Column = "id",
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Check a receipt and the files beside it; ends with 7 if they do not agree, with 3 if it is no receipt.

    [bold]spotless verify run/ --forget forget.csv[/bold]

    Checked are: every part of the receipt, its own digest, every file's digest, counts, and that the report tells the
    same verdict. With the folder `private` also that the receipt is word for word the one that was written, that it
    belongs to the request kept there and, with --forget, to this list.
    """
    from spotlessnet.requests.folder import Private
    from spotlessnet.store.receipts import read_receipt
    from spotlessnet.store.receipts import verify as check

    console = Console(json, quiet)
    file = _file(path)
    private = Private(file.parent)
    if private.path.is_dir() and not private.has_salt:
        raise IntegrityError(
            f"{private.path} must hold the salt that the receipt was sealed with, but it is gone, and no purged.json "
            "says that it was destroyed: neither seal nor list was checked. Bring it back, or look into who removed it."
        )
    salt = private.salt if private.has_salt else None
    names = check(file, salt)
    receipt = read_receipt(file)
    body = receipt["predicate"]
    _check_report(body["audit"], file.parent, names)
    others = _others(file, names)
    if salt is not None:
        private.due(receipt)
        _check_request(body["request"], private.request(), salt)
        told = [f"verified {file.name}: complete, and as it was written"]
    else:
        told = [f"verified {file.name}: complete, and it agrees with itself"]
    if forget is not None:
        if salt is None:
            raise DataError(f"Checking a list needs {private.path / 'salt'}, which was written with the receipt.")
        _check_list(body["request"]["cohort"], forget, id_column, salt)
        names.append(forget.name)
    if salt is not None:
        open_ = [UNSIGNED]
    else:
        open_ = [PURGED if private.is_purged else UNSEALED]
    if others:
        open_.append(f"files of which the receipt does not speak: {', '.join(others)}")
    console.give(
        {"status": "verified", "files": names, "sealed": salt is not None, "not_checked": open_},
        [*told, *(f"verified {name}" for name in names), *(f"not checked: {one}" for one in open_)],
    )
    return 0


def _file(path: Path) -> Path:
    from spotlessnet.requests.folder import RECEIPT
    from spotlessnet.requests.serving import REFUSAL

    if not path.is_dir():
        return path
    names = [name for name in (RECEIPT, REFUSAL) if (path / name).is_file()]
    return path / (names[0] if names else RECEIPT)


def _others(file: Path, names: list[str]) -> list[str]:
    """Files beside the receipt of which it does not speak; under a name that this tool gives, one was planted."""
    from spotlessnet.requests.audits import REPORT
    from spotlessnet.requests.folder import PRIVATE, PURGED, RECEIPT
    from spotlessnet.requests.serving import REFUSAL, SCRUBBED, STATISTICS

    beside = {p.name for p in file.parent.iterdir()} - {*names, file.name, PRIVATE, PURGED}
    # A refused request that was asked again and served leaves both.
    planted = sorted(beside & {*REPORT, SCRUBBED, STATISTICS})
    if planted:
        raise IntegrityError(
            f"{', '.join(planted)} lies beside {file.name}, which does not speak of it: this run did not write it. "
            "Remove it, or find out who put it there."
        )
    return sorted(beside - {RECEIPT, REFUSAL, *(f"{name}.next" for name in names)})


def _check_report(audit: list[Any], folder: Path, names: list[str]) -> None:
    """The receipt's verdict and figures must be those of the files that it binds."""
    from spotlessnet.requests.audits import REPORT, VERDICT
    from spotlessnet.store.schema import agrees, verdict_mistakes

    if bool(audit) != any(name in REPORT for name in names) or (audit and not set(REPORT) <= set(names)):
        raise IntegrityError("The receipt tells of an audit without its report, or binds a report without an audit.")
    if not audit:
        return
    try:
        told = to_json.loads((folder / VERDICT).read_bytes())
        page, card = ((folder / name).read_text(encoding="utf-8") for name in ("report.html", "model-card.md"))
    except (OSError, ValueError, RecursionError) as e:
        raise IntegrityError(f"The report beside the receipt cannot be read ({type(e).__name__}).") from e
    wrong = verdict_mistakes(told)
    if wrong:
        raise IntegrityError(f"{VERDICT} is not a verdict that this version can read: {'; '.join(wrong)}.")
    word = str(audit[0]["verdict"])
    shown = re.search(r'<p class="word">([^<]*)</p>', page)
    on_page = html.unescape(shown[1]).split(maxsplit=1)[-1].lower() if shown else ""
    on_card = re.search(r"\*\*([^*]*)\.\*\*", card)
    if not agrees(told, audit) or on_page != word or on_card is None or on_card[1].lower() != word:
        raise IntegrityError("The receipt does not say what the report beside it says: verdict or figures differ.")


def _check_request(told: Mapping[str, Any], kept: Any, salt: bytes) -> None:
    from spotlessnet.requests.inputs import identity_of

    if not isinstance(kept, dict) or identity_of(kept, salt) != told["identity"]:
        raise IntegrityError("The request kept in `private` is not the one that the receipt was written for.")


def _check_list(cohort: Mapping[str, Any], forget: Path, column: str, salt: bytes) -> None:
    from spotlessnet.core.cohorts import read_list
    from spotlessnet.requests.loading import listed_ids
    from spotlessnet.store.receipts import COMMITMENT, commit_to

    if cohort.get("algorithm") != COMMITMENT:
        raise DataError(
            f"The receipt commits to its list in a way that this version does not know; it knows {COMMITMENT!r}."
        )
    listed = [listed_ids(forget, column)]
    if read_list(forget, column).may_have_header:
        # Only the data told whether the first line of such a file was an id.
        listed.append(listed[0][1:])
    if cohort["commitment"] not in [commit_to(names, salt) for names in listed]:
        raise IntegrityError(f"{forget} is not the list that the receipt was written for.")
