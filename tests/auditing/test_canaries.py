"""Canaries: coins that a network must not know once it has forgotten."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

import spotlessnet as sn
from spotlessnet.auditing.coin_flips import FORMAT, Canaries, epsilon_from_guesses
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import joined
from spotlessnet.core.trained import Trained
from spotlessnet.store.checkpoints import to_bytes
from spotlessnet.training.fit import fit


def made(seed: int) -> tuple[Trained, Data, Canaries]:
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(200) % 4
    x = torch.randn(200, 16, generator=draw) + 2 * nn.functional.one_hot(y, 16)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    start = Trained.of(model, recipe=Recipe(epochs=40, lr=0.1, batch_size=16, momentum=0.9))
    return start, Data.of((x[:140], y[:140])), sn.canaries((x[140:], y[140:]), classes=4, seed=seed)


def test_originals_and_fine_tuned_networks_are_caught_and_retrained_ones_are_not():
    caught = tuned = flagged = 0
    for seed in range(8):
        start, data, birds = made(100 + seed)
        original = fit(start, joined(data, birds.included), seed=seed)
        caught += birds.audit(original).remembers
        few = Recipe(epochs=2, lr=0.01, batch_size=16)
        tuned += birds.audit(fit(original, data, few, seed=seed)).remembers
        flagged += birds.audit(fit(start, data, seed=seed)).remembers
    assert (caught, tuned) == (8, 8)
    assert stats.binomtest(flagged, 8, 0.05, alternative="greater").pvalue > 0.01


def test_the_p_value_is_exact_for_any_network_over_the_coins():
    """One network that saw none of them, many tosses: p below .1 in no more than a tenth of them."""
    start, data, birds = made(7)
    network = fit(start, data)
    draw = torch.Generator().manual_seed(3)
    below = sum(
        Canaries(birds.rows, torch.randint(2, (60,), generator=draw).bool()).audit(network).p <= 0.1
        for _ in range(1500)
    )
    truth = stats.binom.sf(stats.binom.isf(0.1, 60, 0.5), 60, 0.5)  # p-values of a count lie on a grid
    assert stats.binomtest(below, 1500, truth).pvalue > 0.001


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_lower_limit_of_epsilon_covers_randomised_response(epsilon):
    """Randomised response is epsilon-differentially private and tight: each coin is told with e^eps / (1 + e^eps)."""
    share = math.exp(epsilon) / (1 + math.exp(epsilon))
    draw = torch.Generator().manual_seed(1)
    right = (torch.rand(2000, 100, generator=draw) < share).sum(dim=1).tolist()
    limits = [epsilon_from_guesses(w, 100) for w in right]
    above = sum(limit > epsilon for limit in limits)
    assert stats.binomtest(above, 2000, 0.05, alternative="greater").pvalue > 0.001
    assert sum(limits) / 2000 > 0.5 * epsilon - 0.1  # and it is not empty


def test_epsilon_solves_its_equation():
    found = epsilon_from_guesses(48, 60, 0.9)
    share = math.exp(found) / (1 + math.exp(found))
    assert stats.binom.sf(47, 60, share) == pytest.approx(0.1, abs=1e-9)


def test_fewer_guesses_take_the_surest_alone():
    coins = torch.arange(40) % 2 == 0
    score = torch.where(coins, 5.0, -5.0)
    score[10:30] = 0.0  # of these the network knows nothing
    birds = Canaries(Data.of((score.unsqueeze(1), torch.zeros(40, dtype=torch.long))), coins)
    network = Trained.of(nn.Sequential(nn.Linear(1, 2)))
    found = birds.audit(network.at(torch.tensor([1.0, -1.0, 0.0, 0.0])), guesses=20)
    assert (found.correct, found.guesses) == (20, 20)
    assert found.p == pytest.approx(0.5**20)


def test_a_file_gives_them_back_and_damage_is_refused(tmp_path):
    _, _, birds = made(3)
    birds.write(tmp_path / "birds.safetensors")
    again = Canaries.read(tmp_path / "birds.safetensors")
    assert torch.equal(again.coins, birds.coins)
    assert torch.equal(again.rows.labels(), birds.rows.labels())
    sn.write_weights(tmp_path / "other.safetensors", nn.Linear(2, 2))
    with pytest.raises(DataError, match="must hold canaries"):
        Canaries.read(tmp_path / "other.safetensors")


def test_what_cannot_tell_is_refused():
    _, data, birds = made(3)
    for count, classes, error in ((5, 4, SettingError), (900, 4, DataError), (60, 1, SettingError), (60, 2, DataError)):
        with pytest.raises(error):
            sn.canaries(data, count, classes=classes)
    with pytest.raises(SettingError, match="guesses"):
        birds.audit(made(3)[0], guesses=61)


def test_a_plain_module_is_audited_as_its_trained_network_is():
    """It ended in an AttributeError."""
    start, data, birds = made(5)
    network = fit(start, data)
    assert birds.audit(network.module()) == birds.audit(network)


def test_secret_coins_do_not_come_from_a_generator_that_can_be_gone_through(monkeypatch):
    """Whoever knows the included rows could have tried all 2^32 seeds of torch, and found the others."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("torch's generator was asked")

    monkeypatch.setattr(torch, "randint", refused)
    found = [sn.canaries((torch.zeros(60, 2), torch.zeros(60).long()), classes=3) for _ in range(2)]
    assert not torch.equal(found[0].coins, found[1].coins)
    for birds in found:
        assert 10 < int(birds.coins.sum()) < 50
        assert set(birds.rows.labels().tolist()) == {1, 2}


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": torch.tensor(1.0)},
        {"coins": torch.tensor(1, dtype=torch.uint8)},
        {"coins": torch.full((12,), -1, dtype=torch.int8)},
        {"coins": torch.ones(12, dtype=torch.complex64)},
    ],
)
def test_damaged_canaries_are_refused_in_words(tmp_path, wrong):
    """Numbers without a length, and coins that are no coins."""
    sound = {"x": torch.zeros(12, 2), "y": torch.zeros(12).long(), "coins": torch.ones(12, dtype=torch.uint8)}
    path = tmp_path / "canaries.safetensors"
    path.write_bytes(to_bytes(sound, {"format": FORMAT}))
    assert len(Canaries.read(path)) == 12
    path.write_bytes(to_bytes({**sound, **wrong}, {"format": FORMAT}))
    with pytest.raises(DataError, match="are damaged"):
        Canaries.read(path)
