"""What an NTK step measures of itself: how its systems were solved, how far the network is from the linear model."""

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.gaussian import Measured
from spotlessnet.core.scrub import Notes
from spotlessnet.core.trained import Trained
from spotlessnet.operators.jacobian import Jacobian
from spotlessnet.operators.linear_training import LinearTraining

BENT = 0.2
"""Departure from the linear picture that is worth a note."""


@dataclass(frozen=True)
class NTKFacts(Measured):
    """How the step was solved for, damped and scaled, and how far it can be off."""

    under: ClassVar[str] = "ntk"

    variant: str | None = None
    scale: float | None = None
    step: float | None = None
    damping: float | None = None
    trust: float | None = None
    solved: list[str] | None = None
    residual: float | None = None
    iterations: int | None = None
    error_at_most: float | None = None
    drift: float | None = None
    forget_loss: float | None = None
    holdout_loss: float | None = None
    matched: bool | None = None
    trapezium: float | None = None
    trapezium_unguarded: float | None = None
    training_gradient: float | None = None
    searched: bool | None = None


def is_nearest(notes: Notes) -> bool:
    """Whether nothing but the start decided about directions that no row sees."""
    return "minimum norm" in (notes.of(NTKFacts).solved or [])


def look_at_departure(trained: Trained, forget: Data, step: Float[Tensor, " P"], notes: Notes) -> None:
    """How far the network's answers on the forgotten rows are from what the linear picture says of them."""
    said = Jacobian(trained, forget).multiply(step)
    moved = trained.at(trained.weights + step).predict(forget) - trained.predict(forget)
    drift = float((moved - said).norm() / said.norm().clamp(min=1e-30))
    notes.measure(NTKFacts, drift=drift)
    if drift > BENT:
        notes.assume(
            f"the network departs by {drift:.0%} from the linear picture on the forgotten rows",
            "the step is the linear picture's; how far it is from retraining is not known",
        )


def record_solutions(linear: LinearTraining, notes: Notes) -> None:
    """What became of every linear system: its form, its residual, and how far its solution can be off."""
    for answer in linear.answers:
        if answer.failure:
            notes.assume(answer.failure, f"the step solves its system only up to a residual of {answer.residual:.2g}")
    errors = [answer.error for answer in linear.answers]
    notes.measure(
        NTKFacts,
        solved=[answer.form for answer in linear.answers],
        residual=max(answer.residual for answer in linear.answers),
        iterations=sum(answer.iterations for answer in linear.answers),
        error_at_most=max(errors) if all(math.isfinite(error) for error in errors) else None,
    )
