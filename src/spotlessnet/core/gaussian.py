"""`Gaussian`: the distribution of scrubbed weights: its mean, its `Covariance`, and `Diagnostics` of how it came about.

Covariances are symmetric matrices over the weights that are never written out. Here are no noise and independent noise;
those with structure are in `covariance`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.deprecated import AcceptsOldNames, OldName
from spotlessnet.core.errors import MismatchError, NumericsError, check_finite
from spotlessnet.core.noise import NoiseSource, as_source, snapped

M = TypeVar("M", bound="Measured")

Spectrum = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Measured:
    """What one method measures: a frozen dataclass of its own, whose fields are `None` until they are known."""

    under: ClassVar[str] = ""
    """The key under which receipts have it; its fields stand beside the others' where there is none."""

    def known(self) -> dict[str, Any]:
        """The fields that were measured, as plain values."""
        every = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in every.items() if value is not None}

    def record(self) -> dict[str, Any]:
        """As receipts have it."""
        return {self.under: self.known()} if self.under else self.known()


@dataclass(frozen=True)
class Diagnostics(Mapping[str, Any]):
    """What a method did, in types: `diagnostics.of(NTKFacts).damping`. As a mapping, it is what receipts keep.

    >>> found = Diagnostics(assumed=("no decay",), lost=("nothing",), others={"lr": 0.1})
    >>> found.assumed, found["lr"], sorted(found)
    (('no decay',), 0.1, ['assumed', 'lost', 'lr'])

    **Arguments:**

    - `assumed`, `lost`: stand-ins for what was not given, and the guarantee that went with each.
    - `measured`: what each method has measured, in the order in which they ran.
    - `others`: facts of methods that have no type for them.
    """

    assumed: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()
    others: Mapping[str, Any] = field(default_factory=dict)

    def of(self, kind: type[M]) -> M:
        """What a method of this kind has measured; nothing but `None` where none ran."""
        return next((one for one in self.measured if type(one) is kind), None) or kind()

    @property
    def retrain_now(self) -> bool:
        """Whether what was kept for requests no longer serves, so that the network must be trained anew."""
        return bool(self.record().get("retrain_now", False))

    def record(self) -> dict[str, Any]:
        """Everything as plain values, as reports and receipts have it."""
        found = dict(self.others)
        for one in self.measured:
            found |= one.record()
        return {**found, "assumed": list(self.assumed), "lost": list(self.lost)}

    def __getitem__(self, name: str) -> Any:
        return self.record()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.record())

    def __len__(self) -> int:
        return len(self.record())


@dataclass
class Notes:
    """What a scrub measures on the way, what it assumes, and which promise that costs.

    Handed to `shift` and `spread`; comes back as `Gaussian.diagnostics`.

    **Arguments:**

    - `buffers`: those of the shifted network, said by a method that trained them; the others are estimated anew.
    """

    assumed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    buffers: Mapping[str, Tensor] | None = None
    measured: dict[type[Measured], Measured] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)

    def measure(self, kind: type[M], **values: Any) -> M:
        """Record what was measured in the type that a method has for it: `notes.measure(NTKFacts, damping=0.1)`."""
        found = replace(self.of(kind), **values)
        self.measured[kind] = found
        return found

    def of(self, kind: type[M]) -> M:
        """What was measured so far in this type; nothing but `None` if nothing was."""
        found = self.measured.get(kind)
        return found if isinstance(found, kind) else kind()

    def fact(self, **values: Any) -> None:
        """Record numbers by name: for a method that has no type of its own for them."""
        self.others.update(values)

    @property
    def facts(self) -> dict[str, Any]:
        """Everything measured so far, as receipts have it."""
        every = self.diagnostics().record()
        return {name: value for name, value in every.items() if name not in ("assumed", "lost")}

    def assume(self, what: str, lost: str) -> None:
        """Record, once, a stand-in for something that was not given, and the guarantee that goes with it."""
        if what not in self.assumed:
            self.assumed.append(what)
            self.lost.append(lost)

    def diagnostics(self) -> Diagnostics:
        """Everything, no longer to be changed."""
        return Diagnostics(tuple(self.assumed), tuple(self.lost), tuple(self.measured.values()), dict(self.others))


