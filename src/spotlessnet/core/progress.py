"""What running work shows and takes: a sign of how far it is, its wall time, its memory."""

import atexit
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spotlessnet.core.errors import check_positive

T = TypeVar("T")

PATIENCE = 0.5
"""Seconds before a loop shows itself."""

BEAT = 0.1
"""Seconds between two looks at how far it is."""

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_busy: ContextVar[bool] = ContextVar("busy", default=False)

PAUSE = 0.01
"""Seconds between two looks at the memory of the process."""

MIB, GIB = 2**20, 2**30

_LIMIT: ContextVar[float | None] = ContextVar("memory limit", default=None)

SHARE = 0.25
"""The part of the free memory that one piece of work takes: others work beside it, and estimates err."""

ENOUGH = {"cpu": 2.0**30, "cuda": 2.0**34}
"""Bytes beyond which larger pieces make a device no faster."""

MOST = 0.8
"""The part of the free memory that something may take which cannot be split."""

LEFT = 0.125
"""The part of a limit that a piece may always take, however much is in use: nothing could be done with less."""

ALIVE = 4
"""Tensors as wide as the widest that one layer holds at a time on its way, for each vector that goes along."""


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is shown inside this block."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """The same items, with a sign of how far they are if they take long: a bar on a terminal, lines elsewhere.

    Only the outermost loop shows itself: one line that moves says more than three.

    >>> list(track([1, 2, 3], "counting"))
    [1, 2, 3]
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    with _shown(label, total) as running:
        for item in items:
            yield item
            running.done += 1


def working(label: str) -> AbstractContextManager[Any]:
    """A block that shows itself as `track` does, for work that has no steps to count."""
    return _shown(label, None)


@dataclass(eq=False)
class Running:
    """What is being done, and how far it is; `core.display` shows it."""

    label: str
    total: int | None
    done: int = 0
    began: float = field(default_factory=time.monotonic)
    shown: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it ended meanwhile."""
        return self not in _running


_running: list[Running] = []
"""What is shown or will be: one thing at most in a process."""

_watching = threading.Lock()
"""Held by the thread that watches, one in a process."""


@contextmanager
def _shown(label: str, total: int | None) -> Iterator[Running]:
    running = Running(label, total)
    if _quiet.get() or _busy.get() or _running:
        yield running
        return
    token = _busy.set(True)
    _running.append(running)
    if not _watching.locked() and _watching.acquire(blocking=False):
        # A thread, because a single step may take minutes; one for all loops, because most of them take none.
        threading.Thread(target=_watch, daemon=True).start()
    try:
        yield running
    finally:
        hush(running)
        _busy.reset(token)


def hush(running: Running | None = None) -> None:
    """Take away what is shown of this loop, or whatever is shown."""
    for one in [one for one in _running if running in (None, one)]:
        _running.remove(one)
        if one.shown:
            from spotlessnet.core import display

            display.end(one)


def _watch() -> None:
    while True:
        time.sleep(BEAT)
        for one in list(_running):
            if time.monotonic() - one.began > PATIENCE:
                from spotlessnet.core import display  # only who waits needs it, and rich, which it imports

                one.shown = True
                display.show(one)


def _after_fork() -> None:
    """A child has none of its parent's threads, and shows nothing of what its parent does."""
    global _watching
    _watching = threading.Lock()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(hush)


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
            self._peak = self._before
            self._done = threading.Event()
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
        return in_use(self.device) if self._on_gpu else resident()


