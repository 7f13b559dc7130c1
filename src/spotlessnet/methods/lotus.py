"""LoTUS: the network teaches itself, its answers on the forgotten rows tempered until they are as unsure as new ones.

As defined by Spartalis, Semertzidis, Gavves and Daras (2025), *LoTUS: Large-Scale Machine Unlearning with a Taste of
Uncertainty*, and its published code. They use AdamW; here the recipe's own optimiser is used. Gumbel noise is drawn
once an epoch and row.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.answers import error_rate
from spotlessnet.core.data import Data, evenly
from spotlessnet.core.errors import SettingError, check_positive
from spotlessnet.core.scrub import METHODS, Notes, Sizes, Work
from spotlessnet.core.split import Split, joined
from spotlessnet.core.targets import Distillation
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning

NEVER = -1e4
"""The logit of a class that a hard label does not name."""

ENOUGH = -0.01
"""Forgotten rows that are answered worse than held-out ones by this share end it."""

ASKED = 512
"""Rows of either kind that a plan asks."""


@METHODS.register(
    "lotus",
    summary="Train toward its own answers, softened on the forgotten data by how much better it does there.",
    paper="Spartalis, Semertzidis, Gavves and Daras (2025), LoTUS",
    needs=("retained data", "classes"),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class LoTUS(Tuning):
    r"""Each epoch toward logits with noise: softened on $D_f$, their largest class on some of $D_r$.

    $$t_f = \mathrm{softmax}((z + G)/\tau), \qquad
      \tau = \exp\big(\alpha\,(\mathrm{acc}_{D_f}(w) - \mathrm{acc}_{val}(w_0))\big)$$

    with the original's logits $z$ and Gumbel noise $G$. It ends once the forgotten rows are answered worse than new
    ones by a point. For a whole class the accuracy on new rows counts as zero, as in the paper.

    **Arguments** beside those of `Tuning`:

    - `alpha`: how fast answers are softened; the published default is 2.
    - `share`: of the retained rows that are used; the published default is 0.3.
    - `noise`: whether Gumbel noise is added, as published.
    """

    epochs: int = 5
    alpha: float = 2.0
    share: float = 0.3
    noise: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("LoTUS.alpha", self.alpha)
        if not 0 < self.share <= 1:
            raise SettingError(f"`LoTUS.share` must lie in (0, 1], but got {self.share}.")

    def cost(self, trained: Trained, split: Split) -> Work:
        sizes = Sizes.of(trained, split)
        some = max(1, int(self.share * len(split.retain)))
        k = len(split.forget)
        held = len(split.retain if split.validation is None else split.validation)
        read = (some + k + held) * sizes.answer
        epoch = (some + k) * sizes.gradient + k * sizes.answer
        # Once begun, few epochs seldom bring the forgotten rows to be answered worse than new ones, which would end it.
        return Work.sure(read + self.epochs * epoch + sizes.looks)

    def foreseen(self, trained: Trained, split: Split) -> Work:
        """Nothing is trained where the forgotten rows are answered worse than new ones from the start: some tell."""
        if split.validation is None:
            return self.cost(trained, split)
        forget, held = (data.select(evenly(len(data), ASKED)) for data in (split.forget, split.validation))
        some = replace(split, forget=forget, validation=held)
        begun = self._gap(trained, forget, self._unseen(trained, some, Notes())) > ENOUGH
        usual = (self if begun else replace(self, epochs=0)).cost(trained, split).usual
        return replace(self.cost(trained, split), usual=usual)

    def _gap(self, at: Trained, forget: Data, unseen: float) -> float:
        """How much better the forgotten rows are answered than new ones."""
        return 1 - error_rate(at, forget) - unseen

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        draw = torch.Generator().manual_seed(self.seed)
        some = torch.randperm(len(split.retain), generator=draw)[: max(1, int(self.share * len(split.retain)))]
        forget = split.forget.select(split.forget.rows.argsort())
        retain = split.retain.select(split.retain.rows.argsort()).select(some.sort().values)
        z_f, z_r = (trained.predict(data).cpu() for data in (forget, retain))
        unseen = self._unseen(trained, split, notes)
        recipe = self.recipe(trained, notes, split.retain).but(epochs=1)
        start = trained.weights if trained.init is None else trained.init
        student = replace(trained, init=start, loss=Distillation())
        for epoch in range(self.epochs):
            gap = self._gap(trained.at(student.weights), forget, unseen)
            if gap <= ENOUGH:
                break
            soft = (z_f + self._gumbel(z_f, draw)) / math.exp(self.alpha * gap)
            hard = z_r + self._gumbel(z_r, draw)
            sure = torch.full_like(hard, NEVER).scatter(1, hard.argmax(dim=1, keepdim=True), 0.0)
            told = joined(forget, retain).relabel(torch.cat([soft, sure]))
            student = student.at(fit(student, told, recipe, seed=self.seed + epoch, label="LoTUS").weights)
        return student.weights

    def _unseen(self, trained: Trained, split: Split, notes: Notes) -> float:
        """The original's accuracy on new rows."""
        if not bool(torch.isin(split.forget.labels().cpu(), split.retain.labels().cpu()).any()):
            return 0.0
        held: Data | None = split.validation
        if held is None:
            notes.assume("no validation rows were given; retained rows stand in", "answers are softened less")
            held = split.retain
        return 1 - error_rate(trained, held)

    def _gumbel(self, z: Tensor, draw: torch.Generator) -> Tensor:
        if not self.noise:
            return torch.zeros_like(z)
        return -torch.empty(z.shape, dtype=torch.float64).exponential_(generator=draw).log().to(z)
