"""KL between Gaussians against torch's, against samples, and under what must not change it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal, kl_divergence

from spotlessnet.core.covariance import Block, Kronecker, LowRankPlusRidge
from spotlessnet.core.errors import MismatchError, NumericsError
from spotlessnet.core.gaussian import Covariance, Diagonal, Gaussian, NoNoise
from tests.core.test_covariance import NOISY, SIZE, dense, generator_of, made, rotation


def gaussian(kind: str, seed: int) -> Gaussian:
    return Gaussian(torch.randn(SIZE, generator=generator_of(seed + 100), dtype=torch.float64), made(kind, seed))


def torchs(g: Gaussian) -> MultivariateNormal:
    return MultivariateNormal(g.mean, dense(g.covariance))


@pytest.mark.parametrize("one", NOISY)
@pytest.mark.parametrize("other", NOISY)
@given(seed=st.integers(0, 10**5))
@settings(max_examples=4, deadline=None)
def test_kl_against_torch(one, other, seed):
    a, b = gaussian(one, seed), gaussian(other, seed + 1)
    assert a.kl(b) == pytest.approx(float(kl_divergence(torchs(a), torchs(b))), rel=1e-9)
    assert a.kl(b) > 0
    assert a.kl(a) == pytest.approx(0, abs=1e-11)


def test_kl_against_samples():
    a, b = gaussian("kronecker", 1), gaussian("low rank", 2)
    x = a.mean + torch.stack([a.covariance.draw(g) for g in [generator_of(3)] for _ in range(4000)])
    gain = torchs(a).log_prob(x) - torchs(b).log_prob(x)
    error = float(gain.std() / len(x) ** 0.5)
    assert abs(float(gain.mean()) - a.kl(b)) < 4 * error


@given(seed=st.integers(0, 10**5))
@settings(max_examples=10, deadline=None)
def test_kl_does_not_depend_on_the_coordinates(seed):
    a, b = gaussian("dense", seed), gaussian("dense", seed + 1)
    g = generator_of(seed + 2)
    T = rotation(SIZE, g) * (0.5 + torch.rand(SIZE, generator=g, dtype=torch.float64))
    shift = torch.randn(SIZE, generator=g, dtype=torch.float64)

    def moved(one: Gaussian) -> Gaussian:
        full = T @ dense(one.covariance) @ T.T
        return Gaussian(T @ one.mean + shift, LowRankPlusRidge.dense(0.5 * (full + full.T)))

    assert moved(a).kl(moved(b)) == pytest.approx(a.kl(b), rel=1e-8)


def test_kl_of_equal_noise_is_the_squared_distance():
    variance = torch.linspace(1, 2, SIZE, dtype=torch.float64)
    a = Gaussian(torch.ones(SIZE, dtype=torch.float64), Diagonal(variance))
    b = Gaussian(torch.zeros(SIZE, dtype=torch.float64), Diagonal(variance))
    assert a.kl(b) == pytest.approx(float((1 / variance).sum()) / 2)
    louder = Gaussian(a.mean, a.covariance.scaled(4)).kl(Gaussian(b.mean, b.covariance.scaled(4)))
    assert louder == pytest.approx(a.kl(b) / 4)


@pytest.mark.parametrize("order", [0, 4, 8])
@pytest.mark.parametrize("kind", ["low rank", "kronecker"])
def test_kl_of_float32_noise_has_the_digits_of_float64(order, kind):
    """Nine nats below zero were read, so none, where one is right: columns that are at right angles to seven digits."""
    g = torch.Generator().manual_seed(order)

    def rotation(n: int, r: int) -> torch.Tensor:
        return torch.linalg.qr(torch.randn(n, r, generator=g))[0]

    values = 10.0 ** (-order * torch.rand(20, 30, generator=g))
    made: dict[str, Covariance] = {
        "low rank": LowRankPlusRidge(rotation(600, 20), values[:, 0], 10.0**-order),
        "kronecker": Kronecker((Block(rotation(20, 20), rotation(30, 30), values),)),
    }
    S = made[kind]
    unit = torch.randn(600, generator=g).double()
    # By the root of the noise, so that it counts as long as it is without.
    shift = S.double().map(torch.sqrt).multiply(unit) / 20
    here, there = Gaussian(torch.zeros(600), S), Gaussian(shift.float(), S)
    assert here.kl(there) == pytest.approx(float(unit.square().sum()) / 800, rel=1e-2)
    assert here.kl(here) == pytest.approx(0.0, abs=1e-6)


def test_without_noise_kl_is_infinite_unless_nothing_differs():
    still = Gaussian(torch.zeros(SIZE), NoNoise.at(torch.zeros(SIZE)))
    moved = Gaussian(torch.ones(SIZE), NoNoise.at(torch.zeros(SIZE)))
    noisy = Gaussian(torch.zeros(SIZE), Diagonal(torch.ones(SIZE)))
    assert still.is_noiseless
    assert still.kl(still) == 0
    assert still.kl(moved) == still.kl(noisy) == noisy.kl(still) == math.inf


def test_weights_without_noise_among_others():
    """Infinity less infinity was no number, and a bound that was capped at it read zero."""
    w, ones = torch.zeros(3), torch.ones(3)
    some = torch.tensor([0.0, 1.0, 2.0])
    moved, elsewhere = torch.tensor([0.5, 0.0, 0.0]), torch.tensor([0.0, 0.5, 0.0])
    for here, there in ((w, moved), (w, w)):
        assert Gaussian(here, Diagonal(ones)).kl(Gaussian(there, Diagonal(some))) == math.inf
        assert Gaussian(here, Diagonal(some)).kl(Gaussian(there, Diagonal(ones))) == math.inf
    assert Gaussian(w, Diagonal(some)).kl(Gaussian(moved, Diagonal(some))) == math.inf
    # What both sides know, and know alike, tells nothing.
    assert Gaussian(w, Diagonal(some)).kl(Gaussian(elsewhere, Diagonal(some))) == pytest.approx(0.125)


def test_draws_surround_the_mean():
    g = gaussian("diagonal", 0)
    assert g.draw(generator_of(1)).equal(g.draw(generator_of(1)))
    drawn = torch.stack([g.draw(draw) for draw in [generator_of(2)] for _ in range(4000)])
    # Of 4000 draws the mean lies within 4.5 standard errors in every weight, and their spread is that of the variance.
    off = (drawn.mean(0) - g.mean) / (g.covariance.diagonal() / len(drawn)).sqrt()
    assert float(off.abs().max()) < 4.5
    torch.testing.assert_close(drawn.var(0), g.covariance.diagonal(), rtol=0.12, atol=0)
    assert float(g.mean.abs().max()) > 0.1  # so that draws around zero would be seen
    quiet = Gaussian(g.mean, NoNoise.at(g.mean))
    assert quiet.draw(generator_of(1)).equal(g.mean)


def test_what_does_not_fit_is_refused():
    with pytest.raises(MismatchError, match="mean of 3 weights does not fit a covariance over 2"):
        Gaussian(torch.zeros(3), Diagonal(torch.ones(2)))
    with pytest.raises(NumericsError, match=r"1 of 2 entries are NaN or infinite\. Raise the damping"):
        Gaussian(torch.tensor([0.0, math.nan]), Diagonal(torch.ones(2)))
    with pytest.raises(MismatchError, match="over 1 and 2 weights cannot be compared"):
        Gaussian(torch.zeros(1), Diagonal(torch.ones(1))).kl(Gaussian(torch.zeros(2), Diagonal(torch.ones(2))))
