"""How fast this machine's memory is, for methods that move far more than they compute."""

import math
import time
from collections.abc import Callable

import torch

TIMES = 3
"""Moves that are timed, after a first one."""

MOVED = 2**26
"""Bytes that are moved to see how long that takes: more than allocators keep at hand."""


def seconds_per_byte(device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """Wall time of one byte that is read and written, where that is all that is done to it.

    It is written to used memory or to new pages, which take three times as long: the middle of both.
    """
    block = torch.ones(MOVED // 4, device=device)
    used = torch.empty_like(block)

    def seconds(move: Callable[[], object]) -> float:
        move()  # the first one warms up
        began = clock()
        for _ in range(TIMES):
            move()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (clock() - began) / (TIMES * MOVED)

    return math.sqrt(seconds(lambda: torch.mul(block, 1.0, out=used)) * seconds(lambda: block * 1.0))
