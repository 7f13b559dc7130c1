"""Relearn time: how fast forgotten rows come back, which shows what was hidden and not forgotten.

Golatkar, Achille and Soatto (2020), *Forgetting Outside the Box*.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from spotlessnet.core.deprecated import OldName
from spotlessnet.core.errors import NumericsError, check_not_negative, check_positive
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.mean_loss import mean_loss
from spotlessnet.training.fit import fit


@READOUTS.register(
    "relearn-time",
    paper="Golatkar, Achille and Soatto (2020), Forgetting Outside the Box: section 5",
    needs=("original", "retained data"),
)
@dataclass(frozen=True)
class RelearnTime(Readout):
    r"""Epochs of fine-tuning on all of $D$ until the loss on $D_f$ is back at the original's.

    $$t = \min\{k \ge 1 : L_{D_f}(w_k) \le L_{D_f}(w_{original}) + 10^{-5}\}$$

    The original itself needs the first epoch, so it reads 1. A network that is not there at the cap reads
    "> cap" and is marked censored. Fast is a memory that was only hidden; slower than retrained is the Streisand
    effect. Plain steps without momentum, in eval mode, and decay that pulls to the network under test, as the
    paper's own code has it.

    **Arguments:**

    - `original`: the network before forgetting, which sets the loss to reach.
    - `cap`: the most epochs.
    - `lr`, `batch_size`: of the fine-tuning; a small rate resolves more.
    - `weight_decay`: weight of `½‖w − w_0‖²`, with `w_0` the weights under test; the network's own unless given.
    - `tolerance`: how far above the original's loss still counts.
    - `seed`: of the order of batches, the same for every network.
    """

    unit: ClassVar[str] = "epochs"
    ideal: ClassVar[Ideal] = "as retrained"

    original: Trained
    cap: int = 100
    lr: float = 0.01
    batch_size: int = 128
    weight_decay: float | None = None
    tolerance: float = 1e-5
    seed: int = 0

    rate = OldName("lr")
    batch = OldName("batch_size")
    decay = OldName("weight_decay")

    def __post_init__(self) -> None:
        check_positive("RelearnTime.cap", self.cap)
        check_positive("RelearnTime.lr", self.lr, hint="Take the rate of the training, or a tenth of it.")
        check_positive("RelearnTime.batch", self.batch_size)
        check_not_negative("RelearnTime.tolerance", self.tolerance)
        if self.weight_decay is not None:
            check_not_negative("RelearnTime.decay", self.weight_decay)

    @property
    def name(self) -> str:
        return "relearn time"

    def __call__(self, network: Trained, split: Split) -> Reading:
        goal = mean_loss(self.original, split.forget) + self.tolerance
        how = f"rate {self.lr:g}, batch {self.batch_size}"
        if mean_loss(network, split.forget) <= goal:
            return Reading(1.0, note=f"{how}; there before the first step")
        recipe = Recipe(
            epochs=self.cap,
            lr=self.lr,
            momentum=0.0,
            batch_size=self.batch_size,
            weight_decay=network.known_weight_decay if self.weight_decay is None else self.weight_decay,
            dropout=False,
        )
        reached: list[int] = []

        def watch(epoch: int, learner: Trained) -> bool:
            if mean_loss(learner, split.forget) <= goal:
                reached.append(epoch)
            return bool(reached)

        beginner = replace(network, init=network.weights)
        try:
            fit(beginner, split.whole, recipe, seed=self.seed, label="relearning", watch=watch)
        except NumericsError:
            # A network that was broken or shut may burst when it is taught; it has not learnt the rows, then.
            return Reading(float(self.cap), censored=True, note=f"{how}; the training burst before it got there")
        if reached:
            return Reading(float(reached[0]), note=how)
        return Reading(float(self.cap), censored=True, note=f"{how}; not there at the cap")
