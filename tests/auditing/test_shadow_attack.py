"""U-LiRA with real training: a scrub that does nothing is caught, a retrained network passes."""

import math
import time
from dataclasses import dataclass, replace

import pytest
import torch
from scipy import stats

from spotlessnet.auditing.shadow_attack import attack_shadows, u_lira
from spotlessnet.auditing.shadows import complementary_halves, train_shadows
from spotlessnet.core.errors import DataError, NeedError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split
from spotlessnet.readouts.attack import attack_over_models
from spotlessnet.readouts.lira import held_out_scores
from spotlessnet.training.fit import fit
from tests.readouts.problems import Nothing, blobs, digit_network, linear, noisy_digits

QUICK = Recipe(epochs=30, lr=0.2, batch_size=64)


@pytest.fixture(scope="module")
def shadows():
    data, _ = noisy_digits(300, wrong=40)
    targets, bystanders = torch.arange(40), torch.arange(40, 80)
    return train_shadows(digit_network(32), data, targets, bystanders=bystanders, recipe=QUICK, shadows=8)


def test_shadows_see_what_they_should(shadows):
    assert len(shadows) == 8
    assert shadows.seen[:, 80:].all()
    assert (shadows.seen[:, :80].sum(0) == 4).all()
    split = shadows.split(3)
    assert len(split.forget) == 20
    assert len(split.retain) == 300 - 40 - 20
    assert (split.forget.rows < 40).all()
    assert set(split.forget.rows.tolist()) == set(shadows.seen[3, :40].nonzero().squeeze(1).tolist())
    assert not torch.isin(split.retain.rows, torch.arange(40)).any()


def test_shadows_are_those_of_single_training(shadows):
    rows = shadows.seen[2].nonzero().squeeze(1)
    alone = fit(shadows.network, shadows.data.select(rows), QUICK, seed=2, order_of=shadows.data)
    torch.testing.assert_close(shadows.weights[2], alone.weights, rtol=1e-4, atol=1e-4)


def test_nothing_is_caught_and_retrained_passes(shadows):
    untouched = attack_shadows(shadows, shadows.scrubbed(Nothing()))
    retrained = attack_shadows(shadows, shadows.retrained())
    assert untouched.forgotten == attack_shadows(shadows).forgotten
    assert untouched.forgotten.auc.low > 0.8
    assert retrained.forgotten.auc.low - 0.03 <= 0.5 <= retrained.forgotten.auc.high + 0.03
    assert retrained.retained is not None
    assert "forgotten rows: AUC" in str(retrained)
    assert untouched.retained == untouched.retained_before


def test_retained_rows_are_attacked_too():
    """Wrong labels among the rows that stay: a scrub of others does not hide them."""
    data, _ = noisy_digits(300, wrong=40)
    found = train_shadows(
        digit_network(32), data, torch.arange(40, 80), bystanders=torch.arange(40), recipe=QUICK, shadows=8
    )
    seen = attack_shadows(found, found.retrained())
    assert seen.retained is not None
    assert seen.retained.auc.low > 0.8
    assert 0.4 <= seen.forgotten.auc.value <= 0.6


def test_scrubs_get_the_shadow_its_own_split_and_its_recipe(shadows):
    calls = []

    @dataclass(frozen=True)
    class Spy(Scrub):
        def shift(self, trained, split, notes):
            calls.append((trained, split))
            return trained.weights + 1

    moved = shadows.scrubbed(Spy())
    torch.testing.assert_close(torch.stack([one.weights for one in moved]), shadows.weights + 1)
    for s, (trained, split) in enumerate(calls):
        assert torch.equal(trained.weights, shadows.weights[s])
        assert torch.equal(trained.init, shadows.network.weights)
        assert trained.recipe == QUICK
        assert torch.equal(split.forget.rows, shadows.split(s).forget.rows)


def test_on_a_request():
    data, _ = noisy_digits(200, wrong=24)
    rows = torch.arange(200)
    split = Split(forget=data.select(rows[:24]), kept=data.select(rows[24:]))
    trained = digit_network(16, recipe=QUICK)
    found = u_lira(trained, split, Nothing(), shadows=8)
    assert found.forgotten.auc.low > 0.7
    assert found.forgotten.members == 8 * 24 // 2
    assert found.retained is not None
    alone = u_lira(trained, split, Nothing(), shadows=8, bystanders=False)
    assert alone.retained is None


def test_messages():
    split, targets = blobs(), torch.arange(4)
    network = linear(recipe=Recipe(epochs=1))
    with pytest.raises(SettingError, match="`shadows` must be a multiple of 4, but got 6"):
        train_shadows(network, split.whole, targets, shadows=6)
    with pytest.raises(DataError, match="both a target and a bystander"):
        train_shadows(network, split.whole, targets, bystanders=targets)
    with pytest.raises(DataError, match="no target row to attack"):
        train_shadows(network, split.whole, targets[:0])
    with pytest.raises(NeedError, match="Shadows need a recipe"):
        train_shadows(replace(network, recipe=None), split.whole, targets, shadows=4)
    with pytest.raises(DataError, match="left without any row"):
        train_shadows(network, split.whole.select([0]), targets[:1], shadows=4)


