"""How much memory may still be asked for."""

import math
import os
from pathlib import Path


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
