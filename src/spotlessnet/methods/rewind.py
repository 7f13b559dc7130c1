"""Rewind-to-Delete: go back to an earlier checkpoint, go on without the rows, and add noise that hides the rest.

Mu and Klabjan (2025), *Rewind-to-Delete: Certified Machine Unlearning for Nonconvex Functions*.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import DataError, NeedError, SettingError, check_not_negative, check_positive
from spotlessnet.core.gaussian import Covariance, Diagonal, Measured, NoNoise
from spotlessnet.core.gaussian_dp import sigma_for
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.store.checkpoints import is_following, read_weights
from spotlessnet.training.fit import Adjust, fit, learnt_buffers, prepared, train
from spotlessnet.training.optimiser import decay_of

ROUNDING = 1e-3
"""By how much, relative, a measured gradient may exceed its bound before the bound counts as refuted."""

SMALL = 1e-5
"""Of the weights' length: a shorter way may be rounding."""

LOOKED_AT = 64
"""Retained rows whose own gradients are held against the bound."""


@dataclass(frozen=True)
class RewindFacts(Measured):
    """What the certificate rests on: how far from retraining the end can be, and the noise that this asks for."""

    under: ClassVar[str] = "rewind"

    steps_back: int | None = None
    distance: float | None = None
    sigma: float | None = None
    epsilon: float | None = None
    delta: float | None = None


