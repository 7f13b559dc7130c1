"""Scrubs: one method, one file, one frozen dataclass."""

from spotlessnet.core.scrub import Scrub
from spotlessnet.methods.bad_teacher import BadTeacher
from spotlessnet.methods.finetune import Finetune
from spotlessnet.methods.fisher import Fisher
from spotlessnet.methods.gradient_ascent import GradientAscent
from spotlessnet.methods.hiding import Hiding
from spotlessnet.methods.l1_sparse import L1Sparse
from spotlessnet.methods.mixed_linear import MixedLinear
from spotlessnet.methods.neg_grad_plus import NegGradPlus
from spotlessnet.methods.newton import Newton
from spotlessnet.methods.ntk import NTK
from spotlessnet.methods.out_of_fold.method import OutOfFoldDistillation
from spotlessnet.methods.random_labels import RandomLabels
from spotlessnet.methods.respond_and_polish import RespondAndPolish
from spotlessnet.methods.retrain import Retrain
from spotlessnet.methods.salun import SalUn
from spotlessnet.methods.scrub import SCRUB
from spotlessnet.methods.short_retrain import ShortRetrain
from spotlessnet.methods.ssd import SSD
from spotlessnet.methods.variational import Variational
from spotlessnet.methods.within_budget import WithinBudget

SCRUBS: tuple[type[Scrub], ...] = (
    NTK,
    BadTeacher,
    NegGradPlus,
    RespondAndPolish,
    SalUn,
    SSD,
    ShortRetrain,
    L1Sparse,
    SCRUB,
    Finetune,
    Fisher,
    Hiding,
    MixedLinear,
    GradientAscent,
    Newton,
    RandomLabels,
    Retrain,
    OutOfFoldDistillation,
    Variational,
    WithinBudget,
)
"""Every method, for lists, the command line and the contract test."""

__all__ = [
    "NTK",
    "SCRUB",
    "SCRUBS",
    "SSD",
    "BadTeacher",
    "Finetune",
    "Fisher",
    "GradientAscent",
    "Hiding",
    "L1Sparse",
    "MixedLinear",
    "NegGradPlus",
    "Newton",
    "OutOfFoldDistillation",
    "RandomLabels",
    "RespondAndPolish",
    "Retrain",
    "SalUn",
    "ShortRetrain",
    "Variational",
    "WithinBudget",
]
