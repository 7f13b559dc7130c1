"""Tutors on disk: one safetensors file, written whole."""

from pathlib import Path

import torch

from spotlessnet.core.errors import DataError, NumericsError
from spotlessnet.core.files import write_whole
from spotlessnet.store.checkpoints import read_metadata, read_weights
from spotlessnet.store.tensor_bytes import to_bytes
from spotlessnet.training.tutors import Tutors

FORMAT = "spotlessnet tutors 2"
NAMES = ("weights", "rows", "part", "scale", "origin", "lack")


def write_tutors(path: str | Path, tutors: Tutors, *, replace: bool = False) -> str:
    """Write tutors and give the file's SHA-256."""
    named = {name: value for name in NAMES if (value := getattr(tutors, name)) is not None}
    wide = {name: torch.tensor(value, dtype=torch.float64) for name, value in named.items() if isinstance(value, float)}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in (named | wide).items()}
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise NumericsError("A tutor's weights are not finite, so nothing was written. Check the training run.")
    return write_whole(Path(path), to_bytes(tensors, {"format": FORMAT}), replace=replace)


def read_tutors(path: str | Path) -> Tutors:
    """Read tutors; nothing in the file is executed."""
    path = Path(path)
    tensors = read_weights(path)
    text = read_metadata(path) if path.suffix == ".safetensors" else {}
    if text.get("format") != FORMAT or not set(NAMES[:4]) <= tensors.keys():
        raise DataError(f"{path} must hold tutors, but does not say so. `spotless remember --parts 2` writes them.")
    weights, rows, part, scale = (tensors[name] for name in NAMES[:4])
    origin, lack = tensors.get("origin"), tensors.get("lack")
    fits = weights.ndim == 2 and rows.ndim == 1 and part.ndim == 2 and rows.shape == part.shape[1:]
    fits = fits and scale.numel() == 1 and float(scale) > 0 and (origin is None or origin.shape == weights.shape[1:])
    fits = fits and (lack is None or (lack.numel() == 1 and float(lack) >= 0))
    fits = fits and bool((rows[1:] > rows[:-1]).all())
    if not fits or not bool(((part >= 0) & (part < len(weights))).all()):
        raise DataError(f"The tutors in {path} are damaged: rows and parts do not belong together. Train them anew.")
    return Tutors(weights, rows, part, float(scale), origin, None if lack is None else float(lack))
