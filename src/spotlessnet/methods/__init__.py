"""Methods of unlearning: one method, one file, one frozen dataclass, registered in `METHODS`.

Names are looked up in the registry, so that a new file is all that a new method takes.
"""

from typing import TYPE_CHECKING, Any

from spotlessnet.core.scrub import METHODS as METHODS
from spotlessnet.core.scrub import Scrub

if TYPE_CHECKING:
    # For editors and type checkers, which do not run the registry. A method that is not here is exported all the same.
    from spotlessnet.methods.amun import AMUN as AMUN
    from spotlessnet.methods.bad_teacher import BadTeacher as BadTeacher
    from spotlessnet.methods.ct import CT as CT
    from spotlessnet.methods.finetune import Finetune as Finetune
    from spotlessnet.methods.fisher import Fisher as Fisher
    from spotlessnet.methods.gradient_ascent import GradientAscent as GradientAscent
    from spotlessnet.methods.hiding import Hiding as Hiding
    from spotlessnet.methods.l1_sparse import L1Sparse as L1Sparse
    from spotlessnet.methods.lotus import LoTUS as LoTUS
    from spotlessnet.methods.mixed_linear import MixedLinear as MixedLinear
    from spotlessnet.methods.msg import MSG as MSG
    from spotlessnet.methods.neg_grad_plus import NegGradPlus as NegGradPlus
    from spotlessnet.methods.newton import Newton as Newton
    from spotlessnet.methods.ntk import NTK as NTK
    from spotlessnet.methods.out_of_fold.method import OutOfFoldDistillation as OutOfFoldDistillation
    from spotlessnet.methods.random_labels import RandomLabels as RandomLabels
    from spotlessnet.methods.respond_and_finetune import RespondAndFinetune as RespondAndFinetune
    from spotlessnet.methods.retrain import Retrain as Retrain
    from spotlessnet.methods.salun import SalUn as SalUn
    from spotlessnet.methods.scrub import SCRUB as SCRUB
    from spotlessnet.methods.short_retrain import ShortRetrain as ShortRetrain
    from spotlessnet.methods.ssd import SSD as SSD
    from spotlessnet.methods.truncated_retrain import TruncatedRetrain as TruncatedRetrain
    from spotlessnet.methods.variational import Variational as Variational
    from spotlessnet.methods.within_budget.method import WithinBudget as WithinBudget

    SCRUBS: tuple[type[Scrub], ...]


def __getattr__(name: str) -> Any:
    """A method by its name in Python, or all of them."""
    if name == "SCRUBS":
        return METHODS.things()
    return METHODS.export(name, __name__)


def __dir__() -> list[str]:
    """Public names, for completion."""
    return sorted({*globals(), *METHODS.exports(), "SCRUBS"})
