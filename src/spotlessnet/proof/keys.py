"""Keys: a pair made at the first start, public keys with the span for which each is trusted.

A key's id is the SHA-256 of its public key in DER, as `openssl pkey -pubin -in key.pub -outform DER | sha256sum` gives.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from spotlessnet.core.errors import DataError, ResourceError, SettingError
from spotlessnet.core.files import read_whole, write_whole
from spotlessnet.proof.spelling import parsed

LARGEST = 2**20
"""Bytes of a file of keys at most."""

PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.S)


class SigningKey:
    """A private ed25519 key. It signs, and never shows itself."""

    __slots__ = ("_key", "id", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        """Take `new`, `read` or `at` instead."""
        self._key = key
        self.public = TrustedKey(key.public_key())
        self.id = self.public.id

    @staticmethod
    def new() -> "SigningKey":
        """A new key, which is nowhere but here."""
        return SigningKey(Ed25519PrivateKey.generate())

    @staticmethod
    def at(path: Path) -> "SigningKey":
        """The key of this file; where there is none, one is made and written, for its owner's eyes alone.

        An existing file is never overwritten: of two processes that start at once, both end with the same key.
        """
        if not path.exists():
            try:
                SigningKey.new().write(path)
            except DataError:
                # The other process was first, and its file is whole: it appeared at once or not at all.
                if not path.exists():
                    raise
        return SigningKey.read(path)

    @staticmethod
    def read(path: Path) -> "SigningKey":
        """A private key in PEM (PKCS 8), as `write` and `openssl genpkey -algorithm ed25519` leave it."""
        content = bytes(read_whole(path, "private key", LARGEST))
        mode = stat.S_IMODE(os.stat(path).st_mode)
        # A group may read it, since secrets are handed to containers so; the world may not.
        if mode & 0o027:
            raise ResourceError(
                f"The private key {path} must be kept from others, but its mode is {mode:o}. Run `chmod 600 {path}`, "
                "and rotate the key if others may have read it."
            )
        try:
            key = load_pem_private_key(content, password=None)
        except (ValueError, TypeError) as e:
            raise DataError(f"{path} must be a private key in PEM without a passphrase, but is not.") from e
        if not isinstance(key, Ed25519PrivateKey):
            raise DataError(f"{path} must be an ed25519 key, but is another kind. `spotless keys new` makes one.")
        return SigningKey(key)

    def write(self, path: Path) -> None:
        """Write the key whole, readable by its owner alone; an existing file is refused."""
        write_whole(path, self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of an ed25519 signature."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"SigningKey({self.id[:16]})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise SettingError("A private key cannot be copied or stored so. Read it from its file where it is needed.")


class Made(NamedTuple):
    """Where in the log and when something was signed.

    **Arguments:**

    - `position`: the index of an entry; of a tree head, of the last entry that it covers.
    - `earliest`, `latest`: between these times.
    """

    position: int
    earliest: datetime
    latest: datetime


@dataclass(frozen=True)
class TrustedKey:
    """A public key and the span for which it is trusted.

    **Arguments:**

    - `begins`, `ends`: times, as whoever gave the key says.
    - `first`, `end`: positions in the log, as a signed rotation says; `end` itself is not covered.
    """

    public: Ed25519PublicKey
    begins: datetime | None = None
    ends: datetime | None = None
    first: int = 0
    end: int | None = None

    @property
    def id(self) -> str:
        """SHA-256 of the key in DER."""
        der = self.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(der).hexdigest()

    @property
    def pem(self) -> str:
        """The key as text, for a file or a page."""
        return self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def holds(self, message: bytes, signature: bytes) -> bool:
        """Whether this key signed the message."""
        try:
            self.public.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def was_in_force(self, made: Made) -> bool:
        """Whether the key was trusted there and then."""
        if made.position < self.first or (self.end is not None and made.position >= self.end):
            return False
        too_early = self.begins is not None and made.latest < self.begins
        too_late = self.ends is not None and made.earliest > self.ends
        return not too_early and not too_late


class PublicKeys(Mapping[str, TrustedKey]):
    """The public keys that are trusted, by their ids."""

    def __init__(self, keys: Iterable[TrustedKey]) -> None:
        """Take these keys."""
        self._keys = {key.id: key for key in keys}

    def __getitem__(self, key_id: str) -> TrustedKey:
        return self._keys[key_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    @staticmethod
    def read(*paths: Path) -> "PublicKeys":
        """Public keys from files: PEM, one or several, or JSON that gives each its span.

        JSON: `{"keys": [{"public_key": "-----BEGIN PUBLIC KEY-----…", "from": time or null, "until": time or null}]}`.
        """
        found: list[TrustedKey] = []
        for path in paths:
            content = bytes(read_whole(path, "public key", LARGEST))
            if content.lstrip().startswith(b"{"):
                found += _with_spans(parsed(content, str(path)), path)
            else:
                found += [TrustedKey(public_key(text)) for text in PEM.findall(content)]
        if not found:
            names = ", ".join(map(str, paths)) or "nothing"
            raise DataError(f"A public key in PEM (-----BEGIN PUBLIC KEY-----) is needed, but {names} holds none.")
        return PublicKeys(found)


def public_key(text: bytes) -> Ed25519PublicKey:
    """An ed25519 public key from PEM."""
    try:
        key = load_pem_public_key(text)
    except ValueError as e:
        raise DataError("A public key must be PEM (-----BEGIN PUBLIC KEY-----), but this cannot be read.") from e
    if not isinstance(key, Ed25519PublicKey):
        raise DataError("A public key must be an ed25519 key, but this is another kind.")
    return key


def _with_spans(held: dict[str, Any], path: Path) -> list[TrustedKey]:
    listed = held.get("keys")
    if not isinstance(listed, list):
        raise DataError(f'{path} must hold {{"keys": [...]}}, but does not.')
    found = []
    for one in listed:
        if not isinstance(one, dict) or not isinstance(one.get("public_key"), str):
            raise DataError(f"Every key of {path} must have a `public_key` in PEM, but one has none.")
        begins, ends = (_time(one.get(name), name, path) for name in ("from", "until"))
        found.append(TrustedKey(public_key(one["public_key"].encode()), begins, ends))
    return found


def _time(text: Any, name: str, path: Path) -> datetime | None:
    """A time as people write it; it must say its zone."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        found = None
    if found is None or found.tzinfo is None:
        raise DataError(f"{name!r} of a key of {path} must be a time with its zone, such as 2026-01-31T12:00Z.")
    return found
