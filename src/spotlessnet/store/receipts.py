"""Receipts: what was run, on what, with what result, as an in-toto statement that names no person."""

import hashlib
import hmac
import json
import platform
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

import torch

from spotlessnet.core.cohorts import spelled
from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.core.files import sha256, write_whole
from spotlessnet.core.noise import KEY_BYTES, SecretNoise

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:spotlessnet:forgetting:v1"

LIMITS = (
    "A receipt proves what was run, not that nobody kept a copy of the data or of the old weights.",
    "Copies made elsewhere (averaged weights, quantised exports, optimiser state, backups) are not covered.",
    "Nothing here is legal advice or a statement of compliance; it is evidence.",
)


@dataclass(frozen=True, repr=False)
class NoiseSeed:
    """Where the protective noise came from. A published seed would let anyone subtract the noise again.

    **Arguments:**

    - `value`: 256 random bits where the noise must protect, a small number where it must only repeat.
    """

    value: int
    is_secret: bool
    salt: bytes
    _streams: Iterator[int] = field(default_factory=count, compare=False)

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

    def generator(self, device: torch.device | str = "cpu") -> SecretNoise | torch.Generator:
        """What to draw from: a secret stream, another one at each call; or, for experiments, torch's generator.

        **Arguments:**

        - `device`: of torch's generator; a secret stream runs on the processor, and its numbers are moved.
        """
        if self.is_secret:
            # One stream twice would be the same noise twice, which whoever holds both results could take away.
            return SecretNoise(self._key, next(self._streams))
        return torch.Generator(device).manual_seed(self.value)

    def record(self) -> dict[str, Any]:
        """What the receipt says about it."""
        if not self.is_secret:
            return {"kind": "published, for experiments only", "seed": self.value}
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


def statement(
    *,
    subjects: Sequence[Path],
    inputs: Mapping[str, Path],
    request: Mapping[str, Any],
    method: str,
    settings: Mapping[str, Any],
    noise: Mapping[str, Any],
    about: Mapping[str, Any],
    audit: Sequence[Mapping[str, Any]] = (),
    limits: Sequence[str] = (),
    began: datetime | None = None,
) -> dict[str, Any]:
    """The receipt of one request, as plain values."""
    return {
        "_type": STATEMENT,
        "subject": [{"name": path.name, "digest": {"sha256": sha256(path)}} for path in subjects],
        "predicateType": PREDICATE,
        "predicate": {
            "inputs": {
                name: {"name": path.name, "digest": {"sha256": sha256(path)}}
                for name, path in inputs.items()
                if path.is_file()
            },
            "request": plain(request),
            "method": method,
            "settings": plain(settings),
            "noise": plain(noise),
            "about": plain(about),
            "audit": plain(audit),
            "limits": [*limits, *LIMITS],
            "environment": environment(),
            "began": (began or datetime.now(UTC)).isoformat(timespec="seconds"),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    }


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
    text = json.dumps(receipt, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return write_whole(path, text.encode() + b"\n", replace=replace)


def read_receipt(path: Path) -> dict[str, Any]:
    """A receipt from disk; anything else is refused."""
    if not path.is_file():
        raise DataError(f"There is no receipt at {path}.")
    try:
        receipt = json.loads(path.read_text())
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path} is not a receipt: it is not valid JSON.") from e
    if not isinstance(receipt, dict) or receipt.get("predicateType") != PREDICATE:
        raise DataError(f"{path} is not a receipt of this tool: it must be an in-toto statement of type {PREDICATE!r}.")
    return receipt


def verify(receipt_path: Path) -> list[str]:
    """Check that the files a receipt speaks of, beside it, are the ones it was written for; give their names."""
    receipt = read_receipt(receipt_path)
    checked = []
    for subject in receipt.get("subject", []):
        path = receipt_path.parent / Path(str(subject.get("name", ""))).name
        if not path.is_file():
            raise IntegrityError(f"{path.name}, which the receipt speaks of, is not beside it.")
        if sha256(path) != subject.get("digest", {}).get("sha256"):
            raise IntegrityError(f"{path.name} is not the file that the receipt was written for: its digest differs.")
        checked.append(path.name)
    return checked
