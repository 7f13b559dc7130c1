"""Variational scrubbing: learn how much noise each weight can bear.

Golatkar, Achille and Soatto (2020), *Eternal Sunshine of the Spotless Net*, section 4.2.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import check_positive
from spotlessnet.core.gaussian import Covariance, Diagonal, Measured
from spotlessnet.core.progress import track
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.noisy import NoisyNetwork

HELD = 36.0
"""Vectors of all weights: means and spreads with gradients, moments and averages, draws and copies of all of them."""

AVERAGED = 0.25
"""The last share of the steps, over which the answer is averaged; as many batches more look at it."""

LEAST = 8
"""The fewest batches that look at the answer."""

CLOSE = 0.15
"""How far off variances may be, as a share, for the answer to be called converged."""

NEARLY_ALL = 0.99
"""Share of the weights whose variances must be that close."""


NOISY = 4
"""Gradients that one row takes: two mirror images, each with a mean and a variance to carry there and back."""

SIDES, LAYERED = 2, 3
"""Mirror images of a row that are on their way together, and what each makes in units of a plain pass."""


@dataclass(frozen=True)
class VariationalFacts(Measured):
    """How well the noise was learnt."""

    objective: float | None = None
    objective_change: float | None = None
    stationarity: float | None = None
    off_by_at_most: float | None = None
    converged: bool | None = None
    capped: float | None = None


@METHODS.register(
    "variational",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net",
    needs=("retained data",),
    guarantee="none by itself; its noise bounds the nats that are left",
)
@dataclass(frozen=True)
class Variational(Scrub):
    r"""No step; independent noise on each weight, as large as the retained loss allows.

    $$\min_\Sigma\; \mathbb{E}_{n \sim N(0, \Sigma)} L_{D_r}(w + n) - \lambda \log|\Sigma|$$

    by Adam on the log standard deviations. For a quadratic loss with Hessian $B$ the answer is
    $\Sigma_{ii} = 2\lambda / B_{ii}$. In `Linear` and `Conv2d` layers the noise is drawn anew for each sample, and is
    the same at all positions of one (see `NoisyNetwork`); on other weights it is drawn once for each batch.

    **Arguments:**

    - `strength`: $\lambda$: more forgets more.
    - `steps`, `lr`, `batch_size`: of Adam; the rate falls to zero in a line.
    - `initial`: the standard deviation that all weights begin with; `None` for $\sqrt{2\lambda}$, the answer to a
      curvature of one.
    - `cap`: the largest standard deviation; weights that the loss does not see end there.
    - `seed`: of batches and noise.
    """

    strength: float = 1e-6
    steps: int = 500
    lr: float = 0.05
    batch_size: int = 128
    initial: float | None = None
    cap: float = 0.1
    seed: int = 0

    rate = OldName("lr")
    batch = OldName("batch_size")

    def __post_init__(self) -> None:
        for name in ("strength", "steps", "lr", "batch_size", "cap"):
            check_positive(f"Variational.{name}", getattr(self, name))
        if self.initial is not None:
            check_positive("Variational.initial", self.initial)

    @property
    def is_noisy(self) -> bool:
        return True

    def cost(self, trained: Trained, split: Split) -> Work:
        n = len(split.retain)
        # A quarter more batches look at the answer; the last one of a sweep is smaller.
        batches = self.steps + max(LEAST, int(self.steps * AVERAGED))
        sweeps, more = divmod(batches, math.ceil(n / self.batch_size))
        rows = sweeps * n + min(n, more * self.batch_size)
        sizes = Sizes.of(trained, split)
        vectors = HELD * sizes.P * sizes.bytes
        # Both mirror images are on their way together; every layer's answer comes with its variance and its noise.
        passing = min(n, self.batch_size) * SIDES * LAYERED * sizes.row.graph
        # Each vector is gone through about once for every batch.
        return Work.sure(rows * NOISY * sizes.gradient + 5 * sizes.answer, vectors + passing, batches * vectors)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        return trained.weights

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        if trained.weight_decay is None:
            notes.assume(
                "the decay is not known and was taken as zero",
                "weights that only the decay holds get the largest noise allowed",
            )
        draw = torch.Generator(trained.device).manual_seed(self.seed)
        network = NoisyNetwork(trained, split.retain, draw)
        # The optimum Σ = 2λ / B (ES §4.2) where the curvature is one.
        initial = (2 * self.strength) ** 0.5 if self.initial is None else self.initial
        # Logarithms of deviations: variances stay positive, and a step is a factor.
        rho = torch.full_like(trained.weights, min(initial, self.cap)).log().requires_grad_()
        # Gradients fall by orders of magnitude on the way; a long memory of their squares would stall the steps.
        adam = torch.optim.Adam([rho], lr=self.lr, betas=(0.9, 0.95))
        tail = _Tail.like(rho, int(self.steps * (1 - AVERAGED)))
        objectives = []
        batches = _forever(trained, split.retain, self.batch_size, self.seed)
        for step in track(range(self.steps), "learning the noise"):
            batch = next(batches)
            # Down to zero, so that the noise of single draws averages out at the end.
            adam.param_groups[0]["lr"] = self.lr * (1 - step / self.steps)
            objective, rho.grad = self._slope(network, batch, rho)
            # The mean of the last steps is nearer to the optimum than the last one (Polyak and Ruppert).
            tail.look(step, rho)
            objectives.append(2 * self.strength * objective)
            adam.step()
            with torch.no_grad():
                rho.clamp_(max=math.log(self.cap))
        found = tail.mean()
        # Fresh batches and draws: on those that led here any answer looks stationary.
        more = (self._slope(network, next(batches), found)[1] for _ in range(max(LEAST, int(self.steps * AVERAGED))))
        self._diagnose(found, _Slopes.of(more), torch.stack(objectives), notes)
        return Diagonal(found.mul(2).exp())

    def _slope(
        self, network: NoisyNetwork, batch: Batch, rho: Float[Tensor, " P"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " P"]]:
        """The objective of one batch and one draw in units of 2λ, and its gradient in the log deviations."""
        with torch.enable_grad():
            at = rho.detach().requires_grad_()
            loss = network.losses(batch, at.exp()).mean()
            loss = loss + 0.5 * network.trained.known_weight_decay * at.mul(2).exp().sum()
            # In units of the entropy's pull on one weight, which is the same for all: Adam's epsilon stays small.
            objective = loss / (2 * self.strength) - at.sum()
            return objective.detach(), torch.autograd.grad(objective, at)[0]

    def _diagnose(
        self, found: Float[Tensor, " P"], slopes: "_Slopes", objectives: Float[Tensor, " steps"], notes: Notes
    ) -> None:
        window = max(1, int(len(objectives) * AVERAGED))
        last, before = objectives[-window:].mean(), objectives[-2 * window : -window].mean()
        change = float(((last - before) / before.abs().clamp(min=1e-30)).abs()) if len(objectives) > window else 1.0
        # Where the slope would lead down, it is not the cap that holds a weight there: it has not come further yet.
        held = (found >= math.log(self.cap) - 1e-3) & ~slopes.surely_too_large()
        off = slopes.off(~held)
        converged = off < CLOSE
        notes.measure(
            VariationalFacts,
            objective=float(last),
            objective_change=change,
            stationarity=slopes.size(~held),
            off_by_at_most=off,
            converged=converged,
            capped=float(held.double().mean()),
        )
        if not converged:
            notes.assume(
                f"after {self.steps} steps of Adam variances may be off by {off:.0%}, and by more for one in a hundred",
                "the noise is not shown to be the best for this strength; allow more `steps` or a higher `lr`",
            )


@dataclass
class _Tail:
    """The mean of the log deviations over the last steps."""

    begin: int
    count: int
    rho: Tensor

    @staticmethod
    def like(rho: Float[Tensor, " P"], begin: int) -> "_Tail":
        return _Tail(begin, 0, torch.zeros_like(rho.detach()))

    def look(self, step: int, rho: Float[Tensor, " P"]) -> None:
        if step >= self.begin:
            self.count += 1
            self.rho += rho.detach()

    def mean(self) -> Float[Tensor, " P"]:
        return self.rho / self.count


@dataclass
class _Slopes:
    r"""Gradients at the answer, from noise that did not choose it: their mean, and the standard error of that.

    In units of the entropy's pull the gradient is $\Sigma_{ii} B_{ii} / 2\lambda - 1$: by how much the variance is too
    large, as a share.
    """

    mean: Tensor
    error: Tensor

    @staticmethod
    def of(slopes: Iterable[Float[Tensor, " P"]]) -> "_Slopes":
        count = 0
        total = torch.zeros(())
        squares = torch.zeros(())
        for slope in slopes:
            count, total, squares = count + 1, total + slope, squares + slope.square()
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0) / max(1, count - 1)
        return _Slopes(mean, variance.sqrt())

    def surely_too_large(self) -> Bool[Tensor, " P"]:
        """Variances that are, by more than what is seen can err."""
        return self.mean > 2 * self.error

    def size(self, free: Bool[Tensor, " P"]) -> float:
        """The root mean square of the gradient, its own noise included."""
        return float(self.mean[free].square().mean().sqrt()) if bool(free.any()) else 0.0

    def off(self, free: Bool[Tensor, " P"]) -> float:
        """What nearly all variances are surely no further off than: two standard errors above what was seen."""
        if not bool(free.any()):
            return 0.0
        worst = (self.mean.abs() + 2 * self.error)[free].sort().values
        return float(worst[math.ceil(NEARLY_ALL * len(worst)) - 1])


def _forever(trained: Trained, data: Data, size: int, seed: int) -> Iterator[Batch]:
    """Shuffled batches without end; the order depends on which rows there are, not on how they are listed."""
    draw = torch.Generator().manual_seed(seed)
    rows = data.rows.sort().values
    while True:
        for some in rows[torch.randperm(len(rows), generator=draw)].split(size):
            yield trained.fetch(data, some)
