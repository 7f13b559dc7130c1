"""When the linearised network can be trusted, and what noise costs."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import float64, nn

from spotlessnet.bounds import BlackBox, WhiteBox
from spotlessnet.bounds.black_box import output_covariance
from spotlessnet.bounds.linearisation import linearisation
from spotlessnet.bounds.trade_off import trade_off
from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.gaussian import Diagonal, Gaussian, NoNoise
from spotlessnet.core.readout import Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


@dataclass(frozen=True)
class Mistakes(Readout):
    """The share of retained rows that are answered wrongly."""

    unit: ClassVar[str] = "share"
    ideal: ClassVar[Ideal] = "low"

    def __call__(self, network: Trained, split: Split) -> Reading:
        wrong = network.predict(split.retain).argmax(1) != split.retain.labels()
        return Reading(float(wrong.double().mean()))


def problem(model: nn.Module, n: int = 40) -> tuple[Trained, Split]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3 * n, 3, generator=g, dtype=float64)
    data = Data.of((x, (x[:, 0] > 0).long()))
    return Trained.of(model.double()), Split(data.select(range(n)), data.select(range(n, 3 * n)))


def test_a_linear_network_has_no_error_and_a_bent_one_has():
    torch.manual_seed(0)
    trained, split = problem(nn.Linear(3, 2))
    data, g = split.forget.select(range(4)), torch.Generator().manual_seed(1)
    noise = Diagonal(torch.ones(trained.size, dtype=float64))
    exact = linearisation(Gaussian(trained.weights, noise), trained, data, generator=g, draws=20)
    assert exact.mean_error < 1e-12
    assert exact.covariance_error < 1e-12
    assert exact.is_bound
    assert "linear within 20%" in exact.note

    bent, split = problem(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)))
    rough = linearisation(Gaussian(bent.weights, Diagonal(torch.full_like(bent.weights, 4.0))), bent, data, generator=g)
    assert not rough.is_bound
    assert rough.draws == 200
    assert rough.note.startswith("linearised estimate, not a bound")
    fine = linearisation(Gaussian(bent.weights, Diagonal(torch.full_like(bent.weights, 1e-8))), bent, data, generator=g)
    assert fine.is_bound
    assert max(fine.mean_error, fine.covariance_error) < 1e-3


def test_the_draws_have_the_covariance_that_the_bound_uses():
    torch.manual_seed(0)
    trained, split = problem(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    gaussian = Gaussian(trained.weights, Diagonal(torch.full_like(trained.weights, 1e-8)))
    data, g = split.forget.select([0]), torch.Generator().manual_seed(0)
    outputs = torch.stack([trained.at(gaussian.draw(g)).predict(data)[0] for _ in range(2000)])
    expected = output_covariance(gaussian, trained, data)
    assert float((torch.cov(outputs.T) - expected).norm() / expected.norm()) < 0.1


def test_without_noise_there_is_nothing_to_linearise():
    trained, split = problem(nn.Linear(3, 2))
    still = Gaussian(trained.weights, NoNoise.at(trained.weights))
    g = torch.Generator().manual_seed(0)
    assert linearisation(still, trained, split.forget, generator=g).is_bound
    noisy = Gaussian(trained.weights, Diagonal(torch.ones_like(trained.weights)))
    with pytest.raises(SettingError, match="`draws` must be at least 2 to have a covariance, but got 1"):
        linearisation(noisy, trained, split.forget, generator=g, draws=1)


def test_more_noise_fewer_nats_more_mistakes():
    trained, split = problem(nn.Linear(3, 2))
    w = trained.vector({"weight": torch.tensor([[-3.0, 0, 0], [3.0, 0, 0]]), "bias": torch.zeros(2)})
    noise = Diagonal(torch.full_like(w, 1e-2))
    curve = trade_off(
        Gaussian(w, noise), Gaussian(w + 0.1, noise), trained, split,
        readouts=[Mistakes()], bounds=[WhiteBox(), BlackBox(3)], scales=[0.01, 1, 100, 10_000], draws=20,
    )  # fmt: skip
    white = [float(n) for n in curve.nats["WhiteBox"]]
    black = [float(n) for n in curve.nats["BlackBox(3 on forget)"]]
    assert white == pytest.approx([white[0] / s for s in (1, 100, 1e4, 1e6)], rel=1e-9)
    assert white[0] == pytest.approx(0.5 * 8 * 0.01 / 1e-4)
    assert black == sorted(black, reverse=True)
    assert all(b <= a + 1e-9 for a, b in zip(white, black, strict=True))
    errors = [float(r) for r in curve.readings["Mistakes"]]
    assert errors[0] < 0.02 < 0.2 < errors[-1]
    assert curve.points("Mistakes", "WhiteBox") == list(zip(white, errors, strict=True))
    assert curve.readings["Mistakes"][-1].low < errors[-1] < curve.readings["Mistakes"][-1].high


def test_trade_off_messages():
    trained, split = problem(nn.Linear(3, 2))
    one = Gaussian(trained.weights, Diagonal(torch.ones_like(trained.weights)))
    with pytest.raises(SettingError, match="at least one scale and one draw, but got 0 and 5"):
        trade_off(one, one, trained, split, readouts=[], bounds=[], scales=[])
    with pytest.raises(SettingError, match="`scales` must be positive, but got 0"):
        trade_off(one, one, trained, split, readouts=[], bounds=[], scales=[0.0])
