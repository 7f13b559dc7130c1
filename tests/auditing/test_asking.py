"""Each way of asking against a loop by hand, and what each sees that plain answers do not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import float64, nn

from spotlessnet.auditing import asking as module
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.exchanging import Channel, standing_out
from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.matched_controls import margins_by_label
from spotlessnet.training.fit import fit

RECIPE = Recipe(epochs=10, lr=0.1, batch_size=8)


def problem(seed: int = 0) -> Split:
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(90, 4, generator=g), torch.arange(90) % 3
    train = Data.of((x[:50] + y[:50, None], y[:50]))
    return Split(train.select(range(6)), train.select(range(6, 50)), Data.of((x[50:] + y[50:, None], y[50:])))


def networks(count: int, *, norm: bool = False) -> list[Trained]:
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        layers = [nn.Linear(4, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU(), nn.Linear(8, 3)]
        made.append(Trained.of(nn.Sequential(*layers), recipe=RECIPE))
    return made


def test_every_way_is_asked_of_rows_and_of_controls():
    group, split = networks(3), problem()
    found = module.asked(group, split)
    assert tuple(found) == module.WAYS
    for channel in found.values():
        assert channel.rows.shape == (3, 6, 3)
        assert channel.controls.shape == (3, 40, 3)
    assert tuple(module.asked(group, replace(split, kept=None))) == module.WAYS[:1]
    assert module.asked(group, replace(split, test=None)) == {}


@pytest.mark.parametrize("norm", [False, True])
def test_more_training_on_retained_rows_is_that_of_each_network_by_itself(norm):
    group, split = networks(3, norm=norm), problem()
    if norm:  # running statistics of their own, which a common program would take from the first
        for i, one in enumerate(group):
            one.model.get_buffer("1.running_mean").add_(i)
    found = module.after_retained_rows(group, split, RECIPE)
    assert found is not None
    for i, one in enumerate(group):
        alone = fit(replace(one, init=one.weights), split.retain, RECIPE.but(epochs=module.EPOCHS), seed=0)
        expected = margins_by_label(alone.predict(split.forget).double())
        torch.testing.assert_close(found.rows[i], expected, rtol=1e-3, atol=1e-3)
        assert not torch.allclose(expected, margins_by_label(one.predict(split.forget).double()), atol=0.05)


def test_a_network_that_bursts_when_it_is_taught_is_asked_as_it_is():
    group, split = networks(2), problem()
    found = module.after_retained_rows(group, split, RECIPE.but(lr=1e30))
    assert found is not None
    torch.testing.assert_close(found.rows, module.answers(group, split.forget))


def test_a_probe_is_ridge_regression_whichever_way_it_is_solved():
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(12) % 3
    for d in (4, 30):
        x, z = torch.randn(12, d, generator=g, dtype=float64), torch.randn(5, d, generator=g, dtype=float64)
        scale = x.std(dim=0).mean()
        a, y = (x - x.mean(0)) / scale, torch.eye(3, dtype=float64)[labels]
        W = torch.linalg.solve(a.T @ a + module.RIDGE * 12 * torch.eye(d, dtype=float64), a.T @ (y - y.mean(0)))
        expected = module.SURE * ((z - x.mean(0)) / scale @ W + y.mean(0))
        torch.testing.assert_close(module._head(x, labels, 3)(z), expected)


def test_a_probe_sees_what_a_changed_head_hides():
    group, split = networks(2), problem()
    hidden = []
    for one in group:
        w = one.weights.clone()
        w[-27:] = 0.1 * torch.randn(27, generator=torch.Generator().manual_seed(1))
        hidden.append(one.at(w))
    before, after = (module.probed(each, split) for each in (group, hidden))
    plain = [module.answers(each, split.forget) for each in (group, hidden)]
    assert before is not None
    assert after is not None
    assert plain[0] is not None
    assert plain[1] is not None
    assert not torch.allclose(plain[0], plain[1], atol=0.1)
    torch.testing.assert_close(before.rows, after.rows)


def channels(seed: int, count: int) -> list[Channel]:
    """Four ways of asking that depend on each other, as answers of one network do."""
    place, g = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    where = [6 * torch.rand(rows, 3, generator=place, dtype=float64) for rows in (10, 80)]
    first = [at + 0.5 * torch.randn(count, *at.shape, generator=g, dtype=float64) for at in where]
    return [
        Channel(*(part + 0.5 * torch.randn(part.shape, generator=g, dtype=float64) for part in first)) for _ in range(4)
    ]


LABELS = torch.arange(10) % 3


def p_values(runs: int) -> list[float]:
    both = ((channels(2 * s, 8), channels(2 * s + 1, 16)) for s in range(runs))
    return [standing_out(*pair, LABELS, permutations=399, seed=s).p_networks for s, pair in enumerate(both)]


def test_more_ways_of_asking_do_not_mean_more_false_alarms():
    found = p_values(100)
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert np.mean([p <= 0.05 for p in found]) <= 0.12


@pytest.mark.slow
def test_p_values_are_uniform_over_a_thousand_audits():
    found = p_values(1000)
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert stats.binomtest(sum(p <= 0.05 for p in found), 1000, 0.05).pvalue > 0.01


@pytest.mark.parametrize("way", range(4))
def test_what_shows_in_a_single_way_of_asking_is_noticed(way):
    ours, theirs = channels(1, 8), channels(2, 16)
    planted = ours[way].rows.clone()
    planted[:, torch.arange(10), LABELS] += 6
    ours[way] = Channel(planted, ours[way].controls)
    found = standing_out(ours, theirs, LABELS, permutations=999)
    assert found.p_networks <= 0.01
    assert found.p_rows <= 0.01
