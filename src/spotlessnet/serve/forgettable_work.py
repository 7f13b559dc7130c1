"""Jobs of forgettable models: people leave them exactly, in milliseconds."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spotlessnet.core.errors import NeedError
from spotlessnet.core.files import sha256
from spotlessnet.requests.folder import RECEIPT
from spotlessnet.requests.forgettable import NETWORK, STATE, backbone_of, forget_named
from spotlessnet.store.receipts import read_receipt

EXACT = "exact"
"""The verdict of a downdate: its certificate bounds the distance to solving anew."""


def _model(settings: Mapping[str, Any]) -> str:
    if not isinstance(settings.get("model"), str):
        raise NeedError("A forgettable model needs its backbone: `model`, such as `nets.py:backbone`.")
    return str(settings["model"])


def read_state(settings: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Who is in a state, and how many examples each has."""
    from spotlessnet.forgettable.files import load_forgettable

    loaded = load_forgettable(base / STATE, backbone_of(_model(settings)))
    found = Counter({str(name): len(places) for name, places in _places(loaded.examples.places).items()})
    return {"ids": sorted(found.items()), "network": sha256(base / NETWORK), "folder": str(base.resolve())}


def _places(places: Mapping[Any, Any]) -> dict[Any, Sequence[int]]:
    return {name: one if isinstance(one, Sequence) else list(one) for name, one in places.items()}


def downdate(settings: Mapping[str, Any], base: Path, out: Path, ids: Sequence[str]) -> dict[str, Any]:
    """Take people out of a forgettable model; a finished result is given back."""
    if not (out / RECEIPT).is_file():
        forget_named(_model(settings), base / STATE, ids, out)
    receipt = read_receipt(out / RECEIPT)
    subjects = {one["name"]: one["digest"]["sha256"] for one in receipt["subject"]}
    return {
        "verdict": EXACT,
        "reason": "the model's certificate bounds the distance to solving anew without the examples",
        "method": receipt["predicate"]["method"],
        "network": subjects[NETWORK],
        "receipt": hashlib.sha256((out / RECEIPT).read_bytes()).hexdigest(),
        "report": False,
    }
