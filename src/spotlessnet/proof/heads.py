"""Signed tree heads: which log, how many entries, their root, and when; and rotations, by which a key hands over."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.proof.dsse import Envelope, pae, sign, taken_apart, verify
from spotlessnet.proof.keys import Made, PublicKeys, SigningKey, TrustedKey, public_key
from spotlessnet.proof.spelling import as_bytes, fields, hash_of, parsed, time_of, time_text

HEAD = "application/vnd.spotlessnet.tree-head+json"
ROTATION = "application/vnd.spotlessnet.key-rotation+json"


@dataclass(frozen=True)
class TreeHead:
    """What a log was at one moment.

    **Arguments:**

    - `log`: the log's name, drawn when it was made.
    """

    log: str
    size: int
    root: bytes
    time: datetime

    def signed(self, key: SigningKey) -> Envelope:
        """In an envelope."""
        told = {"log": self.log, "size": self.size, "root": self.root.hex(), "time": time_text(self.time)}
        return sign(as_bytes(told), [key], HEAD)


def head_of(envelope: Any) -> TreeHead:
    """The tree head in an envelope, whoever signed it."""
    opened = taken_apart(envelope)
    if opened.kind != HEAD:
        raise IntegrityError(f"A tree head must be of type {HEAD!r}, but is {opened.kind[:80]!r}.")
    kinds = {"log": str, "size": int, "root": str, "time": str}
    told = fields(parsed(opened.payload, "A tree head"), kinds, "A tree head")
    if told["size"] < 0:
        raise DataError("A tree head must be of a log with entries or none, but counts below zero.")
    root = hash_of(told["root"], "The root of a tree head")
    return TreeHead(told["log"], told["size"], root, time_of(told["time"], "The time of a tree head"))


def verify_head(envelope: Any, keys: PublicKeys) -> TreeHead:
    """The tree head in an envelope, signed by a key that was in force."""
    head = head_of(envelope)
    verify(envelope, keys, Made(max(head.size - 1, 0), head.time, head.time), HEAD)
    return head


@dataclass(frozen=True)
class Rotation:
    """One key hands over to another, at a place in the log: signed by both.

    From the entry at `index`, which is the rotation itself, the new key signs entries and tree heads; the old one no
    longer does. Whoever trusts either key can so come to trust the other, for its stretch of the log alone.
    """

    log: str
    index: int
    time: datetime
    old: TrustedKey
    new: TrustedKey


def signed_rotation(log: str, index: int, time: datetime, old: SigningKey, new: SigningKey) -> Envelope:
    """The entry by which `old` hands over to `new`."""
    told = {"log": log, "index": index, "time": time_text(time), "old": old.public.pem, "new": new.public.pem}
    return sign(as_bytes(told), [old, new], ROTATION)


def rotation_of(envelope: Any) -> Rotation:
    """The rotation in an envelope, if both keys that it names signed it."""
    opened = taken_apart(envelope)
    if opened.kind != ROTATION:
        raise IntegrityError(f"A rotation must be of type {ROTATION!r}, but is {opened.kind[:80]!r}.")
    kinds = {"log": str, "index": int, "time": str, "old": str, "new": str}
    told = fields(parsed(opened.payload, "A rotation"), kinds, "A rotation")
    old, new = (TrustedKey(public_key(told[name].encode())) for name in ("old", "new"))
    message = pae(opened.kind, opened.payload)
    given = {one.key_id: one.value for one in opened.signatures}
    if given.keys() != {old.id, new.id} or not all(key.holds(message, given[key.id]) for key in (old, new)):
        raise IntegrityError("A rotation must be signed by the old and by the new key, but is not.")
    return Rotation(told["log"], told["index"], time_of(told["time"], "The time of a rotation"), old, new)


def with_rotations(keys: PublicKeys, rotations: Sequence[Rotation]) -> PublicKeys:
    """Trusted keys and, where one of them is among those that handed over, all of these, each for its stretch."""
    for one, other in pairwise(rotations):
        if one.new.id != other.old.id or one.index >= other.index or one.log != other.log:
            raise IntegrityError(
                f"The keys of a log must hand over one to the next, but {other.old.id[:16]} handed over at entry "
                f"{other.index} without having taken over before."
            )
    chain = [one.old for one in rotations[:1]] + [one.new for one in rotations]
    if len({key.id for key in chain}) != len(chain):
        raise IntegrityError("A key that handed over must not take over again, but one did.")
    if not any(key.id in keys for key in chain):
        return keys
    turns = [one.index for one in rotations]
    known = [keys.get(key.id, key) for key in chain]
    spans = zip(known, [0, *turns], [*turns, None], strict=True)
    return PublicKeys([*keys.values(), *(replace(key, first=first, end=end) for key, first, end in spans)])
