"""Receipts: what was run, on what, with what result, as an in-toto statement that names no person."""

import hashlib
import hmac
import json
import math
import os
import platform
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

import torch

from spotlessnet.core.data import spelled
from spotlessnet.core.errors import DataError, IntegrityError, SettingError
from spotlessnet.core.files import folder_sha256, read_whole, sha256, write_whole
from spotlessnet.core.noise import KEY_BYTES, SecretNoise, check_same_process
from spotlessnet.store.schema import mistakes

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
        "epochs",
        "error_increase_limit",
        "examples",
        "examples_left",
        "forgotten_read",
        "limit",
        "statistics_rank",
        "retained_read",
        "rows",
        "rows_in_a_round",
        "share_of_training",
        "visits",
    ]
)
"""What settings and counts alone decide: published as it is."""

PROMISED = frozenset(["distance_bound", "distance_bound_relative", "error_increase", "nats", "nats_range"])
"""What a request promises: one digit, rounded up."""

MEASURED = frozenset(["after", "before", "seconds"])
"""What a request cost: two digits."""

HELD_BACK = "held_back"
EXACT = "exact"


class NoiseSeed:
    """Where the protective noise came from. A published seed would let anyone subtract the noise again.

    A secret one can be neither copied nor stored, and serves the process that made it: a copy would draw the same
    noise again.

    **Arguments:**

    - `value`: 256 random bits where the noise must protect, a small number where it must only repeat.
    """

    # No dictionary: what lists an object's variables would list the key.
    __slots__ = ("_process", "_streams", "_value", "is_secret", "salt")

    def __init__(self, value: int, is_secret: bool, salt: bytes) -> None:
        """Take `secret()` or `for_experiments(value)` instead."""
        self._value, self.is_secret, self.salt = value, is_secret, salt
        self._streams = count()
        self._process = os.getpid()

    @property
    def value(self) -> int:
        """The key or the seed."""
        return self._value

    @staticmethod
    def secret() -> "NoiseSeed":
        """A key that nobody knows: the default. Only its commitment is written down."""
        return NoiseSeed(secrets.randbits(8 * KEY_BYTES), True, secrets.token_bytes(32))

    @staticmethod
    def for_experiments(value: int) -> "NoiseSeed":
        """A seed that can be run again, and therefore protects nobody."""
        return NoiseSeed(value, False, b"")

    def __repr__(self) -> str:
        return "NoiseSeed.secret()" if self.is_secret else f"NoiseSeed.for_experiments({self.value})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_secret:
            raise SettingError("A secret seed cannot be copied or stored. Draw from it where it was made.")
        return NoiseSeed.for_experiments, (self.value,)

    def generator(self, device: torch.device | str = "cpu") -> SecretNoise | torch.Generator:
        """What to draw from: a secret stream, another one at each call; or, for experiments, torch's generator.

        **Arguments:**

        - `device`: of torch's generator; a secret stream runs on the processor, and its numbers are moved.
        """
        if self.is_secret:
            check_same_process(self._process)
            # One stream twice would be the same noise twice, which whoever holds both results could take away.
            return SecretNoise(self._key, next(self._streams))
        return torch.Generator(device).manual_seed(self.value)

    def record(self) -> dict[str, Any]:
        """What the receipt says about it."""
        if not self.is_secret:
            return {"kind": "published, for experiments only", "seed": self.value}
        # Salted: whoever guesses a key must not be able to confirm it from the receipt alone.
        commitment = hashlib.sha256(self.salt + self._key).hexdigest()
        return {"kind": "secret, not kept", "generator": "SHAKE-256, 256-bit key", "commitment": commitment}

    @property
    def _key(self) -> bytes:
        return self.value.to_bytes(KEY_BYTES, "big")


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
            "limits": [*limits, *LIMITS],
            "private": plain(private),
            "environment": environment(),
            "began": (began or datetime.now(UTC)).isoformat(timespec="seconds"),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    }
    # Last, over everything else; `seals` leaves this field out, so that checking can repeat it.
    receipt["predicate"]["integrity"] = seals(receipt, salt)  # type: ignore[index]  # the dictionary above
    return receipt


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


def loads_once(content: bytes | bytearray) -> Any:
    """JSON that all readers take alike: every name once, numbers that are numbers; anything else is a `ValueError`."""
    return json.loads(content, object_pairs_hook=_each_once, parse_constant=_no_constant)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice: readers would differ on what it says")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def public(diagnostics: Mapping[str, Any]) -> dict[str, Any]:
    """Diagnostics, as plain values, that may stand in a receipt: text and flags, and the numbers named above.

    All others are left out, and named: whoever holds the retained rows, the new network and what was written for the
    next request can work most of them out for any row that may have been forgotten, and look which row fits. Of a
    request for one row, a single number with all its digits singled that row out of a hundred and fifty.

    >>> public({"drift": 0.0123, "retrain_now": False, "utility": {"before": 0.1234}, "nats": 0.61})
    {'retrain_now': False, 'utility': {'before': 0.12}, 'nats': 0.7, 'held_back': ['drift']}
    """
    held: list[str] = []
    found = _public(diagnostics, "", held)
    return {**found, HELD_BACK: sorted(held)}


def _public(values: Mapping[str, Any], place: str, held: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{place}{name}"
        if isinstance(value, Mapping):
            found[name] = _public(value, f"{path}.", held)
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            found[name] = [_public(one, f"{path}.", held) for one in value]
        elif not _numbers(value) or name in COUNTED:
            found[name] = value
        elif name in PROMISED | MEASURED:
            found[name] = [coarse(name, v) for v in value] if isinstance(value, list) else coarse(name, value)
        elif path not in held:
            held.append(path)
    return found


def _numbers(value: Any) -> bool:
    if isinstance(value, list):
        return any(_numbers(one) for one in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def coarse(name: str, value: Any) -> Any:
    """A number as it may be published; text in its place (what is not finite) as it is."""
    if not _numbers(value) or value == 0:
        return value
    if name in MEASURED:
        return float(f"{value:.2g}")
    unit = 10.0 ** math.floor(math.log10(abs(value)))
    # Just above a round number by rounding alone is that number.
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.1g}")


def commit_to_exact(diagnostics: Mapping[str, Any], salt: bytes) -> str:
    """A commitment to all digits, which tells nothing without the salt."""
    return hmac.new(salt, b"spotlessnet diagnostics\0" + as_json(diagnostics), hashlib.sha256).hexdigest()


def as_json(diagnostics: Mapping[str, Any]) -> bytes:
    """One spelling only, because a commitment is to bytes."""
    return json.dumps(diagnostics, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"
