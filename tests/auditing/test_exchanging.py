"""Both tests under their null hypotheses and against what was planted; statistics against loops."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import float64

from spotlessnet.auditing import exchanging as module
from spotlessnet.auditing.exchanging import Channel, exchangeable, standing_out

T, V, C = 15, 120, 3
LABELS = torch.arange(T) % C


def networks(seed: int, count: int = 8, *, drift: float = 0.0, clumped: float = 0.0) -> Channel:
    """Answers that depend on where a row lies; `drift` changes how, as another training would."""
    place = torch.Generator().manual_seed(0)
    own, others = torch.rand(T, C, generator=place, dtype=float64), torch.rand(V, C, generator=place, dtype=float64)
    g = torch.Generator().manual_seed(seed)
    found = []
    for where in (own, others):
        # How far each row strays when training changes is its own, but that rows near each other stray alike.
        strays = drift * (8 * where).sin() + 0.3 * drift * torch.randn(where.shape, generator=place, dtype=float64)
        noise = torch.randn(count, *where.shape, generator=g, dtype=float64)
        together = clumped * torch.randn(count, 1, 1, generator=g, dtype=float64)
        found.append(6 * where + strays + 0.5 * noise + together)
    return Channel(found[0], found[1])


def moved(channel: Channel, by: float, rows: slice = slice(None)) -> Channel:
    """Some rows know their labels better."""
    planted = channel.rows.clone()
    planted[:, torch.arange(T)[rows], LABELS[rows]] += by
    return Channel(planted, channel.controls)


def both(candidate: Channel, references: Channel, seed: int = 0):
    return standing_out([candidate], [references], LABELS, permutations=399, seed=seed)


def test_p_values_of_networks_are_uniform_where_nothing_differs():
    found = [both(networks(2 * s), networks(2 * s + 1, 12), s).p_networks for s in range(120)]
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert np.mean([p <= 0.05 for p in found]) <= 0.1


def test_another_training_differs_but_its_rows_do_not_stand_out():
    found = [both(networks(2 * s, drift=3.0), networks(2 * s + 1, 12), s) for s in range(40)]
    assert all(one.p_networks <= 0.01 for one in found)
    assert sum(one.p_rows <= 0.02 for one in found) <= 3


def null(seed: int, rows: int, strays: float) -> tuple[Channel, Channel]:
    """Networks trained differently, by which forgotten rows and 300 controls stray alike, each in its own way."""
    g = torch.Generator().manual_seed(seed)
    where = 4 * torch.rand(rows + 300, 3, generator=g, dtype=float64)
    astray = where + strays * torch.randn(where.shape, generator=g, dtype=float64)
    groups = [at + 0.4 * torch.randn(k, *at.shape, generator=g, dtype=float64) for k, at in ((8, astray), (16, where))]
    return Channel(groups[0][:, :rows], groups[0][:, rows:]), Channel(groups[1][:, :rows], groups[1][:, rows:])


@pytest.mark.parametrize(("rows", "strays"), [(1, 0.5), (12, 0.5), (60, 0.5), (60, 0.0)])
def test_p_values_of_rows_are_not_too_small_where_only_the_training_differs(rows, strays):
    """By ranks among controls that serve many rows, sixty rows had p <= .05 in 16 of 100."""
    pairs = [null(seed, rows, strays) for seed in range(120)]
    found = [
        standing_out([a], [b], torch.arange(rows) % 3, permutations=199, seed=s).p_rows
        for s, (a, b) in enumerate(pairs)
    ]
    for level in (0.05, 0.1, 0.5):
        assert stats.binomtest(sum(p <= level for p in found), 120, level, alternative="greater").pvalue > 0.01


def test_the_tail_goes_on_beyond_the_controls():
    g = torch.Generator().manual_seed(0)
    fields = torch.empty(200, 256, dtype=float64).exponential_(generator=g)
    inside, outside = (torch.full((200,), at, dtype=float64) for at in (1.0, 12.0))
    assert float(module.Field.of(fields).beyond(inside).mean()) == pytest.approx(np.exp(-1), rel=0.05)
    # Of exponential controls the tail is the true one, and where it is not known it is rather wider.
    assert np.exp(-12) < float(module.Field.of(fields).beyond(outside).median()) < 40 * np.exp(-12)
    farthest = fields.max(dim=1).values
    assert float(module.Field.of(fields).beyond(farthest).min()) >= 1 / 257 - 1e-12


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-9, 0.99), min_size=1, max_size=16))
def test_p_values_are_put_together_by_cauchy_quantiles(p_values):
    expected = stats.cauchy.sf(np.mean(stats.cauchy.isf(p_values)))
    assert module.together(p_values) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_memory_stands_out_in_all_rows_and_in_a_single_one_whatever_the_training():
    for drift, by, rows in (
        (0.0, 2.0, slice(None)),
        (1.0, 4.0, slice(None)),
        (0.0, 8.0, slice(1)),
        (0.0, -3.0, slice(None)),
    ):
        found = both(moved(networks(1, drift=drift), by, rows), networks(2, 12))
        assert found.p_networks <= 0.005, (drift, by)
        assert found.p_rows <= 0.02, (drift, by)


def test_a_single_network_can_be_the_furthest_of_all_and_no_more():
    found = both(moved(networks(1, 1), 4.0), networks(2, 12))
    assert found.p_networks == pytest.approx(1 / 13)
    assert found.p_rows <= 0.02
    nobody = [both(networks(2 * s, 1), networks(2 * s + 1, 12), s).p_rows for s in range(60)]
    assert sum(p <= 0.02 for p in nobody) <= 4


def test_what_moved_and_its_error():
    found = [both(moved(networks(2 * s), 1.5), networks(2 * s + 1, 12), s) for s in range(60)]
    gaps = torch.tensor([one.moved - 1.5 for one in found])
    assert float(gaps.mean().abs()) < 0.1
    # The error is that of the mean over networks: its share of the true spread is one within chance.
    assert 0.7 < float(gaps.std()) / np.mean([one.error for one in found]) < 1.4


def test_rows_that_belong_together_stray_together():
    apart, close = (module._clumping(networks(3, 400, clumped=c).rows, LABELS, 0) for c in (0.0, 5.0))
    assert apart == pytest.approx(1.0, abs=0.2)
    assert close == pytest.approx(T**0.5, rel=0.05)  # as one row would


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(2, 4))
def test_squared_t_of_every_shuffle_is_that_of_a_loop(seed, S, n):
    g = torch.Generator().manual_seed(seed)
    answers = torch.randn(S + n, 3, 2, generator=g, dtype=float64)
    labels = torch.tensor([0, 1, 1])
    chosen = torch.tensor(list(itertools.combinations(range(S + n), S)))
    found = module._network_heights(answers, labels, S, chosen)
    for line, some in zip(found, chosen, strict=True):
        others = torch.tensor([i for i in range(S + n) if i not in some.tolist()])
        a, b = answers[some].numpy(), answers[others].numpy()
        pooled = (a.var(0, ddof=1) * (S - 1) + b.var(0, ddof=1) * (n - 1)) / (S + n - 2)
        t2 = (a.mean(0) - b.mean(0)) ** 2 / ((pooled + pooled.mean()) / 2 * (1 / S + 1 / n))
        own, every = t2[np.arange(3), labels.numpy()], t2.mean(1)
        np.testing.assert_allclose(line.numpy(), [own.mean(), own.max(), every.mean(), every.max()], rtol=1e-8)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_the_least_p_is_that_of_counting(seed):
    heights = torch.randn(40, 3, generator=torch.Generator().manual_seed(seed), dtype=float64).abs()
    p = [[sum(bool(heights[k, j] >= heights[i, j]) for k in range(40)) / 40 for j in range(3)] for i in range(40)]
    # Lowest first; among equals the one with the smaller product of all.
    least = [(float(min(line)), float(np.prod([float(one) for one in line]))) for line in p]
    lower = [one for one in least if one[0] < least[0][0] - 1e-12]
    equal = [one for one in least if abs(one[0] - least[0][0]) <= 1e-12 and one[1] <= least[0][1] * (1 + 1e-9)]
    assert module._least_p(heights) == pytest.approx(len(lower + equal) / 40)


def test_the_highest_in_many_ways_comes_before_the_highest_in_one():
    heights = torch.rand(200, 16, generator=torch.Generator().manual_seed(0), dtype=float64)
    heights[0, :4] = 2
    assert module._least_p(heights) == 1 / 200


def test_controls_are_the_nearest_and_no_control_speaks_for_itself():
    references = networks(5)
    match = module.Match.of(references)
    rows, controls = references.rows.mean(0), references.controls.mean(0)
    for i in range(3):
        order = (controls - rows[i]).norm(dim=1).argsort()
        assert set(match.near[i].nonzero().flatten().tolist()) == set(order[:16].tolist())
        assert match.field[i].tolist() == order[:256].tolist()
    assert float(match.among.diagonal().max()) == 0
    torch.testing.assert_close(match.near.sum(1), torch.ones(T, dtype=float64))
    torch.testing.assert_close(match.beside(references.controls)[2, 1], match.near[1] @ references.controls[2])


def test_without_controls_networks_alone_are_exchanged():
    g = torch.Generator().manual_seed(0)
    same = [
        exchangeable(*torch.randn(2, 8, 5, generator=g, dtype=float64), permutations=199, seed=s) for s in range(100)
    ]
    assert stats.kstest(same, "uniform").pvalue > 0.01
    a, b = torch.randn(2, 8, 5, generator=g, dtype=float64)
    assert exchangeable(a + 3, b, permutations=399) <= 0.005
    assert exchangeable(a, a, permutations=99) == 1.0
    five = torch.randn(2, 5, 5, generator=g, dtype=float64)
    assert exchangeable(five[0] + 6, torch.cat([five[1], five[1] + 0.1]), permutations=1999) <= 0.005  # five seeds can
