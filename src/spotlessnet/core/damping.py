"""What keeps a curvature invertible: the decay that training had, and a damping where that is not enough."""

from dataclasses import dataclass

from spotlessnet.core.gaussian import Measured
from spotlessnet.core.scrub import Notes
from spotlessnet.core.trained import Trained

DEFAULT_DAMPING = 1e-3
"""Stands in where the decay is zero or not known; per row, like the decay."""


@dataclass(frozen=True)
class Damped(Measured):
    """What was added to the decay."""

    damping: float | None = None


def ridge_of(trained: Trained, damping: float | None, notes: Notes) -> float:
    r"""$\lambda + \gamma$, decay plus damping, to be added to a curvature that is a **mean** over rows.

    **Arguments:**

    - `damping`: $\gamma$; `None` adds nothing to a known positive decay, and `DEFAULT_DAMPING` otherwise.
    - `notes`: where the choice is recorded.
    """
    if damping is None:
        damping = 0.0 if trained.known_weight_decay > 0 else DEFAULT_DAMPING
    if trained.weight_decay is None:
        # AdamW decays beside the gradient, and a decay that spares biases has not one weight: no ridge is theirs.
        why = "is not known" if trained.recipe is None else "of this recipe is no penalty on all weights"
        notes.assume(
            f"the decay {why} and was taken as zero; the damping stands in for it",
            "the answer is that of a network trained with the damping as its decay",
        )
    notes.measure(Damped, damping=damping)
    return trained.known_weight_decay + damping


def assume_anchor(trained: Trained, notes: Notes) -> None:
    """Record that the decay is taken to pull to zero where the start of training is not known."""
    if trained.init is None and trained.known_weight_decay > 0:
        notes.assume(
            "the start of training is not known; the decay was taken to pull to zero",
            "the step aims at the optimum of another penalty if the decay pulled elsewhere",
        )
