"""One file proves a receipt to whoever has the public key; after a change it proves nothing."""

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("sqlalchemy")

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.proof import dsse, ledger
from spotlessnet.proof.bundle import bundle, files_beside, read_bundle, verify_bundle, write_bundle
from spotlessnet.proof.deletions import DELETION
from spotlessnet.proof.keys import PublicKeys, SigningKey, TrustedKey
from spotlessnet.proof.spelling import as_bytes
from tests.cli.workshop import spotless
from tests.proof.ledgers import filled, opened, receipt
from tests.proof.tampering import changed_bundle

KEY, NEXT, LAST = SigningKey.new(), SigningKey.new(), SigningKey.new()
TRUSTED = PublicKeys([KEY.public])


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Twelve entries, of which the fifth, eighth and last are receipts; keys hand over at 6 and 9."""
    engine = opened(tmp_path_factory.mktemp("bundles") / "ledger.db")
    with ledger.writing(engine) as connection:
        ledger.create(connection)
    filled(engine, KEY, 5)
    with ledger.writing(engine) as connection:
        ledger.append(connection, dsse.sign(receipt(5), [KEY]), KEY)
        ledger.rotate(connection, KEY, NEXT)
        ledger.append(connection, dsse.sign(receipt(7), [NEXT]), NEXT)
        ledger.append(connection, dsse.sign(receipt(8), [NEXT]), NEXT)
        ledger.rotate(connection, NEXT, LAST)
        ledger.append(connection, dsse.sign(receipt(10), [LAST]), LAST)
        ledger.append(connection, dsse.sign(receipt(11), [LAST, KEY]), LAST)
    return engine


@pytest.mark.parametrize("trusted", [KEY, NEXT, LAST], ids=["first key", "second", "third"])
@pytest.mark.parametrize("index", [5, 8, 11])
def test_a_bundle_proves_its_receipt_to_whoever_trusts_any_key_of_the_log(engine, trusted, index, tmp_path):
    with engine.connect() as connection:
        write_bundle(tmp_path / "receipt.bundle.json", bundle(connection, index))
    proven = verify_bundle(read_bundle(tmp_path / "receipt.bundle.json"), PublicKeys([trusted.public]))
    assert proven.receipt["subject"][0]["digest"]["sha256"] == f"{index:064x}"
    assert (proven.index, proven.head.size) == (index, 12)
    assert proven.signers == ({5: KEY, 8: NEXT, 11: LAST}[index].id,)


def test_a_stranger_key_proves_nothing(engine):
    with engine.connect() as connection:
        made = bundle(connection, 5)
    with pytest.raises(IntegrityError, match="no key that is trusted here"):
        verify_bundle(made, PublicKeys([SigningKey.new().public]))


def test_a_key_that_handed_over_signs_nothing_new(engine):
    """Whoever stole the first key later cannot make a bundle that names the rotation and is believed."""
    with engine.connect() as connection:
        made = bundle(connection, 11)
    made["receipt"] = dsse.sign(receipt(99), [KEY])
    with pytest.raises(IntegrityError, match="is not in the log"):
        verify_bundle(made, TRUSTED)
    with engine.connect() as connection:
        head = ledger.tree_head(connection)
    made = {**made, "head": dsse.sign(dsse.taken_apart(head).payload, [KEY], dsse.taken_apart(head).kind)}
    with pytest.raises(IntegrityError, match="not in force then"):
        verify_bundle(made, TRUSTED)


def test_keys_must_hand_over_one_to_the_next(engine):
    with engine.connect() as connection:
        made = bundle(connection, 11)
    first, second = made["rotations"]
    for rotations, said in (
        ([second, first], "must hand over one to the next"),
        ([first, first], "must hand over one to the next"),
        ([], "no key that is trusted here"),
        ([first], "no key that is trusted here"),
    ):
        with pytest.raises(IntegrityError, match=said):
            verify_bundle({**made, "rotations": rotations}, TRUSTED)
    evil = SigningKey.new()
    forged = dsse.sign(dsse.taken_apart(second).payload, [NEXT, evil], dsse.taken_apart(second).kind)
    with pytest.raises(IntegrityError, match="by the old and by the new key"):
        verify_bundle({**made, "rotations": [first, forged]}, TRUSTED)


def test_a_key_with_a_span_is_not_believed_outside_it(engine):
    with engine.connect() as connection:
        made = bundle(connection, 5, size=6)
    day = timedelta(days=1)
    now = datetime.now(UTC)
    assert verify_bundle(made, PublicKeys([TrustedKey(KEY.public.public, now - day, now + day)])).index == 5
    for span in ((now + day, None), (None, now - day)):
        with pytest.raises(IntegrityError, match="not in force then"):
            verify_bundle(made, PublicKeys([TrustedKey(KEY.public.public, *span)]))


def test_what_is_no_receipt_is_not_taken_for_one(engine):
    with engine.connect() as connection:
        with pytest.raises(DataError, match="Entry 6 is a rotation"):
            bundle(connection, 6)
        with pytest.raises(DataError, match="must be a receipt"):
            verify_bundle(bundle(connection, 0), TRUSTED)
        with pytest.raises(DataError, match="no entry 12"):
            bundle(connection, 12)
        made = bundle(connection, 5)
    for change, said in (
        ({"mediaType": "x"}, "must be of type"),
        ({"more": 1}, "and no others"),
        ({"index": True}, "'index' of A bundle must be int"),
        ({"index": -1}, "which a log of 12 entries does not have"),
        ({"inclusion": ["AB" * 32]}, "64 small hexadecimal digits"),
    ):
        with pytest.raises((DataError, IntegrityError), match=said):
            verify_bundle({**made, **change}, TRUSTED)


def test_a_receipt_that_was_changed_before_it_was_signed_is_told(engine, tmp_path):
    engine = opened(tmp_path / "ledger.db")
    told = json.loads(receipt(1))
    told["predicate"]["method"] = "hiding"
    filled(engine, KEY, 1)
    with ledger.writing(engine) as connection:
        ledger.append(connection, dsse.sign(json.dumps(told).encode(), [KEY]), KEY)
        with pytest.raises(IntegrityError, match="changed before it was signed"):
            verify_bundle(bundle(connection, 1), TRUSTED)


def test_files_beside_a_bundle_are_those_of_the_receipt(tmp_path):
    told = json.loads(receipt(1))
    assert files_beside(told, tmp_path) == ([], ["scrubbed.safetensors"])
    (tmp_path / "scrubbed.safetensors").write_bytes(b"other")
    with pytest.raises(IntegrityError, match="its digest differs"):
        files_beside(told, tmp_path)


def test_a_receipt_does_not_choose_which_files_are_read(tmp_path):
    (tmp_path / "beside").mkdir()
    (tmp_path / "secret").write_text("x")
    told = {"subject": [{"name": name, "digest": {"sha256": "0"}} for name in ("../secret", "a/b", "/etc/passwd")]}
    assert files_beside(told, tmp_path / "beside") == ([], ["../secret", "a/b", "/etc/passwd"])
    for subject in ("x", {}, {"name": 5, "digest": {}}):
        with pytest.raises(DataError, match="must have a name and a digest"):
            files_beside({"subject": [subject]}, tmp_path)


def test_the_receipt_of_a_whole_request_is_proven_too(tmp_path):
    body: dict[str, Any] = {**dict.fromkeys(("request", "received", "due", "outcome", "by"), "x"), "ids": 3}
    body |= {"closed": "2026-01-31T12:00:00+00:00", "models": [], "steps": [], "limits": []}
    told = {"predicateType": DELETION, "subject": [{"name": "request/1", "digest": {"sha256": "0"}}], "predicate": body}
    engine = opened(tmp_path / "ledger.db")
    with ledger.writing(engine) as connection:
        ledger.create(connection)
        ledger.append(connection, dsse.sign(json.dumps(told).encode(), [KEY]), KEY)
        ledger.rotate(connection, KEY, NEXT)
        made = bundle(connection, 0)
    assert verify_bundle(made, TRUSTED).receipt == told
    # A key that was given an end covers what was closed before it.
    day = datetime(2026, 2, 1, tzinfo=UTC)
    assert verify_bundle(made, PublicKeys([TrustedKey(KEY.public.public, ends=day)])).index == 0
    with pytest.raises(IntegrityError, match="not in force then"):
        verify_bundle(made, PublicKeys([TrustedKey(KEY.public.public, ends=day - timedelta(days=2))]))
    write_bundle(tmp_path / "own.bundle.json", made)
    (tmp_path / "key.pub").write_text(KEY.public.pem)
    ended = spotless("verify", tmp_path / "own.bundle.json", "--public-key", tmp_path / "key.pub")
    assert ended.code == 0, ended.err
    assert "a receipt of a whole request" in ended.out


def test_every_byte_of_a_bundle_counts(engine):
    with engine.connect() as connection:
        text = as_bytes(bundle(connection, 11))
    rng = random.Random(0)
    for _ in range(150):
        with pytest.raises((DataError, IntegrityError)):
            verify_bundle(changed_bundle(text, rng), TRUSTED)
