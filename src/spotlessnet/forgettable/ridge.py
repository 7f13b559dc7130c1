"""The ridge by leave-one-out, in closed form from a factor."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int16, Shaped
from torch import Tensor

from spotlessnet.core.errors import SettingError
from spotlessnet.forgettable.inverse import cholesky, solve
from spotlessnet.forgettable.moments import Moments

LARGEST_RIDGE = 2**53
"""Up to here float64 holds every whole number."""

CANDIDATES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Ridges that are tried, as shares of `ridge_unit`."""

ROWS = 4096


def leave_one_out(
    L: Float[Tensor, "d d"],
    W: Float[Tensor, "d C"],
    codes: Int16[Tensor, "n d"],
    targets: Shaped[Tensor, "n C"],
    weights: Shaped[Tensor, " n"] | None = None,
) -> Float[Tensor, "n C"]:
    r"""What each example would be answered by a model that was fitted without it.

    $$\hat t_{-i} = t_i - \frac{t_i - q_i^\top W}{1 - w_i\, q_i^\top A^{-1} q_i}$$
    """
    answers = []
    for start in range(0, len(codes), ROWS):
        q = codes[start : start + ROWS].to(L)
        t = targets[start : start + ROWS].to(L)
        h = torch.linalg.solve_triangular(L, q.T, upper=False).square().sum(dim=0)
        if weights is not None:
            h = h * weights[start : start + ROWS].to(h)
        # An example that is alone in its direction has leverage one up to rounding.
        answers.append(t - (t - q @ W) / (1 - h).clamp(min=1e-12)[:, None])
    return torch.cat(answers)


def choose_ridge(
    moments: Moments,
    codes: Int16[Tensor, "n d"],
    targets: Shaped[Tensor, "n C"],
    weights: Shaped[Tensor, " n"] | None = None,
    candidates: Sequence[float] = CANDIDATES,
    mean: float | None = None,
) -> tuple[int, dict[float, float]]:
    """The ridge with the least squared error under leave-one-out, and the error of each candidate.

    **Arguments:**

    - `codes`, `targets`, `weights`: the examples that are left out in turn; they must be inside the moments.
    - `candidates`: shares of `mean`.
    - `mean`: what `ridge_unit` gives; unless said, the mean of the moments' diagonal, which knows every example.
    """
    mean = float(moments.gram.diagonal().mean()) if mean is None else mean
    errors: dict[float, float] = {}
    for share in candidates:
        L = cholesky(moments.gram, as_ridge(share, mean))
        away = leave_one_out(L, solve(L, moments.cross), codes, targets, weights)
        errors[share] = float((away - targets.to(away)).square().mean())
    best = min(errors, key=lambda share: errors[share])
    return as_ridge(best, mean), errors


def ridge_unit(core_diagonal: float, core_rows: int, rows: int) -> float:
    r"""About the mean of the whole moments' diagonal, from core data and the number of rows alone.

    The mean itself, kept to all its digits as the ridge is, would tell of every example that was inside at the fit, and
    go on telling when it has gone. The number of rows is rounded to a power of two, so that as a rule a fit without a
    few of them has the same ridge.

    **Arguments:**

    - `core_diagonal`: the mean of the diagonal of core data's moments.
    - `core_rows`, `rows`: how many rows core data have, and how many there are in all.

    >>> ridge_unit(300.0, 100, 1000) == ridge_unit(300.0, 100, 990) == 3 * 1024
    True
    """
    return core_diagonal / core_rows * 2.0 ** round(math.log2(rows))


def as_ridge(share: float, mean: float) -> int:
    """A ridge as a whole number, which keeps the problem exact; at least one, which keeps it definite."""
    if not share * mean <= LARGEST_RIDGE:
        raise SettingError(
            f"A ridge must come to at most 2⁵³, up to where sums stay exact, but {share:g} of {mean:.3g} is more. Give "
            f"at most {LARGEST_RIDGE / mean:.1g}."
        )
    return max(1, round(share * mean))
