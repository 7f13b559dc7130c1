"""Checkpoints: read without running a line of code from them, checked before any work, written whole."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from spotlessnet.core.errors import DataError, MismatchError, NumericsError
from spotlessnet.core.files import write_whole

PREFIXES = ("model.", "module.", "_orig_mod.", "network.", "net.")
"""What Lightning, DataParallel and torch.compile put before every name."""

WRAPPING = ("state_dict", "model_state_dict", "model")
"""Under which name training scripts keep the weights among other things."""

LARGEST = 64 * 2**30
"""Bytes; a checkpoint above this is refused before anything is read."""


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The named tensors of a checkpoint: `.safetensors`, a folder of shards, or a `.pt` file of plain tensors.

    A `.pt` file is opened with `weights_only=True` and nothing else: a file that would run code is refused.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise DataError(
            f"There is no checkpoint at {path}. Give a .safetensors file, a .pt file or a folder of shards."
        )
    size = path.stat().st_size
    if size == 0:
        raise DataError(f"The checkpoint {path} is empty. Copy it again.")
    if size > LARGEST:
        raise DataError(
            f"The checkpoint {path} has {size / 2**30:.0f} GiB, more than the limit of {LARGEST / 2**30:.0f}."
        )
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in {".pt", ".pth", ".bin", ".ckpt"}:
        return _read_pickle_safely(path)
    raise DataError(
        f"The checkpoint {path} must end in .safetensors, .pt, .pth, .bin or .ckpt, but ends in {path.suffix!r}."
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as stream:
        head = stream.read(120)
    if head.startswith(b"version https://git-lfs"):
        raise DataError(f"{path} is a Git LFS pointer, not the weights themselves. Run `git lfs pull`.")
    if len(head) >= 8 and struct.unpack("<Q", head[:8])[0] > path.stat().st_size:
        raise DataError(
            f"{path} is truncated or not a safetensors file: its header is longer than the file. Copy it again."
        )
    try:
        with safe_open(path, framework="pt", device="cpu") as tensors:
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118  not a dict
    except (SafetensorError, ValueError, RuntimeError, KeyError) as e:
        raise DataError(f"{path} is not a readable safetensors file ({_first_line(e)}). Save it again.") from e


def read_metadata(path: Path) -> dict[str, str]:
    """The text that a safetensors file carries beside its tensors."""
    try:
        with safe_open(path, framework="pt", device="cpu") as stream:
            return dict(stream.metadata() or {})
    except (SafetensorError, ValueError, RuntimeError, OSError) as e:
        raise DataError(f"{path} is not a readable safetensors file ({_first_line(e)}). Save it again.") from e


def _read_pickle_safely(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:  # the unpickler raises many kinds; every one of them means: not plain weights
        raise DataError(
            f"{path} holds more than plain tensors, or is damaged ({_first_line(e)}), and code in a checkpoint is "
            "never run. Convert it: `safetensors.torch.save_file(model.state_dict(), 'model.safetensors')`."
        ) from e
    while isinstance(content, Mapping) and not any(isinstance(v, Tensor) for v in content.values()):
        inner = next((content[name] for name in WRAPPING if isinstance(content.get(name), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        raise DataError(
            f"{path} must hold a state dict, but holds {type(content).__name__}. Save `model.state_dict()`."
        )
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise DataError(f"{path} holds no tensor. Save `model.state_dict()`.")
    return tensors


def _read_folder(folder: Path) -> dict[str, Tensor]:
    """A folder as Hugging Face writes it: one `model.safetensors`, or shards with an index."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return _read_safetensors(single)
    if not index.is_file():
        raise DataError(
            f"The folder {folder} holds neither model.safetensors nor an index of shards. Give the file itself."
        )
    try:
        shards = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as e:
        raise DataError(f"{index} is not a readable index of shards ({_first_line(e)}). Save the model again.") from e
    tensors: dict[str, Tensor] = {}
    for name in sorted(str(shard) for shard in shards):
        if Path(name).name != name:
            raise DataError(
                f"{index} points outside its folder ({name[:60]!r}), which is refused. Save the model again."
            )
        if not (folder / name).is_file():
            raise DataError(f"The shard {name} named in {index} is missing. Copy the whole folder.")
        tensors |= _read_safetensors(folder / name)
    return tensors


def load_into(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Put a checkpoint's weights into a module, after checking names, shapes, number formats and finiteness.

    Prefixes that wrappers add are taken off where that makes the names fit.
    """
    wanted = model.state_dict()
    named = fit_names(tensors, wanted)
    missing = [n for n in wanted if n not in named]
    extra = [n for n in named if n not in wanted]
    if missing or extra:
        raise MismatchError(
            f"The checkpoint does not fit the network: {len(missing)} parameters missing"
            f"{f' (first {missing[0]!r})' if missing else ''}, {len(extra)} unknown"
            f"{f' (first {extra[0][:60]!r})' if extra else ''}. Build the network that the checkpoint was trained with."
        )
    for name, value in named.items():
        if value.shape != wanted[name].shape:
            raise MismatchError(
                f"Parameter {name!r} has shape {tuple(value.shape)} in the checkpoint and {tuple(wanted[name].shape)} "
                "in the network. Build the network that the checkpoint was trained with."
            )
        if value.is_floating_point() != wanted[name].is_floating_point():
            raise MismatchError(
                f"Parameter {name!r} is {value.dtype} in the checkpoint, {wanted[name].dtype} in the network."
            )
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise NumericsError(
                f"Parameter {name!r} of the checkpoint is not finite. Use a checkpoint before it diverged."
            )
    model.load_state_dict(named)
    return model


def fit_names(tensors: Mapping[str, Tensor], wanted: Mapping[str, Any]) -> dict[str, Tensor]:
    """The same tensors under the network's names, prefixes of wrappers taken off or put on where that helps."""
    named = dict(tensors)
    for _ in range(len(PREFIXES)):
        if any(name in wanted for name in named):
            break
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in named)), None)
        if prefix is None:
            break
        named = {name.removeprefix(prefix): value for name, value in named.items()}
    if not any(name in wanted for name in named):
        for prefix in PREFIXES:
            if all(prefix + name in wanted for name in named):
                return {prefix + name: value for name, value in named.items()}
    return named


def write_weights(
    path: str | Path, model: nn.Module, text: Mapping[str, str] | None = None, *, replace: bool = False
) -> str:
    """Write a module's state as safetensors, whole or not at all, and give the file's SHA-256."""
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    for name, value in state.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise NumericsError(
                f"Parameter {name!r} is not finite, so nothing was written. Lower the noise or the step."
            )
    return write_whole(Path(path), to_bytes(_untied(state), dict(text or {"format": "pt"})), replace=replace)


def _untied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory as copies of their own: the format refuses shared ones."""
    seen: set[int] = set()
    out = {}
    for name, value in state.items():
        out[name] = value.clone() if value.data_ptr() in seen else value
        seen.add(value.data_ptr())
    return out


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160]
