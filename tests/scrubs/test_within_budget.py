"""Noise by budget, where nats and errors are known."""

from dataclasses import dataclass

import pytest
import torch
from torch import float64, nn

from spotlessnet.core.covariance import Covariance, Diagonal
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError, SettingError
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.scrubs.within_budget import WithinBudget


@dataclass(frozen=True)
class Shaken(Scrub):
    """Stays where it is, with unit noise."""

    noisy: bool = True

    @property
    def is_noisy(self) -> bool:
        return self.noisy

    def shift(self, trained: Trained, split: Split, notes: Notes) -> torch.Tensor:
        return trained.weights

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        return Diagonal(torch.linspace(1, 2, trained.size, dtype=trained.dtype))


def linear() -> tuple[Trained, Split]:
    torch.manual_seed(0)
    data = Data.of((torch.randn(50, 4, dtype=float64), torch.randn(50, 1, dtype=float64)))
    trained = Trained.of(nn.Linear(4, 1, bias=False).double(), SquaredError(), decay=0.1)
    split = Split(forget=data.pick(range(10)), kept=data.pick(range(10, 50)))
    return trained.at(ridge(data)), split


def ridge(data: Data) -> torch.Tensor:
    x, y, _ = next(iter(data.batches(len(data))))
    assert isinstance(x, torch.Tensor)
    gram = x.T @ x / len(data) + 0.1 * torch.eye(4, dtype=float64)
    return torch.linalg.solve(gram, x.T @ y / len(data))[:, 0]


def classes() -> tuple[Trained, Split]:
    torch.manual_seed(0)
    x = torch.randn(300, 2, dtype=float64)
    data = Data.of((x, (x[:, 0] > 0).long()))
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-5.0, 0.0], [5.0, 0.0]]))
        model.bias.zero_()
    split = Split(forget=data.pick(range(10)), kept=data.pick(range(10, 150)), validation=data.pick(range(150, 300)))
    return Trained.of(model, decay=0.1), split


@pytest.mark.parametrize("nats", [0.02, 1.0, 30.0])
def test_the_divergence_is_the_one_asked_for(nats):
    trained, split = linear()
    reference = ridge(split.retain)
    scrubbed = WithinBudget(Shaken(), max_nats=nats, reference=reference)(trained, split)
    other = type(scrubbed)(reference, scrubbed.covariance)
    assert scrubbed.kl(other) == pytest.approx(nats, rel=1e-9)
    assert scrubbed.about["nats"] == pytest.approx(nats)
    assert not any("estimate" in text for text in scrubbed.about["lost"])


def test_without_a_reference_the_gap_is_estimated_and_said_so():
    """On a quadratic one more Newton step is the whole gap, so the estimate is exact there."""
    trained, split = linear()
    estimated = WithinBudget(Shaken(), max_nats=1.0)(trained, split)
    measured = WithinBudget(Shaken(), max_nats=1.0, reference=ridge(split.retain))(trained, split)
    assert estimated.about["noise_scale"] == pytest.approx(measured.about["noise_scale"], rel=1e-2)
    assert "the nats are an estimate, not a bound" in estimated.about["lost"]


def test_the_most_noise_within_an_error_budget():
    trained, split = classes()
    limit = 0.05
    scrubbed = WithinBudget(Shaken(), max_error_increase=limit, draws=20)(trained, split)
    assert 0 < scrubbed.about["error_increase"] <= limit
    louder = [
        p["error_increase"] for p in scrubbed.about["trade_off"] if p["noise_scale"] > 3 * scrubbed.about["noise_scale"]
    ]
    assert louder
    assert min(louder) > limit


def test_the_curve_falls_in_nats_as_noise_grows():
    trained, split = classes()
    curve = WithinBudget(Shaken(), max_nats=1.0, draws=2)(trained, split).about["trade_off"]
    nats = [point["nats"] for point in curve]
    assert nats == sorted(nats, reverse=True)
    assert curve[-1]["error_increase"] > curve[0]["error_increase"]


def test_budgets_that_contradict_each_other_are_refused():
    trained, split = classes()
    budget = WithinBudget(Shaken(), max_nats=1e-9, max_error_increase=0.001, reference=trained.weights + 3)
    with pytest.raises(NumericsError, match=r"Both budgets cannot be met: 1e-09 nats need noise that raises the error"):
        budget(trained, split)


def test_nothing_to_forget_means_no_noise():
    trained, split = linear()
    empty = Split(forget=split.forget.pick([]), kept=split.retain)
    assert torch.equal(WithinBudget(Shaken(), max_nats=1.0)(trained, empty).mean, trained.weights)


def test_settings_are_checked():
    with pytest.raises(SettingError, match="needs `max_nats` or `max_error_increase`, but got neither"):
        WithinBudget(Shaken())
    with pytest.raises(SettingError, match="A budget is met by noise, but Shaken adds none"):
        WithinBudget(Shaken(noisy=False), max_nats=1.0)
    with pytest.raises(SettingError, match=r"`WithinBudget.max_nats` must be positive, but got -1"):
        WithinBudget(Shaken(), max_nats=-1.0)