def resident() -> float:
    """Bytes of memory that this process holds, or NaN where the system does not tell."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (ImportError, OSError, IndexError, ValueError):
        return float("nan")
    return float(pages * resource.getpagesize())


@contextmanager
def memory_limit(bytes: float) -> Iterator[None]:
    """Within this block, operators size their pieces so that these take about this many bytes at most.

    On a GPU all that is allocated there counts. On a CPU, weights, data at hand and vectors as long as the weights come
    on top: they cannot be made smaller. Pages that glibc keeps of what was freed are not counted: a process may look up
    to half as large again. `MALLOC_MMAP_THRESHOLD_=65536` in its environment gives them back, for two to three times
    the time.
    """
    check_positive("memory_limit", bytes)
    token = _LIMIT.set(float(bytes))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def budget(device: torch.device, *, more_helps: bool = False) -> float:
    """Bytes that one piece of work may hold at once on this device: what was asked for, or a share of what is free.

    **Arguments:**

    - `more_helps`: for work that is done fewer times where it holds more; else no more is taken than makes it faster.
    """
    free = available(device)
    limit = _LIMIT.get()
    if limit is None:
        # A share only, because the network, the data and other programs want memory as well.
        return min(SHARE * free, math.inf if more_helps else ENOUGH.get(device.type, ENOUGH["cpu"]))
    return min(max(limit - in_use(device), LEFT * limit), free)


def in_use(device: torch.device) -> float:
    """Bytes that count against a limit already: all that is allocated on a GPU, and nothing on a CPU."""
    return float(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0.0


def holds(device: torch.device, bytes: float) -> bool:
    """Whether so many bytes that cannot be split may be held there: within the limit, or nearly all that is free."""
    return bytes <= (MOST * available(device) if _LIMIT.get() is None else budget(device))


def available(device: torch.device) -> float:
    """Bytes that may still be asked for, here or on the GPU; infinite where the system does not tell."""
    if device.type != "cuda":
        return free_bytes()
    # What the allocator holds but nobody uses is free too.
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + idle)


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
        limit = (group / "memory.max").read_text().strip()
        used = float((group / "memory.current").read_text())
        if limit == "max":
            return math.inf
        parts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Cached files count as used, but give way.
        return max(0.0, float(limit) - used + float(parts.get("inactive_file", 0)))
    except (OSError, ValueError):
        return math.inf


class Footprint(NamedTuple):
    """Bytes that one row takes: what a pass makes in all, which its way back may keep, and the widest piece of that.

    `convolved` is the part that convolutions make.
    """

    graph: float
    widest: float
    convolved: float = 0.0

    def rows(self, bytes: float, vectors: int = 0) -> int:
        """How many rows may pass together within so many bytes, with so many vectors; a row at least."""
        return max(1, int(bytes / max(1.0, self.each(vectors))))

    def each(self, vectors: int = 0) -> float:
        """Bytes of one row among others, with so many vectors on their way."""
        return self.graph + ALIVE * (1 + vectors) * self.widest


NOTHING = Footprint(0.0, 0.0)
"""What takes no memory."""


class Made(TorchDispatchMode):
    """Adds up the bytes of all that is made within the block; views and what is written in place make nothing.

    `layers` are its products with weights: numbers that leave, numbers that enter, and positions, of one row.

    **Arguments:**

    - `weights`: copies of them in another number format are not counted: there is one, however many rows pass.
    """

    total = 0
    widest = 0
    convolved = 0

    def __init__(self, weights: Tensor | None = None) -> None:
        super().__init__()
        self.layers: list[tuple[int, int, int]] = []
        self.own = None if weights is None else weights.untyped_storage().data_ptr()

    @property
    def footprint(self) -> Footprint:
        """What was made so far."""
        return Footprint(float(self.total), float(self.widest), float(self.convolved))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func._schema.name in ("aten::mm", "aten::addmm"):
            self.layers.append((args[-1].shape[1], args[-1].shape[0], args[-2].shape[0]))
        elif func._schema.name == "aten::convolution":
            leave, enter = args[1].shape[0], args[1][0].numel()
            self.layers.append((leave, enter, made[0, 0].numel()))
        if func._schema.name == "aten::_to_copy" and self._is_own(args[0]):
            return made
        # Returns that share memory with an argument say so.
        if not any(one.alias_info for one in func._schema.returns):
            for one in tree_leaves(made):
                if isinstance(one, Tensor):
                    size = one.numel() * one.element_size()
                    self.total, self.widest = self.total + size, max(self.widest, size)
                    self.convolved += size if "convolution" in func._schema.name else 0
        return made

    def _is_own(self, tensor: Tensor) -> bool:
        return self.own is not None and tensor.untyped_storage().data_ptr() == self.own
