"""Is the network linear as far as the noise reaches? If not, a black-box number is an estimate, not a bound."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.bounds.black_box import jacobian_of
from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import track
from spotlessnet.core.trained import Trained

TOLERANCE = 0.2
"""Relative error beyond which the linearised covariance is no longer taken for the true one."""


@dataclass(frozen=True)
class Linearisation:
    """How far the outputs of noisy weights are from what the linearised network says.

    **Arguments:**

    - `mean_error`: distance between the two means, in units of the outputs' root mean square noise.
    - `covariance_error`: relative Frobenius distance between the two covariances.
    """

    mean_error: float
    covariance_error: float
    draws: int

    @property
    def is_bound(self) -> bool:
        """Whether both errors are small enough for a black-box number to be called a bound."""
        return max(self.mean_error, self.covariance_error) <= TOLERANCE

    @property
    def note(self) -> str:
        """What to write beside the number."""
        errors = f"mean off by {self.mean_error:.0%}, covariance by {self.covariance_error:.0%}, {self.draws} draws"
        word = f"linear within {TOLERANCE:.0%}" if self.is_bound else "linearised estimate, not a bound"
        return f"{word}: {errors}"


def linearisation(
    gaussian: Gaussian, trained: Trained, data: Data, *, generator: torch.Generator, draws: int = 200
) -> Linearisation:
    r"""Draw noisy weights and compare the outputs with $f(\mu) + J(w - \mu)$ of the **same** draws.

    The same draws on both sides leave no sampling noise: for a linear network both errors are zero, however few draws.
    As `draws` grows the linearised covariance becomes $J\Sigma J^\top$.

    **Arguments:**

    - `data`: a few queries; their Jacobian is written out.
    """
    if gaussian.is_noiseless:
        return Linearisation(0.0, 0.0, 0)
    if draws < 2:
        raise SettingError(f"`draws` must be at least 2 to have a covariance, but got {draws}. Usual is 200.")
    here = trained.at(gaussian.mean, gaussian.buffers)
    J = jacobian_of(here, data)
    centre = here.predict(data).flatten()
    true, linear = [], []
    for _ in track(range(draws), "drawing noisy weights"):
        w = gaussian.draw(generator)
        true.append((here.at(w).predict(data).flatten() - centre).double())
        linear.append((J @ (w - gaussian.mean)).double())
    f, g = torch.stack(true), torch.stack(linear)
    # In units of the noise: an error matters as far as it could be told from it.
    noise = g.square().sum(dim=1).mean().sqrt()
    if not bool(noise > 0):
        return Linearisation(0.0 if not bool(f.any()) else float("inf"), 0.0, draws)
    gap = (f.mean(0) - g.mean(0)).norm() / noise
    return Linearisation(float(gap), float(_relative(_covariance(f), _covariance(g))), draws)


def _covariance(rows: Float[Tensor, "S M"]) -> Float[Tensor, "M M"]:
    centred = rows - rows.mean(0)
    return centred.T @ centred / (len(rows) - 1)


def _relative(a: Float[Tensor, "M M"], b: Float[Tensor, "M M"]) -> Float[Tensor, ""]:
    return (a - b).norm() / b.norm()
