"""Intervals against closed forms, scipy, and their own promise: coverage."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from spotlessnet.core.errors import DataError, SettingError
from spotlessnet.core.intervals import (
    auc,
    auc_interval,
    bootstrap,
    clopper_pearson,
    finest_rate,
    permutation_pvalue,
    t_interval,
    tpr_at_fpr,
    upper_limit,
)

numbers = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=20)


def share(hits):
    return sum(hits) / len(hits)


def test_t_interval_is_scipys():
    values = np.random.default_rng(0).normal(size=8)
    low, high = stats.t.interval(0.9, 7, values.mean(), stats.sem(values))
    assert t_interval(values, 0.9) == pytest.approx((values.mean(), low, high), rel=1e-12)


def test_eight_seeds_add_two_thirds_of_a_deviation():
    values = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert upper_limit(values) == pytest.approx(float(values.mean() + 0.66985 * values.std()), rel=1e-4)


def test_one_value_promises_nothing():
    assert t_interval([3.0]) == (3.0, -np.inf, np.inf)
    assert upper_limit([3.0]) == np.inf


def test_t_interval_covers():
    draws = np.random.default_rng(1).normal(2.0, 3.0, size=(800, 6))
    inside = [low <= 2.0 <= high for _, low, high in map(t_interval, draws)]
    assert 0.925 <= share(inside) <= 0.975
    assert 0.925 <= share([upper_limit(d) >= 2.0 for d in draws]) <= 0.975


def test_bootstrap_over_models_covers_where_rows_of_a_model_hang_together():
    generator, inside, naive = np.random.default_rng(2), [], []
    for _ in range(150):
        scores = generator.normal(size=(40, 1)) + 0.3 * generator.normal(size=(40, 25))
        _, low, high = bootstrap(scores, draws=200)
        inside.append(low <= 0 <= high)
        _, low, high = t_interval(scores.ravel())
        naive.append(low <= 0 <= high)
    assert 0.9 <= share(inside) <= 0.99
    assert share(naive) < 0.6


def test_bootstrap_can_look_its_models_up():
    table = np.array([1.0, 2.0, 4.0])
    by_value, by_number = bootstrap(table), bootstrap(np.arange(3), lambda chosen: float(table[chosen].mean()))
    assert by_value == by_number
    assert by_value.value == pytest.approx(7 / 3)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (20, 25)])
def test_clopper_pearson_is_scipys(successes, trials):
    # The limits as Clopper and Pearson have them, by quantiles of the beta distribution.
    low = stats.beta.ppf(0.025, successes, trials - successes + 1) if successes else 0.0
    high = stats.beta.ppf(0.975, successes + 1, trials - successes) if successes < trials else 1.0
    assert clopper_pearson(successes, trials) == pytest.approx((successes / trials, low, high), abs=1e-12)


def test_clopper_pearson_covers_at_least_as_promised():
    for truth in (0.02, 0.3, 0.9):
        counts = np.random.default_rng(3).binomial(30, truth, size=400)
        assert share([low <= truth <= high for _, low, high in (clopper_pearson(int(c), 30) for c in counts)]) >= 0.93


@settings(max_examples=100, deadline=None)
@given(numbers, numbers)
def test_auc_counts_pairs(positives, negatives):
    pairs = [(p > n) + 0.5 * (p == n) for p in positives for n in negatives]
    assert auc(positives, negatives) == pytest.approx(np.mean(pairs), abs=1e-12)
    value, low, high = auc_interval(positives, negatives)
    assert 0 <= low <= value <= high <= 1


def test_auc_interval_has_width_at_the_ends():
    value, low, high = auc_interval(torch.ones(50), torch.zeros(50))
    assert (value, high) == (1.0, 1.0)
    assert 0.9 < low < 1
    assert auc_interval([0.0] * 50, [1.0] * 50) == pytest.approx((0.0, 0.0, 1 - low), abs=1e-9)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_auc_interval_covers(shift):
    truth, generator = stats.norm.cdf(shift / np.sqrt(2)), np.random.default_rng(4)
    draws = [auc_interval(generator.normal(shift, 1, 30), generator.normal(size=40)) for _ in range(300)]
    assert 0.92 <= share([low <= truth <= high for _, low, high in draws]) <= 0.98


def test_rates_are_printed_only_where_the_sample_resolves_them():
    assert finest_rate(3000) == 0.001
    assert finest_rate(2999) == 0.01
    assert finest_rate(300) == 0.01
    assert finest_rate(30) == 0.1
    assert finest_rate(29) is None
    with pytest.raises(SettingError, match=r"0\.001 needs at least 3000 non-members, but there are 2999"):
        tpr_at_fpr([1.0], np.zeros(2999), 0.001)


@settings(max_examples=100, deadline=None)
@given(numbers, st.lists(st.integers(-5, 5).map(float), min_size=30, max_size=60))
def test_true_positives_keep_the_false_ones_in_bounds(positives, negatives):
    rate = 0.1
    best = max(
        (np.mean(np.array(positives) > c) for c in range(-6, 6) if np.mean(np.array(negatives) > c) <= rate + 1e-12),
        default=0.0,
    )
    assert tpr_at_fpr(positives, negatives, rate) == pytest.approx(best)


def test_permutation_p_values_are_uniform_under_the_null_and_small_otherwise():
    generator = np.random.default_rng(5)

    def gap(a, b):
        return abs(a.mean() - b.mean())

    null = [
        permutation_pvalue(generator.normal(size=6), generator.normal(size=6), gap, draws=99, seed=i)
        for i in range(300)
    ]
    assert stats.kstest(null, "uniform").pvalue > 0.01
    assert permutation_pvalue(generator.normal(9, 1, 8), generator.normal(size=8), gap, draws=999) < 0.01
    assert permutation_pvalue([1.0, 2.0], [1.0, 2.0], gap, draws=19) == 1.0
    far, near = generator.normal(99, 1, 12), generator.normal(size=12)
    assert permutation_pvalue(far, near, gap, draws=9) == 0.1  # never zero, whatever the data


def test_messages():
    with pytest.raises(DataError, match="at least one value, but got none"):
        t_interval([])
    with pytest.raises(SettingError, match=r"`level` must lie between 0 and 1, but got 95"):
        t_interval([1.0, 2.0], 95)
    with pytest.raises(DataError, match="between 0 and the number of trials, but got 3 of 2"):
        clopper_pearson(3, 2)
