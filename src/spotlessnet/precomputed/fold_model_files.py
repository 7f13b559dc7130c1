"""Fold models on disk: one safetensors file, written whole."""

import dataclasses
from pathlib import Path

import torch

from spotlessnet.core.data import WIDTH
from spotlessnet.core.errors import DataError, NumericsError
from spotlessnet.core.files import write_whole
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.precomputed.fold_models import FoldModels
from spotlessnet.store.checkpoints import read_metadata, read_weights, to_bytes

KIND, FORMAT = "spotlessnet fold models ", "spotlessnet fold models 4"
AFTER = {"0": False, "1": True}
BUFFER = "buffer/"
NAMES = ("weights", "part", "scale", "origin", "lack", "scales", "gap_ratio")
NEEDED = {"weights", "part", "scale", "origin", "keys"}


def write_fold_models(path: str | Path, fold_models: FoldModels, *, replace: bool = False) -> str:
    """Write fold models and give the file's SHA-256."""
    named = {name: value for name in NAMES if (value := getattr(fold_models, name)) is not None}
    wide = {name: torch.tensor(value, dtype=torch.float64) for name, value in named.items() if isinstance(value, float)}
    every = named | wide | {"keys": fold_models.keys.digests}
    every |= {f"{BUFFER}{name}": value for name, value in (fold_models.buffers or {}).items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in every.items()}
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise NumericsError("A fold model's weights are not finite, so nothing was written. Check the training run.")
    after = str(int(fold_models.after_requests))
    text = {"format": FORMAT, "salt": fold_models.keys.salt.hex(), "after_requests": after}
    return write_whole(Path(path), to_bytes(tensors, text), replace=replace)


def read_fold_models(path: str | Path) -> FoldModels:
    """Read fold models; nothing in the file is executed."""
    path = Path(path)
    tensors = read_weights(path)
    text = read_metadata(path) if path.suffix == ".safetensors" else {}
    said = text.get("format", "")
    if said.startswith(KIND) and said != FORMAT:
        raise DataError(
            f"{path} holds fold models of an earlier format ({said!r}), which may have served requests and know what "
            "these removed. Destroy it, and train them anew."
        )
    if said != FORMAT or not tensors.keys() >= NEEDED:
        raise DataError(
            f"{path} must hold fold models, but does not say so. `spotless precompute --folds 2` writes them."
        )
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise DataError(f"The fold models in {path} are damaged: not all of their numbers are finite. Train them anew.")
    weights, part, scale, keys = (tensors[name] for name in ("weights", "part", "scale", "keys"))
    origin = tensors["origin"]
    lack, scales, ratio = (tensors.get(name) for name in ("lack", "scales", "gap_ratio"))
    fits = weights.ndim == 2 and keys.ndim == 2 and keys.dtype == torch.uint8 and keys.shape[1] == WIDTH
    fits = fits and part.ndim == 2 and part.dtype == torch.long and len(keys) == part.shape[1]
    fits = fits and scale.numel() == 1 and float(scale) > 0 and origin.shape == weights.shape[1:]
    fits = fits and all(one is None or (one.numel() == 1 and float(one) >= 0) for one in (lack, ratio))
    fits = fits and (scales is None or (scales.shape == weights.shape[:1] and bool((scales > 0).all())))
    if not fits or not bool(((part >= 0) & (part < len(weights))).all()):
        raise DataError(
            f"The fold models in {path} are damaged: rows and parts do not belong together. Train them anew."
        )
    try:
        known = RowKeys(bytes.fromhex(text["salt"]), keys)
    except (KeyError, ValueError) as e:
        raise DataError(f"The fold models in {path} are damaged: their salt is not there. Train them anew.") from e
    after = AFTER.get(text.get("after_requests", ""))
    if after is None:
        raise DataError(f"The fold models in {path} are damaged: what came before them is not said. Train them anew.")
    buffers = {name.removeprefix(BUFFER): value for name, value in tensors.items() if name.startswith(BUFFER)}
    if not all(len(value) == len(weights) for value in buffers.values()):
        raise DataError(f"The fold models in {path} are damaged: buffers are not theirs. Train them anew.")
    missing, share = (None if one is None else float(one) for one in (lack, ratio))
    found = FoldModels(weights, known, part, float(scale), origin, missing, after, buffers or None)
    return dataclasses.replace(found, scales=scales, gap_ratio=share)
