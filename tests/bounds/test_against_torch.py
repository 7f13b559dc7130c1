"""White box, black box and single queries against torch's own divergence, on a network that is bent."""

import pytest
import torch
from torch import Tensor, float64, nn
from torch.distributions import MultivariateNormal, kl_divergence

from spotlessnet.bounds import BlackBox, WhiteBox
from spotlessnet.bounds.black_box import chosen
from spotlessnet.bounds.per_query import per_query
from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.data import Data
from spotlessnet.core.gaussian import Diagonal, Gaussian
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


class World:
    """Two Gaussians with unlike means and unlike covariances: no two of the four may be mistaken for each other."""

    def __init__(self) -> None:
        g = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        self.trained = Trained.of(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double())
        data = Data.of((torch.randn(12, 3, generator=g, dtype=float64), torch.arange(12) % 2))
        self.split = Split(data.select(range(6)), data.select(range(6, 12)))
        size = self.trained.size
        A = torch.randn(size, 2 * size, generator=g, dtype=float64)
        self.S = A @ A.T / size + 0.1 * torch.eye(size, dtype=float64)
        self.S0 = (0.2 + torch.rand(size, generator=g, dtype=float64)).diag()
        self.mean = self.trained.weights + 0.5 * torch.randn(size, generator=g, dtype=float64)
        self.mean0 = self.trained.weights - 0.5 * torch.randn(size, generator=g, dtype=float64)
        self.scrubbed = Gaussian(self.mean, LowRankPlusRidge.dense(self.S))
        self.reference = Gaussian(self.mean0, Diagonal(self.S0.diagonal().clone()))

    def answers(self, x: Tensor, mean: Tensor, covariance: Tensor) -> MultivariateNormal:
        """The distribution of the joint logits, with the network linearised at the mean, by plain autograd."""

        def f(w: Tensor) -> Tensor:
            return self.trained.outputs(x, w).flatten()

        J = torch.autograd.functional.jacobian(f, mean)
        return MultivariateNormal(f(mean), J @ covariance @ J.T)

    def truth(self, x: Tensor) -> float:
        return float(kl_divergence(self.answers(x, self.mean, self.S), self.answers(x, self.mean0, self.S0)))


def rows(data: Data) -> Tensor:
    x, _ = data.source.fetch(data.rows)
    assert isinstance(x, Tensor)
    return x


def test_white_box_is_torchs_divergence_from_scrubbed_to_retrained():
    world = World()
    p, q = MultivariateNormal(world.mean, world.S), MultivariateNormal(world.mean0, world.S0)
    found = WhiteBox()(world.scrubbed, world.reference, world.trained, world.split)
    assert found.value == pytest.approx(float(kl_divergence(p, q)), rel=1e-9)
    assert abs(float(kl_divergence(q, p)) - found.value) > 0.1 * found.value


def test_black_box_is_torchs_divergence_of_the_linearised_answers():
    world = World()
    white = WhiteBox()(world.scrubbed, world.reference, world.trained, world.split).value
    for queries in (1, 2, 3):
        x = rows(chosen(world.split.forget, queries))
        found = BlackBox(queries)(world.scrubbed, world.reference, world.trained, world.split)
        assert found.value == pytest.approx(world.truth(x), rel=1e-7)
        assert found.value < 0.99 * white  # else it would be capped there


def test_each_query_is_torchs_divergence_of_that_query():
    world = World()
    found = per_query(world.scrubbed, world.reference, world.trained, world.split.forget)
    truth = [world.truth(rows(world.split.forget.select([i]))) for i in range(6)]
    torch.testing.assert_close(found, torch.tensor(truth, dtype=float64), rtol=1e-7, atol=1e-9)