@METHODS.register(
    "rewind",
    summary="Go back to an earlier checkpoint of the training, go on without the rows, and add noise that hides what "
    "the checkpoint knew.",
    paper="Mu and Klabjan (2025), Rewind-to-Delete",
    needs=("retained data", "init", "recipe"),
    guarantee="an (epsilon, delta) certificate beside retraining, by full-batch descent, under the bounds that it is "
    "given; exact if rewound to the start",
)
@dataclass(frozen=True)
class Rewind(Scrub):
    r"""From the weights after $t$ of $T$ steps of gradient descent on all $n$ rows, $T - t$ steps on the retained ones:

    $$\|w_T - w'_T\| \le D = \frac{2 \eta m G}{n} \cdot \frac{c^t - 1}{c - 1} \cdot c^{T - t}, \qquad
      c = 1 + \eta L, \quad\text{or}\quad c = \max(|1 - \eta\mu|, |1 - \eta L|)$$

    where $w'$ never saw the $m$ rows. A step on all rows differs from one on the retained rows by at most $2\eta mG/n$,
    and every step stretches what is there by $c$: the first for any smooth loss, the second where it is convex. So
    $\sigma$ that makes $D/\sigma$-GDP an $(\varepsilon, \delta)$ certifies that the result cannot be told from
    retraining with the same noise. Without a checkpoint it goes back to the initial weights, where $D = 0$: that is
    retraining, without noise.

    The bounds are **given by the user and not proven here**. What breaks them ends the request: gradients that are met
    on the way, those of some single retained rows at the checkpoint, and a checkpoint that lies further from the
    initial weights than $t$ such steps lead. For networks that are not convex $c^T$ grows so fast that only few, small
    steps are certified. An audit of several trainings rewinds all of them to this one checkpoint.

    A checkpoint of the training knows all rows of that training. So it serves a network's first request only, unless
    the split names those of earlier ones (`gone`): else these would come back, under noise that hides the new ones.

    **Arguments:**

    - `checkpoint`: a file of weights from the training on all rows, as `sn.write_weights` writes it.
    - `epoch`: $t$, epochs after which it was written; an epoch is one step, for a batch holds all rows.
    - `smoothness`: $L$, the Lipschitz constant of the mean loss's gradient, weight decay included.
    - `gradient_bound`: $G$, the longest gradient of a single row's loss, without weight decay.
    - `strong_convexity`: $\mu$ of the mean loss with weight decay; 0 where it is convex, nothing where it is not.
    - `epsilon`, `delta`: what is certified of one request.
    - `seed`: of the order of rows where there is no checkpoint.
    """

    least_kept: ClassVar[float] = 0.0

    checkpoint: str | None = None
    epoch: int = 0
    smoothness: float | None = None
    gradient_bound: float | None = None
    strong_convexity: float | None = None
    epsilon: float = 10.0
    delta: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        check_not_negative("Rewind.epoch", self.epoch)
        check_not_negative("Rewind.seed", self.seed)
        check_positive("Rewind.epsilon", self.epsilon)
        if not 0 < self.delta < 1:
            raise SettingError(f"`Rewind.delta` must lie between 0 and 1, but got {self.delta}.")
        if self.checkpoint is None:
            if self.epoch:
                raise SettingError("`Rewind.epoch` is that of a checkpoint, but none was given. Give both or neither.")
            return
        if not self.epoch or self.smoothness is None or self.gradient_bound is None:
            raise SettingError(
                "A checkpoint certifies nothing by itself. Give `epoch`, after which it was written, and the bounds "
                "`smoothness` and `gradient_bound` of your loss."
            )
        check_positive("Rewind.smoothness", self.smoothness)
        check_positive("Rewind.gradient_bound", self.gradient_bound)
        if self.strong_convexity is not None and not 0 <= self.strong_convexity <= self.smoothness:
            raise SettingError(
                f"`Rewind.strong_convexity` must lie between 0 and `smoothness`, but got {self.strong_convexity}."
            )

    @property
    def is_noisy(self) -> bool:
        return self.checkpoint is not None

    @property
    def is_certified(self) -> bool:
        return self.is_noisy

    def distance(self, lr: float, epochs: int, rows: int, gone: int) -> float:
        """$D$ for a training of so many epochs on so many rows, of which so many are gone."""
        if self.smoothness is None or self.gradient_bound is None:
            return 0.0
        L, mu = self.smoothness, self.strong_convexity
        c = 1 + lr * L if mu is None else max(abs(1 - lr * mu), abs(1 - lr * L))
        try:
            # A sum, for the quotient is 0/0 where nothing is stretched.
            apart = math.fsum(c**k for k in range(self.epoch)) * c ** (epochs - self.epoch)
        except OverflowError:
            apart = math.inf
        return 2 * lr * gone * self.gradient_bound / rows * apart

    def cost(self, trained: Trained, split: Split) -> Work:
        epochs = trained.epochs
        return (
            Work.unknown() if epochs is None else gradients(trained, split, (epochs - self.epoch) * len(split.retain))
        )

    def check_needs(self, trained: Trained, split: Split) -> None:
        super().check_needs(trained, split)
        trained.begin("Rewinding", instead="NoisyFinetune")
        if self.checkpoint is not None:
            self._sigma(self._recipe(trained, split), split)
            if is_following(trained.model) and not (split.gone is not None and len(split.gone)):
                raise NeedError(
                    "The network has served a request, whose rows the checkpoint was trained on: rewinding would bring "
                    "them back, and nobody would count them. Forget all of them at once from the network before, or "
                    "leave out the checkpoint."
                )

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        begun = trained.begin("Rewinding", instead="NoisyFinetune")
        if self.checkpoint is None:
            order = None if trained.trainer is not None else split.first_trained_on
            made = train(begun, split.retain, seed=self.seed, order_of=order, label="retraining")
            notes.buffers = learnt_buffers(trained, made.model)
            return made.weights
        recipe = self._recipe(trained, split)
        back = begun.at(trained.vector(read_weights(self.checkpoint)))
        self._check_checkpoint(begun, back, recipe, split)
        left = recipe.but(epochs=recipe.epochs - self.epoch)
        made = fit(back, split.retain, left, adjust=self._watch(back, left), label="going on without the rows")
        notes.assume(
            f"each row's gradient is at most {self.gradient_bound} long, and that of the mean loss changes at most "
            f"{self.smoothness} times as far as the weights do, as was said",
            "where the loss breaks these bounds, the certificate says nothing",
        )
        notes.measure(
            RewindFacts,
            steps_back=left.epochs,
            distance=self._distance(recipe, split),
            sigma=self._sigma(recipe, split),
            epsilon=self.epsilon,
            delta=self.delta,
        )
        return made.weights

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        if self.checkpoint is None:
            return NoNoise.at(trained.weights)
        return Diagonal(torch.full_like(trained.weights, self._sigma(self._recipe(trained, split), split) ** 2))

    def reference_spread(self, retrained: Trained, split: Split, notes: Notes) -> Covariance:
        """The same noise: it knows how many rows are gone, and nothing else of them."""
        return self.spread(retrained, split, notes)

    def _recipe(self, trained: Trained, split: Split) -> Recipe:
        """That of the training, if it was what the certificate speaks of."""
        recipe, rows = trained.recipe, len(split.first_trained_on)
        if recipe is None:
            raise NeedError("Rewinding needs a recipe of full-batch gradient descent, but a trainer trained this.")
        plain = recipe.but(
            optimizer="sgd", momentum=0.0, schedule="constant", warmup_ratio=0.0, patience=None, max_grad_norm=None,
            augment=None, bf16=False, freeze_statistics=True,
        )  # fmt: skip
        other = [name for name, value in vars(recipe).items() if value != getattr(plain, name)]
        other += ["batch_size"] if recipe.batch_size < rows else []
        other += ["dropout"] if recipe.dropout and _drops(trained) else []
        if other:
            raise NeedError(
                "Rewind certifies plain gradient descent: SGD without momentum, at a constant rate, all rows in one "
                f"batch. The recipe differs in {', '.join(other)}. Use `NoisyFinetune`, or leave out the checkpoint."
            )
        if self.epoch > recipe.epochs:
            raise SettingError(f"The training has {recipe.epochs} epochs, but the checkpoint is of {self.epoch}.")
        return recipe

    def _distance(self, recipe: Recipe, split: Split) -> float:
        rows = len(split.first_trained_on)
        return self.distance(recipe.lr, recipe.epochs, rows, rows - len(split.retain))

    def _sigma(self, recipe: Recipe, split: Split) -> float:
        far = self._distance(recipe, split)
        if not math.isfinite(far):
            raise SettingError(
                f"After {recipe.epochs} steps nothing is certified: the distance to retraining has no finite bound. "
                "Rewind further, train with a smaller rate, or give `strong_convexity` where the loss has one."
            )
        return sigma_for(far, self.epsilon, self.delta)

    def _check_checkpoint(self, begun: Trained, back: Trained, recipe: Recipe, split: Split) -> None:
        """Raise where single rows break the bound, or steps within it cannot have led from the start to the checkpoint.

        Rows that go are not looked at: a refusal would tell of them.
        """
        if not bool(back.weights.isfinite().all()):
            raise DataError(f"The weights of the checkpoint {self.checkpoint} must be finite.")
        assert self.gradient_bound is not None  # __post_init__ has looked
        few = split.retain.select(range(min(LOOKED_AT, len(split.retain))))
        smoothed = prepared(back, recipe)  # labels too, where the training did that
        for batch in back.batches(few, 1):
            w = back.weights.clone().requires_grad_()
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(smoothed.losses(batch.x, batch.y, w).sum(), w)
            _refute("gradient_bound", self.gradient_bound, float(slope.norm()))
        keep = 1 - recipe.lr * torch.as_tensor(decay_of(begun, recipe)).to(begun.weights)
        # Where decay alone leads; gradients lead away from there, each a little less than the ones after it.
        there = begun.anchor + keep**self.epoch * (begun.weights - begun.anchor)
        most = float(keep.abs().max())
        reach = recipe.lr * self.gradient_bound * math.fsum(most**k for k in range(self.epoch))
        far = float((back.weights - there).norm())
        if far > reach * (1 + ROUNDING) + SMALL * float(back.weights.norm()):
            raise SettingError(
                f"{self.epoch} steps of gradients up to `gradient_bound` lead at most {reach:.4g} away, but the "
                f"checkpoint lies {far:.4g} from where the training began. Give its true epoch and bounds, and the "
                "initial weights of the same training."
            )

    def _watch(self, begun: Trained, recipe: Recipe) -> Adjust:
        """Hold the given bounds against every gradient that is met; they cannot be proven, but they can be refuted."""
        decay = decay_of(begun, recipe)
        before: list[Tensor] = []

        def look(g: Tensor, w: Tensor, done: float) -> None:
            longest = float((g - decay * (w - begun.anchor)).norm())
            _refute("gradient_bound", self.gradient_bound, longest)
            if before:
                moved = float((w - before[1]).norm())
                if moved > SMALL * float(w.norm()):  # less is rounding
                    turned = g - before[0]
                    _refute("smoothness", self.smoothness, float(turned.norm()) / moved)
                    self._refute_convexity(float(turned @ (w - before[1])) / moved**2, float(g.norm()) / moved, g.dtype)
            before[:] = [g.clone(), w.clone()]

        return look

    def _refute_convexity(self, curved: float, steep: float, kind: torch.dtype) -> None:
        """Where the loss is so convex, a gradient grows along each step by that share of its length or more."""
        mu, L = self.strong_convexity, self.smoothness
        if mu is None or L is None:
            return
        # Gradients are rounded, and a step may be short beside them.
        slack = ROUNDING * L + 32 * torch.finfo(kind).eps * steep
        if curved < mu - slack:
            raise SettingError(
                f"`Rewind.strong_convexity` is {mu}, but {curved:.4g} was met on the way. Nothing is certified."
            )


def _refute(name: str, bound: float | None, seen: float) -> None:
    if bound is not None and seen > bound * (1 + ROUNDING):
        raise SettingError(f"`Rewind.{name}` is {bound}, but {seen:.4g} was met on the way. Nothing is certified.")


def _drops(trained: Trained) -> bool:
    return any(isinstance(module, torch.nn.modules.dropout._DropoutNd) for module in trained.model.modules())
