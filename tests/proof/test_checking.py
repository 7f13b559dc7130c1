"""A walk through the ledger finds whatever was edited, removed, exchanged or forged."""

import contextlib
import random
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("sqlalchemy")

from sqlalchemy import text, update

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.proof import dsse, ledger, tables
from spotlessnet.proof.checking import check
from spotlessnet.proof.heads import head_of
from spotlessnet.proof.keys import PublicKeys, SigningKey
from tests.proof.ledgers import filled, opened, statement
from tests.proof.tampering import CHANGES

KEY, NEXT = SigningKey.new(), SigningKey.new()
TRUSTED = PublicKeys([KEY.public])


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Eleven entries; a second key takes over at the fifth."""
    engine = opened(tmp_path_factory.mktemp("ledger") / "ledger.db")
    filled(engine, KEY, 11, [(5, NEXT)])
    return engine


@contextlib.contextmanager
def changed(engine, change, rng):
    """The ledger after a change, which is taken back."""
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        change(connection, rng)
        yield connection
        connection.rollback()


@pytest.mark.parametrize("trusted", [KEY, NEXT], ids=["first key", "second"])
def test_a_ledger_as_it_was_written_is_whole(engine, trusted):
    with engine.connect() as connection:
        found = check(connection, PublicKeys([trusted.public]), since=ledger.tree_head(connection, 4))
    assert found.mistakes == ()
    assert found.head is not None
    assert (found.size, found.head.size, found.must_hold()) == (11, 11, found)


def test_an_empty_ledger_is_whole(tmp_path):
    with ledger.writing(opened(tmp_path / "ledger.db")) as connection:
        ledger.create(connection)
        assert check(connection, TRUSTED).is_whole


def found_in(engine, change, rng) -> tuple[str, ...]:
    with engine.connect() as connection:
        witness = ledger.tree_head(connection)
    with changed(engine, change, rng) as connection:
        return check(connection, TRUSTED, since=witness).mistakes


@pytest.mark.parametrize("name", CHANGES)
def test_every_kind_of_change_is_found(engine, name):
    for seed in range(3):
        assert found_in(engine, CHANGES[name], random.Random(seed)), f"{name}, seed {seed}"
    with engine.connect() as connection:
        assert check(connection, TRUSTED).is_whole  # it was taken back


@pytest.mark.slow
def test_five_hundred_random_changes_are_all_found(engine):
    rng = random.Random(25)
    missed = []
    for number in range(500):
        name = rng.choice(list(CHANGES))
        if not found_in(engine, CHANGES[name], random.Random(number)):
            missed.append((number, name))
    assert missed == []


def test_only_a_head_kept_elsewhere_shows_that_the_end_is_gone(engine):
    """As the page says: a database alone cannot tell a cut end from a log that never went further."""
    with changed(engine, CHANGES["the end cut off"], random.Random(0)) as connection:
        assert check(connection, TRUSTED).is_whole
    [told] = found_in(engine, CHANGES["the end cut off"], random.Random(0))
    assert "restored from an older copy, or its end was cut off" in told


def test_another_history_by_the_holder_of_the_key_is_shown_by_an_earlier_head(tmp_path):
    one, other = (opened(tmp_path / name) for name in ("one.db", "other.db"))
    filled(one, KEY, 4)
    with one.connect() as connection:
        head, name = ledger.tree_head(connection), ledger.begin(connection)
    with ledger.writing(other) as connection:
        ledger.create(connection)
        connection.execute(update(tables.log).values(name=name))
        for number in (0, 1, 7, 3, 4):
            ledger.append(connection, dsse.sign(statement(number), [KEY]), KEY)
        assert check(connection, TRUSTED).is_whole
        [told] = check(connection, TRUSTED, since=head).mistakes
        assert "the first 4 entries are not those of the earlier tree head: history was rewritten" in told


def test_an_earlier_head_must_be_signed_and_of_this_log(engine, tmp_path):
    with engine.connect() as connection:
        head = head_of(ledger.tree_head(connection, 3))
        for given, said in (
            (head.signed(SigningKey.new()), "no key that is trusted here"),
            (replace(head, log="x").signed(KEY), "is of log 'x'"),
            (dsse.sign(b"{}", [KEY]), "A tree head must be of type"),
        ):
            [told] = check(connection, TRUSTED, since=given).mistakes
            assert said in told
        with pytest.raises(IntegrityError, match="The ledger was changed: the earlier tree head"):
            check(connection, TRUSTED, since=dsse.sign(b"{}", [KEY])).must_hold()


def test_a_ledger_of_another_key_is_not_believed(engine):
    with engine.connect() as connection:
        found = check(connection, PublicKeys([SigningKey.new().public]))
    assert len(found.mistakes) == 11
    assert "no key that is trusted here" in found.mistakes[0]


@pytest.mark.parametrize(
    "how",
    [
        "UPDATE ledger_entries SET leaf = 'text' WHERE position = 2",
        "UPDATE ledger_nodes SET hash = 5 WHERE place = 1",
        "UPDATE ledger_heads SET envelope = x'ff00' WHERE size = 3",
        "UPDATE ledger_log SET size = 'many'",
        "DELETE FROM ledger_log",
        "DELETE FROM ledger_nodes",
        "DROP TABLE ledger_heads",
        "UPDATE ledger_entries SET kind = 'other' WHERE position = 5",
        "UPDATE ledger_entries SET envelope = envelope || ' ' WHERE position = 2",
    ],
)
def test_rows_of_no_kind_that_was_ever_written_are_found(engine, how):
    assert found_in(engine, lambda connection, _: connection.execute(text(how)), random.Random(0))


def test_what_no_walk_would_believe_is_not_appended(engine):
    with ledger.writing(engine) as connection:
        for payload, by, error, said in (
            (b"no JSON", NEXT, DataError, "must be a JSON object"),
            (b'{"predicate": {"ended": "soon"}}', NEXT, DataError, "must be a time"),
            (b'{"predicate": {"ended": "2026-01-31T12:00"}}', NEXT, DataError, "must have a zone"),
            (b"{}", KEY, IntegrityError, "no key that is trusted here"),
        ):
            with pytest.raises(error, match=said):
                ledger.append(connection, dsse.sign(payload, [by]), NEXT)
