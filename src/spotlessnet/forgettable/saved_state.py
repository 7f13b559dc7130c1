"""What a file of a forgettable model says, checked before anything is made from it: it may have come from anyone."""

import hashlib
import json
import re
import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spotlessnet.core.errors import DataError
from spotlessnet.forgettable.encoder import ONE
from spotlessnet.forgettable.examples import GONE
from spotlessnet.forgettable.fixed_point import MOST_WEIGHT
from spotlessnet.store.receipts import loads_once

FORMAT = "spotlessnet forgettable model 2"
EARLIER = "spotlessnet forgettable model 1"
"""Had ids as text of the header, which holds some hundred thousand of them at most."""

EXACT = 2**53
"""Up to here float64 holds every whole number."""

MOST_AT_ONCE = 2**17
"""Batches are filled up to their size, so that a file which asks for a larger one asks for memory."""

FORMATS = {
    "moments.gram": torch.float64,
    "moments.cross": torch.float64,
    "weights": torch.float64,
    "scale": torch.float32,
    "examples.targets": torch.int16,
    "examples.labels": torch.int64,
    "examples.weights": torch.int64,
}


@dataclass(frozen=True, eq=False)
class Saved:
    """The content of a file whose parts fit together; `features` are the weights of the feature map."""

    gram: Tensor
    cross: Tensor
    weights: Tensor
    scale: Tensor
    targets: Tensor
    labels: Tensor
    example_weights: Tensor
    codes: Tensor | None
    ids: list[Hashable]
    digests: list[str]
    features: dict[str, Tensor]
    description: dict[str, Any] | None
    ridge: int
    ridge_from: str
    classes: int
    batch_size: int
    lanes: int
    class_weights: Tensor | None
    weights_unknown: bool
    spread: float
    weight: int
    count: int
    core_examples: int

    @property
    def per_class(self) -> bool:
        """Whether each class is a row of its own, as for linearised networks, which have no constant feature."""
        return len(self.scale) == len(self.gram)


