"""Bad teacher: learn from the trained network on retained rows, and from an ignorant one on forgotten rows.

As defined by Chundawat, Tarun, Mandal and Kankanhalli (2023), *Can Bad Teaching Induce Forgetting?*
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import check_positive
from spotlessnet.core.scrub import METHODS, Notes, Sizes, Work
from spotlessnet.core.split import Split
from spotlessnet.core.targets import Distillation
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning


@METHODS.register(
    "bad-teacher",
    paper="Chundawat, Tarun, Mandal and Kankanhalli (2023), Can Bad Teaching Induce Forgetting?",
    needs=("retained data", "classes"),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class BadTeacher(Tuning):
    """Distil from two teachers at once. The ignorant one is the network where its training began, or random answers.

    **Arguments** beside those of `Tuning`:

    - `temperature`: of the distillation.
    """

    epochs: int = 3
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("BadTeacher.temperature", self.temperature)

    def cost(self, trained: Trained, split: Split) -> Work:
        # Who teaches answers every row once: the network, and the ignorant one where it is a network.
        teachers = 1 if trained.init is None else 2
        sizes = Sizes.of(trained, split)
        N = len(split.whole)
        return Work.sure(self.epochs * N * sizes.gradient + teachers * N * sizes.answer + sizes.looks)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        answers = trained.predict(split.whole).cpu()
        if trained.init is None:
            notes.assume("the start of training is not known; the ignorant teacher answers at random", "nothing else")
            ignorant = torch.randn(answers.shape, generator=torch.Generator().manual_seed(self.seed)).to(answers)
        else:
            ignorant = trained.at(trained.init).predict(split.whole).cpu()
        taught = torch.where(split.forgotten.unsqueeze(1), ignorant, answers)
        pupil = replace(trained, loss=Distillation(self.temperature))
        recipe = self.recipe(trained, notes, split.retain)
        return fit(pupil, split.whole.relabel(taught), recipe, seed=self.seed).weights
