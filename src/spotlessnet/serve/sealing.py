"""Keys of a desk: ids become keyed digests, and their copies are encrypted; without the key nobody can test a guess."""

import hashlib
import hmac
import json
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from spotlessnet.core.errors import DataError, IntegrityError, ResourceError, SettingError
from spotlessnet.core.files import write_whole

KEY, NONCE = 32, 12
FILE = "desk.key"


@dataclass(frozen=True)
class Keys:
    """One secret of 32 bytes, from which each tenant and each purpose has a key of its own.

    **Arguments:**

    - `secret`: guard it as the ids themselves; whoever loses it can match no request any more.
    """

    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != KEY:
            raise SettingError(
                f"The key of a desk must have {KEY} bytes, but has {len(self.secret)}. Give another file."
            )

    @staticmethod
    def at(path: Path) -> "Keys":
        """The key in a file, which is made at the first start, readable by its owner alone."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                write_whole(path, secrets.token_bytes(KEY))  # readable by its owner alone
            except DataError:
                # Another process, which started at the same moment, was first: its key is the one.
                if not path.exists():
                    raise
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            secret = path.read_bytes()
        except OSError as e:
            raise ResourceError(f"The key {path} cannot be read ({e.strerror or e}).") from e
        # As for the key that signs: a group may read it, since secrets are handed to containers so.
        if mode & 0o027:
            raise ResourceError(
                f"The key {path} must be kept from others, but its mode is {mode:o}. Run `chmod 600 {path}`; if others "
                "may have read it, it counts as stolen."
            )
        return Keys(secret)

    def _for(self, purpose: str, tenant: str = "") -> bytes:
        return hmac.digest(self.secret, f"spotlessnet desk/{purpose}/{tenant}".encode(), hashlib.sha256)

    def ids_key(self, tenant: str) -> bytes:
        """What keys the digests of a tenant's ids; a training reads it with the suppression list."""
        return self._for("ids", tenant)

    def id_digest(self, tenant: str, one: str) -> bytes:
        """The keyed digest of an id, as requests, models and the suppression list have it."""
        return digest_under(self.ids_key(tenant), one)

    def key_digest(self, tenant: str, key: str) -> bytes:
        """The keyed digest of a request's key: people put names into such keys."""
        return hmac.digest(self._for("request keys", tenant), key.encode(), hashlib.sha256)

    def sign(self, purpose: str, content: bytes) -> bytes:
        """A code that only this desk can make, for cookies and forms."""
        return hmac.digest(self._for(purpose), content, hashlib.sha256)

    @property
    def trail_key(self) -> bytes:
        """What codes events: whoever writes to the database without it writes no event that counts."""
        return self._for("trail")

    def seal(self, tenant: str, content: bytes) -> bytes:
        """Encrypted, so that another tenant's key does not open it."""
        nonce = secrets.token_bytes(NONCE)
        return nonce + AESGCM(self._for("copies", tenant)).encrypt(nonce, content, tenant.encode())

    def open(self, tenant: str, sealed: bytes) -> bytes:
        """What was sealed."""
        try:
            return AESGCM(self._for("copies", tenant)).decrypt(sealed[:NONCE], sealed[NONCE:], tenant.encode())
        except InvalidTag as e:
            raise IntegrityError(
                "An encrypted copy of ids must open under the desk's key, but does not: the key file is another, or "
                "the copy was changed. Bring the key file back from the backup."
            ) from e

    def seal_ids(self, tenant: str, ids: Sequence[str]) -> bytes:
        """The encrypted copy of a request's ids."""
        return self.seal(tenant, json.dumps(list(ids)).encode())

    def open_ids(self, tenant: str, sealed: bytes) -> list[str]:
        """The ids of an encrypted copy."""
        return [str(one) for one in json.loads(self.open(tenant, sealed))]


def digest_under(key: bytes, one: str) -> bytes:
    """The keyed digest of an id."""
    return hmac.digest(key, one.encode(), hashlib.sha256)
