"""The ledger: signed receipts, one after another, in a Merkle log in a database (SQLite or PostgreSQL).

Every function takes a connection of the caller, and appends in the caller's transaction: what is rolled back was never
in the log. Writers come one after another, since each first locks the log's one row. On SQLite a transaction that reads
before it appends may be told that the database is locked: begin it with `writing`, or with `BEGIN IMMEDIATE`.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, insert, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from spotlessnet.core.errors import DataError, IntegrityError, SettingError
from spotlessnet.proof import merkle, tables
from spotlessnet.proof.dsse import STATEMENT, Envelope, taken_apart, verify
from spotlessnet.proof.heads import ROTATION, Rotation, TreeHead, head_of, rotation_of, signed_rotation, verify_head
from spotlessnet.proof.keys import Made, PublicKeys, SigningKey
from spotlessnet.proof.merkle import Place
from spotlessnet.proof.spelling import as_bytes, now, parsed
from spotlessnet.proof.statements import ended_by

Clock = Callable[[], datetime]


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that may append: committed at the end, rolled back where something was raised."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            # Python's driver would begin at the first write; then another writer may have come in between.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection
        connection.commit()


def create(connection: Connection) -> str:
    """Make the tables where they are missing, and the log where there is none yet; give the log's name."""
    tables.METADATA.create_all(connection)
    return begin(connection)


def begin(connection: Connection) -> str:
    """The name of the log, drawn now where there is none yet; the tables are there already."""
    row = {"one": 1, "name": secrets.token_hex(16), "size": 0}
    # Of two processes that start at once, the name that the first drew counts.
    if connection.dialect.name == "postgresql":
        connection.execute(postgresql.insert(tables.log).values(row).on_conflict_do_nothing())
    else:
        connection.execute(sqlite.insert(tables.log).values(row).on_conflict_do_nothing())
    return str(connection.execute(select(tables.log.c.name)).scalar_one())


def append(connection: Connection, envelope: Envelope, key: SigningKey, clock: Clock = now) -> int:
    """Append a signed receipt, and give its index; the same envelope again changes nothing and gives the same index.

    **Arguments:**

    - `envelope`: what `dsse.sign` gave.
    - `key`: signs the new tree head.
    - `clock`: the time; a clock that was put back does not put the log back.
    """
    opened = taken_apart(envelope)
    if opened.kind != STATEMENT:
        raise SettingError(f"A ledger takes {STATEMENT!r}, but got {opened.kind[:80]!r}. Sign a receipt.")
    time = clock()
    # What the check would refuse later must not come in: nothing is ever taken out again.
    ended_by(opened.payload, time)
    verify(envelope, PublicKeys([key.public]), Made(0, time, time))
    name, size = _locked(connection)
    leaf = merkle.leaf_hash(as_bytes(envelope))
    held = connection.execute(select(tables.entries.c.position).where(tables.entries.c.leaf == leaf)).scalar()
    if held is not None:
        return int(held)
    frontier, earliest = _as_signed(connection, name, size, key)
    return _put(connection, frontier, TreeHead(name, size, frontier.root, max(time, earliest)), envelope, key)


def rotate(connection: Connection, old: SigningKey, new: SigningKey, clock: Clock = now) -> int:
    """Hand over from one key to the next: from this entry on the new key signs."""
    if old.id == new.id:
        raise SettingError("A key must hand over to another one, but both are the same. `spotless keys new` makes one.")
    name, size = _locked(connection)
    frontier, earliest = _as_signed(connection, name, size, old)
    before = TreeHead(name, size, frontier.root, max(clock(), earliest))
    return _put(connection, frontier, before, signed_rotation(name, size, before.time, old, new), new)


def lock(connection: Connection) -> None:
    """Let nobody else append from here to the end of the transaction."""
    _locked(connection)


def _locked(connection: Connection) -> tuple[str, int]:
    """The log's name and size; from here to the end of the transaction nobody else appends."""
    log = tables.log
    # A write, though it changes nothing: both databases then hold off every other writer.
    connection.execute(update(log).where(log.c.one == 1).values(one=1))
    row = connection.execute(select(log.c.name, log.c.size).where(log.c.one == 1)).first()
    if row is None:
        raise DataError("There is no log in this database yet. Call `create` first.")
    return str(row.name), int(row.size)


def _as_signed(connection: Connection, name: str, size: int, key: SigningKey) -> tuple[merkle.Frontier, datetime]:
    """The log's right edge and the time of its last head, if that is what this key signed; nothing is built on less."""
    places = merkle.full_subtrees(0, size)
    hashes = reader(connection)(places)
    frontier = merkle.Frontier(size, [hashes[place] for place in places])
    if size == 0:
        return frontier, datetime.min.replace(tzinfo=UTC)
    envelope = tree_head(connection, size)
    head = head_of(envelope)
    signers = {one.key_id for one in taken_apart(envelope).signatures}
    if key.id not in signers:
        names = ", ".join(one[:16] for one in sorted(signers))
        raise IntegrityError(
            f"The ledger's key is {names}, but this is {key.id[:16]}. Give the ledger's key with --key, or let it hand "
            "over: `spotless keys rotate`."
        )
    verify_head(envelope, PublicKeys([key.public]))
    if (head.log, head.size, head.root) != (name, size, frontier.root):
        raise IntegrityError(
            f"The tree head of {size} entries is not that of what is stored: the database was changed. Nothing was "
            "appended; `spotless verify --ledger` says where."
        )
    return frontier, head.time


