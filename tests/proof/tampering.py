"""What somebody with access to a ledger's database or files may do to them, drawn at random."""

import json
import random
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, update

from spotlessnet.proof import dsse, merkle, tables
from spotlessnet.proof.keys import SigningKey
from spotlessnet.proof.spelling import as_bytes, parsed

BYTES = b' !"+,-./0123456789:=ABCXYZ[\\]abcxyz{}'


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """One byte exchanged, taken out or put in."""
    place = rng.randrange(len(content))
    byte = bytes([rng.choice(BYTES)])
    how = rng.randrange(3)
    if how == 0:
        while byte == content[place : place + 1]:
            byte = bytes([rng.choice(BYTES)])
        return content[:place] + byte + content[place + 1 :]
    if how == 1:
        return content[:place] + content[place + 1 :]
    # Blanks between the parts of JSON change nothing that anybody reads.
    byte = b"x" if byte == b" " else byte
    return content[:place] + byte + content[place:]


def changed_bundle(text: bytes, rng: random.Random) -> Any:
    """A bundle with one byte changed, or two of its parts exchanged; JSON that cannot be read is a `DataError`."""
    if rng.random() < 0.7:
        return parsed(changed_bytes(text, rng), "It")
    held = json.loads(text)
    how = rng.randrange(5)
    if how == 0:
        held["index"] += rng.choice([-1, 1])
    elif how == 1:
        held["inclusion"].append(held["inclusion"][0])
    elif how == 2:
        held["inclusion"].pop(rng.randrange(len(held["inclusion"])))
    elif how == 3:
        held["head"] = held["receipt"]
    else:
        held["receipt"]["signatures"][0]["keyid"] = "0" * 64
    return held


def _row(connection: Connection, table: Table, rng: random.Random) -> Any:
    return rng.choice(connection.execute(select(table)).all())


def _same(table: Table, row: Any) -> Any:
    keys = [column == getattr(row, column.name) for column in table.primary_key]
    return keys[0] if len(keys) == 1 else keys[0] & keys[1]


def edit_text(table: Table) -> Callable[[Connection, random.Random], None]:
    """One byte of an envelope."""

    def change(connection: Connection, rng: random.Random) -> None:
        row = _row(connection, table, rng)
        text = changed_bytes(row.envelope.encode(), rng).decode()
        connection.execute(update(table).where(_same(table, row)).values(envelope=text))

    return change


def edit_hash(table: Table, column: str) -> Callable[[Connection, random.Random], None]:
    """One bit of a stored hash."""

    def change(connection: Connection, rng: random.Random) -> None:
        row = _row(connection, table, rng)
        value = bytearray(getattr(row, column))
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        connection.execute(update(table).where(_same(table, row)).values({column: bytes(value)}))

    return change


def remove(table: Table) -> Callable[[Connection, random.Random], None]:
    """One row."""

    def change(connection: Connection, rng: random.Random) -> None:
        connection.execute(delete(table).where(_same(table, _row(connection, table, rng))))

    return change


def exchange(table: Table, column: str) -> Callable[[Connection, random.Random], None]:
    """What two rows hold, the key of each left where it is."""

    def change(connection: Connection, rng: random.Random) -> None:
        one, other = rng.sample(connection.execute(select(table)).all(), 2)
        values = {
            name: (getattr(one, name), getattr(other, name)) for name in (column, "leaf", "kind") if name in table.c
        }
        if "leaf" in values:  # no two rows may hold one hash, not even for a moment
            connection.execute(update(table).where(_same(table, one)).values(leaf=b"x"))
        for row, place in ((other, 0), (one, 1)):
            new = {name: pair[place] for name, pair in values.items()}
            connection.execute(update(table).where(_same(table, row)).values(new))

    return change


def add_row(connection: Connection, rng: random.Random) -> None:
    """A copy of a row in a place of its own."""
    table = rng.choice([tables.nodes, tables.heads])
    row = dict(_row(connection, table, rng)._mapping)
    key = "place" if table is tables.nodes else "size"
    connection.execute(insert(table).values({**row, key: 10_000 + rng.randrange(1000)}))


