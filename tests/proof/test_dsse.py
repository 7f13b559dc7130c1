"""Envelopes: the specification's example, and everything that must not be taken for signed."""

import base64
import copy
import json
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from spotlessnet.core.errors import DataError, IntegrityError, NeedError
from spotlessnet.proof.dsse import STATEMENT, pae, sign, verify
from spotlessnet.proof.keys import Made, PublicKeys, SigningKey, TrustedKey

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
THEN = Made(0, NOON, NOON)
KEY, OTHER = SigningKey.new(), SigningKey.new()
TRUSTED = PublicKeys([KEY.public])


def test_the_bytes_that_are_signed_are_those_of_the_specification():
    """Its example: protocol.md, "Test Vectors", with ECDSA over P-256, whose signature must hold over our bytes."""
    message = pae("http://example.com/HelloWorld", b"hello world")
    assert message == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    x = 46950820868899156662930047687818585632848591499744589407958293238635476079160
    y = 5640078356564379163099075877009565129882514886557779369047442380624545832820
    raw = base64.b64decode("A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA==")
    signature = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    public = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    public.verify(signature, message, ec.ECDSA(SHA256()))


def test_lengths_are_of_bytes_and_part_type_from_payload():
    assert pae("ü", b"") == b"DSSEv1 2 \xc3\xbc 0 "
    assert pae("a", b"1 b") != pae("a 3 1", b"b")


def test_an_envelope_opens_for_whoever_trusts_one_of_its_keys():
    envelope = sign(b"{}", [KEY, OTHER])
    assert [one["keyid"] for one in envelope["signatures"]] == [KEY.id, OTHER.id]
    for trusted in (KEY.public, OTHER.public):
        assert verify(envelope, PublicKeys([trusted]), THEN) == b"{}"
    with pytest.raises(IntegrityError, match="no key that is trusted here"):
        verify(envelope, PublicKeys([SigningKey.new().public]), THEN)
    with pytest.raises(NeedError, match="one key at least"):
        sign(b"{}", [])


def swapped(text: str) -> str:
    return ("B" if text[0] == "A" else "A") + text[1:]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda e: e.update(payload=swapped(e["payload"])), IntegrityError),
        (lambda e: e.update(payloadType="application/json"), IntegrityError),
        (lambda e: e["signatures"][0].update(sig=swapped(e["signatures"][0]["sig"])), IntegrityError),
        (lambda e: e["signatures"][0].update(keyid=OTHER.id), IntegrityError),
        (lambda e: e["signatures"][0].update(sig=e["signatures"][0]["sig"][:40]), (DataError, IntegrityError)),
        (lambda e: e["signatures"].append(dict(e["signatures"][0])), DataError),
        (lambda e: e["signatures"].clear(), DataError),
        (lambda e: e["signatures"][0].update(note="x"), DataError),
        (lambda e: e.update(note="x"), DataError),
        (lambda e: e.pop("payloadType"), DataError),
        (lambda e: e.update(payload=e["payload"] + "\n"), DataError),
        (lambda e: e.update(payload=5), DataError),
        (lambda e: e.update(signatures=[5]), DataError),
    ],
)
def test_a_changed_envelope_does_not_open(change, error):
    envelope = copy.deepcopy(sign(b'{"a": 1}', [KEY]))
    change(envelope)
    with pytest.raises(error):
        verify(envelope, TRUSTED, THEN)


def test_bytes_have_one_spelling():
    """Spare bits at the end of base64 are ignored by loose readers: two texts, one signature."""
    envelope = sign(b"a", [KEY])
    assert envelope["payload"] == "YQ=="
    with pytest.raises(IntegrityError, match="nobody would write so"):
        verify({**envelope, "payload": "YR=="}, TRUSTED, THEN)


def test_what_was_signed_for_one_purpose_is_not_taken_for_another():
    envelope = sign(b"{}", [KEY], "application/x-other")
    with pytest.raises(IntegrityError, match=f"must hold '{STATEMENT}'".replace("+", r"\+")):
        verify(envelope, TRUSTED, THEN)


@pytest.mark.parametrize(
    ("trusted", "holds"),
    [
        ({"begins": NOON - timedelta(1), "ends": NOON + timedelta(1)}, True),
        ({"begins": NOON + timedelta(seconds=1)}, False),
        ({"ends": NOON - timedelta(seconds=1)}, False),
        ({"first": 7, "end": 8}, True),
        ({"first": 8}, False),
        ({"end": 7}, False),
    ],
)
def test_a_key_is_trusted_for_its_span(trusted, holds):
    envelope, made = sign(b"{}", [KEY]), Made(7, NOON, NOON)
    keys = PublicKeys([TrustedKey(KEY.public.public, **trusted)])
    if holds:
        assert verify(envelope, keys, made) == b"{}"
    else:
        with pytest.raises(IntegrityError, match="not in force then"):
            verify(envelope, keys, made)


def test_envelopes_are_json():
    assert json.loads(json.dumps(sign(b"\xff", [KEY]))) == sign(b"\xff", [KEY])
