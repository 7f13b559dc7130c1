"""`RowKeys`: which rows something was made from, told by their contents and not by where they stand."""

import hashlib
import secrets
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from spotlessnet.core.data import WIDTH, Data, keyed_digests
from spotlessnet.core.errors import DataError, MismatchError

SALT = 16
"""Bytes of a salt."""

LONGEST = 64
"""The most bytes that BLAKE2b takes as its key."""


@dataclass(frozen=True, eq=False)
class RowKeys:
    """Keyed digests of rows' inputs and labels, in rising order, so that neither order nor gaps tell of rows gone.

    A row keeps its key wherever it stands, so rows can be taken out of the data. Copies of a row share a key; they are
    counted, and one of them stands for any other.

    **Arguments:**

    - `salt`: without it nobody can test a guess; it lies beside the keys, so guard both alike.
    - `digests`: one for every row.
    """

    salt: bytes
    digests: UInt8[Tensor, "N w"]

    def __post_init__(self) -> None:
        if not 1 <= len(self.salt) <= LONGEST:
            raise DataError(f"The salt of keys must have 1 to {LONGEST} bytes, but has {len(self.salt)}.")

    @staticmethod
    def of(data: Data, salt: bytes | None = None) -> "RowKeys":
        """The keys of all rows, under a new salt unless one is given."""
        salt = secrets.token_bytes(SALT) if salt is None else salt
        return RowKeys.from_digests(salt, keyed_digests(data, salt))

    @staticmethod
    def from_digests(salt: bytes, listed: list[bytes]) -> "RowKeys":
        """Keys that were made under this salt, in whatever order they come."""
        together = bytearray(b"".join(sorted(listed)))
        flat = torch.frombuffer(together, dtype=torch.uint8) if together else torch.empty(0, dtype=torch.uint8)
        return RowKeys(salt, flat.reshape(-1, WIDTH).clone())

    def __len__(self) -> int:
        return len(self.digests)

    @cached_property
    def listed(self) -> list[bytes]:
        """Every key as bytes."""
        together = self.digests.cpu().numpy().tobytes()
        return [together[i : i + WIDTH] for i in range(0, len(together), WIDTH)]

    @cached_property
    def _first(self) -> dict[bytes, int]:
        return {key: i for i, key in reversed(list(enumerate(self.listed)))}

    def count_unknown(self, data: Data) -> int:
        """How many rows are not among these; of copies, as many count as there are here."""
        return sum((Counter(keyed_digests(data, self.salt)) - Counter(self.listed)).values())

    def check_hold(self, data: Data, what: str) -> None:
        """Raise unless all rows are among these; `what` says whose keys these are."""
        unknown = self.count_unknown(data)
        if unknown:
            raise MismatchError(
                f"{unknown} of {len(data)} rows are not among the {len(self)} rows of {what}: they were forgotten "
                "before, their contents have changed, or these are other data. Give the rows that it was made from, "
                "as they were, less those forgotten since."
            )

    def without(self, data: Data) -> "RowKeys":
        """The keys that stay when these rows go; all of them must be here."""
        left = Counter(self.listed)
        left.subtract(keyed_digests(data, self.salt))
        return RowKeys.from_digests(self.salt, list(left.elements()))

    def find(self, data: Data) -> Int64[Tensor, " n"]:
        """Where each row's key stands, or -1; copies of a row stand at the first of them."""
        return torch.tensor([self._first.get(key, -1) for key in keyed_digests(data, self.salt)], dtype=torch.long)


def next_salt(salt: bytes, seed: int) -> bytes:
    """The salt that follows another where everything must come out the same again: for experiments only."""
    return hashlib.blake2b(seed.to_bytes(SALT, "big", signed=True), digest_size=SALT, key=salt).digest()
