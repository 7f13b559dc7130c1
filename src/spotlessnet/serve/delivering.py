"""Carries messages to webhooks: at least once each, in order, again after a failure, and not for ever.

One worker at a time is at a webhook: it takes the webhook for a while, and whoever is killed leaves it to the next when
that while is over. A message leaves the outbox only after an answer of 2xx.
"""

import contextlib
import random
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

import sqlalchemy as sa

from spotlessnet.core.errors import ResourceError, SettingError, SpotlessError
from spotlessnet.serve.addresses import Allowed, Place, place_of, resolved
from spotlessnet.serve.database import DELIVERIES, WEBHOOKS, reading, row_of, rows_of
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.trail import note, now
from spotlessnet.serve.watching import LOG
from spotlessnet.serve.webhooks import message_of, signed_headers

SECONDS = 10.0
"""For an endpoint to answer."""

TAKEN = timedelta(seconds=90)
"""How long a worker has a webhook for itself; it stops well before."""

AT_ONCE = 8
MOST_ATTEMPTS = 12
OLDEST = timedelta(days=3)
FIRST_WAIT, LONGEST_WAIT = 5.0, 3600.0


def wait_after(failures: int) -> timedelta:
    """How long a webhook is left alone: twice as long after each failure, and a little by chance."""
    seconds = min(FIRST_WAIT * 2.0 ** min(failures - 1, 30), LONGEST_WAIT)
    return timedelta(seconds=seconds * random.uniform(0.9, 1.1))


class Pinned(HTTPConnection):
    """A connection to an address that was checked, under the name that it was asked by."""

    def __init__(self, place: Place, address: str) -> None:
        super().__init__(place.host, place.port, timeout=SECONDS)
        self.place, self.address = place, address
        self.line: socket.socket | None = None
        self.is_over = False

    def connect(self) -> None:
        sock = self._create_connection((self.address, self.port), self.timeout)  # type: ignore[attr-defined]
        if self.place.secure:
            name = self.place.host
            context = ssl.create_default_context()
            sock = context.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
        self.sock = self.line = sock
        if self.is_over:
            raise TimeoutError
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()

    def hang_up(self) -> None:
        """End the call, whatever it waits for: a socket's own limit begins anew with each byte that comes."""
        self.is_over = True
        if self.line is not None:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                socket.socket.shutdown(self.line, socket.SHUT_RDWR)


def post(url: str, headers: dict[str, str], body: bytes, allowed: Allowed) -> int:
    """Send one message, and give the answer's status; an answer that leads elsewhere is not followed."""
    place = place_of(url, allowed)
    connection = Pinned(place, resolved(place, allowed))
    limit = threading.Timer(SECONDS, connection.hang_up)
    limit.daemon = True
    limit.start()
    try:
        connection.request("POST", place.path, body, headers)
        answer: HTTPResponse = connection.getresponse()
        answer.read(4096)
        if connection.is_over:
            raise TimeoutError
        return answer.status
    except (OSError, HTTPException) as e:
        raise ResourceError(TimeoutError.__name__ if connection.is_over else type(e).__name__) from e
    finally:
        limit.cancel()
        connection.close()


class Courier(threading.Thread):
    """Looks for messages that wait, and carries them; an error with one webhook does not end it."""

    def __init__(self, desk: Desk, every: float = 0.5) -> None:
        super().__init__(name="courier", daemon=True)
        self.desk, self.every = desk, every
        self.ended = threading.Event()
        self.pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook")

    def run(self) -> None:
        while not self.ended.wait(self.every):
            try:
                self.once()
            except Exception:
                LOG.exception("webhooks failed")
        self.pool.shutdown(wait=True)

    def once(self) -> None:
        """Go to every webhook for which something waits and whose time has come."""
        waits = sa.select(DELIVERIES.c.webhook).where(DELIVERIES.c.given_up.is_(None))
        # Nobody is left alone for longer than that: a clock that was ahead wrote a time that is far away now.
        beyond = now() + timedelta(seconds=2 * LONGEST_WAIT)
        ready = sa.or_(WEBHOOKS.c.next.is_(None), WEBHOOKS.c.next <= now(), WEBHOOKS.c.next > beyond)
        query = sa.select(WEBHOOKS).where(ready, WEBHOOKS.c.id.in_(waits)).limit(10 * AT_ONCE)
        with reading(self.desk.database) as connection:
            hooks = rows_of(connection, query)
        for hook in hooks:
            taken = WEBHOOKS.update().where(WEBHOOKS.c.id == hook["id"], ready)
            with self.desk.database.begin() as connection:
                mine = connection.execute(taken.values(next=now() + TAKEN)).rowcount
            if mine:
                self.pool.submit(self.visit, hook)

    def visit(self, hook: dict[str, Any]) -> None:
        """Carry what waits for one webhook, in order, until one message fails."""
        ends = time.monotonic() + TAKEN.total_seconds() / 2
        try:
            while not self.ended.is_set() and time.monotonic() < ends:
                if not carry(self.desk, hook):
                    return
            with self.desk.database.begin() as connection:
                connection.execute(WEBHOOKS.update().where(WEBHOOKS.c.id == hook["id"]).values(next=None))
        except Exception:
            LOG.exception("a webhook failed", extra={"told": {"webhook": hook["id"]}})

    def stop(self) -> None:
        """End after the messages at hand."""
        self.ended.set()
        self.join(timeout=30)


