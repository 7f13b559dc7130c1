"""Scrubs: one method, one file, one frozen dataclass."""

from spotlessnet.core.scrub import Scrub
from spotlessnet.scrubs.bad_teacher import BadTeacher
from spotlessnet.scrubs.finetune import Finetune
from spotlessnet.scrubs.fisher import Fisher
from spotlessnet.scrubs.hiding import Hiding
from spotlessnet.scrubs.mixed_linear import MixedLinear
from spotlessnet.scrubs.neg_grad_plus import NegGradPlus
from spotlessnet.scrubs.negative_gradient import NegativeGradient
from spotlessnet.scrubs.newton import Newton
from spotlessnet.scrubs.ntk import NTK
from spotlessnet.scrubs.random_labels import RandomLabels
from spotlessnet.scrubs.respond_and_polish import RespondAndPolish
from spotlessnet.scrubs.retrain import Retrain
from spotlessnet.scrubs.saliency import Saliency
from spotlessnet.scrubs.selective_dampening import SelectiveDampening
from spotlessnet.scrubs.short_retrain import ShortRetrain
from spotlessnet.scrubs.sparse_finetune import SparseFinetune
from spotlessnet.scrubs.student import Student
from spotlessnet.scrubs.unlabel import Unlabel
from spotlessnet.scrubs.variational import Variational
from spotlessnet.scrubs.within_budget import WithinBudget

SCRUBS: tuple[type[Scrub], ...] = (
    NTK,
    BadTeacher,
    NegGradPlus,
    RespondAndPolish,
    Saliency,
    SelectiveDampening,
    ShortRetrain,
    SparseFinetune,
    Student,
    Finetune,
    Fisher,
    Hiding,
    MixedLinear,
    NegativeGradient,
    Newton,
    RandomLabels,
    Retrain,
    Unlabel,
    Variational,
    WithinBudget,
)
"""Every method, for lists, the command line and the contract test."""

__all__ = [
    "NTK",
    "SCRUBS",
    "BadTeacher",
    "Finetune",
    "Fisher",
    "Hiding",
    "MixedLinear",
    "NegGradPlus",
    "NegativeGradient",
    "Newton",
    "RandomLabels",
    "RespondAndPolish",
    "Retrain",
    "Saliency",
    "SelectiveDampening",
    "ShortRetrain",
    "SparseFinetune",
    "Student",
    "Unlabel",
    "Variational",
    "WithinBudget",
]
