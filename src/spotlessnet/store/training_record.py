"""`TrainingRecord`: the folder that a training leaves for later requests. Weights, digests and names; no code, no row.

`training.json` says how the network was trained, and holds the SHA-256 of the files beside it. Who made a folder may be
anybody, so it is read like any other input: part by part, nothing in it is run, and whatever is odd is refused.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from spotlessnet.core.data import WIDTH
from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.core.files import read_whole, sha256
from spotlessnet.core.recorded_rows import RecordedRows, tensors_of
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.store.checkpoints import read_text, read_weights, to_bytes
from spotlessnet.store.receipts import loads_once

RECORD, INIT, WEIGHTS, ROWS = "training.json", "init.safetensors", "model.safetensors", "rows.safetensors"
FORMAT, ROWS_FORMAT = "spotlessnet training 1", "spotlessnet rows 1"

LARGEST = 2**20
"""Bytes; a longer `training.json` is refused before it is read."""

LONGEST = 4096
"""Characters of any text in it."""

MANY = 64
"""Settings, packages or files that it may name."""

DIGEST = re.compile(r"[0-9a-f]{64}")
DAMAGED = "Record the training again, or name what it needs by flags."


@dataclass(frozen=True)
class Source:
    """Where something lies that a request needs again.

    **Arguments:**

    - `spec`: as a flag names it, `file.py:name`; files count from the folder of the record.
    - `sha256`: of the source file; `None` for what is no source, such as a data set.
    """

    spec: str
    sha256: str | None = None


@dataclass(frozen=True)
class TrainingRecord:
    """What is known of a training.

    **Arguments:**

    - `model`, `data`, `trainer`, `augment`: what builds the network, gives its rows, trained it and transforms batches;
      `None` where nobody said.
    - `loss`: its name, or where it lies.
    - `recipe`: the settings of a `Recipe`, where one trained it.
    - `seed`: of the training.
    - `id_column`: of the data, where rows have ids.
    - `weights`: the name of the file with the trained weights.
    - `digests`: the SHA-256 of each file beside this one.
    - `packages`: versions that the training ran with.
    - `device`: the kind of device that it ran on.
    - `requests`: how many requests the network has served since.
    """

    model: Source | None
    data: Source | None
    trainer: Source | None
    augment: Source | None
    loss: Source
    recipe: Mapping[str, Any] | None
    seed: int
    id_column: str | None
    digests: Mapping[str, str]
    packages: Mapping[str, str]
    device: str = "cpu"
    weights: str = WEIGHTS
    requests: int = field(default=0)

    def as_json(self) -> bytes:
        """The content of `training.json`."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, sort_keys=True).encode() + b"\n"

    def check_files(self, folder: Path) -> None:
        """Raise unless the files beside the record are those that it was written with."""
        for name, digest in self.digests.items():
            path = folder / name
            if not path.is_file():
                raise DataError(f"The training records {folder} lack {name}. Copy the whole folder.")
            if sha256(path) != digest:
                raise IntegrityError(
                    f"{path} is not the file that the training was recorded with: its SHA-256 is another one. Copy it "
                    "again, or look into who changed it."
                )


def rows_as_bytes(rows: RecordedRows) -> bytes:
    """The content of `rows.safetensors`."""
    text = {"format": ROWS_FORMAT, "salt": rows.keys.salt.hex(), "order": rows.order.hex()}
    return to_bytes(tensors_of(rows), text)


def read_rows(folder: Path) -> RecordedRows:
    """The digests of the rows of a record."""
    path = folder / ROWS
    tensors = read_weights(path)
    text = read_text(path)
    shaped = all(t.ndim == 2 and t.shape[1] == WIDTH and t.dtype == torch.uint8 for t in tensors.values())
    try:
        salt, order = bytes.fromhex(text["salt"]), bytes.fromhex(text["order"])
        keys = tensors.pop("keys")
        ids = tensors.pop("ids", None)
    except (KeyError, ValueError) as e:
        raise _damaged(path, "salt, order or keys are missing") from e
    if text.get("format") != ROWS_FORMAT or tensors or not shaped or len(order) != WIDTH:
        raise _damaged(path, "its parts are not those of row digests")
    if ids is not None and len(ids) != len(keys):
        raise _damaged(path, "there is not one id for each row")
    named = None if ids is None else RowKeys(salt, ids)
    return RecordedRows(RowKeys(salt, keys), order, named)


def read_record(folder: Path) -> TrainingRecord:
    """Read `training.json` of a folder; files beside it are not opened."""
    path = folder / RECORD
    if not folder.is_dir() or not path.exists():
        raise DataError(f"There are no training records at {folder}. Give the folder that `sn.record` wrote.")
    try:
        found = loads_once(read_whole(path, "training record", LARGEST))
    except (ValueError, RecursionError) as e:
        if isinstance(e, DataError):
            raise
        raise _damaged(path, f"it is no JSON: {type(e).__name__}") from e
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise _damaged(path, f"it must say {FORMAT!r}")
    wrong = next((name for name, fits in KINDS.items() if name not in found or not fits(found[name])), None)
    strange = sorted(found.keys() - KINDS.keys())
    if wrong is not None or strange:
        raise _damaged(path, f"{wrong or strange[0][:60]!r} is missing, unknown or not what it should be")
    sources = {name: None if found[name] is None else Source(**found[name]) for name in SOURCES}
    record = TrainingRecord(**{**found, **sources})
    if record.weights in (INIT, ROWS) or {INIT, ROWS, record.weights} != record.digests.keys():
        raise _damaged(path, "it must have the digests of start, weights and rows, and of nothing else")
    return record


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"The training record {path} is damaged: {why}. {DAMAGED}")


def _is_text(value: Any) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST or not value.isprintable():
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def _is_source(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"spec", "sha256"}:
        return False
    if not _is_text(value["spec"]):
        return False
    # Code without a digest could be any code.
    return _is_digest(value["sha256"]) if ":" in value["spec"] else value["sha256"] is None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_name(value: Any) -> bool:
    """A file in the folder itself: a record must not lead out of it."""
    return _is_text(value) and PurePosixPath(value).name == value and value.endswith(".safetensors")


def _is_plain(value: Any) -> bool:
    """What a setting of a recipe can be."""
    if isinstance(value, list):
        return len(value) <= 8 and all(type(one) in (int, float) for one in value)
    return value is None or type(value) in (bool, int, float) or _is_text(value)


def _are(fits: Any) -> Any:
    return lambda value: (
        isinstance(value, dict) and len(value) <= MANY and all(_is_text(k) and fits(v) for k, v in value.items())
    )


def _or_none(fits: Any) -> Any:
    return lambda value: value is None or fits(value)


SOURCES = ("model", "data", "trainer", "augment", "loss")
KINDS: Mapping[str, Any] = {
    **{name: _or_none(_is_source) for name in SOURCES},
    "loss": _is_source,
    "recipe": _or_none(_are(_is_plain)),
    "seed": _is_count,
    "id_column": _or_none(_is_text),
    "digests": _are(_is_digest),
    "packages": _are(_is_text),
    "device": lambda value: value in ("cpu", "cuda"),
    "weights": _is_name,
    "requests": _is_count,
}
"""For each part of a record whether a value fits it."""
