"""How a linear system in the curvature is solved, as a value: `Dual()`, `CG(tolerance=1e-3)`, `LowRank(rank=50)`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from spotlessnet.core.errors import check_not_negative, check_positive
from spotlessnet.core.registry import Variant, made

S = TypeVar("S", bound="Solver")


@dataclass(frozen=True)
class Solver(Variant):
    """What every way of solving has: when a solution is good enough.

    **Arguments:**

    - `tolerance`: what a solution may leave of the right-hand side, or what rounding leaves if that is more.
    """

    old_words: ClassVar[Mapping[str, str]] = {"primal": "cg", "low rank": "low-rank"}

    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        check_positive(f"{type(self).__name__}.tolerance", self.tolerance)

    @property
    def product_limit(self) -> int:
        """Curvature products that one solve may take; also of solvers that take few, where a problem is not linear."""
        return 500

    def no_finer_than(self: S, least: float) -> S:
        """The same, asking for no more digits than there are."""
        return self if self.tolerance >= least else replace(self, tolerance=least)


@dataclass(frozen=True)
class Dual(Solver):
    r"""Factor the kernel $\Lambda^{1/2} J J^\top \Lambda^{1/2}$ of all rows: exact, for few rows times outputs."""

    word: ClassVar[str] = "dual"


@dataclass(frozen=True)
class ByProducts(Solver):
    """What solvers that may take conjugate gradients have in common.

    **Arguments** beside `tolerance`:

    - `max_iterations`: products that a solve may take.
    - `precondition`: directions of the curvature that are found first, so that fewer products are needed; pays where
      decay and damping are far below the strongest curvature.
    - `enough`: stop where a product of late brought less than this share of all that was gained, 1e-4 for instance;
      see `conjugate_gradient`. Zero goes on to the tolerance.
    """

    max_iterations: int = 500
    precondition: int = 0
    enough: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(f"{type(self).__name__}.max_iterations", self.max_iterations)
        check_not_negative(f"{type(self).__name__}.precondition", self.precondition)
        check_not_negative(f"{type(self).__name__}.enough", self.enough)

    @property
    def product_limit(self) -> int:
        return self.max_iterations


@dataclass(frozen=True)
class CG(ByProducts):
    """Conjugate gradients on curvature products: for any number of rows and weights. Settings as for `ByProducts`."""

    word: ClassVar[str] = "cg"


@dataclass(frozen=True)
class Auto(ByProducts):
    """`Dual` or `CG` with these settings, whichever takes fewer operations for the rows at hand."""

    word: ClassVar[str] = "auto"


AUTO = Auto()
"""The solver where none is named."""


@dataclass(frozen=True)
class LowRank(Solver):
    """Keep the strongest directions of the curvature and treat the others as flat up to the ridge.

    **Arguments** beside `tolerance`:

    - `rank`: directions that are kept.
    """

    word: ClassVar[str] = "low-rank"

    rank: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("LowRank.rank", self.rank)


def solver_of(usual: Solver, old: Mapping[str, Any]) -> Solver:
    """The solver that settings of version 0.1 mean: `solution`, `rank`, `precondition`, `tolerance`, `max_iterations`.

    There they stood side by side, and those that the solution did not have were not looked at. Such a one is refused
    now, unless it is what it always was: whoever gave it meant something by it.
    """
    given = dict(old)
    word = given.pop("solution", None)
    base = made(Solver, usual, word, given)
    kept = {name: getattr(usual, name) for name in vars(base) if name not in given and hasattr(usual, name)}
    return replace(base, **kept)
