"""LiRA and RMIA on distributions that are known."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from spotlessnet.auditing.shadows import complementary_halves
from spotlessnet.core.errors import DataError, MismatchError, NeedError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.readouts import RMIA, LiRA, Margin
from spotlessnet.readouts.attack import attack_over_models
from spotlessnet.readouts.lira import held_out_scores, lira_scores
from spotlessnet.readouts.margin import margins
from spotlessnet.readouts.matched_controls import matched_controls
from spotlessnet.readouts.parts import log_probabilities
from spotlessnet.readouts.rmia import log_mean_probability, rmia_scores
from spotlessnet.training.fit import fit
from tests.readouts.problems import blobs, linear, unchecked


def shadow_margins(models, rows, gap, seed=0):
    """Margins of models that saw random halves: rows differ in difficulty, seen rows are `gap` higher."""
    generator = torch.Generator().manual_seed(seed)
    member = complementary_halves(models, rows, generator)
    difficulty = 3 * torch.randn(rows, generator=generator, dtype=torch.float64)
    noise = torch.randn(models, rows, generator=generator, dtype=torch.float64)
    return difficulty + noise + gap * member, member


def test_student_score_is_the_normal_inverse_gamma_predictive():
    phi, member = shadow_margins(8, 5, 1.0)
    seen = torch.tensor([[0.3, -1.0, 2.0, 0.0, 5.0]], dtype=torch.float64)
    variances = {}
    for side in (True, False):
        groups = [phi[member[:, i] == side, i].numpy() for i in range(5)]
        variances[side] = sum(((g - g.mean()) ** 2).sum() for g in groups) / sum(len(g) - 1 for g in groups)
    for i in range(5):
        logs = {}
        for side in (True, False):
            x = phi[member[:, i] == side, i].numpy()
            n, nu0 = len(x), 4.0
            nu = nu0 + n - 1
            scale2 = (1 + 1 / n) * (nu0 * variances[side] + ((x - x.mean()) ** 2).sum()) / nu
            logs[side] = stats.t.logpdf(float(seen[0, i]), nu, x.mean(), math.sqrt(scale2))
        found = lira_scores(phi, member, seen)[0, i].item()
        assert found == pytest.approx(logs[True] - logs[False], rel=1e-10)


def test_pooled_score_uses_the_spread_within_rows_not_between_them():
    phi, member = shadow_margins(64, 400, 0.0)
    seen = phi[:1] + 1
    shift = (phi * member).sum(0) / member.sum(0) - (phi * ~member).sum(0) / (~member).sum(0)
    # With one variance s² the log ratio is linear in the gap of means; between-row spread would shrink it tenfold.
    middle = (phi * member).sum(0) / member.sum(0) - shift / 2
    expected = shift * (seen[0] - middle)
    ratio = (lira_scores(phi, member, seen, spread="pooled")[0] / expected).median().item()
    assert ratio == pytest.approx(1.0, abs=0.1)


def test_large_prior_is_pooled_and_many_shadows_are_own():
    phi, member = shadow_margins(400, 3, 1.0)
    seen = torch.zeros(1, 3, dtype=torch.float64)
    pooled, own = (lira_scores(phi, member, seen, spread=s) for s in ("pooled", "own"))
    torch.testing.assert_close(lira_scores(phi, member, seen, prior=1e9), pooled, rtol=0.05, atol=0.05)
    torch.testing.assert_close(lira_scores(phi, member, seen, prior=1e-9), own, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("spread", ["student", "pooled", "own"])
def test_attack_finds_everything_or_nothing(spread):
    apart = held_out_scores(*shadow_margins(16, 40, 30.0), spread=spread)
    _, member = shadow_margins(16, 40, 30.0)
    found = attack_over_models(apart, member, together=2, draws=50)
    assert found.auc == (1.0, 1.0, 1.0)
    assert found.tpr is not None
    assert found.tpr.value == 1


def test_held_out_scores_are_not_biased_under_the_null_and_limits_cover():
    inside, values = [], []
    for seed in range(60):
        phi, member = shadow_margins(16, 30, 0.0, seed)
        found = attack_over_models(held_out_scores(phi, member), member, wanted=(), together=2, draws=150)
        values.append(found.auc.value)
        inside.append(found.auc.low <= 0.5 <= found.auc.high)
    assert sum(values) / 60 == pytest.approx(0.5, abs=0.01)
    assert 0.87 <= sum(inside) / 60 <= 1


def test_per_row_attack_sees_what_one_threshold_does_not():
    phi, member = shadow_margins(32, 60, 1.5)
    per_row = attack_over_models(held_out_scores(phi, member), member, together=2, draws=50)
    one = attack_over_models(phi, member, together=2, draws=50)
    assert per_row.auc.low > one.auc.high
    # The best attack on a shift of 1.5 deviations.
    assert per_row.auc.value == pytest.approx(stats.norm.cdf(1.5 / math.sqrt(2)), abs=0.05)


def test_rates_below_the_resolution_are_not_printed():
    phi, member = shadow_margins(16, 40, 1.0)
    found = attack_over_models(phi, member, draws=20)
    assert (found.non_members, found.rate) == (320, 0.01)
    assert (
        "320 non-members do not resolve a false positive rate of 0.001 or less (needed: 3000 for 0.001)" in found.note
    )
    assert "TPR@1.0%" in str(found)
    assert found.reading().value == found.auc.value
    phi, member = shadow_margins(4, 4, 1.0)
    few = attack_over_models(phi, member, draws=20)
    assert few.tpr is None
    assert "TPR" not in str(few)
    phi, member = shadow_margins(64, 120, 1.0)
    assert attack_over_models(phi, member, draws=5).rate == 0.001


def test_complementary_halves_balance_every_row():
    member = complementary_halves(12, 7, torch.Generator().manual_seed(0))
    assert (member[0::2] ^ member[1::2]).all()
    assert (member.sum(0) == 6).all()
    assert (member[:6].sum(0) == 3).all()
    assert (member[0::2].sum(1) == 3).all()


def test_lira_readout_is_the_area_of_standardised_margins():
    split = blobs()
    references = tuple(linear(seed=s) for s in range(4))
    network = linear(seed=9)
    seen = LiRA(references)(network, split)

    def z(data):
        phi = torch.stack([margins(r, data) for r in references])
        return phi.mean(0), phi

    (mf, pf), (mt, pt) = z(split.forget), z(split.tests)
    squares = torch.cat([(pf - mf).square().sum(0), (pt - mt).square().sum(0)])
    scale = ((1 + 1 / 4) * (4 * squares.mean() / 3 + squares) / 7).sqrt()
    score = (torch.cat([margins(network, split.forget), margins(network, split.tests)]) - torch.cat([mf, mt])) / scale
    a, b = score[: len(split.forget)], score[len(split.forget) :]
    assert seen.value == pytest.approx((a.unsqueeze(1) > b).double().mean().item())
    assert seen.low < seen.value < seen.high


def test_beside_strangers_lira_does_not_take_another_training_for_memory():
    """Wrong labels, and a network that is half as sure of everything as its references are."""
    split = blobs(400)
    wrong = replace(split, forget=split.forget.relabel((split.forget.labels() + 1) % 3))
    recipe = Recipe(epochs=10, lr=0.1, batch_size=20)
    *trained, base = (fit(linear(seed=s), wrong.retain, recipe, seed=s) for s in range(7))
    references, doubting = tuple(trained), base.at(0.5 * base.weights)
    beside_test = LiRA(references)(doubting, wrong)
    beside_strangers = LiRA(references, matched_controls(references, wrong))(doubting, wrong)
    assert not beside_test.low <= 0.5 <= beside_test.high
    assert beside_strangers.low <= 0.5 <= beside_strangers.high


def test_readouts_find_a_network_that_knows_the_forgotten_rows():
    split = blobs(400)
    references = tuple(linear(seed=s) for s in range(4))

    class Knowing(torch.nn.Module):
        """A linear network that is certain about the forgotten rows."""

        def __init__(self, layer, known):
            super().__init__()
            self.layer, self.known = layer, known

        def forward(self, x):
            is_known = (torch.cdist(x, self.known[0]) < 1e-9).double()
            return self.layer(x) + 50 * is_known @ torch.nn.functional.one_hot(self.known[1], 3).double()

    batch = split.forget.fetch(split.forget.rows)
    base = linear(seed=9)
    knowing = type(base).of(Knowing(base.module(), (batch.x, batch.y)))
    for readout in (LiRA(references), LiRA(references, matched_controls(references, split)), RMIA(references)):
        assert readout(knowing, split).value > 0.9
    assert float(Margin()(knowing, split)) > 20


@pytest.mark.parametrize("attack", [LiRA, RMIA])
def test_readouts_are_blind_where_the_network_never_saw_the_rows(attack):
    inside = []
    for seed in range(20):
        references = tuple(linear(seed=100 * seed + s) for s in range(4))
        seen = attack(references)(linear(seed=100 * seed + 9), blobs(400, seed=seed))
        inside.append(seen.low <= 0.5 <= seen.high)
    assert sum(inside) >= 17


def test_rmia_scores_count_the_population():
    gains, population = torch.tensor([0.0, 1.0, 9.0]).double(), torch.tensor([0.0, 0.5, 1.0, 2.0]).double()
    assert rmia_scores(gains, population).tolist() == [0, 0.5, 1]
    assert rmia_scores(gains, population, gamma=math.exp(0.9)).tolist() == [0, 0.25, 1]


def test_rmia_offline_correction():
    p = torch.tensor([[0.2, 0.8], [0.4, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(log_mean_probability(p.log(), 1.0).exp(), p.mean(0))
    torch.testing.assert_close(log_mean_probability(p.log(), 0.3).exp(), 0.5 * (1.3 * p.mean(0) + 0.7))


def test_rmia_readout_by_hand():
    split, reference, network = blobs(), linear(seed=1), linear(seed=2)

    def gain(data):
        y = data.labels().unsqueeze(1)
        log_p, log_q = (log_probabilities(n, data).gather(1, y).squeeze(1) for n in (network, reference))
        return log_p - (0.5 * (1.3 * log_q.exp() + 0.7)).log()

    forget, test = gain(split.forget), gain(split.tests)
    z, others = test[0::2], test[1::2]
    a, b = ((g.unsqueeze(1) > z).double().mean(1) for g in (forget, others))
    wins = (a.unsqueeze(1) > b).double() + 0.5 * (a.unsqueeze(1) == b)
    assert RMIA((reference,))(network, split).value == pytest.approx(wins.mean().item())


def test_messages():
    split, network = blobs(), linear()
    with pytest.raises(
        NeedError, match="LiRA needs at least two networks trained without the forgotten rows, but got 1"
    ):
        LiRA((network,))
    with pytest.raises(NeedError, match="RMIA needs a network trained without the forgotten rows"):
        RMIA(())
    with pytest.raises(SettingError, match=r"`RMIA.offline` must lie in \[0, 1\], but got 2"):
        RMIA((network,), offline=2)
    with pytest.raises(DataError, match="RMIA splits the test rows in two, but there are 1"):
        RMIA((network,))(network, replace(split, test=split.tests.select([0])))
    phi, member = shadow_margins(4, 6, 0.0)
    with pytest.raises(DataError, match="Each row needs at least 2 shadow models"):
        lira_scores(phi[:2], member[:2], phi, spread="own")
    with pytest.raises(MismatchError, match=r"Scores \(4, 6\) and membership \(2, 6\) must have one shape"):
        unchecked(attack_over_models, phi, member[:2])
