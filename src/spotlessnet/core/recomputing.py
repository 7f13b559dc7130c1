"""Networks that compute activations anew on the way back (`torch.utils.checkpoint`), at weights that are not their own.

Weights are lent to a module for one pass. What is computed again later would see the module's own weights instead, and
give gradients that are wrong without a word: so the weights are lent once more. `torch.func` knows no such networks:
there everything is stored.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint as torchs
from torch import Tensor, nn
from torch.nn.utils import stateless

Function = Callable[..., Any]


def recomputed(
    model: nn.Module, parameters: dict[str, Tensor], torchs_own: Function, function: Function, *rest: Any, **named: Any
) -> Iterator[None]:
    """In place of torch's own: what runs before and after a part of the network that is computed again later.

    **Arguments:**

    - `model`, `parameters`: what was lent to whom.
    - `torchs_own`: what this stands for; `function` and what follows are its arguments.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return iter((None,))  # within a transform: nothing before, nothing after

    def again(*inputs: Any, **more: Any) -> Any:
        with stateless._reparametrize_module(model, parameters):
            return function(*inputs, **more)

    found: Iterator[None] = torchs_own(again, *rest, **named)
    return found


class NoReentrance:
    """In place of torch's `CheckpointFunction` (`use_reentrant=True`), which sees no weights but the module's own."""

    @staticmethod
    def apply(function: Function, preserve: bool, *inputs: Any) -> Any:
        """The same by the other way."""
        return torchs.checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=preserve)
