"""`RecordedRows`: which rows a training saw, in which order and under which ids, told by keyed digests alone."""

import hashlib
import secrets
from collections import Counter
from dataclasses import dataclass

from torch import Tensor

from spotlessnet.core.data import WIDTH, Data, keyed_digests, spelled
from spotlessnet.core.errors import DataError, MismatchError
from spotlessnet.core.row_keys import SALT, RowKeys


@dataclass(frozen=True, eq=False)
class RecordedRows:
    """Digests of rows under a salt: no row and no id stands in them, and without the salt nobody can test a guess.

    **Arguments:**

    - `keys`: of inputs and labels, in rising order.
    - `order`: one digest of all keys in the order of the rows: another order is another training.
    - `ids`: of each id together with its row, in rising order; `None` where the rows had no ids.
    """

    keys: RowKeys
    order: bytes
    ids: RowKeys | None = None

    @staticmethod
    def of(data: Data, column: str | None, salt: bytes | None = None) -> "RecordedRows":
        """The digests of all rows, with the ids of a column, under a new salt unless one is given."""
        salt = secrets.token_bytes(SALT) if salt is None else salt
        listed = keyed_digests(data, salt)
        named = None if column is None else RowKeys.from_digests(salt, _named(listed, data.column(column), salt))
        return RecordedRows(RowKeys.from_digests(salt, listed), _in_order(listed, salt), named)

    def check(self, data: Data, column: str | None, what: str) -> None:
        """Raise unless these are the very rows, in the same order and under the same ids.

        **Arguments:**

        - `what`: how messages call the rows, such as `--data`.
        """
        salt = self.keys.salt
        listed = keyed_digests(data, salt)
        unknown = sum((Counter(listed) - Counter(self.keys.listed)).values())
        missing = sum((Counter(self.keys.listed) - Counter(listed)).values())
        if unknown:
            raise MismatchError(
                f"{unknown} of {len(data)} rows of {what} are not among the {len(self.keys)} rows of the recorded "
                "training: their contents have changed, or these are other data. Give the rows that it was trained on, "
                "without those that requests have forgotten since."
            )
        if missing:
            raise MismatchError(
                f"{missing} of {len(self.keys)} rows of the recorded training are not among those of {what}, but the "
                "network still knows them. Put them back and ask for them too. If a request removed them, go on from "
                "the training records that it wrote."
            )
        if _in_order(listed, salt) != self.order:
            raise MismatchError(
                f"The rows of {what} are those of the recorded training in another order, so that retraining would "
                "not follow it. Give them in the order that they had."
            )
        if self.ids is not None and column is not None:
            strange = sum((Counter(_named(listed, data.column(column), salt)) - Counter(self.ids.listed)).values())
            if strange:
                raise MismatchError(
                    f"{strange} of {len(data)} rows of {what} have another id in {column!r} than when they were "
                    "trained on, so that a list of ids would name other rows. Give the ids that they had."
                )


def _named(listed: list[bytes], ids: list[object], salt: bytes) -> list[bytes]:
    """For each row a digest of its id and its contents together: equal ids of two rows cannot be told to be equal."""
    return [
        hashlib.blake2b(key + name.encode(), digest_size=WIDTH, key=salt).digest()
        for key, name in zip(listed, spelled(ids), strict=True)
    ]


def _in_order(listed: list[bytes], salt: bytes) -> bytes:
    return hashlib.blake2b(b"".join(listed), digest_size=WIDTH, key=salt).digest()


def check_steady(data: Data, count: int = 8) -> None:
    """Raise where rows come out otherwise when they are read again: such rows can never be recognised."""
    few = data.select(range(min(count, len(data))))
    if keyed_digests(few, b"\0") != keyed_digests(few, b"\0"):
        raise DataError(
            "Rows must be the same each time that they are read, but these are not: something in them is drawn at "
            "random. Give them without augmentation, and augment in the training."
        )


def tensors_of(rows: RecordedRows) -> dict[str, Tensor]:
    """The digests as tensors, for a file."""
    found = {"keys": rows.keys.digests}
    return found if rows.ids is None else {**found, "ids": rows.ids.digests}
