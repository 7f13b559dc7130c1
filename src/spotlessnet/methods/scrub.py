"""SCRUB: a student that obeys the trained network on retained rows and contradicts it on forgotten ones.

As defined by Kurmanji, Triantafillou, Hayes and Triantafillou (2023), *Towards Unbounded Machine Unlearning*.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import check_not_negative
from spotlessnet.core.scrub import METHODS, Notes, Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.targets import Distillation, Negated, TaughtAndTold
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning


@METHODS.register(
    "scrub",
    paper="Kurmanji, Triantafillou, Hayes and Triantafillou (2023), Towards Unbounded Machine Unlearning",
    needs=("retained data", "classes"),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class SCRUB(Tuning):
    """In turns, away from the teacher on the forgotten rows and toward it and the labels on the retained ones.

    **Arguments** beside those of `Tuning`:

    - `away`: how many of the epochs begin with a step away; the last ones only repair.
    - `alpha`, `gamma`: weights of the teacher and of the labels on the retained rows.
    """

    epochs: int = 5
    away: int = 2
    alpha: float = 0.5
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("away", "alpha", "gamma"):
            check_not_negative(f"SCRUB.{name}", getattr(self, name))

    def cost(self, trained: Trained, split: Split) -> Work:
        sizes = Sizes.of(trained, split)
        away = min(self.away, self.epochs)
        visits = away * len(split.forget) + self.epochs * len(split.retain)
        return Work.sure(visits * sizes.gradient + len(split.whole) * sizes.answer + sizes.looks)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        recipe = self.recipe(trained, notes, split.retain).but(epochs=1)
        teacher = {part: trained.predict(data).cpu() for part, data in (("f", split.forget), ("r", split.retain))}
        forget = split.forget.relabel(teacher["f"])
        # Answers and label side by side in one target, for the loss compares with both.
        told = split.retain.labels().cpu().to(teacher["r"]).unsqueeze(1)
        retain = split.retain.relabel(torch.cat([teacher["r"], told], dim=1))
        # Said here, for every call of `fit` would else take its own beginning for what the decay pulls to.
        start = trained.weights if trained.init is None else trained.init
        student = replace(trained, init=start)
        for epoch in range(self.epochs):
            # First up on the forgotten rows, then down on the others, as in the paper; the last epochs only repair.
            if epoch < self.away:
                up = replace(student, loss=Negated(Distillation()))
                student = student.at(fit(up, forget, recipe, seed=self.seed + epoch, label="contradicting").weights)
            down = replace(student, loss=TaughtAndTold(self.alpha, self.gamma))
            student = student.at(fit(down, retain, recipe, seed=self.seed + epoch, label="obeying").weights)
        return student.weights
