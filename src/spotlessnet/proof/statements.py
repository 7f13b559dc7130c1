"""What a ledger looks at in the statements that were signed: little, and with care."""

from datetime import datetime
from typing import Any

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.proof.deletions import DELETION, deletion_mistakes
from spotlessnet.proof.spelling import parsed
from spotlessnet.store.schema import mistakes


def ended_by(payload: bytes, otherwise: datetime) -> datetime:
    """When a receipt says that its request ended or was closed; another statement says nothing of it."""
    predicate = parsed(payload, "A statement").get("predicate")
    said = predicate if isinstance(predicate, dict) else {}
    told = said.get("ended", said.get("closed"))
    if told is None:
        return otherwise
    try:
        found = datetime.fromisoformat(told)
    except (TypeError, ValueError) as e:
        raise DataError("The time at which a receipt says that it ended must be a time, but is none.") from e
    if found.tzinfo is None:
        raise DataError("The time at which a receipt says that it ended must have a zone, but has none.")
    return found


def receipt_of(payload: bytes) -> dict[str, Any]:
    """The receipt in a payload, with every part that a receipt must have and its own digest."""
    receipt = parsed(payload, "The payload")
    if receipt.get("predicateType") == DELETION:
        if wrong := deletion_mistakes(receipt):
            raise DataError(f"The payload is not the receipt of a request: {wrong[0]}.")
        return receipt
    from spotlessnet.store.receipts import PREDICATE, seals  # which imports torch: a desk's own receipts need none

    if receipt.get("predicateType") != PREDICATE:
        raise DataError(f"The payload must be a receipt, an in-toto statement of type {PREDICATE!r}, but is not.")
    wrong = mistakes(receipt)
    if wrong:
        raise DataError(f"The payload is not a receipt: {wrong[0]}.")
    if seals(receipt, None)["sha256"] != receipt["predicate"]["integrity"]["sha256"]:
        raise IntegrityError("The receipt was changed before it was signed: its own digest does not match.")
    return receipt
