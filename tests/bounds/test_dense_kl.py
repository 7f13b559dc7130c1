"""KL between written-out Gaussians against Monte Carlo, torch.distributions and identities."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64
from torch.distributions import MultivariateNormal, kl_divergence

from spotlessnet.bounds.dense_kl import dense_kl
from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.errors import NumericsError
from spotlessnet.core.gaussian import Diagonal, Gaussian

seeds = st.integers(0, 10**6)


def definite(generator: torch.Generator, d: int) -> torch.Tensor:
    A = torch.randn(d, 2 * d, generator=generator, dtype=float64)
    return A @ A.T / (2 * d) + 0.1 * torch.eye(d, dtype=float64)


def problem(seed: int, d: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(d, generator=g, dtype=float64), definite(g, d), definite(g, d)


@given(seeds, st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_equals_the_closed_form_of_torch(seed, d):
    gap, S, S0 = problem(seed, d)
    zero = torch.zeros(d, dtype=float64)
    truth = kl_divergence(MultivariateNormal(gap, S), MultivariateNormal(zero, S0))
    found = dense_kl(gap, S, S0)
    assert found.nats == pytest.approx(float(truth), rel=1e-9)
    assert found.moved + found.spread == pytest.approx(found.nats)
    assert found.rank == d
    assert found.is_bound


@given(seeds, st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_invariant_under_an_invertible_map_and_zero_only_when_equal(seed, d):
    gap, S, S0 = problem(seed, d)
    A = definite(torch.Generator().manual_seed(seed + 1), d)
    assert dense_kl(A @ gap, A @ S @ A.T, A @ S0 @ A.T).nats == pytest.approx(dense_kl(gap, S, S0).nats, rel=1e-7)
    assert dense_kl(0 * gap, S, S).nats == pytest.approx(0.0, abs=1e-12)
    assert dense_kl(gap, S, S).nats > 0
    assert dense_kl(0 * gap, S, 1.1 * S).nats > 0


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_additive_over_independent_blocks_and_quartered_by_twice_the_noise(seed):
    (g1, S1, R1), (g2, S2, R2) = problem(seed, 3), problem(seed + 1, 2)
    both = dense_kl(torch.cat([g1, g2]), torch.block_diag(S1, S2), torch.block_diag(R1, R2))
    assert both.nats == pytest.approx(dense_kl(g1, S1, R1).nats + dense_kl(g2, S2, R2).nats, rel=1e-9)
    twice = dense_kl(g1, 4 * S1, 4 * R1)
    assert twice.moved == pytest.approx(dense_kl(g1, S1, R1).moved / 4, rel=1e-9)
    assert twice.spread == pytest.approx(dense_kl(g1, S1, R1).spread, rel=1e-9)


def test_the_gaussian_of_weights_agrees_with_it():
    gap, S, S0 = problem(5)
    a = Gaussian(gap, LowRankPlusRidge.dense(S))
    b = Gaussian(torch.zeros_like(gap), LowRankPlusRidge.dense(S0))
    assert a.kl(b) == pytest.approx(dense_kl(gap, S, S0).nats, rel=1e-10)
    a, b = Gaussian(gap, Diagonal(S.diagonal())), Gaussian(torch.zeros_like(gap), Diagonal(S0.diagonal()))
    truth = dense_kl(gap, S.diagonal().diag(), S0.diagonal().diag())
    assert a.kl(b) == pytest.approx(truth.nats, rel=1e-10)


def test_monte_carlo_agrees_and_knows_the_direction():
    gap, S, S0 = problem(3)
    p, q = MultivariateNormal(gap, S), MultivariateNormal(torch.zeros_like(gap), S0)
    torch.manual_seed(0)
    x = p.sample(torch.Size([200_000]))
    logs = p.log_prob(x) - q.log_prob(x)
    error = float(logs.std()) / math.sqrt(len(logs))
    assert abs(dense_kl(gap, S, S0).nats - float(logs.mean())) < 5 * error
    assert abs(dense_kl(-gap, S0, S).nats - float(logs.mean())) > 20 * error


def test_a_singular_reference_is_worked_on_its_support_and_says_so():
    gap, S, S0 = problem(7, 3)
    B = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=float64)
    found = dense_kl(B @ gap, B @ S @ B.T, B @ S0 @ B.T)
    assert found.nats == pytest.approx(dense_kl(gap, S, S0).nats, rel=1e-6)
    assert found.rank == 3
    assert "on the 3 of 5 dimensions where the reference has noise" in found.note
    assert found.is_bound
    off = dense_kl(torch.randn(5, generator=torch.Generator().manual_seed(1), dtype=float64), B @ S @ B.T, B @ S0 @ B.T)
    assert off.outside > 0.01
    assert math.isinf(off.nats)
    assert off.is_bound
    assert "infinite: no noise where the outputs differ" in off.note


@given(seeds, st.integers(2, 6), st.sampled_from(["mean", "noise", "certain"]), st.floats(-5, 0))
@settings(max_examples=60, deadline=None)
def test_what_one_side_alone_can_do_is_infinite(seed, d, what, size):
    """Zero nats were read, and called a bound, where the scrubbed noise left the support of the reference."""
    g = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=float64))[0]
    inside = torch.ones(d, dtype=float64)
    inside[0] = 0.0
    flat, full = Q @ inside.diag() @ Q.T, torch.eye(d, dtype=float64)
    little = 10.0**size * Q[:, 0]
    gap = torch.zeros(d, dtype=float64)
    if what == "mean":
        found = dense_kl(gap + Q[:, 1] + little, flat, flat)
    elif what == "noise":
        found = dense_kl(gap, flat + torch.outer(little, little), flat)
    else:
        found = dense_kl(gap, flat, full)
    assert math.isinf(found.nats)
    assert found.is_bound
    # The same without the offence is finite: here it is zero, or half the squared length of the shift inside.
    fine = dense_kl(gap + (Q[:, 1] if what == "mean" else 0), flat, flat)
    assert fine.nats == pytest.approx(0.5 if what == "mean" else 0.0, abs=1e-9)
    assert fine.is_bound


@pytest.mark.parametrize("order", range(6, 31, 2))
@pytest.mark.parametrize("where", ["mean", "wider", "narrower"])
def test_variances_of_very_different_size_never_read_too_low(order, where):
    """Half a nat was read, and called a bound, where the closed form has two million million."""
    v = 10.0**-order
    S0 = torch.diag(torch.tensor([1.0, v], dtype=float64))
    S, gap = S0.clone(), torch.tensor([1.0, 0.0], dtype=float64)
    if where == "mean":
        gap[1] = 2e-9
    else:
        S[1, 1] = v * (1e4 if where == "wider" else 1e-4)
    ratios = S.diagonal() / S0.diagonal()
    truth = 0.5 * float((gap.square() / S0.diagonal() + ratios - 1 - ratios.log()).sum())
    found = dense_kl(gap, S, S0)
    assert not found.is_bound or found.nats >= truth * (1 - 1e-9)
    assert found.is_bound
    if order < 14 and S[1, 1] > 1e-13:
        assert found.nats == pytest.approx(truth)
    # Turned by an orthogonal map nothing changes but rounding, which now hides more.
    Q = torch.linalg.qr(torch.randn(2, 2, generator=torch.Generator().manual_seed(order), dtype=float64))[0]
    turned = dense_kl(Q @ gap, Q @ S @ Q.T, Q @ S0 @ Q.T)
    if where == "mean":
        assert not turned.is_bound or turned.nats >= truth * (1 - 1e-2)


# Entries of a product of three such matrices are rounded by up to 3 eps = 7e-16, so of an eigenvalue of 1e-15 the
# stored matrix hardly tells whether it is there: 14 is the last order at which it does.
@given(seeds, st.integers(10, 14))
@settings(max_examples=60, deadline=None)
def test_noise_that_rounding_alone_makes_is_no_bound(seed, order):
    """Some nats were read, and called a bound, where the scrubbed side is certain and the other one hardly is not."""
    Q = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(seed), dtype=float64))[0]
    little = torch.tensor([1.0, 1.0, 10.0**-order], dtype=float64)
    S, S0 = Q[:, :2] @ Q[:, :2].T, (Q * little) @ Q.T
    found = dense_kl(torch.zeros(3, dtype=float64), S, S0)
    assert math.isinf(found.nats) or not found.is_bound
    # Where both have it, and the same, rounding changes nothing.
    assert dense_kl(Q[:, 0], S0, S0).nats == pytest.approx(0.5, rel=0.05)


def test_what_rounding_may_hide_is_said():
    """A shift outside the support, but within the error that its maker knows of."""
    S0 = torch.diag(torch.tensor([1.0, 1e-30], dtype=float64))
    gap = torch.tensor([1.0, 2e-9], dtype=float64)
    assert math.isinf(dense_kl(gap, S0, S0, gap_error=1e-9).nats)
    found = dense_kl(gap, S0, S0, gap_error=1e-8)
    assert found.nats == pytest.approx(0.5)
    assert not found.is_bound
    assert "rounding may hide" in found.note
    assert "not a bound" in found.note


def test_no_noise_is_infinite_and_nothing_at_all_is_zero():
    eye, zero = torch.eye(3, dtype=float64), torch.zeros(3, 3, dtype=float64)
    gap = torch.ones(3, dtype=float64)
    assert math.isinf(dense_kl(gap, zero, eye).nats)
    assert math.isinf(dense_kl(gap, eye, zero).nats)
    assert dense_kl(0 * gap, zero, zero).nats == 0
    assert "infinite" in dense_kl(gap, eye, zero).note


def test_a_scrubbed_covariance_without_noise_somewhere_is_infinite():
    flat = torch.ones(3, 3, dtype=float64)
    found = dense_kl(
        torch.zeros(3, dtype=float64), flat - 1e-11 * torch.eye(3, dtype=float64), torch.eye(3, dtype=float64)
    )
    assert math.isinf(found.nats)


def test_numbers_that_are_not_finite_are_named():
    eye = torch.eye(3, dtype=float64)
    with pytest.raises(NumericsError, match="The covariance of the outputs must be finite"):
        dense_kl(torch.zeros(3, dtype=float64), eye * math.nan, eye)
