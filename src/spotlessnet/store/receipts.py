"""Receipts: what was run, on what, with what result, as an in-toto statement that names no person.

A receipt outlasts `spotless purge`. Whoever holds everything but one forgotten row can do the request again with each
label that it may have had, and compare any figure that was measured: on the row itself, on networks that knew it, or on
rows that stay. So a receipt has words, flags, counts, and what was promised, coarsely; all figures are in `private`,
and the receipt commits to them.
"""

import hashlib
import hmac
import json
import math
import platform
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import as_bytes, spelled
from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.core.files import Look, folder_sha256, read_whole, sha256, write_whole
from spotlessnet.store.noise_seed import NoiseSeed as NoiseSeed
from spotlessnet.store.schema import mistakes
from spotlessnet.store.strict_json import loads_once as loads_once

OF_ONE_REQUEST = ("forget", "reference", "statistics", "fold_models", "out")
"""Whose names may tell who asked; they are never printed."""

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".py")

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:spotlessnet:forgetting:v2"

LARGEST = 2**24
"""Bytes; a longer receipt is refused before it is read."""

LIMITS = (
    "A receipt proves what was run, not that nobody kept a copy of the data or of the old weights.",
    "Copies made elsewhere (averaged weights, quantised exports, optimiser state, backups) are not covered.",
    "Nothing here is legal advice or a statement of compliance; it is evidence.",
)

COUNTED = frozenset(
    [
        "coreset",
        "cost_in_trainings",
        "examples",
        "examples_left",
        "forgotten_read",
        "limit",
        "statistics_rank",
        "retained_read",
        "rows",
        "rows_in_a_round",
        "visits",
    ]
)
"""What settings and counts alone decide: published as it is. How long a short retraining went on is none of it: it
stops where it is as good as the network that knew the rows."""

PROMISED = frozenset(["distance_bound", "distance_bound_relative", "nats", "nats_range"])
"""What a request promises: the next power of ten."""

TOLD_IN_WORDS = frozenset(["audit", "limits"])
"""Parts with sections of their own in a receipt, there without figures."""

DECIDED_BY_ROWS = frozenset(["refactored"])
"""Flags that numbers of the forgotten rows decide: one that stood alone in a direction needs a new inverse."""

HELD_BACK = "held_back"

NUMBER = re.compile(r"(?<!\w)[-−+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?(?:\s?%)?", re.IGNORECASE)
ASIDE = re.compile(r" \([^()]*\d[^()]*\)")
"""A number in a sentence, and an aside that has one."""

EXACT = "exact"

ASSUMED = "Assumed: "
"""How a limit begins that the method told, perhaps with figures."""


COMMITMENT = "HMAC-SHA256 of the sorted ids as a JSON list"
"""How the commitment to a list is made; stands in the receipt."""


def commit_to(names: Iterable[Any], salt: bytes) -> str:
    r"""A commitment to a set of ids: it can be checked with the salt, and tells nothing without it.

    Ids are spelled as cohorts spell them (`1` and `"1"` are one id), and no two sets share a text.

    >>> commit_to([2, 1], b"salt") == commit_to(["1", "2"], b"salt")
    True
    >>> commit_to(["a\nb"], b"salt") == commit_to(["a", "b"], b"salt")
    False
    """
    listed = json.dumps(sorted(set(spelled(names)))).encode()
    return hmac.new(salt, listed, hashlib.sha256).hexdigest()


def committed(names: Iterable[Any], salt: bytes) -> dict[str, str]:
    """The commitment as a receipt writes it."""
    return {"commitment": commit_to(names, salt), "algorithm": COMMITMENT}


def keyed(salt: bytes, what: str, text: str) -> str:
    """A commitment to a text, told apart by what it is of; the salt opens it."""
    return hmac.new(salt, f"spotlessnet {what}\0{text}".encode(), hashlib.sha256).hexdigest()


def identity_of(request: Mapping[str, Any], salt: bytes) -> str:
    """The keyed digest of a request, as its receipt tells it."""
    text = json.dumps(plain(request), sort_keys=True).encode()
    return hmac.new(salt, text, hashlib.sha256).hexdigest()


