"""Nats into an attacker: the published figures, limits, and a real attacker that stays below."""

import math

import pytest
from scipy import stats

from spotlessnet.bounds.attacker import best_accuracy, true_positives
from spotlessnet.bounds.over_seeds import over_seeds
from spotlessnet.core.errors import DataError, SettingError


@pytest.mark.parametrize(
    ("nats", "accuracy", "rate"),
    [(0.005, 0.525, 0.0130), (0.02, 0.550, 0.0167), (0.1, 0.612, 0.030), (0.5, 0.750, 0.092), (1.0, 0.8535, 0.18)],
)
def test_known_figures(nats, accuracy, rate):
    # The second-order figure at one nat is Pinsker's: 1/2 + sqrt(1/2)/2.
    assert best_accuracy(nats) == pytest.approx(accuracy, abs=0.045 if nats == 1.0 else 6e-4)
    assert true_positives(nats, 0.01) == pytest.approx(rate, rel=0.02)


def test_no_gaussian_attacker_beats_the_limit_and_ends_are_right():
    for nats in (1e-6, 0.01, 0.3, 1.0, 3.0, 30.0):
        mu = math.sqrt(2 * nats)
        real = float(stats.norm.cdf(mu / 2))  # the best test between N(0, 1) and N(mu, 1)
        assert real <= best_accuracy(nats) <= 1
    assert best_accuracy(0.0) == 0.5
    assert best_accuracy(math.inf) == true_positives(math.inf) == 1.0
    assert true_positives(0.0, 0.3) == pytest.approx(0.3)


def test_the_mean_over_seeds_has_a_one_sided_limit():
    reading = over_seeds([0.1, 0.2, 0.3, 0.4])
    s, n = 0.12909944, 4
    assert reading.value == pytest.approx(0.25)
    assert reading.high == pytest.approx(0.25 + float(stats.t.ppf(0.95, n - 1)) * s / 2, rel=1e-6)
    assert "largest 0.4" in reading.note
    assert math.isinf(over_seeds([0.1]).high)
    assert math.isinf(over_seeds([0.1, math.inf]).value)
    assert math.isinf(over_seeds([0.1, math.inf]).high)


def test_messages():
    with pytest.raises(SettingError, match="`nats` must be zero or positive, but got -1"):
        best_accuracy(-1.0)
    with pytest.raises(SettingError, match="`nats` must be zero or positive, but got nan"):
        true_positives(math.nan)
    with pytest.raises(SettingError, match="`false_positives` must lie between 0 and 1, but got 0"):
        true_positives(1.0, 0.0)
    with pytest.raises(DataError, match="needs at least one divergence"):
        over_seeds([])
