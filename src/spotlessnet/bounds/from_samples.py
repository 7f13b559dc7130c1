"""From samples: a divergence from two clouds of points, for the few dimensions in which that is possible."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.spatial import cKDTree
from torch import Tensor

from spotlessnet.bounds.dense_kl import dense_kl
from spotlessnet.core.errors import DataError, MismatchError, SettingError, check_choice
from spotlessnet.core.progress import track


@dataclass(frozen=True)
class SampleKL:
    """An estimate in nats beside what the same estimator says about clouds that do not differ.

    Any such estimate is biased upward, so it is no bound on anything: read `nats - floor` and `p`.

    **Arguments:**

    - `nats`: the plain estimate.
    - `floor`: its mean over clouds whose points were shuffled between them.
    - `p`: how often shuffled clouds gave as much.
    """

    nats: float
    floor: float
    p: float


def kl_from_samples(
    first: Float[Tensor, "n d"],
    second: Float[Tensor, "m _"],
    *,
    how: str = "gaussian",
    neighbours: int = 3,
    permutations: int = 499,
    seed: int = 0,
) -> SampleKL:
    """The divergence of the cloud `first` from the cloud `second`, with a permutation null.

    **Arguments:**

    - `how`: `gaussian` fits two Gaussians; `neighbours` compares distances to the k-th neighbour, for any shape.
    - `neighbours`: that `k`.
    - `permutations`: shuffles of the null.
    """
    check_choice("how", how, ("gaussian", "neighbours"))
    _check(first, second)

    def estimate(a: Tensor, b: Tensor) -> float:
        return gaussian_kl(a, b) if how == "gaussian" else neighbour_kl(a, b, neighbours)

    seen = estimate(first, second)
    both = torch.cat([first, second])
    generator = torch.Generator().manual_seed(seed)
    null = []
    for _ in track(range(permutations), "shuffling clouds"):
        mixed = both[torch.randperm(len(both), generator=generator)]
        null.append(estimate(mixed[: len(first)], mixed[len(first) :]))
    # A shuffle that gives the same clouds must count as ‘as much’, though its sums round otherwise.
    beyond = sum(value >= seen - 1e-12 * max(1.0, abs(seen)) for value in null)
    return SampleKL(seen, float(np.mean(null)) if null else 0.0, (1 + beyond) / (1 + permutations))


def gaussian_kl(first: Float[Tensor, "n d"], second: Float[Tensor, "m _"]) -> float:
    """The divergence between the Gaussians fitted to two clouds; needs more points than dimensions in both."""
    _check(first, second)
    d = first.shape[1]
    if min(len(first), len(second)) <= d:
        raise DataError(
            f"Fitting a Gaussian in {d} dimensions needs more than {d} points in each cloud, but there are "
            f"{len(first)} and {len(second)}. Train more seeds, or look at fewer dimensions."
        )
    a, b = first.double(), second.double()
    return dense_kl(a.mean(0) - b.mean(0), torch.cov(a.T).reshape(d, d), torch.cov(b.T).reshape(d, d)).nats


def neighbour_kl(first: Float[Tensor, "n d"], second: Float[Tensor, "m _"], neighbours: int = 3) -> float:
    r"""The estimate of Pérez-Cruz (2008) from distances to the k-th neighbour.

    $$\frac dn \sum_i \log\frac{\nu_k(x_i)}{\rho_k(x_i)} + \log\frac{m}{n-1}$$

    $\rho_k$ is the distance of $x_i$ to its k-th neighbour among the other points of its own cloud, $\nu_k$ to that in
    the second cloud.
    """
    _check(first, second)
    n, m, d = len(first), len(second), first.shape[1]
    if not 1 <= neighbours < min(n, m + 1):
        raise SettingError(
            f"`neighbours` must be at least 1 and below the number of points, {min(n, m + 1)}, but got {neighbours}."
        )
    a, b = first.double().cpu().numpy(), second.double().cpu().numpy()
    # One more neighbour than asked for: the nearest one of a point in its own cloud is the point itself.
    own = cKDTree(a).query(a, k=[neighbours + 1])[0][:, 0]
    other = cKDTree(b).query(a, k=[neighbours])[0][:, 0]
    if not (own > 0).all():
        raise DataError("Neighbour distances must be positive, but some points of a cloud coincide. Remove repeats.")
    tiny = np.finfo(np.float64).tiny
    return float(d * np.log(np.maximum(other, tiny) / own).mean() + np.log(m / (n - 1)))


def _check(first: Tensor, second: Tensor) -> None:
    if first.shape[1] != second.shape[1]:
        raise MismatchError(
            f"Both clouds must have the same dimension, but have {first.shape[1]} and {second.shape[1]}."
        )
    if min(len(first), len(second)) < 2:
        raise DataError("A cloud needs at least two points to have a shape. Train more seeds.")
