"""Saving and loading a forgettable model: safetensors for numbers, text for ids, no code."""

import json
from pathlib import Path

import torch
from safetensors.torch import save as to_bytes
from torch import nn

from spotlessnet.core.errors import DataError, MismatchError
from spotlessnet.core.files import write_whole
from spotlessnet.forgettable.encoder import Encoder
from spotlessnet.forgettable.examples import Examples
from spotlessnet.forgettable.features.describe import described, rebuilt
from spotlessnet.forgettable.fixed_point import FixedPoint
from spotlessnet.forgettable.inverse import inverse
from spotlessnet.forgettable.model import ForgettableModel
from spotlessnet.forgettable.moments import Moments
from spotlessnet.store.checkpoints import read_metadata, read_weights

FORMAT = "spotlessnet forgettable model 1"


def save_forgettable(path: str | Path, model: ForgettableModel, *, replace: bool = False) -> str:
    """Write the whole state, and give the file's SHA-256.

    It holds the user examples' ids and features: keep it as private as the data. The inverse is
    not written; it is made anew on loading, so that nothing passes through it.
    """
    kept = model.examples
    tensors = {
        "moments.gram": model.moments.gram,
        "moments.cross": model.moments.cross,
        "weights": model.weights,
        "scale": model.encoder.point.scale,
        "examples.targets": kept.targets,
        "examples.labels": kept.labels,
        "examples.weights": kept.weights,
        **({} if kept.codes is None else {"examples.codes": kept.codes}),
        **{f"features.{name}": value for name, value in model.encoder.features.state_dict().items()},
    }
    about = {
        "format": FORMAT,
        "ridge": str(model.ridge),
        "ridge_from": model.ridge_from,
        "classes": str(model.encoder.classes),
        "batch_size": str(model.encoder.batch_size),
        "spread": str(model.encoder.spread),
        "weight": str(model.moments.weight),
        "count": str(model.moments.count),
        "core_examples": str(model.core_examples),
        "ids": json.dumps(kept.ids),
        "digests": json.dumps(kept.digests),
        "features": json.dumps(described(model.encoder.features)),
    }
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return write_whole(Path(path), to_bytes(plain, about), replace=replace)


def load_forgettable(path: str | Path, network: nn.Module) -> ForgettableModel:
    """A model from a file.

    **Arguments:**

    - `network`: the bare backbone, or a feature map of the kind that was fitted; it gets the weights in the file.
    """
    about = read_metadata(Path(path))
    tensors = read_weights(path)
    if about.get("format") != FORMAT:
        raise DataError(f"{path} is not a forgettable model. Give a file that `save_forgettable` wrote.")
    description = json.loads(about["features"])
    ready = description is None or described(network) is not None
    features = network if ready else rebuilt(network, description)
    device = next((p.device for p in (*features.parameters(), *features.buffers())), torch.device("cpu"))
    state = {name.removeprefix("features."): v for name, v in tensors.items() if name.startswith("features.")}
    try:
        features.load_state_dict(state)
    except RuntimeError as e:
        raise MismatchError(
            f"The features do not fit the file: {str(e).splitlines()[0][:160]}. Build them as they were when it was "
            "written."
        ) from e
    moments = Moments(
        tensors["moments.gram"].to(device),
        tensors["moments.cross"].to(device),
        int(about["weight"]),
        int(about["count"]),
    )
    point = FixedPoint(tensors["scale"].to(device))
    encoder = Encoder(features.eval(), point, int(about["classes"]), int(about["batch_size"]), float(about["spread"]))
    codes = tensors.get("examples.codes")
    examples = Examples(
        tensors["examples.targets"].to(device),
        tensors["examples.labels"],
        tensors["examples.weights"],
        json.loads(about["ids"]),
        None if codes is None else codes.to(device),
        json.loads(about["digests"]),
    )
    ridge = int(about["ridge"])
    model = ForgettableModel(
        encoder, moments, ridge, examples, inverse(moments.gram, ridge), tensors["weights"].to(device)
    )
    model.core_examples = int(about["core_examples"])
    model.ridge_from = about["ridge_from"]
    model.refresh()
    return model
