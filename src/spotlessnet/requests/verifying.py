"""Verifying a request after the fact: everything that its receipt says, against what lies beside it."""

import html
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.core.files import read_whole
from spotlessnet.core.id_lists import listed_ids, read_list
from spotlessnet.requests.audits import REPORT, VERDICT
from spotlessnet.requests.folder import (
    BUNDLE,
    LONGEST_REQUEST,
    PRETRAINED,
    PRIVATE,
    RECEIPT,
    SCRUBBED,
    TELLING,
    Private,
)
from spotlessnet.requests.folder import PURGED as PURGED_FILE
from spotlessnet.requests.folder import ROWS as FORGOTTEN
from spotlessnet.requests.purging import SUPERSEDED, purged_on
from spotlessnet.requests.serving import FOLD_MODELS, REFUSAL, STATISTICS
from spotlessnet.store.receipts import (
    COMMITMENT,
    EXACT,
    LARGEST,
    commit_to,
    commit_to_exact,
    identity_of,
    loads_once,
    read_receipt,
    seals,
    verify,
)
from spotlessnet.store.schema import agrees, verdict_mistakes
from spotlessnet.store.training_record import RECORD, ROWS

UNSIGNED = "who wrote the receipt: it is not signed, and whoever holds `private` could write another"
UNSEALED = "that nobody rewrote the receipt whole: that needs the folder `private`, which lies with the asker"
PURGED = "the list, and that nobody rewrote the receipt: the folder `private` was purged on {date}"

LONGEST_PAGE = 2**28
"""Bytes of a report with all its figures at most; a longer one is not read."""


@dataclass(frozen=True)
class Verified:
    """What was checked, and what could not be.

    **Arguments:**

    - `receipt`: the file that was checked.
    - `files`: what it speaks of and agrees with, by name.
    - `is_sealed`: whether it was seen to be word for word the one that was written.
    """

    receipt: Path
    files: tuple[str, ...]
    is_sealed: bool
    not_checked: tuple[str, ...]


def verify_request(path: Path, forget: Path | None = None, id_column: str = "id") -> Verified:
    """Check a receipt and the files beside it; an `IntegrityError` says where they do not agree.

    **Arguments:**

    - `path`: the receipt, or the folder that holds it.
    - `forget`: a list that must be the one that the receipt was written for; `id_column` is its column of ids.
    """
    file = _file(path)
    private = Private(file.parent)
    if private.path.is_dir() and not private.has_salt:
        raise IntegrityError(
            f"{private.path} must hold the salt that the receipt was sealed with, but it is gone, and no purged.json "
            "says that it was destroyed: neither seal nor list was checked. Bring it back, or look into who removed it."
        )
    salt = private.salt if private.has_salt else None
    gone = (*TELLING, *(set(SUPERSEDED) & set(private.check_purged()))) if private.is_purged else ()
    try:
        names = verify(file, salt, gone)
    except DataError as e:
        if _was_changed(file):
            raise IntegrityError(f"{file.name} was changed after it was written: {e}") from e
        raise
    receipt = read_receipt(file)
    body = receipt["predicate"]
    _check_report(body["audit"], file.parent, names, gone)
    others = _others(file, names, salt)
    if salt is not None:
        private.due(receipt)
        _check_request(body["request"], private.request(), salt)
        _check_exact(body["about"], private.diagnostics(file.name), salt)
        if SCRUBBED in names:
            _check_rows(private)
    if forget is not None:
        if private.is_purged:
            raise DataError(f"Checking a list needs the folder `private`, which was purged on {purged_on(private)}.")
        if salt is None:
            raise DataError(f"Checking a list needs {private.path / 'salt'}, which was written with the receipt.")
        _check_list(body["request"]["cohort"], forget, id_column, salt)
        names.append(forget.name)
    unsealed = PURGED.format(date=purged_on(private)) if private.is_purged else UNSEALED
    left = [UNSIGNED if salt is not None else unsealed]
    destroyed = [subject["name"] for subject in receipt["subject"] if subject["name"] not in names]
    if destroyed:
        left.append(f"{', '.join(destroyed)}: destroyed with `private`")
    if others:
        left.append(f"files of which the receipt does not speak: {', '.join(others)}")
    return Verified(file, tuple(names), salt is not None, tuple(left))