def statement(
    *,
    subjects: Mapping[str, str],
    inputs: Mapping[str, Mapping[str, Any]],
    request: Mapping[str, Any],
    method: str,
    settings: Mapping[str, Any],
    noise: Mapping[str, Any],
    diagnostics: Mapping[str, Any],
    private: Mapping[str, Any],
    salt: bytes,
    audit: Sequence[Mapping[str, Any]] = (),
    limits: Sequence[str] = (),
    began: datetime | None = None,
) -> dict[str, Any]:
    """The receipt of one request, as plain values, sealed.

    **Arguments:**

    - `subjects`: the SHA-256 of each file as it was written, by its name.
    - `inputs`: what is said of each input, digested when it was read.
    - `diagnostics`: all that was measured; the receipt has it as far as `public` lets it, and a commitment to the rest.
    - `private`: when the private material is to be destroyed.
    """
    exact = plain(diagnostics)
    receipt = {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": PREDICATE,
        "predicate": {
            "inputs": plain(inputs),
            "request": plain(request),
            "method": method,
            "settings": plain(settings),
            "noise": plain(noise),
            "about": {**public(exact), EXACT: {"commitment": commit_to_exact(exact, salt)}},
            "audit": plain(audit),
            "limits": [*(without_figures(one) if one.startswith(ASSUMED) else one for one in limits), *LIMITS],
            "private": plain(private),
            "environment": environment(),
            # How long a short retraining went on names the label of a row: seconds are for `private` alone.
            "began": full_hour(began or datetime.now(UTC)).isoformat(timespec="seconds"),
            "ended": (full_hour(datetime.now(UTC)) + timedelta(hours=1)).isoformat(timespec="seconds"),
        },
    }
    # Last, over everything else; `seals` leaves this field out, so that checking can repeat it.
    receipt["predicate"]["integrity"] = seals(receipt, salt)  # type: ignore[index]  # the dictionary above
    return receipt


def full_hour(time: datetime) -> datetime:
    """The hour in which a time lies: as finely as a receipt tells when something was."""
    return time.replace(minute=0, second=0, microsecond=0)


def due_in(days: int) -> datetime:
    """When what is private shall be destroyed."""
    return full_hour(datetime.now(UTC)) + timedelta(days=days)