def as_bytes(value: list[Any]) -> Tensor:
    """A list as the bytes of its JSON text: a header has limits, and a tensor has none."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def digest_of(about: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of everything in a file but this digest itself: what disk or transport changed is noticed by it."""
    found = hashlib.sha256(json.dumps({n: v for n, v in about.items() if n != "digest"}, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        found.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value[..., None].flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def read_saved(path: Path, about: Mapping[str, str], tensors: dict[str, Tensor]) -> Saved:
    """The parts of a file, or a `DataError` that says which of them cannot be."""
    if about.get("format") not in (FORMAT, EARLIER):
        raise DataError(f"{path} is not a forgettable model. Give a file that `save_forgettable` wrote.")
    try:
        saved = _parsed(about, tensors)
        _check_shapes(saved)
        _check_sums(saved)
        _check_examples(saved)
        # Whatever names lanes was written by a version that writes a digest too.
        must("digest" in about or "lanes" not in about, "its digest is missing")
        whole = about.get("digest") is None or about["digest"] == digest_of(about, tensors)
        must(whole, "its content is not what its digest was made from")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError) as e:
        why = f"{str(e)[:160]} is missing" if isinstance(e, KeyError) else str(e)[:160] or type(e).__name__
        raise DataError(
            f"{path} is a damaged forgettable model: {why}. Take the file that its receipt speaks of."
        ) from e
    if "digest" not in about:
        warnings.warn(
            f"{path} comes from a version that wrote no digest into states, so that a change to it may go unnoticed. "
            "Compare it with its receipt.",
            stacklevel=3,
        )
    return saved


def _parsed(about: Mapping[str, str], tensors: dict[str, Tensor]) -> Saved:
    for name, kind in FORMATS.items():
        must(tensors[name].dtype == kind, f"{name} must be {kind}, but is {tensors[name].dtype}")
    texts = {}
    for name in ("ids", "digests"):
        kept = tensors.get(f"examples.{name}")
        texts[name] = loads_once(about[name].encode() if kept is None else bytes(kept.numpy().tobytes()))
        must(isinstance(texts[name], list), f"the {name} must be a list")
    ids, digests = texts["ids"], texts["digests"]
    # Places that examples have left had no id in the earlier format.
    must(all(type(one) in (str, int) or one is None for one in ids), "ids must be text or whole numbers")
    must(all(isinstance(one, str) for one in digests), "digests must be text")
    description = loads_once(about["features"].encode())
    must(description is None or isinstance(description, dict), "the description of its features must be an object")
    spread = float(about["spread"])
    must(0 < spread < 1e6, f"the spread must be positive, but is {spread}")
    return Saved(
        gram=tensors["moments.gram"],
        cross=tensors["moments.cross"],
        weights=tensors["weights"],
        scale=tensors["scale"],
        targets=tensors["examples.targets"],
        labels=tensors["examples.labels"],
        example_weights=tensors["examples.weights"],
        codes=tensors.get("examples.codes"),
        ids=ids,
        digests=digests,
        features={n.removeprefix("features."): v for n, v in tensors.items() if n.startswith("features.")},
        description=description,
        ridge=number(about, "ridge", 1, EXACT),
        ridge_from=about["ridge_from"][:80],
        classes=number(about, "classes", 1, 2**20),
        batch_size=number(about, "batch_size", 1, MOST_AT_ONCE),
        # Files from before there were lanes have the usual ones.
        lanes=number(about, "lanes", 0, MOST_AT_ONCE) if "lanes" in about else 0,
        class_weights=_class_weights(about),
        # Before they were kept, examples that do not weigh one had some that nobody knows any more.
        weights_unknown="class_weights" not in about and bool((tensors["examples.weights"] > 1).any()),
        spread=spread,
        weight=number(about, "weight", 0, MOST_WEIGHT),
        count=number(about, "count", 0, MOST_WEIGHT),
        core_examples=number(about, "core_examples", 0, MOST_WEIGHT),
    )


def _class_weights(about: Mapping[str, str]) -> Tensor | None:
    """The weight of each class, as plain whole numbers."""
    listed = loads_once(about.get("class_weights", "null").encode())
    if listed is None:
        return None
    fits = isinstance(listed, list) and all(type(w) is int and 0 <= w <= MOST_WEIGHT for w in listed)
    must(fits and len(listed) == number(about, "classes", 1, 2**20), "its class weights must be one number per class")
    return torch.tensor(listed, dtype=torch.long)


def _check_shapes(saved: Saved) -> None:
    must(saved.gram.ndim == saved.cross.ndim == 2, "its sums must be tables")
    n, d, outputs = len(saved.ids), len(saved.gram), saved.cross.shape[-1]
    must(not saved.lanes or saved.batch_size % saved.lanes == 0, "its lanes must divide its batches")
    must(saved.gram.shape == (d, d) and d > 0, "its sums of products must be a square")
    must(saved.cross.shape == (d, outputs) == saved.weights.shape, "its weights and sums must have one shape")
    must(saved.scale.shape in ((d,), (d - 1,)), f"it has scales of shape {tuple(saved.scale.shape)} for {d} features")
    must(bool((saved.scale > 0).all() & saved.scale.isfinite().all()), "its scales must be positive")
    rows = saved.classes if saved.per_class else 1
    must(outputs == (1 if saved.per_class else saved.classes), f"it has {outputs} outputs for {saved.classes} classes")
    must(saved.targets.shape == (n, rows, outputs), "its targets do not fit its ids")
    must(saved.labels.shape == saved.example_weights.shape == (n,), "its labels do not fit its ids")
    must(not saved.digests or len(saved.digests) == n, "its digests do not fit its ids")
    codes = saved.codes
    must(codes is not None or len(saved.digests) == n, "it has neither features nor digests of its examples")
    must(
        codes is None or (codes.shape == (n, rows, d) and codes.dtype == torch.int16),
        "its features do not fit its sums",
    )


def _check_sums(saved: Saved) -> None:
    for name, value in (("sums of products", saved.gram), ("sums of targets", saved.cross)):
        for part in value.split(1024):
            whole = (part == part.round()) & (part.abs() <= EXACT)
            must(bool(whole.all()), f"its {name} must be whole numbers below 2⁵³")
    must(torch.equal(saved.gram, saved.gram.T), "its sums of products must be symmetric")
    must(bool(saved.weights.isfinite().all()), "its weights must be finite")
    if not saved.per_class:
        must(int(saved.gram[-1, -1]) == ONE**2 * saved.weight, "its sums are not those of as many examples as it says")


def _check_examples(saved: Saved) -> None:
    gone = saved.labels == GONE
    rows = saved.targets.shape[1]
    must(bool(((saved.labels >= 0) | gone).all()), "labels must be class numbers")
    must(not len(gone) or int(saved.labels.max()) < saved.classes, "labels must be class numbers")
    must(bool((saved.example_weights >= 0).all()), "weights of examples must be positive")
    must(not len(gone) or int(saved.example_weights.max()) <= MOST_WEIGHT, "weights of examples are too large")
    must(int(saved.example_weights.sum()) * rows <= saved.weight, "it names more examples than its sums hold")
    must(int((~gone).sum()) * rows <= saved.count, "it names more examples than its sums hold")
    must(all(one is None or not out for one, out in zip(saved.ids, gone.tolist(), strict=True)), "an id has no example")
    if not saved.per_class and len(gone):
        goal = torch.nn.functional.one_hot(saved.labels.clamp(min=0), saved.classes) * ~gone[:, None]
        must(torch.equal(goal.to(torch.int16), saved.targets[:, 0]), "its targets are not those of its labels")


def number(about: Mapping[str, str], name: str, least: int, most: int) -> int:
    """A whole number of the header within its limits."""
    text = about[name]
    must(re.fullmatch(r"[0-9]{1,20}", text) is not None, f"{name} must be a whole number, but is {text[:30]!r}")
    must(least <= int(text) <= most, f"{name} must lie between {least} and {most}, but is {text}")
    return int(text)


def must(holds: bool, what: str) -> None:
    """Raise a `ValueError` unless something holds."""
    if not holds:
        raise ValueError(what)
