"""What requests did to their rows, and which these were, each told in its own `private` for the requests after it."""

import hmac
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from spotlessnet.core.data import Data, GoneRows, count_left
from spotlessnet.core.errors import DataError, IntegrityError, SpotlessError
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.effect import Effect, as_text, from_text
from spotlessnet.precomputed.fold_models import FoldModels
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.requests.folder import LONGEST_REQUEST, RECEIPT, ROWS, SCRUBBED, Private, follows_request
from spotlessnet.store.checkpoints import following, forgotten_by, is_following
from spotlessnet.store.receipts import digest_of, read_receipt, seals

if TYPE_CHECKING:
    from spotlessnet.requests.loading import LoadedRequest

Kept = TypeVar("Kept", Statistics, FoldModels)

EFFECT = "effect.json"
LONGEST = 2**13
"""Bytes of such a file: four numbers, a path and a seal."""

FIRST, UNKNOWN = "", "?"
"""Instead of the folder of the request before: there was none, or it is not known."""

MOST = 1000
"""Requests that are followed back: each is looked at anew by every later one."""

ROOM = 2**26
"""Bytes of their receipts together, of which a usual one has some ten thousand: folders may have been made to cost."""


def keep_effect(private: Private, opened: "LoadedRequest", after: Trained, left: Statistics | None) -> None:
    """Keep what a request did to its rows, and where it is told what the one before did.

    Of requests from statistics and from fold models: later ones of these kinds must not take it back. It helps to guess
    labels, so it stays in `private`.

    **Arguments:**

    - `after`: the network that it leaves.
    - `left`: the statistics that it leaves, which know what it did.
    """
    case, old = opened.case, opened.statistics
    if left is not None and old is not None and left.effects is not None:
        effect = left.effects[-1] if len(left.effects) > len(old.effects or ()) else None
        is_later, beside = old.after_requests, case.statistics
    elif left is None and opened.fold_models is not None:
        effect = Effect.of_all(opened.trained, after, opened.split.forget)
        is_later, beside = opened.fold_models.after_requests, case.weights if follows_request(case.weights) else None
    else:
        (private.path / EFFECT).unlink(missing_ok=True)  # of a run that was killed, when more was known
        return
    before = UNKNOWN if is_later else FIRST
    if is_later and isinstance(beside, Path):
        before = os.path.relpath(beside.resolve().parent, private.out.resolve())
    due = private.destroy_after.isoformat()
    private.keep_sealed(EFFECT, as_text(None if effect is None else replace(effect, due=due), before))


def held_later(kept: Kept, weights: Path | None, model: nn.Module) -> Kept:
    """Statistics or fold models, those of a later request where the network follows one, whatever their file says.

    Made on a copy of the weights, nobody who made them need have known of the request.
    """
    return replace(kept, after_requests=True) if follows_request(weights) or is_following(model) else kept


def marked(model: nn.Module, weights: Path | None) -> nn.Module:
    """A module that was read from a file, which then knows as the file does that it follows a request."""
    return following(model) if follows_request(weights) else model


def effects_beside(file: Path | None) -> tuple[Effect, ...] | None:
    """What the request that wrote a file and those before it did, each told in its own folder and under its own seal.

    `None` where one of them is gone, due, damaged or of another request: nothing is known then.
    """
    if file is None:
        return None
    found: list[Effect] = []
    seen: set[Path] = set()
    beside = file.resolve()
    at = Private(beside.parent)
    room = ROOM
    # A folder that names one already seen was not written by a request.
    while at.out not in seen and len(seen) < MOST:
        seen.add(at.out)
        try:
            told = from_text(at.sealed(EFFECT, LONGEST), datetime.now(UTC))
            room -= os.stat(at.out / RECEIPT).st_size
            # An earlier network is as large as this one.
            if room < 0 or (beside.exists() and beside.stat().st_size > 2 * file.stat().st_size + ROOM):
                return None
            check_network(at, beside)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, SpotlessError):
            return None
        if told is None:
            return None
        effect, before = told
        found += [] if effect is None else [effect]
        if before == FIRST:
            return tuple(reversed(found))
        at = Private(Path(os.path.normpath(at.out / before)))
        beside = at.out / SCRUBBED  # destroyed by now, as a rule
    return None


