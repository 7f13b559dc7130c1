"""The ledger: one entry after another in the caller's transaction, and proofs from what is stored."""

import contextlib
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("sqlalchemy")

from sqlalchemy import create_engine, func, select, update

from spotlessnet.core.errors import DataError, IntegrityError, SettingError
from spotlessnet.proof import dsse, ledger, merkle, tables
from spotlessnet.proof.heads import HEAD, head_of, verify_head, with_rotations
from spotlessnet.proof.keys import PublicKeys, SigningKey
from spotlessnet.proof.spelling import as_bytes
from tests.proof.ledgers import filled, opened, statement

KEY, NEXT = SigningKey.new(), SigningKey.new()


@pytest.fixture
def engine(tmp_path):
    return opened(tmp_path / "ledger.db")


def test_entries_come_one_after_another_and_every_proof_holds(engine):
    filled(engine, KEY, 21)
    with engine.connect() as connection:
        heads = [verify_head(ledger.tree_head(connection, n), PublicKeys([KEY.public])) for n in range(1, 22)]
        assert [one.size for one in heads] == list(range(1, 22))
        assert len({one.log for one in heads}) == 1
        last = heads[-1]
        for index in range(21):
            leaf = merkle.leaf_hash(as_bytes(ledger.entry(connection, index)))
            merkle.check_inclusion(leaf, index, 21, ledger.inclusion(connection, index), last.root)
        for old in heads:
            path = ledger.consistency(connection, old.size)
            merkle.check_consistency(old.size, 21, old.root, last.root, path)
        kept = connection.execute(select(func.count()).select_from(tables.nodes)).scalar_one()
    assert kept == 10 + 5 + 2 + 1  # full subtrees of 2, 4, 8 and 16 of 21 entries


def test_the_log_is_named_once(engine):
    with ledger.writing(engine) as connection:
        name = ledger.create(connection)
    with ledger.writing(engine) as connection:
        assert ledger.create(connection) == name
        assert ledger.size_of(connection) == 0


def test_the_same_envelope_is_held_once(engine):
    filled(engine, KEY, 3)
    with ledger.writing(engine) as connection:
        assert ledger.append(connection, dsse.sign(statement(1), [KEY]), KEY) == 1
        assert ledger.size_of(connection) == 3


def test_what_is_rolled_back_was_never_there(engine):
    filled(engine, KEY, 3)
    with contextlib.suppress(ZeroDivisionError), ledger.writing(engine) as connection:
        assert ledger.append(connection, dsse.sign(statement(3), [KEY]), KEY) == 3
        raise ZeroDivisionError
    with engine.connect() as connection:
        assert ledger.size_of(connection) == 3
        with pytest.raises(DataError, match="no entry 3; it has 3"):
            ledger.entry(connection, 3)
        with pytest.raises(DataError, match="no tree head of 4 entries"):
            ledger.tree_head(connection, 4)


def test_a_clock_that_was_put_back_does_not_put_the_log_back(engine):
    filled(engine, KEY, 1)
    with ledger.writing(engine) as connection:
        before = head_of(ledger.tree_head(connection)).time
        past = datetime.now(UTC) - timedelta(days=2)
        ledger.append(connection, dsse.sign(statement(1), [KEY]), KEY, clock=lambda: past)
        assert head_of(ledger.tree_head(connection)).time == before


def test_another_key_must_be_handed_to_first(engine):
    filled(engine, KEY, 2)
    with ledger.writing(engine) as connection:
        with pytest.raises(IntegrityError, match=f"The ledger's key is {KEY.id[:16]}, but this is {NEXT.id[:16]}"):
            ledger.append(connection, dsse.sign(statement(2), [NEXT]), NEXT)
        assert ledger.rotate(connection, KEY, NEXT) == 2
        assert ledger.append(connection, dsse.sign(statement(3), [NEXT]), NEXT) == 3
        with pytest.raises(IntegrityError, match="let it hand over"):
            ledger.append(connection, dsse.sign(statement(4), [KEY]), KEY)
        with pytest.raises(SettingError, match="both are the same"):
            ledger.rotate(connection, NEXT, NEXT)


