"""What a receipt and a verdict file must hold: every part, of the right kind, and figures that agree."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

KINDS: dict[str, tuple[type, str]] = {
    "inputs": (dict, "an object"),
    "request": (dict, "an object"),
    "method": (str, "text"),
    "settings": (dict, "an object"),
    "noise": (dict, "an object"),
    "about": (dict, "an object"),
    "audit": (list, "a list"),
    "limits": (list, "a list"),
    "private": (dict, "an object"),
    "environment": (dict, "an object"),
    "began": (str, "text"),
    "ended": (str, "text"),
    "integrity": (dict, "an object"),
}
COUNTS = ("matched", "missing", "duplicates", "kept", "copies")
WORDS = ("forgotten", "not forgotten", "inconclusive", "not judged", "never saw the rows")
DIGEST = re.compile(r"[0-9a-f]{64}")
VERDICT_SCHEMA = 2
"""Of `verdict.json`. The first had figures; before there was a number, the file was the receipt's audit section."""
READ_SCHEMAS = (1, VERDICT_SCHEMA)
HEAD = ("verdict", "reason", "seeds")
"""What receipt and verdict file both say of the audit as a whole."""


def mistakes(receipt: Mapping[str, Any]) -> list[str]:
    """Everything that a receipt lacks or has wrong, as half sentences; empty if it is well formed."""
    if is_refusal(receipt):
        spoken = [] if receipt.get("subject") == [] else ["it speaks of files, but a refusal writes none"]
        return [*spoken, *_body(receipt.get("predicate"))]
    return [*_subjects(receipt.get("subject")), *_body(receipt.get("predicate"))]


def is_refusal(receipt: Mapping[str, Any]) -> bool:
    """Whether it says that nothing was forgotten, and why: then there is no network to speak of."""
    body = receipt.get("predicate")
    about = body.get("about") if isinstance(body, dict) else None
    return isinstance(about, dict) and isinstance(about.get("refused"), str)


def _subjects(subjects: Any) -> Iterator[str]:
    if not isinstance(subjects, list) or not subjects:
        yield "it speaks of no file"
        return
    names = [one.get("name") if isinstance(one, dict) else None for one in subjects]
    for one, name in zip(subjects, names, strict=True):
        if not isinstance(name, str) or not name or Path(name).name != name or name in (".", "..") or "\0" in name:
            yield "a file that it speaks of has no plain name"
        elif not _is_digest(one.get("digest"), "sha256"):
            yield f"it gives no SHA-256 of {name[:60]!r}"
    if len(set(map(str, names))) != len(names):
        yield "it speaks twice of one file"
    if not any(str(name).endswith(".safetensors") for name in names):
        yield "it speaks of no network"


def _body(body: Any) -> Iterator[str]:
    if not isinstance(body, dict):
        yield "it has no content"
        return
    wrong = [name for name, (kind, _) in KINDS.items() if not isinstance(body.get(name), kind)]
    yield from (f"its {name!r} must be {KINDS[name][1]}" for name in wrong)
    if wrong:
        return
    yield from _request(body["request"], body["inputs"])
    yield from _audit(body["audit"])
    if not all(isinstance(limit, str) for limit in body["limits"]):
        yield "its 'limits' must be sentences"
    if not body["method"] or not isinstance(body["noise"].get("kind"), str):
        yield "it does not say by which method or with what noise"
    if not _is_digest(body["integrity"], "sha256") or not _is_digest(body["integrity"], "hmac_sha256"):
        yield "it bears no digest and seal of its own"
    elif body["integrity"].keys() != {"sha256", "hmac_sha256"}:
        # Digest and seal cannot cover where they stand themselves, so nothing else may stand there.
        yield "beside its digest and seal stands what neither covers"
    began, ended = _time(body["began"]), _time(body["ended"])
    if began is None or ended is None or began > ended:
        yield "it did not begin before it ended"
    if _time(body["private"].get("destroy_after")) is None:
        yield "it does not say when the private material is to be destroyed"


def _request(request: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[str]:
    bad = [n for n in COUNTS if not isinstance(request.get(n), int) or isinstance(request[n], bool) or request[n] < 0]
    yield from (f"its count {name!r} must be a whole number, zero or above" for name in bad)
    if not _is_digest(request, "identity") or not _is_digest(request.get("cohort"), "commitment"):
        yield "it commits to no request or no list"
    for name, told in inputs.items():
        if not isinstance(told, dict) or not any(
            (
                _is_digest(told.get("digest"), "sha256"),
                _is_digest(told, "commitment"),
                _is_digest(told.get("rows"), "commitment"),
            )
        ):
            yield f"it binds nothing about its input {name[:40]!r}"
    rows = inputs.get("data", {}).get("rows") if isinstance(inputs.get("data"), dict) else None
    if not isinstance(rows, dict) or not isinstance(rows.get("count"), int):
        yield "it does not say how many rows it read"
    elif not bad and request["matched"] + request["kept"] != rows["count"]:
        yield f"{request['matched']} rows forgotten and {request['kept']} kept are not the {rows['count']} it read"
    elif not bad and request["copies"] > request["kept"]:
        yield "more copies were kept than rows"


def _audit(figures: list[Any]) -> Iterator[str]:
    if not figures:
        return
    if not all(isinstance(figure, dict) for figure in figures) or figures[0].get("verdict") not in WORDS:
        yield f"its audit must begin with a verdict, one of {', '.join(WORDS)}"


def verdict_mistakes(told: Any) -> list[str]:
    """Everything that the content of a `verdict.json` lacks or has wrong, as half sentences; empty if well formed."""
    if isinstance(told, list):
        return list(_audit(told)) if told else ["it tells no verdict"]
    if not isinstance(told, dict):
        return ["it must be an object"]
    if told.get("schema") not in READ_SCHEMAS or isinstance(told["schema"], bool):
        return [f"its schema must be {' or '.join(map(str, READ_SCHEMAS))}, but is {str(told.get('schema'))[:20]}"]
    found = [] if told.get("verdict") in WORDS else [f"its verdict must be one of {', '.join(WORDS)}"]
    # The page and Python call it so: a file that says two things would be read in two ways.
    if "outcome" in told and told["outcome"] != told.get("verdict"):
        found.append("its outcome must be its verdict, but they differ")
    checks = told.get("checks")
    if not isinstance(checks, dict):
        return [*found, "its 'checks' must be an object"]
    wrong = [name for name, one in checks.items() if not isinstance(one, dict) or one.get("name") != name]
    return [*found, *(f"its check {name[:60]!r} must be an object that bears this name" for name in wrong)]


def agrees(told: Any, audit: list[Any]) -> bool:
    """Whether a well-formed `verdict.json`, of either form, says what the receipt's audit section says.

    Checks are by name in the file, so their order there means nothing; what only the file says (resolution, outcomes of
    the audit's own checks) is bound by the file's digest.
    """
    if isinstance(told, list):
        return told == audit
    head, *checks = audit
    said = {key: told[key] for key in HEAD if key in told}
    by_name = {str(check.get("name")): check for check in checks}
    # A name that came twice would hide one of the two.
    return said == head and by_name == told["checks"] and len(by_name) == len(checks)


def _is_digest(holder: Any, name: str) -> bool:
    value = holder.get(name) if isinstance(holder, dict) else None
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def _time(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else None
