"""A bundle: one file with a signed receipt, the proof that it is in the ledger, and the signed tree head.

Whoever has the public key needs nothing else, neither the ledger nor this package (`docs/verify_receipt.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.core.files import folder_sha256, read_whole, sha256, write_whole
from spotlessnet.proof import ledger, merkle
from spotlessnet.proof.dsse import STATEMENT, taken_apart, trusted_signers, verify
from spotlessnet.proof.heads import TreeHead, head_of, rotation_of, verify_head, with_rotations
from spotlessnet.proof.keys import Made, PublicKeys
from spotlessnet.proof.spelling import as_bytes, fields, hash_of, parsed
from spotlessnet.proof.statements import ended_by, receipt_of

BUNDLE = "application/vnd.spotlessnet.bundle+json;version=1"
SUFFIX = ".bundle.json"
LARGEST = 2**26
"""Bytes of a bundle at most."""

Bundle = dict[str, Any]


@dataclass(frozen=True)
class Proven:
    """What a bundle proves.

    **Arguments:**

    - `receipt`: what was signed.
    - `index`: its place in the ledger.
    - `head`: the tree head under which it was seen there; keep it, and ask for consistency later.
    - `signers`: ids of the trusted keys that signed the receipt.
    """

    receipt: dict[str, Any]
    index: int
    head: TreeHead
    signers: tuple[str, ...]


def bundle(connection: Connection, index: int, size: int | None = None) -> Bundle:
    """The bundle of the entry at `index`, proven by the tree head of `size` entries, the newest unless said."""
    receipt = ledger.entry(connection, index)
    if taken_apart(receipt).kind != STATEMENT:
        raise DataError(f"Entry {index} is a rotation of keys, not a receipt. Ask for another one.")
    head = ledger.tree_head(connection, size)
    path = ledger.inclusion(connection, index, head_of(head).size)
    return {
        "mediaType": BUNDLE,
        "receipt": receipt,
        "index": index,
        "inclusion": [one.hex() for one in path],
        "head": head,
        "rotations": ledger.rotation_envelopes(connection),
    }


def write_bundle(path: Path, content: Bundle, *, replace: bool = False) -> str:
    """Write a bundle whole, and give its SHA-256."""
    return write_whole(path, as_bytes(content), replace=replace, shared=True)


def read_bundle(path: Path) -> Bundle:
    """A bundle from disk, not yet checked."""
    return parsed(bytes(read_whole(path, "bundle", LARGEST)), str(path))


def is_bundle(path: Path) -> bool:
    """Whether a file should be read as a bundle, told by its name alone."""
    return path.name.endswith(SUFFIX)


def verify_bundle(content: Any, keys: PublicKeys) -> Proven:
    """What a bundle proves to whoever trusts these keys; raises where it proves nothing."""
    kinds = {"mediaType": str, "receipt": dict, "index": int, "inclusion": list, "head": dict, "rotations": list}
    held = fields(content, kinds, "A bundle")
    if held["mediaType"] != BUNDLE:
        raise DataError(f"A bundle must be of type {BUNDLE!r}, but is {held['mediaType'][:80]!r}.")
    turns = [rotation_of(one) for one in held["rotations"]]
    trusted = with_rotations(keys, turns)
    head = verify_head(held["head"], trusted)
    if any(turn.log != head.log for turn in turns):
        raise IntegrityError("A rotation in the bundle is of another log than its tree head.")
    path = [hash_of(one, "A hash of the inclusion proof") for one in held["inclusion"]]
    index = int(held["index"])
    merkle.check_inclusion(merkle.leaf_hash(as_bytes(held["receipt"])), index, head.size, path, head.root)
    opened = taken_apart(held["receipt"])
    made = Made(index, min(ended_by(opened.payload, head.time), head.time), head.time)
    receipt = receipt_of(verify(held["receipt"], trusted, made))
    return Proven(receipt, index, head, tuple(trusted_signers(opened, trusted, made)))


def files_beside(receipt: dict[str, Any], folder: Path) -> tuple[list[str], list[str]]:
    """Which of the things that a receipt speaks of are files of a folder, and which do not lie there."""
    found, absent = [], []
    for subject in receipt["subject"]:
        name, digest = (subject.get(part) if isinstance(subject, dict) else None for part in ("name", "digest"))
        if not isinstance(name, str) or not isinstance(digest, dict):
            raise DataError("Everything that a receipt speaks of must have a name and a digest, but something has not.")
        # Never a path: a receipt must not choose which files of this machine are read.
        path = folder / name
        is_plain = Path(name).name == name and "\0" not in name
        if not is_plain or not (path.is_file() or path.is_dir()):
            absent.append(name)
            continue
        own = folder_sha256(path) if path.is_dir() and not path.is_symlink() else sha256(path)
        if own != digest.get("sha256"):
            raise IntegrityError(f"{name} is not the file that the receipt was written for: its digest differs.")
        found.append(name)
    return found, absent
