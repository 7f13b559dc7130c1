"""Where protective noise comes from, and what a receipt says of it."""

import hashlib
import os
import secrets
from itertools import count
from typing import Any

import torch

from spotlessnet.core.errors import SettingError
from spotlessnet.core.noise import KEY_BYTES, SecretNoise, check_same_process


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