def check_network(private: Private, beside: Path) -> None:
    """Raise unless a network, or statistics, are those of the request that wrote the notes in `private`.

    The salt that seals the notes seals the receipt, and that names what the request wrote by its digest. So neither
    can be exchanged alone. What was destroyed is not asked for.
    """
    path = private.out / RECEIPT
    try:
        receipt = read_receipt(path)
        seal = seals(receipt, private.salt)["hmac_sha256"]
    except DataError as e:
        raise IntegrityError(
            f"{private.path} holds notes of a request without its receipt, so nobody can tell whether they are of "
            f"{beside.name} ({e}) Bring the receipt back, finish the request with --resume, or move the network to a "
            "folder of its own."
        ) from e
    written = {subject["digest"]["sha256"] for subject in receipt["subject"]}
    same = hmac.compare_digest(seal, receipt["predicate"]["integrity"]["hmac_sha256"])
    if not same or (beside.exists() and digest_of(beside) not in written):
        what = "the receipt" if not same else beside.name
        raise IntegrityError(
            f"The notes in {private.path} must be of the request that wrote what lies beside them, but {what} is "
            "another's: one of them was exchanged. Bring back what was there, or move the network to a folder of its "
            "own."
        )


def check_rows_left(weights: Path | None, retain: Data, model: nn.Module | None = None) -> None:
    """Raise where retained rows are those that a request which led to this network forgot: they would be learnt again.

    A module that a request of this process gave knows them. Of weights, the folder `private` of each request tells, as
    long as it is there: where one was purged, those before it are not found any more.
    """
    known = () if model is None else forgotten_by(model)
    told = [("a request that led to this network", gone) for gone in known]
    told += [] if weights is None or not follows_request(weights) else _rows_beside(weights)
    for (who, _), left in zip(told, count_left(retain, [gone for _, gone in told]), strict=True):
        if left:
            raise DataError(
                f"The data must no longer hold what an earlier request forgot, but {left} rows of {who} are still "
                "there and would be learnt again. Take them out, or ask for them too."
            )


def _rows_beside(weights: Path) -> list[tuple[str, GoneRows]]:
    """The rows that the request which wrote these weights forgot, and those of the requests before it."""
    private = Private(weights.resolve().parent)
    path = private.path / ROWS
    if private.has_salt:
        check_network(private, weights.resolve())
    elif private.path.is_dir() or ((private.out / RECEIPT).is_file() and not private.is_purged):
        raise IntegrityError(
            f"{private.path} must hold what the request that wrote {weights.name} kept, but the salt is gone and no "
            "purge is noted, so nobody can tell which rows were forgotten. Bring it back, or move the network to a "
            "folder of its own, once the rows are out of the data."
        )
    # Beside the salt it can only have been removed, where the request is one that keeps it; a purge takes both.
    if not path.exists() and not (private.has_salt and (private.out / SCRUBBED).is_file()):
        return []
    try:
        gone, before = private.rows()
    except (OSError, ValueError, RecursionError) as e:
        how = "was damaged, or another request or version wrote it" if path.exists() else "is gone"
        raise DataError(
            f"{path} must say which rows the request that wrote {weights} forgot, but {how}. Bring it back "
            "from a backup; once it is due, `spotless purge` destroys it."
        ) from e
    found = [(f"the request that wrote {weights}", gone)]
    seen = {private.out}
    room = LONGEST_REQUEST
    while before and len(seen) < MOST and room > 0:
        private = Private(Path(os.path.normpath(private.out / before)))
        if private.out in seen:  # no request follows itself
            break
        seen.add(private.out)
        try:
            room -= os.stat(private.path / ROWS).st_size
            gone, before = private.rows()
        except (OSError, ValueError, RecursionError, SpotlessError):
            break
        found.append((f"the request in {private.out}", gone))
    return found
