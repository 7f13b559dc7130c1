"""The same ledger on PostgreSQL, where there is one."""

import multiprocessing
import random

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("sqlalchemy")
pytest.importorskip("psycopg")

from spotlessnet.proof import dsse, ledger, merkle
from spotlessnet.proof.bundle import bundle, verify_bundle
from spotlessnet.proof.checking import check
from spotlessnet.proof.connecting import engine_of
from spotlessnet.proof.heads import head_of
from spotlessnet.proof.keys import PublicKeys, SigningKey
from tests.postgresql import new_database
from tests.proof.ledgers import filled, receipt, statement
from tests.proof.tampering import CHANGES

KEY, NEXT = SigningKey.new(), SigningKey.new()
TRUSTED = PublicKeys([KEY.public])


@pytest.fixture
def engine(postgresql):
    engine = engine_of(new_database(postgresql))
    yield engine
    engine.dispose()


def test_entries_proofs_and_bundles(engine):
    filled(engine, KEY, 13, [(5, NEXT)])
    with ledger.writing(engine) as connection:
        index = ledger.append(connection, dsse.sign(receipt(1), [NEXT]), NEXT)
        assert ledger.append(connection, dsse.sign(receipt(1), [NEXT]), NEXT) == index == 13
        assert verify_bundle(bundle(connection, index), TRUSTED).index == 13
        head, old = head_of(ledger.tree_head(connection)), head_of(ledger.tree_head(connection, 6))
        merkle.check_consistency(6, 14, old.root, head.root, ledger.consistency(connection, 6))
        assert check(connection, TRUSTED, since=ledger.tree_head(connection, 3)).mistakes == ()


def test_random_changes_are_all_found(engine):
    filled(engine, KEY, 11, [(5, NEXT)])
    missed = []
    for number, name in enumerate(CHANGES):
        for seed in range(2):
            with engine.connect() as connection:
                witness = ledger.tree_head(connection)
                CHANGES[name](connection, random.Random(100 * number + seed))
                if not check(connection, TRUSTED, since=witness).mistakes:
                    missed.append((name, seed))
                connection.rollback()
    assert missed == []


def write(address: str, key: SigningKey, writer: int, count: int) -> None:
    engine = engine_of(address)
    with ledger.writing(engine) as connection:
        ledger.begin(connection)
    for i in range(count):
        with ledger.writing(engine) as connection:
            ledger.append(connection, dsse.sign(statement(1000 * writer + i), [key]), key)
    engine.dispose()


def test_four_processes_leave_no_gap_and_no_fork(engine):
    with ledger.writing(engine) as connection:
        ledger.create(connection)
    engine.dispose()
    address = engine.url.render_as_string(hide_password=False)
    start = multiprocessing.get_context("fork")
    running = [start.Process(target=write, args=(address, KEY, i, 25)) for i in range(4)]
    for one in running:
        one.start()
    for one in running:
        one.join()
        assert one.exitcode == 0
    with engine.connect() as connection:
        found = check(connection, TRUSTED)
    assert (found.mistakes, found.size) == ((), 100)
