"""Fisher scrubbing: noise where the retained data does not look.

Golatkar, Achille and Soatto (2020), *Eternal Sunshine of the Spotless Net*, section 4.1, and *Forgetting Outside the
Box*, equation 11.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.damping import ridge_of
from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import NeedError, check_choice, check_not_negative, check_positive
from spotlessnet.core.gaussian import Covariance, Diagonal, Measured
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.cost import noise, with_slow
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.kronecker import kronecker
from spotlessnet.precomputed.statistics import Statistics


@dataclass(frozen=True)
class FisherFacts(Measured):
    """How large the noise is, and the share of weights whose noise is capped."""

    capped: float | None = None
    largest_deviation: float | None = None


@METHODS.register(
    "fisher",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net",
    needs=("retained data or statistics",),
    reads=("statistics",),
    guarantee="none by itself; its noise bounds the nats that are left",
)
@dataclass(frozen=True)
class Fisher(Scrub):
    r"""No step; noise that is large where the Fisher matrix of the retained data is small.

    $$\Sigma = \sqrt{s}\,F^{-1/2} \;(\texttt{"half"}) \quad\text{or}\quad \Sigma = s\,F^{-1} \;(\texttt{"one"}), \qquad
      F = \frac1{N_r}\sum_{x \in D_r} J_x^\top H_x J_x + (\lambda + \gamma) I$$

    `F` is a **mean** over the retained rows plus decay and damping, at the weights the noise is added to.

    When a whole class goes, the papers count on its row of the last layer to have next to no Fisher information on the
    retained rows, and so the largest noise, which `cap` bounds. That holds for a network that no longer gives them the
    label: after a step, `chain(Newton(), Fisher())`, its noise is the largest; without one it need not be. The
    published code also sets the row to zero, which is a step of its own and not part of this method; see `Hiding`.

    **Arguments:**

    - `strength`: $s$, the papers' $\lambda\sigma_h^2$ (`"half"`) or $\lambda$ (`"one"`): more forgets more.
    - `exponent`: which of the two; `"half"` is the best noise against an isotropic error of the step. `"zero"` is
      $\Sigma = s I$, the same noise on every weight: it forgets too, and ruins the network for it.
    - `structure`: `"diagonal"`, or `"kronecker"` for the Kronecker-factored matrix of each layer.
    - `kind`: of the diagonal: `"exact"` over all labels, `"monte carlo"` labels drawn from the model, or `"empirical"`.
    - `cap`: the largest standard deviation in any direction.
    - `damping`: $\gamma$; `None` is zero for a known positive decay and 1e-3 otherwise.
    - `seed`: of the labels drawn for `"monte carlo"`.
    - `statistics`: the sums that `precompute` kept; only $D_f$ is then read.
    """

    stays: ClassVar[bool] = True

    strength: float = 1e-10
    exponent: Literal["zero", "half", "one"] = "half"
    structure: Literal["diagonal", "kronecker"] = "diagonal"
    kind: Literal["exact", "monte carlo", "empirical"] = "exact"
    cap: float = 0.03
    damping: float | None = None
    seed: int = 0
    statistics: Statistics | None = field(default=None, repr=False)

    memory = OldName("statistics")

    def __post_init__(self) -> None:
        check_positive("Fisher.strength", self.strength, "Smaller adds less noise.")
        check_choice("Fisher.exponent", self.exponent, ("zero", "half", "one"))
        check_choice("Fisher.structure", self.structure, ("diagonal", "kronecker"))
        check_choice("Fisher.kind", self.kind, ("exact", "monte carlo", "empirical"))
        check_positive("Fisher.cap", self.cap)
        if self.damping is not None:
            check_not_negative("Fisher.damping", self.damping, "Start from the weight decay.")

    @property
    def is_noisy(self) -> bool:
        return True

    def cost(self, trained: Trained, split: Split) -> Work:
        if self.statistics is None:
            return noise(with_slow(trained, split), self.structure, self.kind)
        return (
            Work(0, 0)
            if self.structure == "kronecker"
            else with_slow(trained, split).diagonals(len(split.forget), self.kind)
        )

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        return trained.weights

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        if self.exponent == "zero":
            same = min(self.strength, self.cap**2)
            notes.measure(FisherFacts, capped=float(self.strength >= self.cap**2), largest_deviation=same**0.5)
            return Diagonal(torch.full_like(trained.weights, same))
        ridge = ridge_of(trained, self.damping, notes)
        check_positive("Fisher.damping plus the decay", ridge, "The noise divides by it where nothing is known.")
        F = self._from_statistics(trained, split, notes) if self.statistics else self._from_rows(trained, split)
        if self.kind == "empirical":
            notes.assume(
                "the squared gradients at the true labels stand in for the Fisher matrix",
                "where training fits its labels they vanish, and the noise is larger than the Fisher matrix would give",
            )
        # A downdate, or Monte Carlo, may leave less than nothing where a sum of squares has nothing.
        variance = F.map(lambda e: self._variance(e.clamp(min=0) + ridge))
        # A weight that no row holds would get noise without end, above all in the row of a class that is gone.
        capped = variance.map(lambda e: e.clamp(max=self.cap**2))
        notes.measure(
            FisherFacts,
            capped=float((variance.diagonal() >= self.cap**2).double().mean()),
            largest_deviation=float(capped.diagonal().max().sqrt()),
        )
        return capped

    def _variance(self, e: Tensor) -> Tensor:
        return (self.strength / e).sqrt() if self.exponent == "half" else self.strength / e

    def _from_rows(self, trained: Trained, split: Split) -> Covariance:
        n = len(split.retain)
        draw = torch.Generator(trained.device).manual_seed(self.seed)
        if self.structure == "kronecker":
            kind = "monte carlo" if self.kind == "monte carlo" else "exact"
            return kronecker(trained, split.retain, fisher=kind, generator=draw).scaled(1 / n)
        return Diagonal(fisher_diagonal(trained, split.retain, kind=self.kind, generator=draw) / n)

    def _from_statistics(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        """What is left of the kept sums when the cohort's own are taken out, at the weights that they were taken at."""
        statistics = self.statistics
        assert statistics is not None  # the caller looks
        then = trained.at(statistics.weights.to(trained.weights))
        forget = split.forget
        statistics.check_holds(forget)
        if not torch.equal(then.weights, trained.weights):
            notes.assume(
                "the Fisher matrix was taken at the weights of the statistics, not at those the noise is added to",
                "the shape of the noise is that of a nearby network",
            )
        n = statistics.count - len(forget)
        if self.structure == "kronecker":
            notes.assume(
                "the kept Kronecker factors still hold the forgotten rows' curvature",
                "the noise is slightly smaller than from the retained rows alone",
            )
            if statistics.kronecker is None:
                raise NeedError(
                    "The statistics hold no kronecker. Write them anew with `precompute(..., kronecker=True)`."
                )
            # Over all rows, not those that stay: the factors of the forgotten ones cannot be subtracted.
            return statistics.kronecker.scaled(1 / statistics.count)
        draw = torch.Generator(trained.device).manual_seed(self.seed)
        whole = statistics.need("diagonal").to(trained.weights)
        gone = fisher_diagonal(then, forget, kind=self.kind, generator=draw)
        return Diagonal((whole - gone).clamp(min=0) / n)
