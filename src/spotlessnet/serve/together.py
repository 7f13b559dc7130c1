"""Requests that come in at the same moment are written in one transaction: one wait for the disk serves them all.

One thread writes, all that wait at once. Nobody is answered before the transaction that holds its request is on the
disk, and one that is refused does not hold up the others.
"""

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import sqlalchemy as sa

from spotlessnet.core.errors import MismatchError
from spotlessnet.serve.access import policy_of
from spotlessnet.serve.intake import Asking, Submitted, take_in

MOST = 64
"""Requests in one transaction."""

GATHER = 0.005
"""Seconds between two transactions, in which requests gather; whoever comes alone does not wait."""


@dataclass(eq=False)
class _Waiting:
    asked: Asking
    became: Future[Submitted] = field(default_factory=Future)


@dataclass(eq=False)
class Together:
    """The door of one process."""

    database: sa.Engine
    # One writer, and each caller waits for its own answer: callers who queued for a lock would wake one after another.
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "intake"))
    _queue: list[_Waiting] = field(default_factory=list)
    _last: float = -math.inf

    def put(self, asked: Asking) -> Future[Submitted]:
        """Let a request be received, with whatever others wait; the same key with other content is refused."""
        own = _Waiting(asked)
        self._queue.append(own)  # appending and slicing are atomic in Python
        self._writer.submit(self._write)
        return own.became

    def _write(self) -> None:
        """One transaction for those who have waited longest; nothing where an earlier one wrote for them."""
        if not self._queue:
            return
        time.sleep(max(0.0, self._last + GATHER - time.monotonic()))
        some = self._queue[:MOST]
        del self._queue[: len(some)]
        # Whoever left meanwhile is received all the same, and told nothing.
        heard = [one for one in some if one.became.set_running_or_notify_cancel()]
        try:
            with self.database.begin() as connection:
                policies = {name: policy_of(connection, name) for name in sorted({one.asked.tenant for one in some})}
                found = take_in(connection, [one.asked for one in some], policies)
        except Exception as error:
            for one in heard:
                one.became.set_exception(error)
            return
        finally:
            self._last = time.monotonic()
        for one, became in zip(some, found, strict=True):
            if one not in heard:
                continue
            if isinstance(became, MismatchError):
                one.became.set_exception(became)
            else:
                one.became.set_result(became)