def carry(desk: Desk, hook: dict[str, Any]) -> bool:
    """Carry the first message that waits for a webhook; whether there may be more to do now."""
    chosen = sa.and_(DELIVERIES.c.webhook == hook["id"], DELIVERIES.c.given_up.is_(None))
    with reading(desk.database) as connection:
        found = row_of(connection, sa.select(DELIVERIES).where(chosen).order_by(DELIVERIES.c.number).limit(1))
        told = None if found is None else message_of(connection, found)
    if found is None or told is None:
        with desk.database.begin() as connection:
            connection.execute(WEBHOOKS.update().where(WEBHOOKS.c.id == hook["id"]).values(next=None))
        return False
    name, body = told
    headers = signed_headers(desk.keys.open(hook["tenant"], hook["secret"]), name, body, int(time.time()))
    try:
        status = post(hook["url"], headers, body, desk.webhooks_to)
    except SpotlessError as e:
        return failed(desk, hook, found, "not allowed" if isinstance(e, SettingError) else str(e))
    if not 200 <= status < 300:
        return failed(desk, hook, found, str(status))
    with desk.database.begin() as connection:
        # The webhook first, as whoever removes it does: in another order the two could wait for each other.
        values = {"last": found["event"], "failures": 0, "answer": str(status)}
        connection.execute(WEBHOOKS.update().where(WEBHOOKS.c.id == hook["id"]).values(**values))
        connection.execute(DELIVERIES.delete().where(DELIVERIES.c.number == found["number"]))
    return True


def failed(desk: Desk, hook: dict[str, Any], delivery: dict[str, Any], answer: str) -> bool:
    """Leave a webhook alone for a while; give a message up that was tried too often or is too old."""
    with desk.database.begin() as connection:
        current = row_of(connection, sa.select(WEBHOOKS).where(WEBHOOKS.c.id == hook["id"]).with_for_update())
        if current is None:
            return False  # removed meanwhile
        failures = current["failures"] + 1
        values = {"failures": failures, "answer": answer[:120], "next": now() + wait_after(failures)}
        connection.execute(WEBHOOKS.update().where(WEBHOOKS.c.id == hook["id"]).values(**values))
        attempts = delivery["attempts"] + 1
        row = DELIVERIES.update().where(DELIVERIES.c.number == delivery["number"])
        connection.execute(row.values(attempts=attempts))
        over = DELIVERIES.c.at < now() - OLDEST
        if attempts >= MOST_ATTEMPTS or answer == "not allowed":
            over = sa.or_(over, DELIVERIES.c.number == delivery["number"])
        chosen = sa.and_(DELIVERIES.c.webhook == hook["id"], DELIVERIES.c.given_up.is_(None), over)
        for one in rows_of(connection, sa.select(DELIVERIES).where(chosen).order_by(DELIVERIES.c.number)):
            told = {"webhook": hook["id"], "event": one["event"], "answer": answer[:120], "attempts": one["attempts"]}
            note(connection, hook["tenant"], "webhook given up", request=one["request"], **told)
        connection.execute(DELIVERIES.update().where(chosen).values(given_up=now()))
    LOG.warning("webhook not delivered", extra={"told": {"webhook": hook["id"], "answer": answer[:120]}})
    return False