def edit_log(connection: Connection, rng: random.Random) -> None:
    """The name or the size of the log."""
    new: dict[str, Any] = rng.choice([{"name": "0" * 32}, {"size": rng.randrange(7)}, {"size": 10**6}])
    connection.execute(update(tables.log).values(new))


def forge_head(connection: Connection, rng: random.Random) -> None:
    """A tree head with a root of its own, signed by a key of the forger's own; or the true one signed so."""
    row = _row(connection, tables.heads, rng)
    opened = dsse.taken_apart(json.loads(row.envelope))
    told = json.loads(opened.payload)
    told |= rng.choice([{"root": "0" * 64}, {"size": row.size + 1}, {"time": "2020-01-01T00:00:00.000000Z"}, {}])
    made = dsse.sign(as_bytes(told), [SigningKey.new()], opened.kind)
    connection.execute(
        update(tables.heads).where(tables.heads.c.size == row.size).values(envelope=as_bytes(made).decode())
    )


def older_head(connection: Connection, rng: random.Random) -> None:
    """A genuine tree head in the place of another one."""
    one, other = rng.sample(connection.execute(select(tables.heads)).all(), 2)
    connection.execute(update(tables.heads).where(tables.heads.c.size == one.size).values(envelope=other.envelope))


def rewrite_entry(connection: Connection, rng: random.Random) -> None:
    """What a careful forger without the key would do: another receipt, with all hashes above it made anew."""
    rows = connection.execute(select(tables.entries).order_by(tables.entries.c.position)).all()
    chosen = rng.choice(rows)
    made = dsse.sign(b'{"predicate": {"forged": %d}}' % rng.randrange(10**9), [SigningKey.new()])
    text = as_bytes(made)
    new = {"envelope": text.decode(), "leaf": merkle.leaf_hash(text), "kind": made["payloadType"]}
    connection.execute(update(tables.entries).where(tables.entries.c.position == chosen.position).values(new))
    frontier = merkle.Frontier()
    connection.execute(delete(tables.nodes))
    for row in rows:
        leaf = new["leaf"] if row.position == chosen.position else row.leaf
        for place, value in frontier.append(leaf)[1:]:
            connection.execute(insert(tables.nodes).values(level=place.level, place=place.number, hash=value))


def cut_off(connection: Connection, rng: random.Random) -> None:
    """The last entries with everything that belongs to them, as a restored backup would have it."""
    size = len(connection.execute(select(tables.entries.c.position)).all())
    left = rng.randrange(1, size)
    connection.execute(delete(tables.entries).where(tables.entries.c.position >= left))
    connection.execute(delete(tables.heads).where(tables.heads.c.size > left))
    for row in connection.execute(select(tables.nodes)).all():
        if (row.place + 1) << row.level > left:
            connection.execute(delete(tables.nodes).where(_same(tables.nodes, row)))
    connection.execute(update(tables.log).values(size=left))


CHANGES: dict[str, Callable[[Connection, random.Random], None]] = {
    "an entry's envelope": edit_text(tables.entries),
    "a tree head's envelope": edit_text(tables.heads),
    "an entry's hash": edit_hash(tables.entries, "leaf"),
    "a subtree's hash": edit_hash(tables.nodes, "hash"),
    "an entry removed": remove(tables.entries),
    "a tree head removed": remove(tables.heads),
    "a subtree's hash removed": remove(tables.nodes),
    "entries exchanged": exchange(tables.entries, "envelope"),
    "tree heads exchanged": exchange(tables.heads, "envelope"),
    "subtrees exchanged": exchange(tables.nodes, "hash"),
    "a row added": add_row,
    "the log's own row": edit_log,
    "a tree head forged": forge_head,
    "an older tree head": older_head,
    "an entry rewritten with all hashes": rewrite_entry,
    "the end cut off": cut_off,
}
"""By name; each leaves a database that can be read."""
