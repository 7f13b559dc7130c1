"""AMUN: fine-tune on the nearest adversarial examples of the forgotten rows, under the labels that fool the network.

As defined by Ebrahimpour-Boroojeny, Sundaram and Chandrasekaran (2025), *AMUN: Adversarial Machine UNlearning*
(ICML 2025: *Not All Wrong is Bad*): algorithm 1 with PGD in the L2 norm, 50 steps of a tenth of the radius. The paper
says neither the first radius nor whether the attack starts at random; here it starts at the row itself.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.func import grad
from torch.nn.functional import cross_entropy

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError, SettingError, check_positive
from spotlessnet.core.scrub import METHODS, Notes, Work, gradients
from spotlessnet.core.source import Inputs
from spotlessnet.core.split import Split, joined
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import fit
from spotlessnet.training.tuning import Tuning

DOUBLINGS = 40
"""Times that the radius may be doubled before it is said that nothing fools the network."""


@METHODS.register(
    "amun",
    paper="Ebrahimpour-Boroojeny, Sundaram and Chandrasekaran (2025), AMUN: Adversarial Machine UNlearning",
    needs=("retained data", "classes"),
    reads=("init", "recipe"),
    guarantee="none",
)
@dataclass(frozen=True)
class AMUN(Tuning):
    """Fine-tune on all rows and, for each forgotten one, on a nearby input that is answered wrongly, so labelled.

    **Arguments** beside those of `Tuning`:

    - `epsilon`: the first radius of the attack, in units of the inputs; doubled for a row until its answer turns.
    - `steps`: of the attack at each radius, each a tenth of the radius long.
    """

    epochs: int = 5
    epsilon: float = 0.1
    steps: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("AMUN.epsilon", self.epsilon)
        check_positive("AMUN.steps", self.steps)

    def cost(self, trained: Trained, split: Split) -> Work:
        # How often the radius is doubled is not known beforehand: as a rule some times.
        tuned = self.epochs * (len(split.whole) + len(split.forget))
        usual, most = (gradients(trained, split, tuned + r * self.steps * len(split.forget)) for r in (4, DOUBLINGS))
        return Work(usual.usual, most.most)

    def check_needs(self, trained: Trained, split: Split) -> None:
        super().check_needs(trained, split)
        _check_moves(next(iter(trained.batches(split.forget, 1))).x)

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        forget = split.forget.select(split.forget.rows.argsort())
        found = [self.adversarial(trained, *trained.fetch(forget, rows)[:2]) for rows in forget.rows.split(256)]
        x, y = (torch.cat(parts) for parts in zip(*found, strict=True))
        # Where the other rows lie, inputs and labels each: the data may be on a GPU in part.
        one = split.whole.fetch(split.whole.rows[:1])
        assert isinstance(one.x, Tensor)  # `adversarial` has looked
        data = joined(split.whole, Data.of((x.to(one.x.device), y.to(one.y))))
        recipe = self.recipe(trained, notes, split.retain)
        return fit(trained, data, recipe, seed=self.seed, label="AMUN").weights

    def adversarial(
        self, trained: Trained, x: Inputs, y: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "n ..."], Int64[Tensor, " n"]]:
        """For each row the attack's input at the smallest radius tried that turns its answer, and that answer."""
        x = _check_moves(x)
        found = x.clone()
        said = y.clone().long()
        open_rows = torch.arange(len(x), device=x.device)
        radius = self.epsilon
        for _ in range(DOUBLINGS):
            moved = self._attack(trained, x[open_rows], y[open_rows].long(), radius)
            with torch.no_grad():
                answer = trained.outputs(moved).argmax(dim=1)
            turned = answer != y[open_rows]
            found[open_rows[turned]], said[open_rows[turned]] = moved[turned], answer[turned]
            open_rows = open_rows[~turned]
            radius *= 2
            if not len(open_rows):
                return found, said
        raise NumericsError(
            f"AMUN needs inputs that fool the network, but {len(open_rows)} rows have none within {radius:.3g}. Give a "
            "larger `epsilon`, or another method."
        )

    def _attack(self, trained: Trained, x: Tensor, y: Int64[Tensor, " n"], radius: float) -> Tensor:
        """Projected gradient ascent on the loss, in the L2 ball of the radius around each row."""
        away = torch.zeros_like(x)
        for _ in range(self.steps):
            g = grad(lambda here: cross_entropy(trained.outputs(here), y, reduction="sum"))(x + away)
            away = away + 0.1 * radius * g / _norms(g).clamp(min=1e-30)
            away = away * (radius / _norms(away).clamp(min=1e-30)).clamp(max=1)
        return x + away


def _norms(v: Tensor) -> Tensor:
    """Of each row, in the shape that divides it."""
    return v.flatten(1).norm(dim=1).reshape(-1, *[1] * (v.ndim - 1))


def _check_moves(x: Inputs) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise SettingError("AMUN moves inputs a little, but these are not one tensor of numbers. Use `SalUn`.")
    return x
