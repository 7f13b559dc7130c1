"""Where noise comes from: a secret stream where it must protect, torch's generator where it must only repeat.

torch's generators are no secret. The one for the CPU keeps 32 bits of its seed, so whoever holds the released weights
can try every seed; and the state of a Mersenne Twister can be read off its output.
"""

import hashlib
import math
import os
import threading
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from spotlessnet.core.errors import SettingError

KEY_BYTES = 32
"""256 bits: nobody can try them all."""

TERMS = 4
"""Independent Gaussians in one number of the secret stream."""

CHUNK = 2**16
"""Numbers made at a time: the stream needs 32 bytes for each."""

FINENESS = 2.0**-24
"""Released weights lie on a grid of this share of their own standard deviation, or coarser."""


@runtime_checkable
class NoiseSource(Protocol):
    """Something that unit Gaussian noise can be drawn from."""

    @property
    def protects(self) -> bool:
        """Whether nobody can draw the same noise again."""
        ...

    def unit(self, count: int, like: Tensor) -> Float[Tensor, " count"]:
        """Independent draws of $N(0, 1)$ on the device of `like`; each call goes on where the last one ended."""
        ...


class SecretNoise:
    r"""Gaussian noise that only the holder of a 256-bit key can draw again.

    SHAKE-256 of key, stream and position is the stream of bits: an extendable-output function of the SHA-3 standard,
    used as a keyed generator, whose whole state is the key. Bits become Gaussians by Box and Muller in float64, and
    each number is the scaled sum of four of them,

    $$z = \tfrac{1}{\sqrt 4} \sum_{i=1}^{4} \sqrt{-2 \ln u_i}\, \cos 2\pi v_i ,$$

    so that nobody can go through the floating-point numbers that a draw can hit (Holohan and Braghin 2021; Opacus'
    secure mode). Numbers are made on the processor and then moved to where the weights are.
    """

    # No dictionary: what lists an object's variables would list the key.
    __slots__ = ("_chunks", "_lock", "_prefix", "_process")

    def __init__(self, key: bytes, stream: int = 0) -> None:
        """Begin the stream of this number under this key."""
        if len(key) != KEY_BYTES:
            raise SettingError(
                f"A noise key must have {KEY_BYTES} random bytes, but got {len(key)}. Use `NoiseSeed.secret()`."
            )
        self._prefix = b"spotlessnet noise" + key + stream.to_bytes(8, "big")
        self._chunks = 0
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return "SecretNoise(key not shown)"

    def __reduce__(self) -> str:
        # A copy would draw the same noise again, and a file would keep the key.
        raise SettingError("Secret noise cannot be copied or stored. Draw from it where it was made.")

    @property
    def protects(self) -> bool:
        """Nobody without the key can draw the same again."""
        return True

    def unit(self, count: int, like: Tensor) -> Float64[Tensor, " count"]:
        """Draws of $N(0, 1)$ in float64, whatever the format of `like`."""
        check_same_process(self._process)
        out = torch.empty(count, dtype=torch.float64)
        for piece in out.split(CHUNK):
            piece.copy_(self._chunk(len(piece)))
        return out.to(like.device)

    def _chunk(self, count: int) -> Float64[Tensor, " count"]:
        pairs = (count + 1) // 2  # Box and Muller give two numbers at a time
        # Two threads at one position would release the same noise, whose difference is none.
        with self._lock:
            position = self._chunks.to_bytes(8, "big")
            self._chunks += 1
        bits = bytearray(hashlib.shake_256(self._prefix + position).digest(2 * TERMS * 8 * pairs))
        first, second = torch.frombuffer(bits, dtype=torch.int64).reshape(2, TERMS, pairs)
        # In the middle of one of 2⁶³ cells: never 0, and radii up to 9.4 before the sum.
        u = first.bitwise_and(2**63 - 1).double().add_(0.5).mul_(2.0**-63)
        radius = u.log_().mul_(-2).sqrt_()
        angle = second.double().mul_(math.pi * 2.0**-63)
        both = torch.cat([(radius * angle.cos()).sum(dim=0), (radius * angle.sin()).sum(dim=0)])
        return both[:count] / math.sqrt(TERMS)


def check_same_process(process: int) -> None:
    """Raise in a process other than this: a fork holds the key too, and both would draw the same noise."""
    if os.getpid() != process:
        raise SettingError(
            "Secret noise belongs to the process that made it: a fork would draw the same noise again, which whoever "
            "holds both results could take away. Call `NoiseSeed.secret()` in each process."
        )


class RepeatableNoise:
    """Noise of a torch generator, for experiments: anyone can draw it again, so it protects nobody."""

    def __init__(self, generator: torch.Generator) -> None:
        """Draw from this generator, and move it on."""
        self._generator = generator

    @property
    def protects(self) -> bool:
        """Anyone can draw the same again."""
        return False

    def unit(self, count: int, like: Tensor) -> Float[Tensor, " count"]:
        """Draws of $N(0, 1)$ in the format of `like`, made on the generator's device."""
        drawn = torch.randn(count, generator=self._generator, dtype=like.dtype, device=self._generator.device)
        return drawn.to(like.device)


def as_source(noise: "NoiseSource | torch.Generator") -> NoiseSource:
    """A torch generator as a source; a source as it is."""
    return RepeatableNoise(noise) if isinstance(noise, torch.Generator) else noise


def snapped(values: Float64[Tensor, " P"], deviation: Float64[Tensor, " P"]) -> Float64[Tensor, " P"]:
    r"""Each value on the nearest multiple of $2^{\lfloor \log_2 \sigma \rfloor - 24}$; where $\sigma = 0$, as it is.

    The grid depends on the noise alone. Rounding a Gaussian to it is a function of the draw, so it can tell no more
    about the mean than the Gaussian does. The last bits of a float64 sum, which can betray the mean (Mironov 2012), are
    gone: a cell of the grid, or of float32 where that is coarser, gathers $2^{28}$ sums or more as long as the weight
    is not many times its deviation. Float64 weights far above their deviation keep fewer bits between the two.

    >>> one = torch.tensor([0.1], dtype=torch.float64)
    >>> float(snapped(one, one * 2**22))
    0.09375
    """
    noisy = deviation > 0
    step = torch.exp2(torch.where(noisy, deviation, 1.0).log2().floor()) * FINENESS
    grid = (values / step).round() * step
    return torch.where(noisy, grid, values)
