"""One spelling of JSON, bytes and times, because hashes and signatures are of bytes."""

import base64
import binascii
import json
import re
from datetime import UTC, datetime
from typing import Any

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.store.strict_json import loads_once

HASH = re.compile(r"[0-9a-f]{64}")
TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


def as_bytes(value: Any) -> bytes:
    """JSON in its one spelling: names sorted, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def parsed(content: bytes, what: str) -> dict[str, Any]:
    """A JSON object that all readers take alike; anything else is refused."""
    try:
        found = loads_once(content)
    except (ValueError, RecursionError) as e:
        raise DataError(f"{what} must be a JSON object, but cannot be read as one ({type(e).__name__}).") from e
    if not isinstance(found, dict):
        raise DataError(f"{what} must be a JSON object, but is {type(found).__name__}.")
    return found


def fields(holder: Any, kinds: dict[str, type], what: str) -> dict[str, Any]:
    """An object with exactly these fields; a field that nobody checks could carry anything."""
    if not isinstance(holder, dict) or holder.keys() != kinds.keys():
        raise DataError(f"{what} must have the fields {', '.join(sorted(kinds))}, and no others.")
    for name, kind in kinds.items():
        # True is a whole number to Python, and to nobody else.
        if not isinstance(holder[name], kind) or isinstance(holder[name], bool):
            raise DataError(f"{name!r} of {what} must be {kind.__name__}, but is {type(holder[name]).__name__}.")
    return holder


def hash_of(text: Any, what: str) -> bytes:
    """A SHA-256 from its one spelling, 64 small hexadecimal digits."""
    if not isinstance(text, str) or HASH.fullmatch(text) is None:
        raise DataError(f"{what} must be a SHA-256 in 64 small hexadecimal digits.")
    return bytes.fromhex(text)


def to_base64(content: bytes) -> str:
    """Bytes as base64 text."""
    return base64.b64encode(content).decode()


def from_base64(text: Any, what: str) -> bytes:
    """Bytes from their one base64 spelling: loose readers would take several texts for the same bytes."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as e:
        raise DataError(f"{what} must be base64, but is not.") from e
    if to_base64(content) != text:
        raise IntegrityError(f"{what} is base64 that nobody would write so: it was changed.")
    return content


def now() -> datetime:
    """The time in UTC."""
    return datetime.now(UTC)


def time_text(time: datetime) -> str:
    """A time in its one spelling: UTC, microseconds, a Z at the end."""
    return time.astimezone(UTC).strftime(TIME)


def time_of(text: Any, what: str) -> datetime:
    """A time from its one spelling."""
    try:
        found = datetime.strptime(text, TIME).replace(tzinfo=UTC)
    except (TypeError, ValueError) as e:
        raise DataError(f"{what} must be a time such as 2026-01-31T12:00:00.000000Z.") from e
    if time_text(found) != text:
        raise DataError(f"{what} must be a time such as 2026-01-31T12:00:00.000000Z.")
    return found
