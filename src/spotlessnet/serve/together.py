"""Requests that come in at the same moment are written in one transaction: one wait for the disk serves them all.

Whoever has its turn writes for all who wait. Nobody is answered before the transaction that holds its request is on the
disk, and one that is refused does not hold up the others.
"""

import threading
from dataclasses import dataclass, field

import sqlalchemy as sa

from spotlessnet.serve.access import policy_of
from spotlessnet.serve.intake import Asking, Submitted, take_in

MOST = 64
"""Requests in one transaction."""


@dataclass(eq=False)
class _Waiting:
    asked: Asking
    became: Submitted | Exception | None = None


@dataclass(eq=False)
class Together:
    """The door of one process: callers come in threads of their own."""

    database: sa.Engine
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _queue: list[_Waiting] = field(default_factory=list)

    def receive(self, asked: Asking) -> Submitted:
        """Receive a request, with whatever others wait; the same key with other content is refused."""
        own = _Waiting(asked)
        self._queue.append(own)  # appending and slicing are atomic in Python
        with self._turn:
            while own.became is None:
                self._write()
        if isinstance(own.became, Exception):
            raise own.became
        return own.became

    def _write(self) -> None:
        """One transaction for those who have waited longest; whoever calls this has the turn."""
        some = self._queue[:MOST]
        try:
            with self.database.begin() as connection:
                policies = {name: policy_of(connection, name) for name in sorted({one.asked.tenant for one in some})}
                found = take_in(connection, [one.asked for one in some], policies)
        except Exception as error:
            for one in some:
                one.became = error
        else:
            for one, became in zip(some, found, strict=True):
                one.became = became
        finally:
            del self._queue[: len(some)]
