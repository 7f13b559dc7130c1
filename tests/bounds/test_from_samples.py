"""Divergence from clouds: known truth, known floors, a calibrated null."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import float64

from spotlessnet.bounds.from_samples import gaussian_kl, kl_from_samples, neighbour_kl
from spotlessnet.core.errors import DataError, MismatchError, SettingError


def cloud(seed: int, n: int, d: int = 2, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=float64) + shift


def test_both_estimators_find_a_known_divergence():
    # Unit Gaussians one apart in each of two dimensions: one nat.
    a, b = cloud(0, 4000, shift=1.0), cloud(1, 4000)
    assert gaussian_kl(a, b) == pytest.approx(1.0, abs=0.08)
    assert neighbour_kl(a, b) == pytest.approx(1.0, abs=0.15)
    wide = 2 * cloud(2, 4000)
    truth = 0.5 * (0.25 * 2 - 2 + 2 * np.log(4))
    assert gaussian_kl(b, wide) == pytest.approx(truth, abs=0.05)
    assert neighbour_kl(b, wide) == pytest.approx(truth, abs=0.1)


def test_the_floor_of_a_gaussian_fit_is_the_known_one_and_is_taken_off():
    # Two samples of eight from the same Gaussian: 0.40 nats on average (variance free, one dimension).
    values = [gaussian_kl(cloud(2 * s, 8, 1), cloud(2 * s + 1, 8, 1)) for s in range(500)]
    assert np.mean(values) == pytest.approx(0.40, abs=0.06)
    found = [kl_from_samples(cloud(2 * s, 30, 1), cloud(2 * s + 1, 30, 1), permutations=40) for s in range(40)]
    assert abs(np.mean([one.nats - one.floor for one in found])) < 0.03


@pytest.mark.parametrize("how", ["gaussian", "neighbours"])
def test_null_p_values_are_uniform_and_a_difference_is_seen(how):
    ps = [
        kl_from_samples(cloud(2 * s, 10), cloud(2 * s + 1, 10), how=how, permutations=49, seed=s).p for s in range(80)
    ]
    assert stats.kstest(ps, "uniform").pvalue > 0.01
    assert kl_from_samples(cloud(0, 20, shift=2.0), cloud(1, 20), how=how, permutations=199).p == pytest.approx(1 / 200)


def test_messages():
    with pytest.raises(DataError, match="Fitting a Gaussian in 3 dimensions needs more than 3 points"):
        gaussian_kl(cloud(0, 3, 3), cloud(1, 9, 3))
    with pytest.raises(
        SettingError, match="`neighbours` must be at least 1 and below the number of points, 4, but got 4"
    ):
        neighbour_kl(cloud(0, 4), cloud(1, 9), 4)
    with pytest.raises(MismatchError, match="same dimension, but have 2 and 3"):
        kl_from_samples(cloud(0, 4, 2), cloud(1, 4, 3))
    with pytest.raises(DataError, match="at least two points"):
        kl_from_samples(cloud(0, 1), cloud(1, 4))
    with pytest.raises(DataError, match="points of a cloud coincide"):
        neighbour_kl(torch.zeros(5, 2, dtype=float64), cloud(1, 9), 1)
