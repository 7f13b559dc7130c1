"""What requests did to their rows, each told in its own folder `private` for the requests after it."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.effect import Effect, as_text, from_text
from spotlessnet.precomputed.fold_models import FoldModels
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.requests.folder import Private, follows_request
from spotlessnet.store.checkpoints import is_following

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
        effect = Effect.of(opened.trained, after, opened.split.forget)
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


def effects_beside(file: Path | None) -> tuple[Effect, ...] | None:
    """What the request that wrote a file and those before it did, each told in its own folder and under its own seal.

    `None` where one of them is gone, due, damaged or of another request: nothing is known then.
    """
    if file is None:
        return None
    found: list[Effect] = []
    seen: set[Path] = set()
    at = Private(file.resolve().parent)
    # A folder that names one already seen was not written by a request.
    while at.out not in seen and len(seen) < MOST:
        seen.add(at.out)
        try:
            told = from_text(at.sealed(EFFECT, LONGEST), datetime.now(UTC))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, SpotlessError):
            return None
        if told is None:
            return None
        effect, before = told
        found += [] if effect is None else [effect]
        if before == FIRST:
            return tuple(reversed(found))
        at = Private(Path(os.path.normpath(at.out / before)))
    return None