@pytest.mark.slow
def test_sixty_four_shadows_on_digits():
    """15 % wrong labels, 64-64-10, 120 targets, half of them forgotten per shadow; under five minutes of one core."""
    began = time.process_time()
    data, _ = noisy_digits(1200, wrong=180)
    order = torch.randperm(1200, generator=torch.Generator().manual_seed(1))
    targets, bystanders = order[:120], order[120:240]
    recipe = Recipe(epochs=40, lr=0.1, batch_size=128)
    shadows = train_shadows(digit_network(), data, targets, bystanders=bystanders, recipe=recipe)

    @dataclass(frozen=True)
    class Finetuned(Scrub):
        def shift(self, trained, split, notes):
            return fit(trained, split.retain, recipe.but(epochs=5)).weights

    original, retrained = attack_shadows(shadows), attack_shadows(shadows, shadows.retrained())
    finetuned = attack_shadows(shadows, shadows.scrubbed(Finetuned()))
    took = time.process_time() - began
    assert original.forgotten.auc.value == pytest.approx(0.71, abs=0.05)
    assert retrained.forgotten.auc.low <= 0.5 <= retrained.forgotten.auc.high
    assert retrained.forgotten.auc.high < 0.55
    assert retrained.forgotten.tpr is not None
    assert retrained.forgotten.tpr.high < 0.02
    # One threshold for all rows lets pass what the attack per row catches.
    assert finetuned.forgotten.auc.low > 0.6 > finetuned.population.auc.high
    assert took < 300


def test_one_row_is_not_told_by_what_a_scrub_does_to_every_network():
    """A scrub that halves all weights forgets nothing of one row more than of others: shadows without it are halved."""

    @dataclass(frozen=True)
    class Halved(Scrub):
        seed: int = 0

        def shift(self, trained, split, notes):
            # Retrained, so that nothing of the row is left, and then unlike any plain training.
            return fit(trained.begin("it"), split.retain, QUICK, seed=self.seed).weights / 2

    data, _ = noisy_digits(120, wrong=1)
    rows = torch.arange(120)
    split = Split(forget=data.select(rows[:1]), kept=data.select(rows[1:]))
    trained = digit_network(8, recipe=QUICK)
    found = u_lira(trained, split, Halved(), shadows=16, bystanders=False)
    assert found.forgotten.auc.low <= 0.5 <= found.forgotten.auc.high
    plain = u_lira(trained, split, Halved(), shadows=16, bystanders=False, out="retrained")
    assert plain.population.auc.value in (0.0, 1.0)  # beside plain retraining it shows, as it should


def test_a_shadow_without_the_row_forgets_another_that_it_saw():
    data, _ = noisy_digits(60, wrong=1)
    found = train_shadows(digit_network(8), data, torch.tensor([5]), recipe=QUICK.but(epochs=1), shadows=4)
    for s in range(4):
        split = found.split(s)
        assert len(split.forget) == 1
        assert bool(found.seen[s, split.forget.rows].all())
        assert (split.forget.rows.item() == 5) == bool(found.seen[s, 5])
        # Both of a pair end on the same rows.
        assert split.retain.rows.tolist() == found.split(s ^ 1).retain.rows.tolist()


@pytest.mark.parametrize(("models", "rows", "shared"), [(16, 1, 0.0), (16, 20, 1.0), (32, 20, 0.0)])
def test_limits_cover_one_half_under_the_null(models, rows, shared):
    """They covered it in 82 to 89 of 100, for each half of the models judges the other."""
    draw = torch.Generator().manual_seed(11)
    covered = above = 0
    for i in range(120):
        phi = torch.randn(models, rows, generator=draw).double() + shared * torch.randn(models, 1, generator=draw)
        member = complementary_halves(models, rows, draw)
        found = attack_over_models(held_out_scores(phi, member), member, together=2, crossed=True, draws=150, seed=i)
        covered += found.auc.low <= 0.5 <= found.auc.high
        above += (found.epsilon or 0.0) > 0
    assert stats.binomtest(covered, 120, 0.95, alternative="less").pvalue > 0.01
    assert stats.binomtest(above, 120, 0.05, alternative="greater").pvalue > 0.01


def test_epsilon_of_pairs_that_are_always_told_apart_is_that_of_the_closed_form():
    phi = torch.stack([torch.tensor([5.0, -5.0])[(torch.arange(32) % 2)]] * 1, dim=1)
    member = phi > 0
    found = attack_over_models(phi, member, together=2)
    q = 0.05 ** (1 / 16)
    assert found.epsilon == pytest.approx(math.log(q / (1 - q)) / 2, rel=1e-6)
    assert str(found).endswith(f"epsilon at least {found.epsilon:.2f}")
