"""Relearn time and the papers' membership attack where the answer is known."""

import math
from dataclasses import replace

import pytest
import torch

from spotlessnet.core.errors import SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.readouts import EntropyAttack, RelearnTime
from spotlessnet.readouts.entropy import entropies
from spotlessnet.readouts.mean_loss import mean_loss
from spotlessnet.training.fit import fit
from tests.readouts.problems import blobs, linear, unchecked

RECIPE = Recipe(epochs=30, lr=0.05, batch_size=16)


@pytest.fixture(scope="module")
def problem():
    split = blobs()
    # The forgotten rows carry wrong labels, so a network that saw them differs from one that did not.
    forget = split.forget.relabel((split.forget.labels() + 1) % 3)
    split = replace(split, forget=forget)
    fresh = linear(scale=0.1, recipe=RECIPE)
    return split, fit(fresh, split.whole), fit(fresh, split.retain)


def test_the_original_needs_the_first_epoch(problem):
    split, original, _ = problem
    assert str(RelearnTime(original)(original, split)) == "1"


def test_time_is_the_first_epoch_with_the_original_loss(problem):
    split, original, retrained = problem
    readout = RelearnTime(original, cap=60, lr=0.2, batch_size=16)
    seen = readout(retrained, split)
    assert 1 < seen.value < 60
    assert not seen.censored
    goal = mean_loss(original, split.forget) + 1e-5
    plain = Recipe(epochs=int(seen.value), lr=0.2, momentum=0.0, batch_size=16)
    there = fit(replace(retrained, init=retrained.weights), split.whole, plain)
    before = fit(replace(retrained, init=retrained.weights), split.whole, plain.but(epochs=int(seen.value) - 1))
    assert mean_loss(there, split.forget) <= goal < mean_loss(before, split.forget)


def test_a_cap_is_said_aloud(problem):
    split, original, retrained = problem
    seen = RelearnTime(original, cap=2, lr=1e-4)(retrained, split)
    assert seen.censored
    assert str(seen) == "> 2"
    assert "not there at the cap" in seen.note


def test_decay_pulls_to_the_network_under_test(problem):
    split, original, retrained = problem
    free = RelearnTime(original, cap=60, lr=0.2, batch_size=16)(retrained, split)
    held = RelearnTime(original, cap=60, lr=0.2, batch_size=16, weight_decay=3.0)(retrained, split)
    assert held.censored
    assert not free.censored


def test_who_knows_the_rows_relearns_them_at_once(problem):
    split, original, retrained = problem
    readout = RelearnTime(original, cap=40, lr=0.2, batch_size=16)
    assert readout(original, split).value == 1 < readout(retrained, split).value


def test_settings(problem):
    _, original, _ = problem
    with pytest.raises(SettingError, match=r"`RelearnTime.cap` must be positive, but got 0"):
        RelearnTime(original, cap=0)
    with pytest.raises(SettingError, match=r"`RelearnTime.lr` must be positive, but got -1"):
        RelearnTime(original, lr=-1)
    with pytest.raises(SettingError, match=r"`EntropyAttack.kind` must be one of 'logistic', 'svc', but got 'tree'"):
        unchecked(EntropyAttack, "tree")


def drawn(forget, retain, test):
    """A split whose rows have the given entropies under `network`: two classes, logit by bisection."""
    from spotlessnet.core.data import Data
    from spotlessnet.core.split import Split

    low, high = torch.zeros(3000, dtype=torch.float64), torch.full((3000,), 40.0, dtype=torch.float64)
    wanted = torch.cat([forget, retain, test])
    low, high = low[: len(wanted)], high[: len(wanted)]
    for _ in range(60):
        z = (low + high) / 2
        p = z.sigmoid()
        entropy = -(p * p.log() + (1 - p) * torch.nn.functional.logsigmoid(-z))
        low, high = torch.where(entropy > wanted, z, low), torch.where(entropy > wanted, high, z)
    x = torch.zeros(len(wanted), 4, dtype=torch.float64)
    x[:, 0] = z
    data = Data.of((x, torch.zeros(len(x), dtype=torch.long)))
    a, b = len(forget), len(forget) + len(retain)
    rows = torch.arange(len(x))
    return Split(forget=data.select(rows[:a]), kept=data.select(rows[a:b]), test=data.select(rows[b:]))


