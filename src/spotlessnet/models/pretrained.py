"""Pre-trained weights under a new head: where every fine-tuning, and so every forgetting, begins."""

import copy
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from spotlessnet.core.errors import DataError, MismatchError
from spotlessnet.models.seeded import seeded
from spotlessnet.store.checkpoints import read_tensors

RESNET_NAMES = {"layers.": "blocks.", ".c1.": ".conv1.", ".b1.": ".norm1.", ".c2.": ".conv2.", ".b2.": ".norm2."} | {
    ".sc.": ".shortcut."
}
"""From the short names that CIFAR ResNets are often saved under to those of `ResNet`."""


def load_pretrained(
    model: nn.Module,
    weights: str | PathLike[str] | Mapping[str, Tensor],
    *,
    head: str = "head",
    keep_head: bool = False,
    rename: Mapping[str, str] | None = None,
) -> nn.Module:
    """A copy of `model` with pre-trained weights everywhere but in its head, which stays as it is.

    **Arguments:**

    - `weights`: a safetensors file, or a state dict.
    - `head`: the name of the last layer, whose weights belong to other classes.
    - `keep_head`: take the head too; its classes must then be the same.
    - `rename`: parts of names in the file and what they are called in `model`, such as `RESNET_NAMES`.
    """
    given = _read(weights)
    for old, new in (rename or {}).items():
        given = {name.replace(old, new): value for name, value in given.items()}
    network = copy.deepcopy(model)
    wanted = network.state_dict()
    if not keep_head:
        _check_head(head, wanted)
        wanted, given = ({n: v for n, v in d.items() if not n.startswith(f"{head}.")} for d in (wanted, given))
    # Older files lack this counter; it only matters to BatchNorm without momentum.
    missing = [n for n in wanted if n not in given and not n.endswith("num_batches_tracked")]
    unknown = [n for n in given if n not in wanted]
    if missing or unknown:
        lacking = f"lack {missing[0]!r} ({len(missing)} names)" if missing else "lack nothing"
        extra = f"hold {unknown[0]!r} ({len(unknown)} names) that the network does not have" if unknown else ""
        raise MismatchError(
            f"The weights must have the names of the network, but they {lacking}"
            f"{' and ' + extra if extra else ''}. Give `rename`, or build the network they come from."
        )
    for name, value in given.items():
        if value.shape != wanted[name].shape:
            raise MismatchError(
                f"Parameter {name!r} must have shape {tuple(wanted[name].shape)}, but the weights hold "
                f"{tuple(value.shape)}. Build the network with the same sizes, or set `head` to the layer that differs."
            )
    with torch.no_grad():
        for name, value in given.items():
            wanted[name].copy_(value)
    return network


def replace_head(model: nn.Module, classes: int, *, head: str = "head", seed: int = 0) -> nn.Module:
    """A copy of `model` with a fresh linear layer for `classes` classes in place of its head.

    >>> replace_head(nn.Sequential(nn.ReLU(), nn.Linear(4, 100)), 10, head="1")[1]
    Linear(in_features=4, out_features=10, bias=True)
    """
    network = copy.deepcopy(model)
    old = dict(network.named_modules()).get(head)
    if not isinstance(old, nn.Linear):
        names = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
        raise MismatchError(
            f"The head must be a linear layer, but {head!r} is {type(old).__name__}. "
            f"Linear layers here: {', '.join(names) or 'none'}."
        )
    with seeded(seed):
        fresh = nn.Linear(old.in_features, classes, bias=old.bias is not None)
    parent, _, last = head.rpartition(".")
    # In the format and on the device of the layer it replaces, which `nn.Linear` does not know.
    setattr(network.get_submodule(parent), last, fresh.to(old.weight))
    return network


def _read(weights: str | PathLike[str] | Mapping[str, Tensor]) -> dict[str, Tensor]:
    if isinstance(weights, Mapping):
        return dict(weights)
    path = Path(weights)
    if not path.is_file():
        raise DataError(f"Pre-trained weights must be a file, but there is none at {path}. Check the path.")
    try:
        return read_tensors(path)
    except DataError as error:
        raise DataError(f"{path} must be a safetensors file, but cannot be read ({error}). Fetch it again.") from error


def _check_head(head: str, wanted: Mapping[str, Tensor]) -> None:
    if not any(name.startswith(f"{head}.") for name in wanted):
        layers = sorted({name.rpartition(".")[0] for name in wanted})
        raise MismatchError(
            f"The network has no layer {head!r} to leave out. Its last names: {', '.join(layers[-3:])}."
        )
