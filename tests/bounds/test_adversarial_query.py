"""The adversarial query where the worst input is known."""

import math

import pytest
import torch
from torch import float64, nn
from torch.distributions import MultivariateNormal, kl_divergence

from spotlessnet.bounds.adversarial_query import adversarial_query
from spotlessnet.bounds.per_query import per_query
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, NumericsError, SettingError
from spotlessnet.core.gaussian import Diagonal, Gaussian, NoNoise
from spotlessnet.core.trained import Trained

NOISE = 0.1


def pair() -> tuple[Trained, Gaussian, Gaussian]:
    g = torch.Generator().manual_seed(0)
    trained = Trained.of(nn.Linear(2, 2).double())
    S = Diagonal(torch.full((6,), NOISE, dtype=float64))
    scrubbed, reference = (Gaussian(torch.randn(6, generator=g, dtype=float64), S) for _ in range(2))
    return trained, scrubbed, reference


def by_hand(scrubbed: Gaussian, reference: Gaussian, x: torch.Tensor) -> torch.Tensor:
    """For equal noise σ² on all weights of a linear network: ‖ΔW (x, 1)‖² / (2σ² (‖x‖² + 1))."""
    gap = scrubbed.mean - reference.mean
    moved = x @ gap[:4].view(2, 2).T + gap[4:]
    return moved.square().sum(-1) / (2 * NOISE * (x.square().sum(-1) + 1))


@pytest.mark.parametrize("radius", [0.3, 2.0])
def test_the_query_found_is_the_worst_of_a_fine_grid(radius):
    trained, scrubbed, reference = pair()
    x = torch.tensor([0.5, -0.5], dtype=float64)
    found = adversarial_query(scrubbed, reference, trained, x, radius=radius, steps=80)
    side = torch.linspace(-radius, radius, 401, dtype=float64)
    worst = float(by_hand(scrubbed, reference, x + torch.cartesian_prod(side, side)).max())
    assert found.before == pytest.approx(float(by_hand(scrubbed, reference, x)), rel=1e-9)
    assert found.nats == pytest.approx(float(by_hand(scrubbed, reference, found.x)), rel=1e-9)
    assert found.nats == pytest.approx(worst, rel=0.01)
    assert found.nats > found.before
    assert float((found.x - x).abs().max()) <= radius * (1 + 1e-12)


def test_on_a_bent_network_it_is_the_bound_of_that_query_and_never_less_than_before():
    torch.manual_seed(0)
    trained = Trained.of(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double())
    S, S0 = (Diagonal(0.05 + torch.rand(trained.size, dtype=float64)) for _ in range(2))
    scrubbed, reference = Gaussian(trained.weights + 0.3, S), Gaussian(trained.weights, S0)
    x = torch.randn(3, dtype=float64)
    found = adversarial_query(scrubbed, reference, trained, x, radius=1.0)
    rows = Data.of((torch.stack([x, found.x]), torch.zeros(2, dtype=torch.long)))
    torch.testing.assert_close(
        per_query(scrubbed, reference, trained, rows), torch.tensor([found.before, found.nats], dtype=float64)
    )

    def answer(mean: torch.Tensor, variance: torch.Tensor) -> MultivariateNormal:
        J = torch.autograd.functional.jacobian(lambda w: trained.outputs(found.x.unsqueeze(0), w).flatten(), mean)
        return MultivariateNormal(trained.outputs(found.x.unsqueeze(0), mean).flatten(), J @ variance.diag() @ J.T)

    p, q = answer(scrubbed.mean, S.variance), answer(reference.mean, S0.variance)
    assert found.nats == pytest.approx(float(kl_divergence(p, q)), rel=1e-8)
    assert found.nats > found.before


def test_what_it_needs():
    trained, scrubbed, reference = pair()
    x = torch.zeros(2, dtype=float64)
    with pytest.raises(NeedError, match="Without noise every answer that differs gives away everything"):
        adversarial_query(Gaussian(scrubbed.mean, NoNoise.at(scrubbed.mean)), reference, trained, x, radius=1.0)
    none = Diagonal(torch.tensor([1.0, 1, 1, 1, 0, 0], dtype=float64))
    with pytest.raises(NumericsError, match="must reach every output of a query"):
        adversarial_query(Gaussian(scrubbed.mean, none), reference, trained, x, radius=1.0)
    with pytest.raises(SettingError, match="`radius` must be positive, but got inf"):
        adversarial_query(scrubbed, reference, trained, x, radius=math.inf)
