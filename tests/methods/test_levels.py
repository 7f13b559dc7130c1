"""What choosing a level of noise tells, against divergences from mixtures that share no code with the package."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import float64
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

import spotlessnet as sn
from spotlessnet.bounds import BlackBox, WhiteBox
from spotlessnet.bounds.adversarial_query import adversarial_query
from spotlessnet.bounds.per_query import per_query
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError, SettingError
from spotlessnet.core.gaussian import Diagonal, Gaussian
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import NTK, Fisher, WithinBudget
from spotlessnet.methods.within_budget.levels import MARGIN, STEP, Levels, expected_nats, level_of, scale_of
from tests.methods.problems import classifier
from tests.methods.test_within_budget import Shaken, linear, ridge

AROUND = range(-25, 26)


def weights(ratio: float, expected: int) -> list[float]:
    """The weights of the levels, written out."""
    raw = [ratio ** abs(i - expected) for i in AROUND]
    return [w / sum(raw) for w in raw]


def test_weights_of_levels_are_a_distribution_and_prices_their_logarithms():
    for ratio in (1e-3, 1 / 16, 0.25, 0.5):
        prices = [Levels(3, ratio).price(i) for i in range(-200, 200)]
        assert sum(math.exp(-price) for price in prices) == pytest.approx(1.0, abs=1e-9)
        by_hand = [-math.log(p) for p in weights(ratio, 3)]
        assert [Levels(3, ratio).price(i) for i in AROUND] == pytest.approx(by_hand, rel=1e-6)
    assert [level_of(scale_of(i)) for i in AROUND] == list(AROUND)


@pytest.mark.parametrize("ratio", [1 / 16, 0.5])
@pytest.mark.parametrize("level", [-1, 0, 2])
@pytest.mark.parametrize("gap", [0.0, 0.3, 2.0])
def test_the_bound_holds_for_one_weight_by_quadrature(gap, level, ratio):
    """Gaussian at a level against the mixture of all levels: at most the divergence at the level and log 1/p."""
    own = norm(gap, 2.0**level)
    mixed = [(p, norm(0.0, 2.0**i)) for i, p in zip(AROUND, weights(ratio, 0), strict=True)]

    def integrand(x: float) -> float:
        return float(own.pdf(x)) * (float(own.logpdf(x)) - math.log(sum(p * float(q.pdf(x)) for p, q in mixed)))

    reach = 12 * 2.0**level
    truth = quad(integrand, gap - reach, gap + reach, points=[gap], limit=400)[0]
    variance = Diagonal(torch.full((1,), STEP**level, dtype=float64))
    scrubbed = Gaussian(torch.tensor([gap], dtype=float64), variance)
    part = Gaussian(torch.zeros(1, dtype=float64), variance, price=Levels(0, ratio).price(level))
    assert 0 <= truth <= scrubbed.kl(part) + 1e-9
    assert scrubbed.kl(part) == pytest.approx(0.5 * gap**2 / 4.0**level - math.log(weights(ratio, 0)[level + 25]))


@pytest.mark.parametrize("size", [2, 3, 200])
def test_what_the_weights_tell_of_the_level_is_counted(size):
    """In many dimensions the level can be told, so the bound is met; without its price it would be broken."""
    torch.manual_seed(0)
    ratio, level, p = 0.25, 2, weights(0.25, 0)
    root = torch.randn(size, size, dtype=float64) / size**0.5
    S = root @ root.T + torch.eye(size, dtype=float64)
    gap = torch.randn(size, dtype=float64) / size**0.5
    some = range(-4, 5)
    mixture = MixtureSameFamily(
        Categorical(torch.tensor([p[i + 25] for i in some], dtype=float64)),
        MultivariateNormal(torch.zeros(len(some), size, dtype=float64), torch.stack([4.0**i * S for i in some])),
    )
    own = MultivariateNormal(gap, 4.0**level * S)
    drawn = own.sample((20_000,))
    logs = own.log_prob(drawn) - mixture.log_prob(drawn)
    truth, error = float(logs.mean()), float(logs.std()) / len(logs) ** 0.5
    moved = 0.5 * float(gap @ torch.linalg.solve(S, gap)) / 4.0**level
    price = Levels(0, ratio).price(level)
    assert truth <= moved + price + 4 * error
    # Neither without the price nor with its sign turned does it hold.
    assert truth > moved + 10 * error
    if size == 200:
        assert truth == pytest.approx(moved + price, abs=0.01 + 4 * error)


def test_the_expected_nats_are_the_mean_over_random_cohorts(monkeypatch):
    """Of least squares by closed form: cohorts of validation rows drawn at random, each solved for densely."""
    trained, split = linear()
    torch.manual_seed(1)
    beside = Data.of((torch.randn(400, 4, dtype=float64), torch.randn(400, 1, dtype=float64)))
    x, y, _ = next(iter(beside.batches(400)))
    kept, _, _ = next(iter(split.retain.batches(40)))
    assert isinstance(x, torch.Tensor)
    assert isinstance(kept, torch.Tensor)
    w = ridge(split.retain)
    H = kept.T @ kept + 40 * 0.1 * torch.eye(4, dtype=float64)
    variance = torch.linspace(1, 2, 4, dtype=float64)
    pulls = x * (x @ w.unsqueeze(1) - y)
    pulls = pulls - pulls.mean(0)
    draw = np.random.default_rng(0)
    nats = []
    for _ in range(4000):
        gap = torch.linalg.solve(H, pulls[draw.choice(400, 10, replace=False)].sum(0))
        nats.append(0.5 * float((gap.square() / variance).sum()))
    few = expected_nats(trained.at(w), Diagonal(variance), replace(split, validation=beside).unasked, 10)
    assert np.mean(nats) / 5 < few < 5 * np.mean(nats)
    monkeypatch.setattr("spotlessnet.methods.within_budget.levels.PROBES", 1000)
    found = expected_nats(trained.at(w), Diagonal(variance), replace(split, validation=beside).unasked, 10)
    # Cohorts of ten of four hundred hold each row once: 39 parts of 40 of what independent draws would give.
    assert found == pytest.approx(np.mean(nats) / (1 - 10 / 400), rel=0.1)
    assert expected_nats(trained.at(w), Diagonal(variance), replace(split, validation=beside), 20) == pytest.approx(
        2 * found
    )


def test_levels_and_reference_know_nothing_of_the_rows_but_their_number():
    trained, split = classifier(3)
    torch.manual_seed(2)
    x, y, _ = next(iter(split.forget.batches(len(split.forget))))
    assert isinstance(x, torch.Tensor)
    other = replace(split, forget=Data.of((torch.randn_like(x), torch.zeros_like(y))))
    budget = WithinBudget(sn.chain(NTK(), Fisher()), max_nats=50.0)
    scrubbed = budget(trained, split)
    first, second = (budget.reference_for(scrubbed, trained, one) for one in (split, other))
    assert torch.equal(first.covariance.diagonal(), second.covariance.diagonal())
    assert first.price == second.price > 0


def test_louder_noise_is_no_way_around_a_small_budget():
    """Fitted to the request, any gap kept any budget, and the level told how far the rows had moved the network."""
    trained, split = linear()
    for far in (1e2, 1e4):
        budget = WithinBudget(Shaken(), max_nats=1.0, reference=ridge(split.retain))
        with pytest.raises(
            NumericsError, match=r"further than as many rows do on average.*The fewest that can be kept"
        ):
            budget(trained.at(trained.weights + far), split)
    far_off, near_by = ridge(split.retain), trained.weights + 0.9 * (ridge(split.retain) - trained.weights)
    near = [WithinBudget(Shaken(), max_nats=1.0, reference=goal)(trained, split) for goal in (far_off, near_by)]
    assert near[0].diagnostics["noise_scale"] == near[1].diagnostics["noise_scale"]
    assert near[0].diagnostics["level_nats"] <= 0.13


@pytest.mark.parametrize("max_nats", [0.01, 0.5, 1.0, 4.0, 8.0, 100.0])
@pytest.mark.parametrize("gap", [0.0, 1e-6, 1e-2, 1.0, 30.0])
def test_what_is_counted_never_exceeds_the_budget(gap, max_nats):
    trained, split = linear()
    goal = trained.weights + gap * torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=float64)
    budget = WithinBudget(Shaken(), max_nats=max_nats, reference=goal, draws=1)
    try:
        scrubbed = budget(trained, split)
    except NumericsError:
        assert gap >= 1e-2
        return
    variance = scrubbed.covariance.diagonal()
    truth = 0.5 * float(((trained.weights - goal).square() / variance).sum())
    q = min(0.5, max_nats / 16)
    spread = Shaken().spread(trained, split, Notes())
    expected = Levels.around(expected_nats(trained.at(goal), spread, split, 10), max_nats)
    away = abs(level_of(scrubbed.diagnostics["noise_scale"]) - expected.expected)
    price = -math.log((1 - q) / (1 + q) * q**away)
    assert scrubbed.diagnostics["nats_counted"] == pytest.approx(truth + price)
    assert truth + price <= max_nats


def test_an_ordinary_request_is_served_with_room_to_spare():
    levels = Levels.around(100.0, 1.0)
    assert 100.0 * MARGIN / scale_of(levels.expected) + levels.price(levels.expected) <= 1.0
    assert levels.quietest(100.0 * MARGIN, 1.0) == levels.expected
    # Which noise an error budget chooses: that of the fewest nats, not the loudest.
    assert levels.cheapest(100.0, levels.choices[-1]) < levels.choices[-1]


def test_every_bound_counts_the_level():
    trained, split = classifier(3)
    variance = torch.full_like(trained.weights, 0.01)
    scrubbed = Gaussian(trained.weights + 0.01, Diagonal(variance))
    plain, priced = (Gaussian(trained.weights, Diagonal(variance), price=price) for price in (0.0, 2.5))
    for bound in (WhiteBox(), BlackBox(1)):
        a, b = (bound(scrubbed, one, trained, split) for one in (plain, priced))
        assert b.value == pytest.approx(a.value + 2.5)
    assert "level of noise 2.5" in WhiteBox()(scrubbed, priced, trained, split).note
    one = split.forget.select([0])
    torch.testing.assert_close(
        per_query(scrubbed, priced, trained, one), per_query(scrubbed, plain, trained, one) + 2.5
    )
    x = next(iter(one.batches(1))).x
    assert isinstance(x, torch.Tensor)
    asked = [adversarial_query(scrubbed, ref, trained, x[0], radius=0.01, steps=1) for ref in (plain, priced)]
    assert asked[1].before == pytest.approx(asked[0].before + 2.5)


def test_the_loss_of_the_reference_is_not_asked_for():
    """Squared loss too: halvings take the derivative alone."""
    trained, split = linear()
    assert isinstance(trained.loss, SquaredError)
    assert isinstance(split, Split)
    assert isinstance(trained, Trained)
    assert expected_nats(trained, Diagonal(torch.ones(4, dtype=float64)), split, 5) > 0


@pytest.mark.parametrize("max_nats", [1e-310, 5e-324, 1e300])
def test_budgets_that_no_level_can_be_told_apart_for_are_refused(max_nats):
    """They ended in a NaN, a division by zero, and a divergence without end."""
    with pytest.raises(SettingError, match="must lie between 1e-09 and 1e"):
        WithinBudget(Fisher(), max_nats=max_nats)


def test_a_refusal_names_no_number_of_the_rows():
    """It told the fewest nats to three digits, and whoever took them chose a budget on the request."""
    trained, split = linear()
    told = []
    for far in (100.0, 101.0):
        with pytest.raises(NumericsError) as raised:
            WithinBudget(Shaken(), max_nats=1.0, reference=ridge(split.retain))(
                trained.at(trained.weights + far), split
            )
        told.append(str(raised.value))
    assert told[0] == told[1]
    coarse = float(told[0].partition("at most ")[2].partition(" nats")[0])
    assert math.log2(coarse) == round(math.log2(coarse), 4)
