"""Receipts of whole requests, as a deletion desk writes them: which models were published without whom, and when."""

from typing import Any

DELETION = "urn:spotlessnet:deletion:v1"

KINDS: dict[str, type] = {
    "request": str,
    "ids": int,
    "received": str,
    "due": str,
    "closed": str,
    "outcome": str,
    "models": list,
    "steps": list,
    "limits": list,
    "by": str,
}
"""What the predicate of such a receipt must say."""


def deletion_mistakes(statement: dict[str, Any]) -> list[str]:
    """What is wrong with a statement as the receipt of a request, as clauses; nothing where it is one."""
    body, subjects = statement.get("predicate"), statement.get("subject")
    if not isinstance(body, dict) or not isinstance(subjects, list) or not subjects:
        return ["it must have a predicate and subjects"]
    found = [
        f"`{name}` must be {kind.__name__}" for name, kind in KINDS.items() if not isinstance(body.get(name), kind)
    ]
    return found + [
        f"it has a part {name!r} that such receipts have not" for name in sorted(body.keys() - KINDS.keys())
    ]
