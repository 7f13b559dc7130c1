"""Short retraining: from the start again, in a fraction of the epochs. The default where start and recipe are known."""

from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.answers import error_rate
from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import check_not_negative, check_positive
from spotlessnet.core.gaussian import Measured
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit


@dataclass(frozen=True)
class ShortRetrainFacts(Measured):
    """How long it took, and how well retained rows are answered."""

    epochs: int | None = None
    share_of_training: float | None = None
    retained_error: float | None = None


@METHODS.register(
    "short-retrain",
    paper="this package",
    needs=("retained data", "init", "recipe"),
    guarantee="exact: the forgotten examples never touch the weights",
)
@dataclass(frozen=True)
class ShortRetrain(Scrub):
    """Train on the retained rows from the start, fast, until they are answered as well as before.

    The forgotten rows never touch the weights, so nothing of them can be left, as after `Retrain`; what is given up is
    being the very network that the recipe gives. Training goes in stages, each a share of the recipe's epochs in
    smaller batches at a higher rate that falls to zero, and ends after the first stage that errs on the retained rows
    hardly more than the original does. At worst it takes as long as retraining, and says so.

    **Arguments:**

    - `epoch_fraction`: the epochs of a stage, as a share of the recipe's.
    - `batch_scale`: the size of a batch, as a share of the recipe's: more and noisier steps for the same work.
    - `lr_scale`: a stage's first rate, in units of the recipe's.
    - `error_tolerance`: how much larger the error on the retained rows may be than the original's.
    - `seed`: of the order of the rows.
    """

    least_kept: ClassVar[float] = 0.0

    epoch_fraction: float = 0.2
    batch_scale: float = 0.5
    lr_scale: float = 1.5
    error_tolerance: float = 0.005
    seed: int = 0

    speed = OldName("lr_scale")
    thin = OldName("batch_scale")
    effort = OldName("epoch_fraction")
    slack = OldName("error_tolerance")

    def __post_init__(self) -> None:
        for name in ("epoch_fraction", "batch_scale", "lr_scale"):
            check_positive(f"ShortRetrain.{name}", getattr(self, name))
        check_not_negative("ShortRetrain.error_tolerance", self.error_tolerance)
        check_not_negative("ShortRetrain.seed", self.seed)

    def cost(self, trained: Trained, split: Split) -> Work:
        sizes = Sizes.of(trained, split)
        n = len(split.retain)
        epochs = trained.recipe.epochs if trained.recipe else 0
        stage = max(1, round(self.epoch_fraction * epochs))
        stages = -(-epochs // stage)
        # One stage where it is as good at once; the error is looked at before the first and after each.
        return Work(
            (stage * sizes.gradient + 2 * sizes.answer) * n,
            (stages * stage * sizes.gradient + (stages + 1) * sizes.answer) * n,
        )

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        recipe, init = trained.history("A short retraining", instead="chain(NTK(), Finetune(epochs=3))")
        stage = recipe.but(
            epochs=max(1, round(self.epoch_fraction * recipe.epochs)),
            lr=self.lr_scale * recipe.lr,
            batch_size=max(1, round(self.batch_scale * recipe.batch_size)),
            schedule="cosine",
            patience=None,
            # Only weights come back from a scrub, so statistics that moved would be lost.
            freeze_statistics=True,
        )
        goal = error_rate(trained, split.retain) + self.error_tolerance
        network = trained.at(init)
        epochs = 0
        error = float("inf")
        while error > goal and epochs < recipe.epochs:
            fitted = fit(network, split.retain, stage, seed=self.seed + epochs, label="retraining in short")
            network, epochs = replace(network, weights=fitted.weights), epochs + stage.epochs
            error = error_rate(network, split.retain)
        share = epochs / recipe.epochs
        notes.measure(ShortRetrainFacts, epochs=epochs, share_of_training=share, retained_error=error)
        if error > goal:
            notes.assume(
                f"after as many epochs as the recipe has, the retained rows' error is {error:.3g}, not {goal:.3g}",
                "the network answers the retained rows worse than the original; retrain by the recipe itself",
            )
        return network.weights
