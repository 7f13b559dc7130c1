"""DSSE, the envelope in which in-toto statements are signed: payload, its type, and one or more signatures.

A signature is of `PAE(type, payload)`, the pre-authentication encoding, in which lengths stand before contents: no
other pair of type and payload has the same bytes. See https://github.com/secure-systems-lab/dsse.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from spotlessnet.core.errors import DataError, IntegrityError, NeedError
from spotlessnet.proof.keys import Made, PublicKeys, SigningKey
from spotlessnet.proof.spelling import fields, from_base64, to_base64

STATEMENT = "application/vnd.in-toto+json"
"""The payload type of a receipt."""

Envelope = dict[str, Any]


class Signature(NamedTuple):
    """Whose it claims to be, and its bytes."""

    key_id: str
    value: bytes


class Opened(NamedTuple):
    """An envelope, taken apart and not yet trusted."""

    kind: str
    payload: bytes
    signatures: tuple[Signature, ...]


def pae(kind: str, payload: bytes) -> bytes:
    """The bytes that are signed.

    >>> pae("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    name = kind.encode()
    return b"DSSEv1 %d %s %d %s" % (len(name), name, len(payload), payload)


def sign(payload: bytes, keys: Sequence[SigningKey], kind: str = STATEMENT) -> Envelope:
    """Put a payload into an envelope, signed by every key given.

    **Arguments:**

    - `payload`: of a receipt, the bytes of its file as it was written.
    """
    if not keys:
        raise NeedError("An envelope needs one key at least to be signed with, but none was given.")
    signatures = [{"keyid": key.id, "sig": to_base64(key.sign(pae(kind, payload)))} for key in keys]
    return {"payload": to_base64(payload), "payloadType": kind, "signatures": signatures}


def taken_apart(envelope: Any) -> Opened:
    """What an envelope holds; whoever signed it is not looked at yet."""
    held = fields(envelope, {"payload": str, "payloadType": str, "signatures": list}, "An envelope")
    signatures = []
    for one in held["signatures"]:
        told = fields(one, {"keyid": str, "sig": str}, "A signature")
        signatures.append(Signature(told["keyid"], from_base64(told["sig"], "A signature")))
    if len({one.key_id for one in signatures}) != len(signatures) or not signatures:
        raise DataError("An envelope must be signed, by every key once at most.")
    return Opened(held["payloadType"], from_base64(held["payload"], "The payload"), tuple(signatures))


def verify(envelope: Any, keys: PublicKeys, made: Made, kind: str = STATEMENT) -> bytes:
    """The payload of an envelope, if a trusted key signed it and every signature by a known key holds.

    **Arguments:**

    - `made`: where in the log and when it was signed; a key is trusted for its span alone.
    - `kind`: the payload type that must stand there, so that nothing signed for another purpose is taken.
    """
    opened = taken_apart(envelope)
    if opened.kind != kind:
        raise IntegrityError(f"The envelope must hold {kind!r}, but holds {opened.kind[:80]!r}.")
    signers = trusted_signers(opened, keys, made)
    if not signers:
        known = [one.key_id for one in opened.signatures if one.key_id in keys]
        why = "a key that was not in force then" if known else "no key that is trusted here"
        names = ", ".join(one.key_id[:16] for one in opened.signatures)
        raise IntegrityError(f"It is signed by {why} ({names}). Give the public key that was in force.")
    return opened.payload


def trusted_signers(opened: Opened, keys: PublicKeys, made: Made) -> list[str]:
    """The trusted keys, in force when this was made, that signed; a false signature by a known key is refused."""
    message = pae(opened.kind, opened.payload)
    found = []
    for one in opened.signatures:
        if one.key_id not in keys:
            continue
        trusted = keys[one.key_id]
        if not trusted.holds(message, one.value):
            raise IntegrityError(f"The signature by key {one.key_id[:16]} does not hold: what it signs was changed.")
        if trusted.was_in_force(made):
            found.append(one.key_id)
    return found