class Covariance(ABC):
    """A symmetric matrix `[P, P]` with known eigenvalues."""

    structure: ClassVar[int] = 3
    """How much of it is not on the diagonal: of two matrices the one with less knows the trace of their product."""

    @property
    @abstractmethod
    def size(self) -> int:
        """`P`."""

    @abstractmethod
    def map(self, f: Spectrum) -> "Covariance":
        """The same eigenvectors with `f` of the eigenvalues."""

    @abstractmethod
    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        """`Σ v`, for one vector or rows of vectors."""

    @abstractmethod
    def diagonal(self) -> Float[Tensor, " P"]:
        """The diagonal of `Σ`."""

    @abstractmethod
    def logdet(self) -> float:
        """`log |Σ|`."""

    def trace_with(self, other: "Covariance") -> float:
        """`tr(Σ · other)` by the structure of this one; `trace_of_product` asks the simpler of two."""
        raise MismatchError(f"No rule for the trace of {type(self).__name__} times {type(other).__name__}.")

    def solve(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        """`Σ⁻¹ v`."""
        return self.map(torch.reciprocal).multiply(v)

    def inverse(self) -> "Covariance":
        """`Σ⁻¹`."""
        return self.map(torch.reciprocal)

    def trace(self) -> float:
        """The sum of the eigenvalues."""
        return float(self.diagonal().double().sum())

    def draw(self, noise: NoiseSource | torch.Generator) -> Float[Tensor, " P"]:
        """One sample of `N(0, Σ)`; in float64 where the noise must protect."""
        source = as_source(noise)
        # Where noise must protect, its low bits must not depend on the weights, as those of a float32 product do.
        root = (self.double() if source.protects else self).map(lambda e: e.clamp(min=0).sqrt())
        return root.multiply(source.unit(self.size, root._like))

    def scaled(self, factor: float) -> "Covariance":
        """`factor · Σ`."""
        return self.map(lambda e: factor * e)

    def pushforward(self, jacobian: Float[Tensor, "M P"]) -> Float[Tensor, "M M"]:
        """`J Σ Jᵀ`, what the noise does to `M` linear readings."""
        return jacobian @ self.multiply(jacobian).T

    @abstractmethod
    def double(self) -> "Covariance":
        """The same in float64."""

    @property
    @abstractmethod
    def _like(self) -> Tensor:
        """A tensor of the matrix's number format and device."""


@dataclass(frozen=True, eq=False)
class NoNoise(Covariance):
    """No noise at all."""

    count: int
    like: Tensor
    structure: ClassVar[int] = 0

    @staticmethod
    def at(weights: Float[Tensor, " P"]) -> "NoNoise":
        """No noise around these weights."""
        return NoNoise(weights.numel(), weights.new_zeros(()))

    @property
    def size(self) -> int:
        return self.count

    def map(self, f: Spectrum) -> "Covariance":
        value = f(self.like)
        if not bool(value.isfinite()):
            raise NumericsError("A Gaussian without noise has no inverse covariance. Add noise, or skip the bound.")
        # A function that lifts zero, such as adding a ridge, turns nothing into noise on every weight.
        return Diagonal(value.expand(self.count).clone()) if bool(value) else self

    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        return torch.zeros_like(v)

    def diagonal(self) -> Float[Tensor, " P"]:
        return self.like.new_zeros(self.count)

    def logdet(self) -> float:
        return -math.inf

    def trace_with(self, other: Covariance) -> float:
        return 0.0

    def draw(self, noise: NoiseSource | torch.Generator) -> Float[Tensor, " P"]:
        return self.diagonal()

    def double(self) -> "NoNoise":
        return NoNoise(self.count, self.like.double())

    @property
    def _like(self) -> Tensor:
        return self.like


@dataclass(frozen=True, eq=False)
class Diagonal(Covariance):
    """Independent noise on each weight."""

    variance: Float[Tensor, " P"]
    structure: ClassVar[int] = 0

    @property
    def size(self) -> int:
        return self.variance.numel()

    def map(self, f: Spectrum) -> "Diagonal":
        return Diagonal(f(self.variance))

    def multiply(self, v: Float[Tensor, "*K P"]) -> Float[Tensor, "*K P"]:
        return v * self.variance

    def diagonal(self) -> Float[Tensor, " P"]:
        return self.variance

    def logdet(self) -> float:
        return float(self.variance.double().log().sum())

    def trace_with(self, other: Covariance) -> float:
        return float((self.variance.double() * other.diagonal().double()).sum())

    def double(self) -> "Diagonal":
        return Diagonal(self.variance.double())

    @property
    def _like(self) -> Tensor:
        return self.variance


def trace_of_product(a: Covariance, b: Covariance) -> float:
    """`tr(A B)` by structure, never by writing either matrix out."""
    if a.size != b.size:
        raise MismatchError(f"Matrices over {a.size} and {b.size} weights cannot be multiplied.")
    # The trace does not mind the order of its factors.
    simple, other = sorted((a, b), key=lambda matrix: matrix.structure)
    return simple.trace_with(other)


@dataclass(frozen=True, eq=False)
class Gaussian(metaclass=AcceptsOldNames):
    r"""$N(\mu, \Sigma)$ over weights, with a record of how it came about.

    **Arguments:**

    - `mean`: $\mu = h(w)$.
    - `covariance`: $\Sigma$; `NoNoise` where there is no noise.
    - `diagnostics`: what the scrub did, assumed and could not promise; ends up in the report and the receipt.
    - `buffers`: those that go with the weights, where the scrub moved them too (BatchNorm's running statistics).
    - `price`: of a reference that is one part of a mixture, such as one level of noise of several: $\log 1/p$ of its
      weight $p$, which every divergence from the mixture has beside that from the part.
    """

    mean: Float[Tensor, " P"]
    covariance: Covariance
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    buffers: Mapping[str, Tensor] | None = None
    price: float = 0.0

    about = OldName("diagnostics")
    is_still = OldName("is_noiseless")

    def __post_init__(self) -> None:
        if self.covariance.size != self.mean.numel():
            raise MismatchError(
                f"A mean of {self.mean.numel()} weights does not fit a covariance over {self.covariance.size}."
            )
        check_finite("The scrubbed weights", self.mean, "Raise the damping, or lower the step.")

    def __repr__(self) -> str:
        # Weights by the thousand tell nobody anything.
        noise = "no noise" if self.is_noiseless else f"noise {type(self.covariance).__name__}"
        assumed = "".join(f", assumed: {text}" for text in self.diagnostics.assumed)
        return f"Gaussian({self.mean.numel()} weights, {noise}{assumed})"

    @property
    def is_noiseless(self) -> bool:
        """Whether there is no noise, so that every draw is the mean."""
        return isinstance(self.covariance, NoNoise)

    def draw(self, noise: NoiseSource | torch.Generator) -> Float[Tensor, " P"]:
        """One sample.

        **Arguments:**

        - `noise`: what is released needs `NoiseSeed.secret().generator()`, whose noise nobody can draw again. A
          `torch.Generator` is for experiments: the same state gives the same sample.
        """
        drawn = self.covariance.draw(noise)
        if not as_source(noise).protects or self.is_noiseless:
            return self.mean + drawn.to(self.mean)
        # One rounding, of the sum: bits of the mean that the noise does not reach would else stand in the open.
        deviation = self.covariance.diagonal().double().clamp(min=0).sqrt().to(self.mean.device)
        return snapped(self.mean.double() + drawn.to(self.mean.device), deviation).to(self.mean.dtype)

    def kl(self, other: "Gaussian") -> float:
        r"""$KL(\text{self} \| \text{other})$ in nats.

        $$\tfrac12\big[\Delta\mu^\top\Sigma_0^{-1}\Delta\mu + \mathrm{tr}(\Sigma_0^{-1}\Sigma)
          - \log|\Sigma_0^{-1}\Sigma| - P\big] + \log\tfrac1{p_0}$$

        where $p_0$ is one unless the other is a part of a mixture (`price`); the divergence from that is no larger.

        Infinite when either side has no noise, unless both are the same point; so too along a direction in which one
        side has none. Weights that have none on both sides, and are the same, count for nothing; where noise is not
        independent they are not told apart from others, and the divergence is infinite.
        """
        if self.mean.shape != other.mean.shape:
            raise MismatchError(
                f"Gaussians over {self.mean.numel()} and {other.mean.numel()} weights cannot be compared. "
                "Both must come from the same network."
            )
        gap = self.mean - other.mean
        if self.is_noiseless or other.is_noiseless:
            return 0.0 if self.is_noiseless and other.is_noiseless and not gap.any() else math.inf
        # In float64: the terms are of the size of P, and their difference may be a fraction of one nat.
        gap = self.mean.double() - other.mean.double()
        own, theirs = self.covariance.double(), other.covariance.double()
        if isinstance(own, Diagonal) and isinstance(theirs, Diagonal) and not bool(theirs.variance.all()):
            telling = (own.variance != 0) | (theirs.variance != 0) | (gap != 0)
            gap, own, theirs = gap[telling], Diagonal(own.variance[telling]), Diagonal(theirs.variance[telling])
        moved = float((gap * theirs.solve(gap)).sum())
        spread = trace_of_product(theirs.inverse(), own)
        # OB Prop. 1 with the signs that the integral gives; the paper prints + log.
        nats = 0.5 * (moved + spread - own.logdet() + theirs.logdet() - gap.numel()) + other.price
        # Infinity less infinity: the reference has no noise where the other side has some, or lies elsewhere.
        return math.inf if math.isnan(nats) else nats
