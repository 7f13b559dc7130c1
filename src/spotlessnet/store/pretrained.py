"""Folders of Hugging Face: read through the model's own loader, which knows renamed, tied and adapter weights."""

import copy
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spotlessnet.core.errors import DataError, MismatchError, NeedError, NumericsError
from spotlessnet.core.files import folder_sha256
from spotlessnet.store.checkpoints import read_tensors

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def is_pretrained(path: Path, model: nn.Module) -> bool:
    """Whether a folder must be read by the model's own loader: adapters, or a saved model of its library."""
    if not path.is_dir():
        return False
    if (path / ADAPTER).is_file():
        return True
    return (path / "config.json").is_file() and hasattr(model, "from_pretrained") and hasattr(model, "config")


def load_pretrained(model: nn.Module, folder: Path) -> nn.Module:
    """The model with the weights of a folder; nothing is downloaded, and only safetensors are read.

    **Arguments:**

    - `model`: of the class and shape that was saved. For a folder of adapters either the network that they go on, or
      one with adapters in it already.
    """
    made = _adapters(model, folder) if (folder / ADAPTER).is_file() else _whole(model, folder)
    for name, value in made.state_dict().items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise NumericsError(f"Parameter {name!r} of {folder} is not finite. Use a checkpoint before it diverged.")
    return made


def _whole(model: Any, folder: Path) -> nn.Module:
    try:
        with _without_bars():
            made, about = type(model).from_pretrained(
                folder,
                config=model.config,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                torch_dtype=next(model.parameters()).dtype,
            )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as e:
        raise MismatchError(
            f"{type(model).__name__}.from_pretrained cannot read {folder}: {_line(e)}. Build the network that was "
            "saved there, and save it as safetensors."
        ) from e
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        found = sorted(map(str, about.get(what) or ()))
        if found:
            raise MismatchError(
                f"{folder} does not fit {type(model).__name__}: {len(found)} {what.replace('_', ' ')}, first "
                f"{found[0][:80]!r}. Build the network that was saved there."
            )
    # Whatever was frozen stays frozen: loading says nothing of it.
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    for name, value in made.named_parameters():
        value.requires_grad_(name not in frozen)
    assert isinstance(made, nn.Module)  # of the model's own class
    return made


def _adapters(model: Any, folder: Path) -> nn.Module:
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise DataError(f"The adapters of {folder} must lie in {ADAPTER_WEIGHTS}, but there is none. Save them again.")
    try:
        import peft
    except ImportError as e:
        raise NeedError(f"{folder} holds adapters, which need peft ({e}). Install it: `pip install peft`.") from e
    if not isinstance(model, peft.PeftModel):
        try:
            return peft.PeftModel.from_pretrained(model, str(folder), is_trainable=True)
        except (OSError, ValueError, RuntimeError, KeyError) as e:
            raise MismatchError(
                f"The adapters of {folder} do not go on {type(model).__name__}: {_line(e)}. Build the network that "
                "they were trained on."
            ) from e
    loaded = peft.set_peft_model_state_dict(model, read_tensors(folder / ADAPTER_WEIGHTS))
    wrong = [name for name in loaded.missing_keys if "lora_" in name] + list(loaded.unexpected_keys)
    if wrong:
        raise MismatchError(
            f"The adapters of {folder} do not fit those of the network: {len(wrong)} differ, first {wrong[0][:80]!r}. "
            "Build it with the configuration that lies in the folder."
        )
    return model


def save_anew(model: nn.Module, folder: Path) -> str:
    """As `save_pretrained`, in the place of what a killed run left there; the SHA-256 of the folder."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    save_pretrained(model, folder)
    return folder_sha256(folder)


def save_pretrained(model: nn.Module, folder: Path, *, merge: bool = False) -> None:
    """Write a folder that `from_pretrained` reads: the model, or its adapters alone where it has some.

    **Arguments:**

    - `merge`: add adapters into the weights they go on, and write the whole model.
    """
    if not callable(getattr(model, "save_pretrained", None)):
        raise NeedError(
            f"A folder for `from_pretrained` needs a model of Hugging Face, but this is a {type(model).__name__}. Use "
            "`sn.write_weights`."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} exists and is not empty. Name a new folder.")
    if merge:
        if not callable(getattr(model, "merge_and_unload", None)):
            raise NeedError(
                f"Only adapters can be merged, but this {type(model).__name__} has none. Leave `merge` out."
            )
        model = copy.deepcopy(model).merge_and_unload()  # type: ignore[operator]  # as PEFT has it
    with torch.no_grad(), _without_bars():
        model.save_pretrained(folder)  # type: ignore[operator]  # looked at above
    # Those who write safetensors make files for their owner alone; a server must read these.
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o666 & ~umask)


@contextmanager
def _without_bars() -> Iterator[None]:
    """No bars of transformers beside those of this package; they come back afterwards."""
    logging = sys.modules.get("transformers.utils.logging")
    if logging is None or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
