"""The head's bias is found by what it does, and a class that leaves is silenced by it alone."""

import torch
from torch import float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained
from spotlessnet.methods.out_of_fold.class_bias import head_bias, suppress_class_bias

DATA = Data.of((torch.randn(20, 5, dtype=float64, generator=torch.Generator().manual_seed(3)), torch.arange(20) % 4))


def network(*layers: nn.Module) -> Trained:
    torch.manual_seed(1)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    return Trained.of(nn.Sequential(*layers).double())


def test_it_is_found_among_parameters_of_the_same_shape():
    # Two biases and a scale have one entry per class; only the last bias moves each logit by itself.
    trained = network(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    place = head_bias(trained, DATA)
    assert place is not None
    assert place.tolist() == list(range(trained.size - 4, trained.size))


def test_a_bias_that_is_not_the_last_parameter_is_found_too():
    class Scaled(nn.Module):
        """Registered in another order than it is used."""

        def __init__(self) -> None:
            super().__init__()
            self.bias, self.linear = nn.Parameter(torch.zeros(4)), nn.Linear(5, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) + self.bias

    place = head_bias(network(Scaled()), DATA)
    assert place is not None
    assert place.tolist() == [0, 1, 2, 3]


def test_a_network_without_one_stays_as_it_is():
    for trained in (network(nn.Linear(5, 4, bias=False)), network(nn.Linear(5, 4), nn.Softplus())):
        assert head_bias(trained, DATA) is None
        assert suppress_class_bias(trained, torch.tensor([True, False, False, False]), DATA) is trained.weights


def test_the_class_falls_to_the_least_likely_of_those_that_stay():
    trained = network(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4))
    # One is likely and must fall, the other is less likely than all that stay and must not rise.
    trained = trained.at(
        trained.weights.index_add(0, torch.tensor([-3, -1]) + trained.size, torch.tensor([2.0, -9.0]).double())
    )
    leaving, before = torch.tensor([False, True, False, True]), trained.predict(DATA)
    after = trained.at(suppress_class_bias(trained, leaving, DATA)).predict(DATA)
    for c in (0, 2):
        torch.testing.assert_close(after[:, c], before[:, c], rtol=0, atol=0)
    least = before[:, [0, 2]].amin(dim=1)
    fall = float((before[:, 1] - least).mean())
    assert fall > 1
    torch.testing.assert_close(after[:, 1], before[:, 1] - fall, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after[:, 3], before[:, 3], rtol=0, atol=0)
    assert suppress_class_bias(trained, torch.zeros(4, dtype=torch.bool), DATA) is trained.weights
