"""Row by row: at once where the network allows it, one after the other where it does not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from spotlessnet.core.passes import are_halved


@contextmanager
def attention_spelled_out() -> Iterator[None]:
    """Attention by its formula: the fused one knows neither forward mode nor `vmap`."""
    fused = torch.backends.mha.get_fastpath_enabled()
    halved = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        # Else half of it is float32, which transforms under autocast cannot follow (on CPUs too, whatever the name).
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(halved or are_halved())
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(halved)


def by_row(
    function: Callable[..., Tensor], *inputs: Any, otherwise: Callable[..., Tensor] | None = None
) -> Float[Tensor, "n ..."]:
    """`function` of every row, stacked.

    Some networks look into their inputs while they answer (transformers does with attention masks), and some layers
    know no batches of weights (recurrent ones), which cannot be done for all rows at once; they are answered one row at
    a time, slower but the same. Whatever is wrong with the network itself is wrong with one row too, and said there.
    """
    try:
        return vmap(function)(*inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        pass
    count = len(next(iter(inputs[0].values())) if isinstance(inputs[0], dict) else inputs[0])
    try:
        return torch.stack([function(*(_row(one, i) for one in inputs)) for i in range(count)])
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as e:
        if otherwise is None or "data pointer" not in str(e):
            raise
    return torch.stack([otherwise(*(_row(one, i) for one in inputs)) for i in range(count)])


def _row(values: Any, i: int) -> Any:
    return {name: value[i] for name, value in values.items()} if isinstance(values, dict) else values[i]
