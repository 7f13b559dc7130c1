"""Margin-KL, KLoM and the challenge's metric: closed forms, and the floors that perfect methods reach."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

from spotlessnet.core.errors import DataError, MismatchError
from spotlessnet.readouts.challenge import challenge, challenge_ceiling, challenge_epsilons, challenge_points
from spotlessnet.readouts.klom import klom, klom_floor
from spotlessnet.readouts.margin_kl import against_null, margin_kl, margin_kl_floor
from tests.readouts.problems import unchecked


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_margin_kl_is_that_of_fitted_gaussians(seed):
    a, b = 2 * normal(5, 3, seed=seed) + 1, normal(7, 3, seed=seed + 1)
    expected = kl_divergence(Normal(a.mean(0), a.std(0)), Normal(b.mean(0), b.std(0)))
    torch.testing.assert_close(margin_kl(a, b), expected)
    torch.testing.assert_close(margin_kl(3 * a + 2, 3 * b + 2), margin_kl(a, b))
    assert margin_kl(a, a).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("models", "floor"), [(5, 0.88), (8, 0.40), (10, 0.27), (16, 0.155), (32, 0.068), (100, 0.020)]
)
def test_margin_kl_floor(models, floor):
    seen = margin_kl(*normal(2, models, 8000)).mean().item()
    assert seen == pytest.approx(margin_kl_floor(models, models), rel=0.06)
    assert seen == pytest.approx(floor, rel=0.12)


def test_margin_kl_floor_of_unequal_sides():
    seen = margin_kl(normal(6, 20000), normal(12, 20000, seed=1)).mean().item()
    assert seen == pytest.approx(margin_kl_floor(6, 12), rel=0.05)
    assert margin_kl_floor(8, 3) == math.inf


@pytest.mark.parametrize(("models", "mean"), [(10, 5.6), (20, 3.1), (50, 0.84), (100, 0.34), (200, 0.14)])
def test_klom_floor(models, mean):
    assert klom_floor(models, rows=2000).mean().item() == pytest.approx(mean, rel=0.09)


def test_klom_floor_has_a_tail():
    assert klom_floor(100, rows=2000).quantile(0.95).item() == pytest.approx(0.64, rel=0.12)


def test_klom_reads_more_than_the_truth():
    a, b = normal(2, 100, 1000)
    assert klom(a + 1, b).mean().item() == pytest.approx(1.18, rel=0.15)  # the true divergence is one half


def test_klom_by_hand_counts_the_largest_margin():
    a, b = torch.tensor([[0.0], [1.0], [2.0], [4.0]]), torch.tensor([[0.0], [1.0], [4.0], [4.0]])
    p, q = (torch.tensor(x, dtype=torch.float64) + 1e-5 for x in ([0.5, 0.5], [0.5, 0.5]))
    expected = ((p / p.sum()) * ((p / p.sum()) / (q / q.sum())).log()).sum().item()
    assert klom(a, b, bins=2).item() == pytest.approx(expected, abs=1e-12)
    # Were the maximum lost, this would read zero.
    p, q = (torch.tensor(x, dtype=torch.float64) + 1e-5 for x in ([0.75, 0.25], [0.5, 0.5]))
    p, q = p / p.sum(), q / q.sum()
    moved = torch.tensor([[0.0], [1.0], [1.0], [4.0]])
    assert klom(moved, b, bins=2).item() == pytest.approx((p * (p / q).log()).sum().item(), abs=1e-12)


def test_klom_of_margins_that_never_vary():
    same = torch.zeros(4, 2)
    assert klom(same, same).abs().max().item() < 1e-12
    assert (klom(same, same + 1) > 5).all()
    assert klom(same + 1000, same + 2000).abs().max().item() < 1e-12  # both beyond the clip


@pytest.mark.parametrize("divergence", [margin_kl, klom])
def test_null_by_permutation(divergence):
    a, b = normal(8, 50), normal(8, 50, seed=1)
    null, moved = against_null(divergence, a, b, draws=99), against_null(divergence, a + 2, b, draws=99)
    assert null.mean == pytest.approx(divergence(a, b).mean().item())
    assert null.mean == pytest.approx(null.floor, rel=0.4)
    assert null.p_value > 0.05
    assert moved.p_value == 0.01
    assert moved.mean > null.mean
    assert moved.high >= moved.mean
    assert "floor" in moved.reading().note


def test_permutation_floor_is_the_closed_form():
    # Shuffling between sides of the same distribution is the null itself.
    found = against_null(margin_kl, normal(16, 400), normal(16, 400, seed=1), draws=50)
    assert found.floor == pytest.approx(margin_kl_floor(16, 16), rel=0.08)


def test_points_halve():
    epsilons = torch.tensor([0.0, 0.49, 0.5, 1.0, 6.4, 6.9, 7.0, 50.0])
    expected = [1, 1, 0.5, 0.25, 0.5**12, 0.5**13, 0, 0]
    assert challenge_points(epsilons, 512).tolist() == expected


@pytest.mark.parametrize("models", [16, 128])
def test_challenge_ceiling_is_far_below_one(models):
    assert 0.15 <= challenge_ceiling(models, rows=60) <= 0.23
    assert challenge_epsilons(*normal(2, models, 40)).mean().item() == pytest.approx(1.55, abs=0.2)


def test_challenge_falls_with_the_shift():
    a, b = normal(2, 128, 20)
    half, one, two = (challenge(a + shift, b, rows=10) for shift in (0.5, 1.0, 2.0))
    assert challenge_ceiling(128, rows=40) > half.forgetting > one.forgetting > two.forgetting
    assert half.relative == pytest.approx(half.forgetting / half.ceiling)
    worse = challenge(a, b, retain_ratio=0.9, test_ratio=0.5, rows=10)
    assert worse.score == pytest.approx(0.45 * worse.forgetting)


def test_challenge_epsilon_at_the_ends():
    a = normal(20, 1)
    assert challenge_epsilons(a, a + 100).item() == 50  # apart
    assert challenge_epsilons(a, 1e-4 * a).item() == 50  # one side a spike
    assert challenge_epsilons(torch.zeros(4, 1), torch.zeros(4, 1)).item() == 0
    assert challenge_epsilons(torch.zeros(4, 1), torch.ones(4, 1)).item() == 50


def test_challenge_epsilon_of_one_threshold():
    # Two values a side: the only cut that leaves both rates above zero has FPR = 1/4 and FNR = 1/4.
    low, high = torch.tensor([[0.0], [0.0], [0.0], [10.0]]), torch.tensor([[0.0], [10.0], [10.0], [10.0]])
    assert challenge_epsilons(high, low).item() == pytest.approx(math.log((1 - 1e-5 - 0.25) / 0.25), rel=1e-9)


def test_messages():
    with pytest.raises(MismatchError, match="margins of the same rows, but got 3 and 4"):
        unchecked(margin_kl, torch.zeros(5, 3), torch.zeros(5, 4))
    with pytest.raises(DataError, match="At least 2 models a side are needed, but got 1 and 5"):
        klom(torch.zeros(1, 3), torch.zeros(5, 3))