def _put(
    connection: Connection, frontier: merkle.Frontier, before: TreeHead, envelope: Envelope, key: SigningKey
) -> int:
    text = as_bytes(envelope)
    leaf = merkle.leaf_hash(text)
    above = [{"level": p.level, "place": p.number, "hash": h} for p, h in frontier.append(leaf) if p.level]
    entry = {"position": before.size, "leaf": leaf, "kind": envelope["payloadType"], "envelope": text.decode()}
    connection.execute(insert(tables.entries).values(entry))
    if above:
        connection.execute(insert(tables.nodes), above)
    head = replace(before, size=frontier.size, root=frontier.root).signed(key)
    connection.execute(insert(tables.heads).values(size=frontier.size, envelope=as_bytes(head).decode()))
    log = tables.log
    # Compare and swap: whatever the isolation of the caller's transaction, no two writers put an entry in one place.
    own = (log.c.one == 1, log.c.size == before.size)
    if connection.execute(update(log).where(*own).values(size=frontier.size)).rowcount != 1:
        raise IntegrityError("Another writer appended meanwhile. Nothing was written; run the transaction again.")
    return before.size


def reader(connection: Connection) -> merkle.Reader:
    """Reads full subtrees, all that are asked for at once."""

    def read(places: Sequence[Place]) -> Mapping[Place, bytes]:
        found: dict[Place, bytes] = {}
        leaves = [place.number for place in places if place.level == 0]
        if leaves:
            entries = tables.entries.c
            rows = connection.execute(select(entries.position, entries.leaf).where(entries.position.in_(leaves)))
            found |= {Place(0, row.position): bytes(row.leaf) for row in rows}
        nodes = tables.nodes.c
        above = [place for place in places if place.level]
        if above:
            wanted = tuple_(nodes.level, nodes.place).in_(above)
            rows = connection.execute(select(nodes.level, nodes.place, nodes.hash).where(wanted))
            found |= {Place(row.level, row.place): bytes(row.hash) for row in rows}
        missing = [place for place in places if place not in found]
        if missing:
            level, number = missing[0]
            raise IntegrityError(
                f"The ledger lacks the hash of {1 << level} entries from {number << level} on: rows were removed. "
                "`spotless verify --ledger` says more."
            )
        return found

    return read


def size_of(connection: Connection) -> int:
    """How many entries the log has."""
    return int(connection.execute(select(tables.log.c.size)).scalar() or 0)


def entry(connection: Connection, index: int) -> Envelope:
    """The envelope at `index`."""
    column = tables.entries.c
    text = connection.execute(select(column.envelope).where(column.position == index)).scalar()
    if text is None:
        raise DataError(f"The ledger has no entry {index}; it has {size_of(connection)}, counted from 0.")
    return parsed(str(text).encode(), f"Entry {index}")


def tree_head(connection: Connection, size: int | None = None) -> Envelope:
    """The signed tree head after `size` entries, of the whole log unless said; keep one elsewhere as a witness."""
    wanted = size_of(connection) if size is None else size
    column = tables.heads.c
    text = connection.execute(select(column.envelope).where(column.size == wanted)).scalar()
    if text is None:
        raise DataError(f"The ledger has no tree head of {wanted} entries; it has {size_of(connection)} entries.")
    return parsed(str(text).encode(), f"The tree head of {wanted} entries")


def inclusion(connection: Connection, index: int, size: int | None = None) -> list[bytes]:
    """The proof that the entry at `index` is in the log of the first `size` entries."""
    return merkle.inclusion(index, size_of(connection) if size is None else size, reader(connection))


def consistency(connection: Connection, old: int, new: int | None = None) -> list[bytes]:
    """The proof that the log of `new` entries begins with the log of `old`."""
    return merkle.consistency(old, size_of(connection) if new is None else new, reader(connection))


def rotations(connection: Connection) -> list[Rotation]:
    """Every handing over of a key, in order."""
    return [rotation_of(one) for one in rotation_envelopes(connection)]


def rotation_envelopes(connection: Connection) -> list[Envelope]:
    """Every handing over of a key as it was signed, in order."""
    column = tables.entries.c
    texts = connection.execute(select(column.envelope).where(column.kind == ROTATION).order_by(column.position))
    return [parsed(str(text).encode(), "A rotation") for text in texts.scalars()]
