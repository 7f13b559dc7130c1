"""What is taught: which rows are visited, the answer that each is held to, and how much each visit counts."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.split import joined
from spotlessnet.core.targets import with_weights
from spotlessnet.methods.out_of_fold.presets import Preset
from spotlessnet.methods.out_of_fold.step_scale import Side

NEVER = -1e4
"""The logit of an answer that is struck out."""


@dataclass(frozen=True, eq=False)
class Visits:
    """The rows of all rounds, each once, and for every visit which of them it is to."""

    rows: Data
    which: Int[Tensor, " V"]

    @staticmethod
    def of(data: Data, rounds: int, most: int, seed: int) -> "Visits":
        """At most so many in a round, others in the next one, in an order that the seed draws."""
        drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        count = rounds * min(len(data), most)
        # The order begins anew when all have been visited.
        seen, which = drawn.repeat(-(-count // len(data)))[:count].unique(return_inverse=True)
        return Visits(data.select(seen), which)

    def __len__(self) -> int:
        return len(self.which)


@dataclass(frozen=True, eq=False)
class Lesson:
    """Forgotten and retained rows with the answers that they are held to.

    **Arguments:**

    - `forget`, `retain`: who is visited.
    - `taught`: answers for the forgotten rows that do not rest on their labels.
    - `known`: what was said of the retained rows at first, with classes that are gone struck out.
    - `leaving`: the classes that no retained row has and some forgotten one does.
    """

    forget: Visits
    retain: Visits
    taught: Float[Tensor, "k C"]
    known: Float[Tensor, "n C"]
    leaving: Bool[Tensor, " C"]

    @property
    def is_of_a_class(self) -> bool:
        """Whether a whole class leaves."""
        return bool(self.leaving.any())

    @property
    def visits(self) -> int:
        """To rows of either kind."""
        return len(self.forget) + len(self.retain)

    def held(self, boost: float) -> Float[Tensor, "n C"]:
        """Answers that retained rows are held to: what was said of them, their own label raised."""
        labels = self.retain.rows.labels().cpu().long().unsqueeze(1)
        return self.known.scatter_add(1, labels, torch.full_like(self.known[:, :1], boost))

    def finite(self, *, taught: bool, known: bool) -> "Lesson":
        """The same with classes that are struck out as unlikely as the least likely other: squares need a number."""
        return replace(
            self,
            taught=_as_the_least(self.taught) if taught else self.taught,
            known=_as_the_least(self.known) if known else self.known,
        )

    def told(self, beta: float, boost: float, temperatures: tuple[float, float]) -> Data:
        """All visits in one, with weights that make their mean the objective; forgotten rows first."""
        f, r = self.forget.which, self.retain.which
        # β and 1 − β in the mean, however many visits either kind has.
        share = beta * (len(f) + len(r)) / len(f), (1 - beta) * (len(f) + len(r)) / len(r)
        both = self.forget.rows, self.retain.rows
        counts, T = (
            torch.cat([torch.full((len(data),), each) for data, each in zip(both, pair, strict=True)]).to(self.known)
            for pair in (share, temperatures)
        )
        answers = torch.cat([self.taught, self.held(boost)])
        rows = joined(*both).relabel(with_weights(torch.cat([answers, T.unsqueeze(1)], dim=1), counts))
        return rows.select(torch.cat([f, len(both[0]) + r]))

    def sides(self, preset: Preset) -> tuple[Side, Side]:
        """Both kinds of rows, as the objective weighs them."""
        beta = preset.forget_weight
        return (
            Side(self.forget.rows, self.taught, beta, preset.temperature),
            Side(self.retain.rows, self.held(preset.label_boost), 1 - beta, preset.retain_temperature),
        )


def _as_the_least(answers: Float[Tensor, "n C"]) -> Float[Tensor, "n C"]:
    struck = answers == NEVER
    least = answers.masked_fill(struck, torch.inf).amin(dim=1, keepdim=True)
    return torch.where(struck, least, answers)
