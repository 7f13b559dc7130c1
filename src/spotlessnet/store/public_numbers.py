"""Which numbers of a request may be published, and how exactly: exact ones would confirm a guess at the rows."""

import hashlib
import hmac
import json
import math
from collections.abc import Mapping
from typing import Any

COUNTED = frozenset(
    [
        "coreset",
        "cost_in_trainings",
        "epochs",
        "error_increase_limit",
        "examples",
        "examples_left",
        "forgotten_read",
        "limit",
        "memory_rank",
        "retained_read",
        "rows",
        "rows_in_a_round",
        "share_of_training",
        "visits",
    ]
)
"""What settings and counts alone decide: published as it is."""

LIMITS = frozenset(["distance_bound", "distance_bound_relative", "error_increase", "nats", "nats_range"])
"""What a request promises: one digit, rounded up."""

MEASURED = frozenset(["after", "before", "seconds"])
"""What a request cost: two digits."""

HELD_BACK = "held_back"
EXACT = "exact"


def public(diagnostics: Mapping[str, Any]) -> dict[str, Any]:
    """Diagnostics, as plain values, that may stand in a receipt: text and flags, and the numbers named above.

    All others are left out, and named: whoever holds the retained rows, the new network and what was written for the
    next request can work most of them out for any row that may have been forgotten, and look which row fits. Of a
    request for one row, a single number with all its digits singled that row out of a hundred and fifty.

    >>> public({"drift": 0.0123, "retrain_now": False, "utility": {"before": 0.1234}, "nats": 0.61})
    {'retrain_now': False, 'utility': {'before': 0.12}, 'nats': 0.7, 'held_back': ['drift']}
    """
    held: list[str] = []
    found = _public(diagnostics, "", held)
    return {**found, HELD_BACK: sorted(held)}


def _public(values: Mapping[str, Any], place: str, held: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{place}{name}"
        if isinstance(value, Mapping):
            found[name] = _public(value, f"{path}.", held)
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            found[name] = [_public(one, f"{path}.", held) for one in value]
        elif not _numbers(value) or name in COUNTED:
            found[name] = value
        elif name in LIMITS | MEASURED:
            found[name] = [coarse(name, v) for v in value] if isinstance(value, list) else coarse(name, value)
        elif path not in held:
            held.append(path)
    return found


def _numbers(value: Any) -> bool:
    if isinstance(value, list):
        return any(_numbers(one) for one in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def coarse(name: str, value: Any) -> Any:
    """A number as it may be published; text in its place (what is not finite) as it is."""
    if not _numbers(value) or value == 0:
        return value
    if name in MEASURED:
        return float(f"{value:.2g}")
    unit = 10.0 ** math.floor(math.log10(abs(value)))
    # Just above a round number by rounding alone is that number.
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.1g}")


def commit_to_exact(diagnostics: Mapping[str, Any], salt: bytes) -> str:
    """A commitment to all digits, which tells nothing without the salt."""
    return hmac.new(salt, b"spotlessnet diagnostics\0" + as_json(diagnostics), hashlib.sha256).hexdigest()


def as_json(diagnostics: Mapping[str, Any]) -> bytes:
    """One spelling only, because a commitment is to bytes."""
    return json.dumps(diagnostics, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"
