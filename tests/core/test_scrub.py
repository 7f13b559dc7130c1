"""The frame of every scrub: what is recorded, what is refused, and how scrubs are chained."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

import spotlessnet as sn
from spotlessnet.core.chaining import chain
from spotlessnet.core.damping import DEFAULT_DAMPING, assume_anchor, ridge_of
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NumericsError, SettingError
from spotlessnet.core.gaussian import Covariance, Diagonal, NoNoise
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


@dataclass(frozen=True)
class Push(Scrub):
    """Adds a number to every weight, and noise if asked."""

    by: float = 1.0
    noise: float = 0.0

    @property
    def is_noisy(self) -> bool:
        return self.noise > 0

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        notes.fact(pushed=self.by)
        notes.assume("pushing helps", "nothing is promised")
        return trained.weights + self.by

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        if not self.noise:
            return NoNoise.at(trained.weights)
        notes.fact(spread_at=float(trained.weights[0]))
        return Diagonal(torch.full_like(trained.weights, self.noise**2))


def setting(n: int = 40, k: int = 2) -> tuple[Trained, Split]:
    data = Data.of((torch.zeros(n, 2), torch.zeros(n, dtype=torch.long)))
    trained = Trained.of(nn.Linear(2, 2)).at(torch.zeros(6))
    return trained, Split(forget=data.select(range(k)), kept=data.select(range(k, n)))


def test_the_noise_is_taken_at_the_shifted_weights():
    trained, split = setting()
    scrubbed = Push(by=2.0, noise=0.1)(trained, split)
    assert scrubbed.diagnostics["spread_at"] == 2.0
    assert torch.equal(scrubbed.mean, torch.full((6,), 2.0))
    assert bool((scrubbed.covariance.diagonal() - 0.01).abs().max() < 1e-9)


def test_what_was_assumed_comes_back_once_with_what_it_cost():
    trained, split = setting()
    about = chain(Push(), Push())(trained, split).diagnostics
    assert about["assumed"] == ["pushing helps"]
    assert about["lost"] == ["nothing is promised"]
    assert about["pushed"] == 1.0


def test_nothing_to_forget_returns_a_copy_of_the_same_bytes():
    trained, split = setting(k=0)
    scrubbed = Push(noise=1.0)(trained, split)
    assert scrubbed.is_noiseless
    assert torch.equal(scrubbed.mean, trained.weights)
    assert scrubbed.mean.data_ptr() != trained.weights.data_ptr()


def test_a_chain_goes_on_where_the_link_before_it_ended():
    trained, split = setting()
    scrubbed = chain(Push(1.0), Push(10.0), Push(100.0, noise=0.5))(trained, split)
    assert torch.equal(scrubbed.mean, torch.full((6,), 111.0))
    assert scrubbed.diagnostics["spread_at"] == 111.0
    assert chain(Push(), Push(noise=1.0)).is_noisy
    assert not chain(Push()).is_noisy
    assert repr(chain(Push())) == "Chain(links=(Push(by=1.0, noise=0.0),))"


def test_noise_belongs_at_the_end_of_a_chain():
    with pytest.raises(SettingError, match="Only the last scrub of a chain may add noise, but Push comes earlier"):
        chain(Push(noise=1.0), Push())
    with pytest.raises(SettingError, match="`chain` needs at least one scrub, but got none"):
        chain()


def test_too_little_left_is_refused():
    trained, split = setting(n=100, k=96)
    with pytest.raises(DataError, match=r"Push must keep at least 5% of the training rows.*leaves 4 of 100"):
        Push()(trained, split)
    Push()(*setting(n=100, k=95))
    alone = Split(forget=split.forget)
    assert torch.equal(Push()(trained, alone).mean, torch.ones(6)), "without retained rows there is nothing to count"


def test_a_step_to_nowhere_is_noticed():
    trained, split = setting()
    with pytest.raises(NumericsError, match="The scrubbed weights must be finite, but 6 of 6"):
        Push(by=float("inf"))(trained, split)


def test_a_scrub_without_noise_is_still():
    @dataclass(frozen=True)
    class Stay(Scrub):
        def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
            return trained.weights

    trained, split = setting()
    scrubbed = Stay()(trained, split)
    assert scrubbed.is_noiseless
    assert not Stay().is_noisy
    assert scrubbed.mean.data_ptr() != trained.weights.data_ptr(), "the caller's tensor is not handed back"


@pytest.mark.parametrize(
    ("weight_decay", "damping", "ridge", "said"),
    [
        (0.1, None, 0.1, False),
        (0.1, 0.2, 0.1 + 0.2, False),
        (0.0, None, DEFAULT_DAMPING, False),
        (None, None, DEFAULT_DAMPING, True),
        (None, 0.5, 0.5, True),
    ],
)
def test_the_ridge_is_decay_plus_damping(weight_decay: float | None, damping: float | None, ridge: float, said: bool):
    notes = Notes()
    assert ridge_of(Trained.of(nn.Linear(2, 2), weight_decay=weight_decay), damping, notes) == ridge
    assert bool(notes.assumed) == said
    assert notes.facts["damping"] == pytest.approx(ridge - (weight_decay or 0.0))


def test_an_unknown_start_is_said_only_where_it_matters():
    model, notes = nn.Linear(2, 2), Notes()
    assume_anchor(Trained.of(model), notes)
    assume_anchor(Trained.of(model, weight_decay=0.1, init=model), notes)
    assert notes.assumed == []
    assume_anchor(Trained.of(model, weight_decay=0.1), notes)
    assert "pull to zero" in notes.assumed[0]


def test_a_bare_module_is_taken_as_it_is():
    """The fault before: `'Linear' object has no attribute 'weight_decay'`."""
    trained, split = setting()
    module = trained.module()
    assert torch.equal(Push(by=2.0)(module, split).mean, torch.full((6,), 2.0))
    scrubbed = sn.NTK()(module, split)
    assert "the decay is not known" in scrubbed.diagnostics.assumed[0]
    assert torch.equal(scrubbed.mean, sn.NTK()(Trained.of(module), split).mean)
    kept = sn.WithinBudget(Push(noise=0.1), max_error_increase=0.5)(module, split)
    assert not kept.is_noiseless
