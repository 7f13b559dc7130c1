"""Saving and loading a forgettable model: safetensors for numbers, text for ids, no code."""

import json
import secrets
import time
from collections.abc import Hashable
from pathlib import Path

import torch
from torch import Tensor, nn

from spotlessnet.core.errors import DataError, IntegrityError, MismatchError
from spotlessnet.core.files import write_whole
from spotlessnet.forgettable.encoder import Encoder
from spotlessnet.forgettable.examples import Examples
from spotlessnet.forgettable.features.describe import described, rebuilt
from spotlessnet.forgettable.fixed_point import FixedPoint
from spotlessnet.forgettable.inverse import inverse
from spotlessnet.forgettable.model import ForgettableModel
from spotlessnet.forgettable.moments import Moments
from spotlessnet.forgettable.saved_state import FORMAT, Saved, as_bytes, digest_of, read_saved
from spotlessnet.forgettable.turn import check_mode
from spotlessnet.store.checkpoints import load_into, read_metadata, read_weights, to_bytes

CLOSE = 1e-6
"""How well weights in a file must fit its moments, as a share of their length."""


def save_forgettable(path: str | Path, model: ForgettableModel, *, replace: bool = False) -> str:
    """Write the whole state, and give the file's SHA-256.

    It holds the user examples' ids and features: keep it as private as the data. The inverse is
    not written; it is made anew on loading, so that nothing passes through it. Places of examples that have gone are
    left out, and the others stand in the order in which they came: a state tells nothing of requests. The salt in it
    makes its digest useless to whoever would confirm a guess about an example that was in it.
    """
    if Path(path).suffix != ".safetensors":
        raise DataError(f"A state must end in .safetensors, as others are not read again, but {path} does not.")
    # A request of another thread would change the sums while they are read, and a torn model must not become a file.
    with model.turn.taken():
        plain, about = _written(model)
    return write_whole(Path(path), to_bytes(plain, about), replace=replace)


def _written(model: ForgettableModel) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What goes into the file: a copy, so that the model may go on."""
    kept = model.examples.compact()
    tensors = {
        "moments.gram": model.moments.gram,
        "moments.cross": model.moments.cross,
        "weights": model.weights,
        "scale": model.encoder.point.scale,
        "examples.targets": kept.targets,
        "examples.labels": kept.labels,
        "examples.weights": kept.weights,
        "examples.ids": as_bytes(_plain(kept.ids)),
        "examples.digests": as_bytes(kept.digests),
        **({} if kept.codes is None else {"examples.codes": kept.codes}),
        **{f"features.{name}": value for name, value in model.encoder.features.state_dict().items()},
    }
    about = {
        "format": FORMAT,
        "salt": secrets.token_hex(32),
        "ridge": str(model.ridge),
        "ridge_from": model.ridge_from,
        "classes": str(model.encoder.classes),
        "batch_size": str(model.encoder.batch_size),
        "lanes": str(model.encoder.lanes),
        "spread": str(model.encoder.spread),
        "weight": str(model.moments.weight),
        "count": str(model.moments.count),
        "core_examples": str(model.core_examples),
        "features": json.dumps(described(model.encoder.features)),
    }
    if not model.weights_unknown:
        about["class_weights"] = json.dumps(None if model.class_weights is None else model.class_weights.tolist())
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    about["digest"] = digest_of(about, plain)
    return plain, about


def _plain(ids: list[Hashable]) -> list[Hashable]:
    if not all(type(name) in (str, int) for name in ids):
        wrong = next(type(name).__name__ for name in ids if type(name) not in (str, int))
        raise DataError(f"Ids in a file must be text or whole numbers, but one is of type {wrong}. Fit with such ids.")
    return ids


def load_forgettable(path: str | Path, network: nn.Module) -> ForgettableModel:
    """A model from a file. All of it is checked before the network is touched.

    **Arguments:**

    - `network`: the bare backbone, or a feature map of the kind that was fitted; it gets the weights in the file.
    """
    check_mode()
    began = time.perf_counter()
    path = Path(path)
    about = read_metadata(path)
    saved = read_saved(path, about, read_weights(path))
    features = _features(path, saved, network)
    device = next((p.device for p in (*features.parameters(), *features.buffers())), torch.device("cpu"))
    moments = Moments(saved.gram.to(device), saved.cross.to(device), saved.weight, saved.count)
    point = FixedPoint(saved.scale.to(device))
    encoder = Encoder(features.eval(), point, saved.classes, saved.batch_size, saved.spread, lanes=saved.lanes)
    examples = Examples(
        saved.targets.to(device),
        saved.labels,
        saved.example_weights,
        saved.ids,
        None if saved.codes is None else saved.codes.to(device),
        saved.digests,
    )
    if encoder.per_class != saved.per_class:
        raise MismatchError(f"The features do not fit {path}: one has a row per class, the other a row per example.")
    P = inverse(moments.gram, saved.ridge)
    model = ForgettableModel(encoder, moments, saved.ridge, examples, P, P @ moments.cross)
    model.core_examples, model.ridge_from = saved.core_examples, saved.ridge_from
    model.class_weights, model.weights_unknown = saved.class_weights, saved.weights_unknown
    model._settle("refresh", began, 0, refactored=True)
    if not float((saved.weights.to(device) - model.weights).norm()) <= CLOSE * float(model.weights.norm()):
        raise IntegrityError(f"The weights in {path} are not those of the sums in it: the file was changed.")
    return model


def _features(path: Path, saved: Saved, network: nn.Module) -> nn.Module:
    ready = saved.description is None or described(network) is not None
    features = network if ready else rebuilt(network, saved.description or {}, saved.features)
    try:
        load_into(features, saved.features)
    except MismatchError as e:
        raise MismatchError(
            f"The features do not fit the file {path}: {str(e)[:240]} Build them as they were when it was written."
        ) from e
    return features


__all__ = ["load_forgettable", "save_forgettable"]
