"""The methods that the figures compare."""

from collections.abc import Mapping

from spotlessnet.auditing.comparison import Context, ScrubOf
from spotlessnet.core.chaining import chain
from spotlessnet.core.scrub import Scrub
from spotlessnet.experiments.outside_the_box.scene import OTHER_ORDER
from spotlessnet.methods import NTK, Finetune, Fisher, Retrain

PUBLISHED, OURS, FINETUNED = "NTK, published code", "NTK", "NTK, then 3 epochs"
FLOOR = "retrained, other order"


def noise(strength: float) -> Fisher:
    r"""Equation 11: $\Sigma = s F^{-1}$, with the decay in $F$, so that the deviation is at most $\sqrt{s / \lambda}$.

    The published code leaves the decay out and cuts $1/F$ off at 1000, where this is at most 10: a strength of 1e-4
    here reaches as far as its 1e-6.
    """
    return Fisher(strength=strength, exponent="one", cap=1e3)


def fine_tune(context: Context) -> Scrub:
    """Ten epochs on the retained rows."""
    return Finetune(epochs=10, seed=context.seed)


def finetuned(context: Context) -> Scrub:
    """The step, then three epochs on the retained rows."""
    return chain(NTK(), Finetune(epochs=3, seed=context.seed))


def other_order(context: Context) -> Scrub:
    """A second retrained network, which met the rows in another order: what chance alone makes of a number."""
    return Retrain(seed=OTHER_ORDER + context.seed)


def methods(strength: float) -> Mapping[str, ScrubOf]:
    """Everything that stands beside the original and the retrained network.

    **Arguments:**

    - `strength`: of the Fisher noise.
    """
    return {
        "fine-tune": fine_tune,
        "Fisher": noise(strength),
        PUBLISHED: NTK(variant="published"),
        OURS: NTK(),
        FINETUNED: finetuned,
        FLOOR: other_order,
    }
