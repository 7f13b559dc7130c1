"""The two voices of every command: results go to stdout, talk to stderr; nothing here imports torch."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console as RichConsole
from rich.table import Column, Table

from spotlessnet.cli.entry import printable

AsJson = Annotated[bool, typer.Option("--json", help="Results as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No talk on stderr; errors still come.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]

RESULTS: ContextVar[TextIO | None] = ContextVar("results", default=None)
"""Where results go while a person's own code may print."""


@contextmanager
def results_alone() -> Iterator[None]:
    """Keep stdout for results: what a case's own code prints meanwhile, such as losses of each epoch, is talk."""
    token = RESULTS.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        RESULTS.reset(token)


@dataclass(frozen=True)
class Console:
    """One command's two voices.

    **Arguments:**

    - `as_json`: results as JSON on stdout, and nothing else there.
    - `quiet`: no talk; errors still come.
    """

    as_json: bool = False
    quiet: bool = False

    def say(self, text: str) -> None:
        """A line for the person who waits."""
        if not self.quiet:
            RichConsole(stderr=True, highlight=False, soft_wrap=True).print(printable(text), markup=False)

    def give(self, result: Mapping[str, Any], lines: Sequence[str] = ()) -> None:
        """The result: JSON where that was asked for, otherwise these lines."""
        out = RESULTS.get() or sys.stdout
        if self.as_json:
            told = _plain({"schema": 1, **result})
            lines = [json.dumps(told, ensure_ascii=False, sort_keys=True, allow_nan=False)]
        for line in lines:
            print(line, file=out)
        out.flush()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table on stdout, unless JSON was asked for."""
        if self.as_json:
            return
        console = _Tables(file=RESULTS.get() or sys.stdout, highlight=False)
        # What a row is called is typed again, so it stands whole on one line; anything else may go on in the next.
        widths = _widths([columns, *rows], console.width)
        heads = [
            Column(name, overflow="fold", no_wrap=not place, width=width)
            for place, (name, width) in enumerate(zip(columns, widths, strict=True))
        ]
        made = Table(*heads, box=None, pad_edge=False)
        for row in rows:
            made.add_row(*(printable(cell).replace("[", "\\[") for cell in row))
        console.print(made)


def _widths(rows: Sequence[Sequence[str]], room: int) -> list[int | None]:
    """Columns in which no word is broken, where the room is enough for that; else rich may choose.

    >>> _widths([["a long name", "some words", "word=1, another=2"]], 38)
    [11, 7, 13]
    """
    columns = list(zip(*rows, strict=True))
    whole = [max(len(cell) for cell in column) for column in columns]
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    least = [whole[0], *words[1:]]  # the first stands on one line
    spare, wanted = room - sum(least) - 2 * len(least), sum(whole) - sum(least)
    if spare < 0 or spare >= wanted:
        return [None] * len(least)
    return [low + spare * (high - low) // wanted for low, high in zip(least, whole, strict=True)]


class _Tables(RichConsole):
    """Leaves it to the command's end to meet a reader who has left: rich ends with 1, which means *not forgotten*."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _plain(value: Any) -> Any:
    """Values as JSON has them; where torch was not loaded, a desk answered, and they are so already."""
    if "torch" not in sys.modules:
        return value
    from spotlessnet.store.receipts import plain

    return plain(value)
