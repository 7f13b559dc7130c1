"""`Meter`: what a piece of work costs in seconds and in memory."""

import threading
import time
from pathlib import Path
from types import TracebackType

import torch

PAUSE = 0.01
"""Seconds between two looks at the memory of the process."""

MIB = 2**20


class Meter:
    """Wall time, and peak memory in MiB above what was in use before.

    On a GPU the allocator knows its peak. On a CPU the memory of the process is looked at every hundredth of a second,
    so shorter peaks escape; where the system does not tell, the memory is NaN.

    >>> with Meter() as meter:
    ...     _ = sum(range(10))
    >>> meter.seconds > 0
    True
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = torch.device("cpu") if device is None else device
        self.seconds = float("nan")
        self.memory = float("nan")

    def __enter__(self) -> "Meter":
        self._before = self._in_use()
        if self._on_gpu:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self._peak, self._done = self._before, threading.Event()
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self.device)
        self.seconds = time.perf_counter() - self._began
        if self._on_gpu:
            self._peak = float(torch.cuda.max_memory_allocated(self.device))
        else:
            self._done.set()
            self._thread.join()
            self._peak = max(self._peak, self._in_use())
        self.memory = (self._peak - self._before) / MIB

    @property
    def _on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def _watch(self) -> None:
        while not self._done.wait(PAUSE):
            self._peak = max(self._peak, self._in_use())

    def _in_use(self) -> float:
        if self._on_gpu:
            return float(torch.cuda.memory_allocated(self.device))
        return resident()


def resident() -> float:
    """Bytes of memory that this process holds, or NaN where the system does not tell."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (ImportError, OSError, IndexError, ValueError):
        return float("nan")
    return float(pages * resource.getpagesize())
