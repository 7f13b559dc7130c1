"""An attack as checks: rows that are surely exposed are seen at few false alarms, however few they are."""

import numpy as np
import pytest
import torch
from scipy import stats

from spotlessnet.auditing.attack_checks import MAY, checks_of_attack
from spotlessnet.auditing.shadows import complementary_halves
from spotlessnet.auditing.verdict import ATTACK, FOUND, Check, Checks
from spotlessnet.auditing.wording import sentence, why
from spotlessnet.core.intervals import Interval
from spotlessnet.readouts.attack import Attack, attack_over_models
from spotlessnet.readouts.lira import held_out_scores
from spotlessnet.report.chips import MEANING


def simulated(seed: int, *, exposed: int, models: int = 64, rows: int = 40) -> Attack:
    """Scores of shadows that know nothing, but of some rows everything."""
    draw = torch.Generator().manual_seed(seed)
    member = complementary_halves(models, rows, draw)
    phi = torch.randn(models, rows, generator=draw, dtype=torch.float64)
    phi = phi + 0.5 * torch.randn(models, 1, generator=draw, dtype=torch.float64)
    phi[:, :exposed] += 20 * member[:, :exposed]
    return attack_over_models(held_out_scores(phi, member), member, together=2, crossed=True, draws=100, seed=seed)


def test_one_exposed_row_in_ten_is_found_at_few_false_alarms():
    attack = simulated(0, exposed=4)
    checks = Checks(checks_of_attack(attack))
    assert attack.auc.value == pytest.approx(0.595, abs=0.04)  # 0.81 of one half; all pairs with an exposed row
    found = checks[FOUND[0.01]]
    assert found.state == "different"
    assert found.value == pytest.approx(0.1, abs=0.03)
    assert "an attacker is sure of some of the forgotten examples: " in why([found])
    assert "at a rate of false alarms of 1 %" in sentence(found)


def test_where_nothing_is_left_no_rate_is_accused_and_its_limits_hold_chance():
    accused, held = 0, 0
    for seed in range(60):
        rates = {check.name: check for check in checks_of_attack(simulated(100 + seed, exposed=0))}
        found = rates[FOUND[0.01]]
        accused += found.state == "different"
        held += found.low <= 0.01 <= found.high
        assert found.margin == MAY
    assert accused <= 2
    assert stats.binomtest(held, 60, 0.95, alternative="less").pvalue > 0.01


def test_area_and_rates_are_those_of_counting():
    draw = torch.Generator().manual_seed(3)
    member = complementary_halves(64, 30, draw)
    scores = torch.randn(64, 30, generator=draw, dtype=torch.float64) + member
    found = attack_over_models(scores, member, together=2, draws=20)
    inside, outside = scores[member].numpy(), scores[~member].numpy()
    counted = stats.mannwhitneyu(inside, outside).statistic / (len(inside) * len(outside))
    assert found.auc.value == pytest.approx(counted, abs=1e-12)
    # The lowest threshold above which at most one non-member in a hundred lies.
    threshold = min(t for t in np.concatenate([inside, outside]) if (outside > t).mean() <= 0.01)
    assert found.tprs[0.01].value == pytest.approx((inside > threshold).mean(), abs=2 / len(inside))


def test_rates_that_the_sample_does_not_resolve_are_said_not_judged():
    few = simulated(1, exposed=0, models=8, rows=5)
    checks = checks_of_attack(few)
    assert [check.name for check in checks] == [ATTACK]
    assert "do not resolve a false positive rate" in checks[0].note


@pytest.mark.parametrize(
    ("limits", "state"), [((0.0, 0.04), "same"), ((0.0, 0.2), "unclear"), ((0.02, 0.2), "different")]
)
def test_states_and_words_of_a_rate(limits, state):
    rate = Interval(sum(limits) / 2, *limits)
    attack = Attack(Interval(0.5, 0.48, 0.52), rate, 0.01, 100, 1000, tprs={0.01: rate})
    found: Check = checks_of_attack(attack)[1]
    assert found.state == state
    assert MEANING[found.name]
    if state == "unclear":
        assert sentence(found).startswith("it cannot be told how many of the forgotten examples an attacker is sure of")