def seals(receipt: Mapping[str, Any], salt: bytes | None) -> dict[str, str]:
    """A digest of everything else in a receipt and, with the folder's salt, a seal that only its holder can make."""
    body = {name: value for name, value in receipt["predicate"].items() if name != "integrity"}
    # One spelling only (sorted, no blanks, no NaN), because a digest is of bytes.
    text = json.dumps({**receipt, "predicate": body}, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    found = {"sha256": hashlib.sha256(text).hexdigest()}
    if salt is not None:
        found["hmac_sha256"] = hmac.new(salt, b"spotlessnet receipt\0" + text, hashlib.sha256).hexdigest()
    return found


def environment() -> dict[str, Any]:
    """Versions and threads: what must be the same for the same bytes to come out."""
    packages = {}
    for name in ("spotlessnet", "torch", "numpy", "safetensors"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed as a package"
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "packages": packages,
    }


def plain(value: Any) -> Any:
    """Anything as JSON values; a number that is not finite becomes text, so that every reader can parse it."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, torch.Tensor):
        return plain(value.tolist()) if value.numel() <= 64 else f"tensor of shape {tuple(value.shape)}"
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    return str(value)


def write_receipt(path: Path, receipt: Mapping[str, Any], *, replace: bool = False) -> str:
    """Write a receipt whole, and give its SHA-256."""
    text = json.dumps(receipt, indent=2, sort_keys=True, allow_nan=False)
    return write_whole(path, text.encode() + b"\n", replace=replace, shared=True)


def read_receipt(path: Path) -> dict[str, Any]:
    """A receipt from disk, with every part that a receipt must have; anything else is refused."""
    content = read_whole(path, "receipt", LARGEST)
    try:
        receipt = loads_once(content)
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path} is not a receipt: it is not valid JSON.") from e
    if not isinstance(receipt, dict) or receipt.get("predicateType") != PREDICATE:
        raise DataError(f"{path} is not a receipt of this tool: it must be an in-toto statement of type {PREDICATE!r}.")
    wrong = mistakes(receipt)
    if wrong:
        raise DataError(f"{path} is not a receipt: {wrong[0]}. It was damaged or written by hand.")
    return receipt


def verify(receipt_path: Path, salt: bytes | None = None, gone: Collection[str] = ()) -> list[str]:
    """Check a receipt and the files that it speaks of, beside it; give their names.

    Its digest tells accidents; whoever rewrites a receipt can make a new one. With the salt of its folder the seal is
    checked too, which nobody without the salt can make.

    **Arguments:**

    - `gone`: files that may be missing, for they were destroyed on purpose.
    """
    receipt = read_receipt(receipt_path)
    found = seals(receipt, salt)
    told = receipt["predicate"]["integrity"]
    for name, value in found.items():
        # In constant time: the seal is keyed, and how far a forged one agrees must not show.
        if not hmac.compare_digest(str(told.get(name, "")), value):
            kind = "digest" if name == "sha256" else "seal, made with the private salt,"
            raise IntegrityError(f"{receipt_path.name} was changed after it was written: its {kind} does not match.")
    checked = []
    for subject in receipt["subject"]:
        # Names only, never paths: the schema refuses separators, so nothing outside the folder is read.
        path = receipt_path.parent / subject["name"]
        if not path.is_file() and not path.is_dir():
            if path.name in gone:
                continue
            raise IntegrityError(f"{path.name}, which the receipt speaks of, is not beside it.")
        if digest_of(path) != subject["digest"]["sha256"]:
            kind = "folder" if path.is_dir() else "file"
            raise IntegrityError(f"{path.name} is not the {kind} that the receipt was written for: its digest differs.")
        checked.append(path.name)
    return checked


def digest_of(path: Path) -> str:
    """Of a file, or of a folder of files; nothing that this tool writes is a link to one."""
    if not path.is_dir() or path.is_symlink():
        return sha256(path)
    try:
        return folder_sha256(path)
    except DataError as e:
        raise IntegrityError(str(e)) from e


def public(diagnostics: Mapping[str, Any]) -> dict[str, Any]:
    """Diagnostics, as plain values, that may stand in a receipt: words and flags, and the numbers named above.

    All others are left out, and named.

    >>> public({"drift": 0.0123, "retrain_now": False, "lost": ["0.3 % of it"], "nats": 0.61})
    {'retrain_now': False, 'lost': ['… of it'], 'nats': 1.0, 'held_back': ['drift']}
    """
    held = sorted((TOLD_IN_WORDS | DECIDED_BY_ROWS) & diagnostics.keys())
    found = _public({name: value for name, value in diagnostics.items() if name not in held}, "", held)
    return {**found, HELD_BACK: sorted(held)}


def _public(values: Mapping[str, Any], place: str, held: list[str], *, is_one_of_many: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{place}{name}"
        if isinstance(value, Mapping):
            found[name] = _public(value, f"{path}.", held, is_one_of_many=is_one_of_many)
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            # Many coarse numbers together would be a fine one.
            words = [_public(one, f"{path}.", held, is_one_of_many=True) for one in value]
            found |= {name: words} if any(words) else {}
        elif not _numbers(value):
            found[name] = _in_words(value)
        elif is_one_of_many or name not in COUNTED | PROMISED:
            held += [] if path in held else [path]
        elif name in COUNTED:
            found[name] = value
        else:
            found[name] = [coarse(v) for v in value] if isinstance(value, list) else coarse(value)
    return found


def _numbers(value: Any) -> bool:
    if isinstance(value, list):
        return any(_numbers(one) for one in value)
    # In JSON what is not finite is text.
    return value in ("nan", "inf", "-inf") or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _in_words(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_words(one) for one in value]
    return without_figures(value) if isinstance(value, str) else value


def without_figures(text: str) -> str:
    """A sentence without the numbers in it, and without asides that have one.

    >>> without_figures("of what it knew, 50 % is left (40 % to 60 %; 20 % is allowed), in float32")
    'of what it knew, … is left, in float32'
    """
    return NUMBER.sub("…", ASIDE.sub("", text))


def coarse(value: Any) -> Any:
    """A number as it may be published; text in its place (what is not finite) as it is.

    >>> coarse(0.61), coarse(10), coarse(1.234)
    (1.0, 10.0, 10.0)
    """
    if isinstance(value, str) or value == 0:
        return value
    if value < 0:
        return 0.0
    # Just above a round number by rounding alone is that number.
    return 10.0 ** math.ceil(math.log10(value) - 1e-9)


def commit_to_exact(diagnostics: Mapping[str, Any], salt: bytes) -> str:
    """A commitment to all digits, which tells nothing without the salt."""
    return hmac.new(salt, b"spotlessnet diagnostics\0" + as_json(diagnostics), hashlib.sha256).hexdigest()


def as_json(diagnostics: Mapping[str, Any]) -> bytes:
    """One spelling only, because a commitment is to bytes."""
    return json.dumps(diagnostics, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"


def described_file(name: str, look: Look, salt: bytes, of_rows: Collection[str]) -> dict[str, Any]:
    """What a receipt says of a file: no name that a person gave, no digest that could confirm a guess."""
    named = {} if name in OF_ONE_REQUEST else {"name": neutral(name, look.path)}
    if look.sha256 in of_rows:
        return {**named, "commitment": keyed(salt, "file", look.sha256)}
    return {**named, "digest": {"sha256": look.sha256}}


def neutral(name: str, path: Path) -> str:
    """A name for a file that says what it is for and of which kind it is, and nothing that its own name may betray.

    >>> neutral("weights", Path("without-jane@mail.org.safetensors")), neutral("weights", Path("shards-of-jane"))
    ('weights.safetensors', 'weights')
    """
    return name + (path.suffix if path.suffix in SUFFIXES else "")


def sha256_of(weights: Float[Tensor, " P"]) -> str:
    """Of the bytes of a weight vector."""
    return hashlib.sha256(as_bytes(weights[None]).numpy().tobytes()).hexdigest()
