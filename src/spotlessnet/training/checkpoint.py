"""Checkpoints of a training: everything that the next epoch depends on, in one file that is whole or absent."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import save
from torch import Tensor, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError
from spotlessnet.core.files import write_whole
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.store.checkpoints import read_tensors, read_text


@dataclass
class State:
    """Where a training stands after `epoch` epochs. The order of the next one follows from seed and epoch alone."""

    w: Float[Tensor, " P"]
    slots: dict[str, Tensor]
    epoch: int = 0
    faultless_since: int | None = None
    finished: bool = False


def digest_of(trained: Trained, data: Data, order_of: Data | None, recipe: Recipe, seed: int) -> str:
    """What tells one training from another: recipe, seed, starting weights and rows."""
    words = json.dumps([recipe.described(), seed, trained.loss.name, trained.names, [list(s) for s in trained.shapes]])
    sha = hashlib.sha256(words.encode())
    shuffled = data if order_of is None else order_of
    # Sorted, as the order of batches sees them: how rows are listed makes no other training.
    rows = (data.rows.sort().values, shuffled.rows.sort().values)
    for tensor in (trained.weights, trained.anchor, *rows):
        sha.update(tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes())
        sha.update(b"|")
    return sha.hexdigest()


def write(path: Path, state: State, network: nn.Module, digest: str) -> None:
    """Write beside, flush, and put in place: an interruption leaves the old file or the new one, nothing between."""
    tensors = {"weights": state.w, **state.slots}
    tensors |= {f"buffer/{name}": value for name, value in network.named_buffers()}
    about = json.dumps([state.epoch, state.faultless_since, state.finished])
    content = save(
        {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()},
        {"spotlessnet": "training 1", "digest": digest, "state": about},
    )
    write_whole(path, content, replace=True)


def read(path: Path, state: State, network: nn.Module, digest: str) -> State:
    """The state that lies in the file, put into the network's buffers and into `state`, bit by bit."""
    try:
        about = read_text(path)
        tensors = read_tensors(path)
    except (DataError, OSError) as error:
        raise DataError(
            f"{path} must be a checkpoint of a training, but cannot be read ({error}). "
            "Delete it to train from the beginning."
        ) from error
    if about.get("spotlessnet") != "training 1" or about.get("digest") != digest:
        raise MismatchError(
            f"{path} must come from this very training, but its recipe, seed, start or data differ. "
            "Give another `checkpoint` path, or delete the file to train from the beginning."
        )
    with torch.no_grad():
        state.w.copy_(tensors["weights"])
        for name, value in state.slots.items():
            value.copy_(tensors[name])
        for name, value in network.named_buffers():
            value.copy_(tensors[f"buffer/{name}"])
    state.epoch, state.faultless_since, state.finished = json.loads(about["state"])
    return state
