"""The probe where its answer is known; a masked logit does not hide a class from it, and retraining does."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split, whole_class
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.activation_distance import distances
from spotlessnet.readouts.linear_probe import LinearProbe, hidden, probe
from spotlessnet.training.fit import fit


def test_the_direction_is_fishers_discriminant():
    torch.manual_seed(0)
    a, b = torch.randn(40, 3, dtype=float64) + torch.tensor([1.0, 0, 0]), torch.randn(900, 3, dtype=float64)
    w, centre = probe(a, b, 1e-9)
    spread = (torch.cov(a.T, correction=0) + torch.cov(b.T, correction=0)) / 2
    torch.testing.assert_close(w, torch.linalg.inv(spread) @ (a.mean(0) - b.mean(0)))
    torch.testing.assert_close(centre, (a.mean(0) + b.mean(0)) / 2)


def test_hidden_is_what_enters_the_last_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    data = Data.of((torch.randn(9, 4, dtype=float64), torch.zeros(9, dtype=torch.long)))
    torch.testing.assert_close(hidden(Trained.of(model), data), model[:2](data.fetch(data.rows).x).detach())
    image = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 1), nn.Flatten(), nn.AvgPool1d(4)).double()
    seen = Data.of((torch.randn(5, 1, 4, 4, dtype=float64), torch.zeros(5, dtype=torch.long)))
    expected = image[:2](seen.fetch(seen.rows).x).mean(dim=(2, 3)).detach()
    torch.testing.assert_close(hidden(Trained.of(image), seen), expected)


class Masked(nn.Module):
    """A network that never answers one class."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).index_fill(1, torch.tensor([0]), -1e4)


def test_masking_the_logit_fails_it_and_a_layer_that_lost_the_class_passes():
    torch.manual_seed(0)
    y = torch.arange(600) % 3
    # The class differs from others in an input that nothing else needs, so that who never saw it need not look there.
    x = 0.5 * torch.randn(600, 6, dtype=float64) + 2 * nn.functional.one_hot(y, 6)
    split = whole_class(0)(Data.of((x, y)))
    model = nn.Sequential(nn.Linear(6, 2), nn.Tanh(), nn.Linear(2, 3)).double()
    recipe = Recipe(epochs=60, lr=0.1, batch_size=32, weight_decay=1e-2)
    began = Trained.of(model, recipe=recipe, init=torch.zeros(sum(p.numel() for p in model.parameters())).double())
    began = replace(began, init=began.weights)
    original, retrained = fit(began, split.whole), fit(began, split.retain)
    masked = Trained.of(Masked(original.module()))
    look = LinearProbe()
    readings = [float(look(network, split)) for network in (original, masked, retrained)]
    assert readings[0] == readings[1] > 0.99
    assert readings[2] < 0.95
    # By its answers alone, the masked network is nearly the retrained one.
    away = [float(distances(network, retrained, split.forget).mean()) for network in (original, masked)]
    assert away[1] < 0.7 * away[0]


def test_nothing_to_tell_reads_one_half():
    torch.manual_seed(0)
    data = Data.of((torch.randn(400, 4, dtype=float64), torch.randint(3, (400,))))
    trained = Trained.of(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double())
    reading = LinearProbe()(trained, Split(data.select(range(200)), data.select(range(200, 400))))
    assert reading.low < 0.5 < reading.high
    with pytest.raises(DataError, match="four rows of either kind, but there are 3 forgotten and 200"):
        LinearProbe()(trained, Split(data.select(range(3)), data.select(range(200, 400))))
