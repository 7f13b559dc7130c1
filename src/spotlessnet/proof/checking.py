"""Checking a whole ledger: every entry, hash and tree head, against each other and against the public keys.

What it finds by itself: any edit, removal or exchange of rows, and anything that no trusted key signed. What it cannot
find by itself: that the last entries are gone together with all their rows, or that whoever holds the key wrote another
history. A tree head kept elsewhere (`since`) shows both.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, Table, select
from sqlalchemy.exc import SQLAlchemyError

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.proof import merkle, tables
from spotlessnet.proof.dsse import STATEMENT, Envelope, taken_apart, verify
from spotlessnet.proof.heads import ROTATION, Rotation, TreeHead, head_of, rotation_of, verify_head, with_rotations
from spotlessnet.proof.keys import Made, PublicKeys
from spotlessnet.proof.ledger import rotation_envelopes
from spotlessnet.proof.spelling import as_bytes, parsed
from spotlessnet.proof.statements import ended_by

PAGE = 1000
"""Rows that are read at once."""

MOST = 20
"""Findings that are told; where a log is broken, everything after is."""


@dataclass(frozen=True)
class Checked:
    """What a walk through a ledger found.

    **Arguments:**

    - `head`: the tree head over everything that was read; none where the log is empty or the last one is forged.
    - `mistakes`: what does not agree, as sentences; empty where the ledger is whole.
    """

    log: str
    size: int
    head: TreeHead | None
    mistakes: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether everything agrees."""
        return not self.mistakes

    def must_hold(self) -> "Checked":
        """Itself; raises where something was found."""
        if self.mistakes:
            raise IntegrityError(f"The ledger was changed: {self.mistakes[0]}")
        return self


class Enough(Exception):  # noqa: N818  # not an error: there is nothing more to learn
    """So much was found that the rest would only repeat it."""


class Findings:
    """Sentences on what does not agree."""

    def __init__(self) -> None:
        """Begin with none."""
        self.told: list[str] = []

    def tell(self, text: str) -> None:
        """One more; ends the walk where there are many."""
        self.told.append(text)
        if len(self.told) >= MOST:
            raise Enough

    def held(self, what: str, check: Callable[[], Any]) -> Any:
        """What the check gives, or nothing where it raised, which is told."""
        try:
            return check()
        except (DataError, IntegrityError) as e:
            self.tell(f"{what}: {e}")
            return None


def check(connection: Connection, keys: PublicKeys, since: Envelope | None = None) -> Checked:
    """Walk through everything that is stored, and tell what does not agree.

    **Arguments:**

    - `keys`: the public keys that are trusted; those that took over from them, or handed over to them, are found in
      the ledger.
    - `since`: a signed tree head kept from before. The ledger must begin with the log that it is of.
    """
    findings = Findings()
    name, size, head = "", 0, None
    try:
        name, size = _log_row(connection, findings)
        turns = findings.held("a rotation", lambda: with_rotations(keys, _rotations(connection, name)))
        trusted = keys if turns is None else turns
        witness = None
        if since is not None:
            witness = findings.held("the earlier tree head", lambda: head_of(since))
            # Compared with the log all the same: its key may have taken over in the entries that are gone.
            findings.held("the earlier tree head", lambda: witness and verify_head(since, trusted))
        head = _Walk(connection, findings, name, trusted, witness).run(size)
    except Enough:
        pass
    except (SQLAlchemyError, TypeError, ValueError) as e:
        # A value of a kind that was never written there, such as text for bytes.
        findings.told.append(f"a row cannot be read ({type(e).__name__}), though it could when it was written")
    return Checked(name, size, head, tuple(findings.told))


def _log_row(connection: Connection, findings: Findings) -> tuple[str, int]:
    rows = connection.execute(select(tables.log.c.one, tables.log.c.name, tables.log.c.size)).all()
    if len(rows) != 1 or rows[0].one != 1:
        findings.tell(f"the log must have one row that names it, but has {len(rows)}")
        raise Enough
    return str(rows[0].name), int(rows[0].size)


def _rotations(connection: Connection, name: str) -> list[Rotation]:
    found = [rotation_of(one) for one in rotation_envelopes(connection)]
    if any(one.log != name for one in found):
        raise IntegrityError("it is of another log")
    return found


class Read(NamedTuple):
    """One entry with the tree head that was signed after it; what is missing is None."""

    entry: Any
    head: Any


