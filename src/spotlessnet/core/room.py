"""How much memory may still be asked for, and how much of it one piece of work may hold."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch

from spotlessnet.core.errors import check_positive

_LIMIT: ContextVar[float | None] = ContextVar("memory limit", default=None)

SHARE = 0.25
"""The part of the free memory that one piece of work takes: others work beside it, and estimates err."""

ENOUGH = 2.0**30
"""Bytes beyond which larger pieces make a processor no faster."""


@contextmanager
def memory_limit(bytes: float) -> Iterator[None]:
    """Within this block, operators size their pieces so that these take about this many bytes at most.

    Weights, data at hand and vectors as long as the weights come on top: they cannot be made smaller.
    """
    check_positive("memory_limit", bytes)
    token = _LIMIT.set(float(bytes))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def budget(device: torch.device) -> float:
    """Bytes that one piece of work may hold at once on this device: what was asked for, or a share of what is free."""
    if device.type == "cuda":
        # What the allocator holds but nobody uses is free too.
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free, most = float(torch.cuda.mem_get_info(device)[0] + idle), math.inf
    else:
        free, most = free_bytes(), ENOUGH
    limit = _LIMIT.get()
    # A share only, because the network, the data and other programs want memory as well.
    return min(SHARE * free, most) if limit is None else min(limit, free)


def free_bytes() -> float:
    """Bytes that this process may still ask for; infinite where the system does not tell."""
    return min(_from_meminfo(), _from_control_group())


def _from_meminfo() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        try:
            return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        except (ValueError, OSError, AttributeError):
            return math.inf


def _from_control_group() -> float:
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), float((group / "memory.current").read_text())
        if limit == "max":
            return math.inf
        parts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Cached files count as used, but give way.
        return max(0.0, float(limit) - used + float(parts.get("inactive_file", 0)))
    except (OSError, ValueError):
        return math.inf