def test_whoever_trusts_one_key_comes_to_trust_the_other_for_its_stretch(engine):
    last = SigningKey.new()
    filled(engine, KEY, 9, [(3, NEXT), (6, last)])
    with engine.connect() as connection:
        heads = [ledger.tree_head(connection, size) for size in range(1, 10)]
        told = ledger.rotations(connection)
    for trusted in (KEY, NEXT, last):
        keys = with_rotations(PublicKeys([trusted.public]), told)
        assert [verify_head(head, keys).size for head in heads] == list(range(1, 10))
    # Past its stretch a key signs nothing any more, whoever holds it.
    forged = head_of(heads[4])
    for key, size in ((KEY, 4), (NEXT, 3), (NEXT, 7), (last, 6)):
        with pytest.raises(IntegrityError, match="not in force"):
            verify_head(replace(forged, size=size).signed(key), keys)


def test_a_receipt_alone_may_be_appended(engine):
    filled(engine, KEY, 1)
    with ledger.writing(engine) as connection:
        with pytest.raises(SettingError, match="A ledger takes"):
            ledger.append(connection, dsse.sign(b"{}", [KEY], HEAD), KEY)
        with pytest.raises(DataError, match="An envelope must have the fields"):
            ledger.append(connection, {}, KEY)


def test_nothing_is_appended_to_a_log_that_was_changed(engine):
    filled(engine, KEY, 5)
    with ledger.writing(engine) as connection:
        connection.execute(update(tables.nodes).where(tables.nodes.c.level == 2).values(hash=b"\x00" * 32))
    with ledger.writing(engine) as connection:
        with pytest.raises(IntegrityError, match="is not that of what is stored"):
            ledger.append(connection, dsse.sign(statement(5), [KEY]), KEY)
        connection.execute(tables.nodes.delete())
        with pytest.raises(IntegrityError, match="lacks the hash of 4 entries from 0 on"):
            ledger.append(connection, dsse.sign(statement(5), [KEY]), KEY)


def test_a_database_without_a_log_says_so(tmp_path):
    with ledger.writing(create_engine("sqlite://")) as connection:
        tables.METADATA.create_all(connection)
        with pytest.raises(DataError, match="no log in this database yet"):
            ledger.append(connection, dsse.sign(statement(0), [KEY]), KEY)


def write(path: Path, key: SigningKey, writer: int, count: int) -> None:
    engine = opened(path)
    with ledger.writing(engine) as connection:
        ledger.create(connection)
    for i in range(count):
        with ledger.writing(engine) as connection:
            ledger.append(connection, dsse.sign(statement(1000 * writer + i), [key]), key)
    engine.dispose()


def check_all(path: Path, key: SigningKey, count: int) -> None:
    with opened(path).connect() as connection:
        assert ledger.size_of(connection) == count
        last = verify_head(ledger.tree_head(connection), PublicKeys([key.public]))
        leaves = [merkle.leaf_hash(as_bytes(ledger.entry(connection, index))) for index in range(count)]
        assert len(set(leaves)) == count
        assert merkle.root(count, merkle.in_memory(leaves)) == last.root


def test_writers_at_once_leave_no_gap_and_no_fork(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(write, tmp_path / "ledger.db", KEY, i, 6) for i in range(4)]
        for one in done:
            one.result()
    check_all(tmp_path / "ledger.db", KEY, 24)


@pytest.mark.slow
def test_eight_processes_of_250_entries_each(tmp_path):
    start = multiprocessing.get_context("fork")
    running = [start.Process(target=write, args=(tmp_path / "ledger.db", KEY, i, 250)) for i in range(8)]
    for one in running:
        one.start()
    for one in running:
        one.join()
        assert one.exitcode == 0
    check_all(tmp_path / "ledger.db", KEY, 2000)