@pytest.fixture(scope="module")
def network():
    reader = linear(2)
    weights = torch.zeros(reader.size, dtype=torch.float64)
    weights[0] = 1  # the first logit is the first input, the second is zero
    return reader.at(weights)


def uniform(count, low, high, seed):
    draw = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return low + (high - low) * draw


@pytest.mark.parametrize("kind", ["logistic", "svc"])
def test_attack_is_right_where_entropies_do_not_overlap(kind, network):
    members, others = uniform(300, 0.01, 0.1, 0), uniform(200, 0.4, 0.6, 1)
    remembered = drawn(uniform(50, 0.01, 0.1, 2), members, others)
    forgotten = drawn(uniform(50, 0.4, 0.6, 3), members, others)
    torch.testing.assert_close(entropies(network, remembered.retain), members, rtol=1e-6, atol=1e-9)
    for balanced in (True, False):
        attack = EntropyAttack(kind, balanced=balanced)
        assert float(attack(network, remembered)) == 1
        assert float(attack(network, forgotten)) == 0


@pytest.mark.parametrize("kind", ["logistic", "svc"])
def test_balanced_attack_is_blind_on_equal_distributions_and_the_published_one_follows_the_prior(kind, network):
    values, published = [], []
    for seed in range(8):
        # Raised to a power, since real entropies crowd near zero: a cut at their mean would take most for members.
        split = drawn(*(uniform(n, 0.2, 0.9, 10 * seed + i).pow(8) for i, n in enumerate((200, 900, 300))))
        values.append(float(EntropyAttack(kind)(network, split)))
        published.append(float(EntropyAttack(kind, balanced=False)(network, split)))
    assert sum(values) / 8 == pytest.approx(0.5, abs=0.12)
    if kind == "logistic":
        assert max(abs(value - 0.5) for value in values) < 0.15
    assert min(published) == 1.0


def test_attack_has_exact_limits(network):
    split = drawn(uniform(25, 0.01, 0.1, 0), uniform(60, 0.01, 0.1, 1), uniform(60, 0.4, 0.6, 2))
    seen = EntropyAttack()(network, split)
    assert (seen.value, seen.high) == (1, 1)
    assert seen.low == pytest.approx(0.025 ** (1 / 25))
    assert not math.isnan(seen.low)


def test_the_published_score_is_the_mean_probability_and_ours_the_share(network):
    """Against a logistic regression on one number that is fitted here, by Newton's method."""
    split = drawn(uniform(40, 0.05, 0.6, 0), uniform(120, 0.01, 0.3, 1), uniform(120, 0.2, 0.6, 2))
    attack = EntropyAttack(balanced=False, score="probability")
    found = attack(network, split)
    h = torch.cat([entropies(network, rows) for rows in (split.retain, split.tests)])
    X, y = torch.stack([h, torch.ones_like(h)], dim=1), torch.repeat_interleave(torch.tensor([1.0, 0.0]), 120).double()
    w = torch.zeros(2, dtype=torch.float64)

    def price(w):  # what scikit-learn minimises: no penalty on the intercept
        return torch.nn.functional.binary_cross_entropy_with_logits(X @ w, y, reduction="sum") + 0.5 * w[0].square()

    for _ in range(30):
        w = w - torch.linalg.solve(torch.func.hessian(price)(w), torch.func.grad(price)(w))
    g = entropies(network, split.forget)
    likely = (w[0] * g + w[1]).sigmoid()
    assert found.value == pytest.approx(float(likely.mean()), abs=1e-4)
    assert found.low < found.value < found.high
    hard = EntropyAttack(balanced=False)
    assert float(hard(network, split)) == pytest.approx(float((likely > 0.5).double().mean()))
    assert abs(found.value - float(hard(network, split))) > 0.02
    assert attack.name == "entropy attack, logistic, as published, mean probability"
    assert hard.name == "entropy attack, logistic, as published"
    with pytest.raises(SettingError, match='needs an attacker with probabilities, `kind="logistic"`, but the kind is'):
        EntropyAttack("svc", score="probability")


def test_a_network_that_bursts_when_it_is_taught_has_not_relearnt(problem):
    split, original, retrained = problem
    burst = RelearnTime(original, cap=7, lr=1e300)(retrained, split)
    assert str(burst) == "> 7"
    assert "the training burst before it got there" in burst.note
