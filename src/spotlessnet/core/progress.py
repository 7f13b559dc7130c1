"""Progress: a bar on the terminal for anything that takes longer than two seconds, and nothing otherwise."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds before a bar appears."""

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_busy: ContextVar[bool] = ContextVar("busy", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """No bars inside this block."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """The same items, with a bar on stderr if they take long and someone is looking.

    Only the outermost loop shows a bar: one line that moves says more than three.

    >>> list(track([1, 2, 3], "counting"))
    [1, 2, 3]
    """
    if _quiet.get() or _busy.get() or not sys.stderr.isatty():
        yield from items
        return
    # Only someone who looks needs rich; computing machines often do not have it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if total is None and isinstance(items, Sized):
        total = len(items)
    token = _busy.set(True)
    began = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(label, total=total)
    shown = False
    try:
        for item in items:
            yield item
            bar.advance(task)
            if not shown and time.monotonic() - began > PATIENCE:
                bar.start()
                shown = True
    finally:
        if shown:
            bar.stop()
        _busy.reset(token)
