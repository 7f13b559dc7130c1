"""Noisy fine-tuning: clipped steps toward where anyone would arrive, and noise that hides where they began.

Koloskova, Allouah, Jha, Guerraoui and Koyejo (2025), *Certified Unlearning for Neural Networks*.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import SettingError, check_not_negative, check_positive
from spotlessnet.core.gaussian import Covariance, Diagonal, Measured
from spotlessnet.core.gaussian_dp import sigma_for
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit


@dataclass(frozen=True)
class NoisyFinetuneFacts(Measured):
    """What the certificate rests on: how far apart two ends can be, and the noise that this asks for."""

    under: ClassVar[str] = "noisy_finetune"

    steps: int | None = None
    distance: float | None = None
    sigma: float | None = None
    epsilon: float | None = None
    delta: float | None = None


@METHODS.register(
    "noisy-finetune",
    summary="Pull the weights into a ball, fine-tune on the retained data by clipped steps, and add noise that "
    "hides where they began.",
    paper="Koloskova, Allouah, Jha, Guerraoui and Koyejo (2025), Certified Unlearning for Neural Networks",
    needs=("retained data",),
    reads=("init", "recipe"),
    guarantee="an (epsilon, delta) certificate beside the same steps from a network that never saw the examples",
)
@dataclass(frozen=True)
class NoisyFinetune(Scrub):
    r"""Weights within $C_0$ of the anchor $a$, then $T$ steps on the retained rows, then noise:

    $$w \leftarrow w - \eta\,\big(\mathrm{clip}_{C_1}(\nabla L(w)) + \lambda (w - a)\big), \qquad
      D_T = 2 C_0 c^T + 2\eta C_1 \frac{1 - c^T}{1 - c}, \qquad c = 1 - \eta\lambda$$

    Two runs of these steps on the same batches end at most $D_T$ apart, whatever the network is and wherever in the
    ball they began: one at the network that knew the rows, the other at one that never saw them. So $\sigma$ that makes
    $D_T/\sigma$-GDP an $(\varepsilon, \delta)$ certifies that the first cannot be told from the second. Neither
    convexity nor smoothness is assumed. The paper adds noise after every step, which hides more; here one noise comes
    at the end, where it can be secret, so the certificate is the simpler of the two and asks for more noise. With $P$
    weights its length is $\sigma\sqrt P$: for large networks this ruins the answers, and that is the known price.

    **Arguments:**

    - `epsilon`, `delta`: what is certified of one request; of several, `core.gaussian_dp.epsilon_of` composes.
    - `radius`: $C_0$, in weight space around the initial weights (zero where they are not known).
    - `clip`: $C_1$, the longest gradient.
    - `pull`: $\lambda$; with `lr` it says how fast a beginning is lost.
    - `epochs`, `lr`, `batch_size`, `seed`: of the steps; `seed` must not depend on the rows that go.
    """

    epsilon: float = 10.0
    delta: float = 1e-5
    radius: float = 1.0
    clip: float = 0.1
    pull: float = 1.0
    epochs: int = 10
    lr: float = 0.1
    batch_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epsilon", "radius", "pull", "lr", "batch_size", "epochs"):
            check_positive(f"NoisyFinetune.{name}", getattr(self, name))
        check_not_negative("NoisyFinetune.clip", self.clip)
        check_not_negative("NoisyFinetune.seed", self.seed)
        if not 0 < self.delta < 1:
            raise SettingError(f"`NoisyFinetune.delta` must lie between 0 and 1, but got {self.delta}.")
        if not self.lr * self.pull < 1:
            raise SettingError(f"`lr` times `pull` must be below 1, but is {self.lr * self.pull}. Lower one of them.")

    @property
    def is_noisy(self) -> bool:
        return True

    @property
    def is_certified(self) -> bool:
        return True

    def steps(self, rows: int) -> int:
        """$T$."""
        return self.epochs * math.ceil(rows / self.batch_size)

    def distance(self, rows: int) -> float:
        """$D_T$ for so many retained rows."""
        kept = 1 - self.lr * self.pull
        faded = kept ** self.steps(rows)
        return 2 * self.radius * faded + 2 * self.clip * (1 - faded) / self.pull

    def cost(self, trained: Trained, split: Split) -> Work:
        return gradients(trained, split, self.epochs * len(split.retain))

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        if trained.init is None:
            notes.assume("the initial weights are unknown and were taken as zero", "the ball lies around zero")
        anchor = trained.anchor
        begun = trained.at(anchor + _clipped(trained.weights - anchor, self.radius))

        def bounded(g: Tensor, w: Tensor, done: float) -> None:
            g.copy_(_clipped(g, self.clip) + self.pull * (w - anchor))

        # Of the training's own recipe nothing stays that would remember: no momentum, no decay, no schedule.
        recipe = Recipe(epochs=self.epochs, lr=self.lr, momentum=0.0, batch_size=self.batch_size, weight_decay=0.0)
        made = fit(begun, split.retain, recipe, seed=self.seed, adjust=bounded, label="noisy fine-tuning")
        rows = len(split.retain)
        notes.measure(
            NoisyFinetuneFacts,
            steps=self.steps(rows),
            distance=self.distance(rows),
            sigma=self._sigma(rows),
            epsilon=self.epsilon,
            delta=self.delta,
        )
        return made.weights

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        return Diagonal(torch.full_like(trained.weights, self._sigma(len(split.retain)) ** 2))

    def _sigma(self, rows: int) -> float:
        return sigma_for(self.distance(rows), self.epsilon, self.delta)


def _clipped(v: Tensor, longest: float) -> Tensor:
    length = float(v.norm())
    return v if length <= longest else v * (longest / length)
