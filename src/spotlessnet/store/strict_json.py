"""JSON that all readers take alike; apart from receipts, since who only checks a signature needs no torch."""

import json
from typing import Any


def loads_once(content: bytes | bytearray) -> Any:
    """Every name once, numbers that are numbers; anything else is a `ValueError`."""
    return json.loads(content, object_pairs_hook=_each_once, parse_constant=_no_constant)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice: readers would differ on what it says")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
