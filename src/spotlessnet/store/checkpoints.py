"""Checkpoints: read without running a line of code from them, checked before any work, written whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from spotlessnet.core.errors import DataError, MismatchError, NumericsError, ResourceError
from spotlessnet.core.files import write_whole
from spotlessnet.core.reading import read_whole
from spotlessnet.core.tensor_file import LONGEST_HEADER, read_tensors, read_text
from spotlessnet.store.pickled import read_state
from spotlessnet.store.tensor_bytes import to_bytes

PREFIXES = ("model.", "module.", "_orig_mod.", "network.", "net.")
"""What Lightning, DataParallel and torch.compile put before every name."""


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The named tensors of a checkpoint: `.safetensors`, a folder of shards, or a `.pt` file of plain tensors.

    Plain files only, and what they claim is compared with their size before memory is asked for. A `.pt` file is
    taken apart by a reader that knows tensors and plain values and nothing else: one that would run code is refused.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise DataError(
            f"There is no checkpoint at {path}. Give a .safetensors file, a .pt file or a folder of shards."
        )
    if path.suffix == ".safetensors":
        return read_tensors(path)
    if path.suffix in {".pt", ".pth", ".bin", ".ckpt"}:
        return read_state(path)
    raise DataError(
        f"The checkpoint {path} must end in .safetensors, .pt, .pth, .bin or .ckpt, but ends in {path.suffix!r}."
    )


def read_metadata(path: Path) -> dict[str, str]:
    """The text that a safetensors file carries beside its tensors."""
    return read_text(path)


def _read_folder(folder: Path) -> dict[str, Tensor]:
    """A folder as Hugging Face writes it: one `model.safetensors`, or shards with an index."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return read_tensors(single)
    if not index.is_file():
        raise DataError(
            f"The folder {folder} holds neither model.safetensors nor an index of shards. Give the file itself."
        )
    try:
        shards = set(json.loads(read_whole(index, "index", LONGEST_HEADER))["weight_map"].values())
    except (DataError, ResourceError):
        raise
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as e:
        raise DataError(f"{index} is not a readable index of shards ({_first_line(e)}). Save the model again.") from e
    tensors: dict[str, Tensor] = {}
    for name in sorted(str(shard) for shard in shards):
        # Before anything is opened: an index must not lead out of its own folder.
        if Path(name).name != name:
            raise DataError(
                f"{index} points outside its folder ({name[:60]!r}), which is refused. Save the model again."
            )
        if not (folder / name).is_file():
            raise DataError(f"The shard {name} named in {index} is missing. Copy the whole folder.")
        tensors |= read_tensors(folder / name)
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
        kinds = [(v.is_floating_point(), v.is_complex()) for v in (value, wanted[name])]
        if kinds[0] != kinds[1]:
            raise MismatchError(
                f"Parameter {name!r} is {value.dtype} in the checkpoint, {wanted[name].dtype} in the network."
            )
        # After shape and format, so that the message names the first thing that is wrong; before any weight is changed.
        if any(kinds[0]) and not bool(value.isfinite().all()):
            raise NumericsError(
                f"Parameter {name!r} of the checkpoint is not finite. Use a checkpoint before it diverged."
            )
    # Only now, when every tensor has passed: a refused checkpoint leaves the module as it was.
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
    return write_whole(Path(path), weights_as_bytes(model, text), replace=replace)


def weights_as_bytes(model: nn.Module, text: Mapping[str, str] | None = None) -> bytes:
    """A module's state as the bytes of a safetensors file; refused if it is not finite."""
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    for name, value in state.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise NumericsError(
                f"Parameter {name!r} is not finite, so nothing was written. Lower the noise or the step."
            )
    return to_bytes(_untied(state), dict(text or {"format": "pt"}))


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