class _Walk:
    """One walk; holds what it has seen so far."""

    def __init__(
        self, connection: Connection, findings: Findings, name: str, keys: PublicKeys, witness: TreeHead | None
    ) -> None:
        self.connection = connection
        self.findings = findings
        self.name = name
        self.keys = keys
        self.witness = witness
        self.frontier = merkle.Frontier()
        self.stored: dict[int, Iterator[Any]] = {}
        self.last: TreeHead | None = None

    def run(self, size: int) -> TreeHead | None:
        entries = _rows(self.connection, tables.entries, tables.entries.c.position)
        heads = _rows(self.connection, tables.heads, tables.heads.c.size)
        self._check_witness()
        for read in _pairs(entries, heads):
            self._step(read)
        if self.frontier.size != size:
            self.findings.tell(f"{size} entries were appended, but {self.frontier.size} are there")
        self._check_nothing_left()
        if self.witness is not None and self.witness.size > self.frontier.size:
            self.findings.tell(
                f"the earlier tree head has {self.witness.size} entries, the ledger {self.frontier.size}: it was "
                "restored from an older copy, or its end was cut off"
            )
        return self.last

    def _step(self, read: Read) -> None:
        index = self.frontier.size
        if read.entry is None or read.entry.position != index:
            self.findings.tell(f"entry {index} is missing")
            raise Enough  # whatever comes after stands in the wrong place
        text = str(read.entry.envelope).encode()
        leaf = merkle.leaf_hash(text)
        if bytes(read.entry.leaf) != leaf:
            self.findings.tell(f"entry {index} is not the one whose hash is stored beside it")
        self._check_nodes(self.frontier.append(leaf))
        head = self._check_head(read.head)
        self.findings.held(f"entry {index}", lambda: self._check_entry(text, index, str(read.entry.kind), head))
        self._check_witness()

    def _check_head(self, row: Any) -> TreeHead | None:
        size = self.frontier.size
        if row is None or row.size != size:
            self.findings.tell(f"the tree head of {size} entries is missing")
            raise Enough
        what = f"the tree head of {size} entries"
        head = self.findings.held(what, lambda: verify_head(_one_spelling(str(row.envelope).encode(), what), self.keys))
        if head is None:
            return None
        if (head.log, head.size, head.root) != (self.name, size, self.frontier.root):
            self.findings.tell(f"{what} is not that of the entries that are there: they were changed")
        if self.last is not None and head.time < self.last.time:
            self.findings.tell(f"{what} is older than the one before it")
        self.last = head
        return head

    def _check_entry(self, text: bytes, index: int, kind: str, head: TreeHead | None) -> None:
        envelope = _one_spelling(text, "it")
        opened = taken_apart(envelope)
        if opened.kind != kind:
            raise IntegrityError("its kind is not the one that is stored beside it")
        if kind == ROTATION:
            turn = rotation_of(envelope)
            if (turn.log, turn.index) != (self.name, index):
                raise IntegrityError(f"a rotation of entry {turn.index} of log {turn.log[:40]!r} stands here")
        if head is not None:
            made = Made(index, min(ended_by(opened.payload, head.time), head.time), head.time)
            verify(envelope, self.keys, made, ROTATION if kind == ROTATION else STATEMENT)

    def _check_nodes(self, done: list[tuple[merkle.Place, bytes]]) -> None:
        for place, value in done[1:]:  # the first is the entry itself
            rows = self.stored.get(place.level)
            if rows is None:
                nodes = tables.nodes.c
                rows = _rows(self.connection, tables.nodes, nodes.place, nodes.level == place.level)
                self.stored[place.level] = rows
            row = next(rows, None)
            if row is None or row.place != place.number or bytes(row.hash) != value:
                begin = place.number << place.level
                self.findings.tell(
                    f"the stored hash of the entries {begin} to {begin + (1 << place.level) - 1} is wrong"
                )

    def _check_nothing_left(self) -> None:
        nodes = tables.nodes.c
        levels = self.connection.execute(select(nodes.level).distinct()).scalars().all()
        if set(levels) - self.stored.keys() or any(next(rows, None) is not None for rows in self.stored.values()):
            self.findings.tell("hashes are stored of entries that are not there")

    def _check_witness(self) -> None:
        seen = self.witness
        if seen is None or seen.size != self.frontier.size:
            return
        if seen.log != self.name:
            self.findings.tell(f"the earlier tree head is of log {seen.log[:40]!r}, but this is log {self.name!r}")
        elif seen.root != self.frontier.root:
            self.findings.tell(
                f"the first {seen.size} entries are not those of the earlier tree head: history was rewritten"
            )


def _one_spelling(text: bytes, what: str) -> Envelope:
    """An envelope as it was written; another spelling of the same has another hash, and nobody writes it."""
    found = parsed(text, what)
    if as_bytes(found) != text:
        raise IntegrityError(f"{what} is not spelled as it was written")
    return found


def _pairs(entries: Iterator[Any], heads: Iterator[Any]) -> Iterator[Read]:
    while True:
        read = Read(next(entries, None), next(heads, None))
        if read == Read(None, None):
            return
        yield read


def _rows(connection: Connection, table: Table, order: Column[Any], *also: Any) -> Iterator[Any]:
    """All rows in order, a page at a time: a ledger need not fit into memory."""
    last = None
    while True:
        asked = select(table).where(*also).order_by(order).limit(PAGE)
        page = connection.execute(asked if last is None else asked.where(order > last)).all()
        yield from page
        if len(page) < PAGE:
            return
        last = getattr(page[-1], order.name)
