"""Who hears what: results go to stdout, talk goes to stderr."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rich.console import Console as RichConsole
from rich.table import Table

from spotlessnet.store.receipts import plain

DEBUG: ContextVar[bool] = ContextVar("debug", default=False)
"""Whether tracebacks are wanted."""


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
        if self.as_json:
            print(json.dumps(plain({"schema": 1, **result}), ensure_ascii=False, sort_keys=True, allow_nan=False))
        else:
            for line in lines:
                print(line)
        sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table on stdout, unless JSON was asked for."""
        if self.as_json:
            return
        console = RichConsole(file=sys.stdout, highlight=False)
        made = Table(*columns, box=None, pad_edge=False)
        for row in rows:
            made.add_row(*(printable(cell).replace("[", "\\[") for cell in row))
        console.print(made)


def printable(text: str) -> str:
    r"""One line without control characters, whatever a file or its name put there.

    >>> printable("a\x1b[31m\nb")
    'a?[31m b'
    """
    joined = " ".join(text.splitlines())
    return "".join(c if c.isprintable() else "?" for c in joined)
