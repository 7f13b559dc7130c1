"""What a request reads, digested: files before and after they are read, and rows as the loader gave them."""

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotlessnet.core.data import Batch, Data, content_digests
from spotlessnet.core.errors import IntegrityError
from spotlessnet.core.files import sha256
from spotlessnet.requests.case import Case, as_flag
from spotlessnet.store.receipts import plain

DATA = ("data", "test", "validation", "core")
OF_ONE_REQUEST = ("forget", "reference", "statistics", "fold_models", "out")
"""Whose names may tell who asked; they are never printed."""

KNOW_THE_ROWS = ("weights", "reference", "statistics", "fold_models")
"""Made from the rows: whoever can make them anew with a guess could confirm it by a plain digest."""

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".py")


@dataclass(frozen=True)
class Look:
    """One input as it was found: digests of the file, or of each in a folder, and the file system's marks."""

    path: Path
    digests: Mapping[str, str]
    marks: Mapping[str, tuple[int, ...]]

    @staticmethod
    def at(path: Path) -> "Look":
        """Read it all once."""
        # Of a folder only shards and their index are ever read.
        inside = sorted(path.iterdir()) if path.is_dir() else []
        shards = [p for p in inside if p.is_file() and p.suffix in (".safetensors", ".json")]
        chosen = shards if path.is_dir() else [path]
        marks = {p.name: _marks(p) for p in chosen}
        return Look(path, {p.name: sha256(p) for p in chosen}, marks)

    @property
    def sha256(self) -> str:
        """Of a file's bytes; of a folder, of the list of its files' digests."""
        if not self.path.is_dir():
            return next(iter(self.digests.values()))
        return hashlib.sha256(json.dumps(dict(self.digests), sort_keys=True).encode()).hexdigest()

    def record(self, name: str, salt: bytes) -> dict[str, Any]:
        """What a receipt says of it: no name that a person gave, no digest that could confirm a guess."""
        named = {} if name in OF_ONE_REQUEST else {"name": neutral(name, self.path)}
        if name in KNOW_THE_ROWS or (name in DATA and self.path.suffix == ".npz"):
            return {**named, "commitment": keyed(salt, "file", self.sha256)}
        return {**named, "digest": {"sha256": self.sha256}}


def neutral(name: str, path: Path) -> str:
    """A name for a file that says what it is for and of which kind it is, and nothing that its own name may betray.

    >>> neutral("weights", Path("without-jane@mail.org.safetensors")), neutral("weights", Path("shards-of-jane"))
    ('weights.safetensors', 'weights')
    """
    return name + (path.suffix if path.suffix in SUFFIXES else "")


def looks_at(inputs: Mapping[str, Path]) -> dict[str, Look]:
    """Every input as it is now."""
    return {name: Look.at(path) for name, path in inputs.items()}


def check_unchanged(looks: Mapping[str, Look]) -> None:
    """Raise if an input is not what it was: what was read in between may have been something else."""
    for name, look in looks.items():
        try:
            same = Look.at(look.path) == look
        except OSError:
            same = False
        if not same:
            raise IntegrityError(
                f"{as_flag(name)} {look.path} changed while it was read, so nobody could say what was used. Nothing "
                "was written; run the request again when nobody writes to it."
            )


def _marks(path: Path) -> tuple[int, ...]:
    found = os.stat(path)
    # The last is set by the system alone: a file that was exchanged and put back has another.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def keyed(salt: bytes, what: str, text: str) -> str:
    """A commitment to a text, told apart by what it is of; the salt opens it."""
    return hmac.new(salt, f"spotlessnet {what}\0{text}".encode(), hashlib.sha256).hexdigest()


def identity_of(request: Mapping[str, Any], salt: bytes) -> str:
    """The keyed digest of a request, as its receipt tells it."""
    text = json.dumps(plain(request), sort_keys=True).encode()
    return hmac.new(salt, text, hashlib.sha256).hexdigest()


def inputs_of(case: Case) -> dict[str, Path]:
    """Every file and folder that a case reads, by the field that names it."""
    files = ("weights", "forget", "init", "reference", "statistics", "fold_models")
    named = {name: getattr(case, name) for name in files}
    for name in ("model", "data", "test", "validation", "core", "loss", "train"):
        spec = getattr(case, name)
        if isinstance(spec, str):
            place = spec if spec.endswith(".npz") else spec.rpartition(":")[0]
            named[name] = Path(place) if place.endswith((".py", ".npz")) else None
    # Objects of a Python program are no files: what they hold is digested where it is read.
    return {name: path for name, path in named.items() if isinstance(path, Path) and path.exists()}


@dataclass(frozen=True)
class Contents:
    """What one pass over some rows found.

    **Arguments:**

    - `count`: how many rows there are.
    - `sha256`: of inputs, labels and order, as the loader gave them. It can confirm a guess, so only a keyed digest of
      it is ever written down.
    - `copies`: rows with the very inputs of a row to forget, whatever their label.
    - `is_finite`: whether no input or label is NaN or infinite.
    """

    count: int
    sha256: str
    copies: int = 0
    is_finite: bool = True


def contents_of(data: Data, forget: Data | None = None) -> Contents:
    """Read every row once, and those of `forget` twice.

    >>> import torch
    >>> data = Data.of((torch.tensor([[1.0], [2.0], [1.0]]), torch.tensor([0, 1, 1])))
    >>> contents_of(data, data.select([0])).copies
    1
    """
    gone: set[bytes] = set()
    going: set[int] = set()
    if forget is not None:
        gone = {x for batch in forget.batches() for x, _ in content_digests(batch)}
        going = set(forget.rows.tolist())
    copies = 0
    is_finite = True
    whole = hashlib.sha256()
    for batch in data.batches():
        is_finite = is_finite and _is_finite(batch)
        for row, (x, y) in zip(batch.rows.tolist(), content_digests(batch), strict=True):
            whole.update(x + y)
            # A row to forget is not a copy of itself, nor is a second row that goes too.
            copies += x in gone and row not in going
    return Contents(len(data), whole.hexdigest(), copies, is_finite)


def _is_finite(batch: Batch) -> bool:
    values = [*(batch.x.values() if isinstance(batch.x, dict) else [batch.x]), batch.y]
    return all(bool(value.isfinite().all()) for value in values if value.is_floating_point())