def _was_changed(file: Path) -> bool:
    """Whether a receipt has a digest of its own that is not that of its content: what never was one has none."""
    try:
        receipt = loads_once(read_whole(file, "receipt", LARGEST))
        return bool(receipt["predicate"]["integrity"]["sha256"] != seals(receipt, None)["sha256"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return False


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    names = [name for name in (RECEIPT, REFUSAL) if (path / name).is_file()]
    return path / (names[0] if names else RECEIPT)


def _others(file: Path, names: list[str], salt: bytes | None) -> list[str]:
    """Files beside the receipt of which it does not speak; under a name that this tool gives, one was planted."""
    beside = {p.name for p in file.parent.iterdir()} - {*names, file.name, PRIVATE, PURGED_FILE, BUNDLE}
    planted = sorted(beside & {*REPORT, SCRUBBED, PRETRAINED, STATISTICS, FOLD_MODELS, RECORD, ROWS})
    if planted:
        raise IntegrityError(
            f"{', '.join(planted)} lies beside {file.name}, which does not speak of it: this run did not write it. "
            "Remove it, or find out who put it there."
        )
    # A refused request that was asked again and served leaves both.
    for name in sorted(beside & {RECEIPT, REFUSAL}):
        _check_sibling(file.parent / name, salt)
    return sorted(beside - {f"{name}.next" for name in names})


def _check_sibling(path: Path, salt: bytes | None) -> None:
    """A receipt and a refusal in one folder are of one salt; each is whole in itself."""
    try:
        verify(path, salt)
    except (DataError, IntegrityError) as e:
        raise IntegrityError(f"{path.name} lies beside, but was not written here: {e}") from e


def _check_report(audit: list[Any], folder: Path, names: list[str], gone: Collection[str]) -> None:
    """The receipt's verdict and figures must be those of the files that it binds, as far as they were not destroyed."""
    bound = {name for name in REPORT if name in names or name not in gone}
    if bool(audit) != any(name in REPORT for name in names) or (audit and not bound <= set(names)):
        raise IntegrityError("The receipt tells of an audit without its report, or binds a report without an audit.")
    if not audit:
        return
    try:
        told = loads_once(read_whole(folder / VERDICT, "verdict", LARGEST))
        card, *pages = (
            read_whole(folder / name, "report", LONGEST_PAGE).decode()
            for name in ("model-card.md", "report.html")
            if name in names
        )
    except (OSError, ValueError, RecursionError) as e:
        raise IntegrityError(f"The report beside the receipt cannot be read: {_why(e)}.") from e
    wrong = verdict_mistakes(told)
    if wrong:
        raise IntegrityError(f"{VERDICT} is not a verdict that this version can read: {'; '.join(wrong)}.")
    word = str(audit[0]["verdict"])
    shown = [re.search(r'<p class="word">([^<]*)</p>', page) for page in pages]
    on_pages = [html.unescape(found[1]).split(maxsplit=1)[-1].lower() if found else "" for found in shown]
    on_card = re.search(r"\*\*([^*]*)\.\*\*", card)
    words = [*on_pages, on_card[1].lower() if on_card else ""]
    if not agrees(told, audit) or any(one != word for one in words):
        raise IntegrityError("The receipt does not say what the report beside it says: verdict or figures differ.")


def _why(error: Exception) -> str:
    """In one half sentence; of a file that is not JSON at all, the kind of error alone."""
    is_ours = type(error) is ValueError or isinstance(error, DataError)
    return str(error).rstrip(".") if is_ours else type(error).__name__


def _check_request(told: Mapping[str, Any], kept: Any, salt: bytes) -> None:
    if not isinstance(kept, dict) or identity_of(kept, salt) != told["identity"]:
        raise IntegrityError("The request kept in `private` is not the one that the receipt was written for.")


def _check_exact(about: Mapping[str, Any], kept: Mapping[str, Any] | None, salt: bytes) -> None:
    """What is kept with all digits must be what the receipt was written from; earlier receipts had all themselves."""
    if EXACT in about and (kept is None or commit_to_exact(kept, salt) != about[EXACT].get("commitment")):
        raise IntegrityError("The diagnostics kept in `private` are not those that the receipt was written from.")


def _check_rows(private: Private) -> None:
    """Without it, or with another's, the next request would not see that forgotten rows are still in its data."""
    try:
        private.sealed(FORGOTTEN, LONGEST_REQUEST)
    except (OSError, ValueError) as e:
        raise IntegrityError(
            f"{private.path / FORGOTTEN} must say under the request's seal which rows went, but is gone, damaged or "
            "of another request. Bring it back, or look into who changed it."
        ) from e


def _check_list(cohort: Mapping[str, Any], forget: Path, column: str, salt: bytes) -> None:
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
