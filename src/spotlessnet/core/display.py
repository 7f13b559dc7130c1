"""How far running work is: a bar on a terminal, a line that changes in a notebook, lines of a log elsewhere."""

import importlib
import sys
import threading
import time
from typing import Any

from spotlessnet.core.errors import seconds_in_words
from spotlessnet.core.progress import Running

FIRST = 0.8
"""Seconds until the first line where there is no terminal: whoever waits a second wonders."""

PAUSE = 10.0
"""Seconds between two lines, at least."""

GROWTH = 0.1
"""Of the time that has passed: whoever waits for hours wants no line every ten seconds."""


def in_words(running: Running) -> str:
    """One line.

    >>> in_words(Running("training", 4, done=1, began=time.monotonic() - 10))
    'training: 1 of 4, about 30 s left'
    """
    taken = time.monotonic() - running.began
    if running.total is None or not running.done:
        return f"{running.label}: at work for {seconds_in_words(taken)}"
    left = taken / running.done * max(0, running.total - running.done)
    return f"{running.label}: {running.done} of {running.total}, about {seconds_in_words(left)} left"


class Bar:
    """A bar of rich, which redraws itself; it leaves nothing behind."""

    def __init__(self, running: Running) -> None:
        # Only someone who looks needs rich; computing machines often do not have it.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        counted = () if running.total is None else (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        columns = (SpinnerColumn(), TextColumn("{task.description}"), *counted, TimeElapsedColumn())
        self.running = running
        # What a person's own code prints goes where they sent it, not to this console.
        self.bar = Progress(
            *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self.task = self.bar.add_task(running.label, total=running.total)
        self.bar.start()

    def update(self) -> None:
        """As far as it now is."""
        self.bar.update(self.task, completed=self.running.done)

    def close(self) -> None:
        """Gone."""
        self.bar.stop()


class Lines:
    """A line in the log now and then, the less often the longer it takes."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.next = running.began + FIRST

    def update(self) -> None:
        """A line if it is time for one."""
        now = time.monotonic()
        if now >= self.next:
            self.next = now + max(PAUSE, GROWTH * (now - self.running.began))
            print(in_words(self.running), file=sys.stderr, flush=True)

    def close(self) -> None:
        """What was said stays in the log."""


class NotebookLine:
    """One line below the cell that changes, and is empty in the end."""

    def __init__(self, running: Running) -> None:
        self.running = running
        display = importlib.import_module("IPython.display").display  # there is one where a notebook runs
        self.handle: Any = display(self._text(), raw=True, display_id=True)

    def _text(self) -> dict[str, str]:
        return {"text/plain": in_words(self.running)}

    def update(self) -> None:
        """As far as it now is."""
        self.handle.update(self._text(), raw=True)

    def close(self) -> None:
        """An output that was shown can be emptied, but not taken away."""
        self.handle.update({"text/plain": ""}, raw=True)


def _in_notebook() -> bool:
    """Whether a kernel that draws runs this; a console of IPython is a terminal or none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


_lock = threading.Lock()
_shown: dict[Running, Bar | Lines | NotebookLine] = {}


def show(running: Running) -> None:
    """Show it as it now is; called again and again by the thread that watches."""
    with _lock:
        if running.is_over:
            return
        if running not in _shown:
            _shown[running] = _place(running)
        _shown[running].update()


def end(running: Running) -> None:
    """Take it away."""
    with _lock:
        if (shown := _shown.pop(running, None)) is not None:
            shown.close()


def _place(running: Running) -> Bar | Lines | NotebookLine:
    if sys.stderr.isatty():
        return Bar(running)
    return NotebookLine(running) if _in_notebook() else Lines(running)
