"""Negative gradient: climb the loss of the forgotten data."""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.scrub import METHODS, Notes, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.targets import Negated
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning


@METHODS.register(
    "gradient-ascent",
    paper="Golatkar, Achille and Soatto (2020), Eternal Sunshine of the Spotless Net: baseline",
    needs=("retained data",),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class GradientAscent(Tuning):
    """In turns, an epoch up the loss of the forgotten data and an epoch down that of the retained data.

    A baseline of the papers, without any bound: too much of it shows as clearly as too little.

    **Arguments** beside those of `Tuning`:

    - `descend`: whether to go down on the retained data in between; without it the network soon breaks.
    """

    epochs: int = 1
    descend: bool = True

    def cost(self, trained: Trained, split: Split) -> Work:
        down = len(split.retain) if self.descend else 0
        return gradients(trained, split, self.epochs * (len(split.forget) + down))

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        recipe = self.recipe(trained, notes, split.retain).but(epochs=1)
        # Said here, for every call of `fit` would else take its own beginning for what the decay pulls to.
        w = replace(trained, init=trained.weights if trained.init is None else trained.init)
        for turn in range(self.epochs):
            # One epoch at a time: a loss without an upper limit runs away if nothing brings the network back.
            up = fit(replace(w, loss=Negated(w.loss)), split.forget, recipe, seed=self.seed + turn, label="climbing")
            w = w.at(up.weights)
            if self.descend:
                w = w.at(fit(w, split.retain, recipe, seed=self.seed + turn, label="repairing").weights)
        return w.weights
