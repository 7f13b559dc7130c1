"""Scrubs: one method, one file, one frozen dataclass."""

from spotlessnet.core.scrub import Scrub
from spotlessnet.scrubs.finetune import Finetune
from spotlessnet.scrubs.fisher import Fisher
from spotlessnet.scrubs.hiding import Hiding
from spotlessnet.scrubs.mixed_linear import MixedLinear
from spotlessnet.scrubs.negative_gradient import NegativeGradient
from spotlessnet.scrubs.newton import Newton
from spotlessnet.scrubs.ntk import NTK
from spotlessnet.scrubs.random_labels import RandomLabels
from spotlessnet.scrubs.retrain import Retrain
from spotlessnet.scrubs.variational import Variational
from spotlessnet.scrubs.within_budget import WithinBudget

SCRUBS: tuple[type[Scrub], ...] = (
    NTK,
    Finetune,
    Fisher,
    Hiding,
    MixedLinear,
    NegativeGradient,
    Newton,
    RandomLabels,
    Retrain,
    Variational,
    WithinBudget,
)
"""Every method, for lists, the command line and the contract test."""

__all__ = [
    "NTK",
    "SCRUBS",
    "Finetune",
    "Fisher",
    "Hiding",
    "MixedLinear",
    "NegativeGradient",
    "Newton",
    "RandomLabels",
    "Retrain",
    "Variational",
    "WithinBudget",
]
