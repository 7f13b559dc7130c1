"""Recurrent networks with packed sequences: rows of unlike length, one gradient for each."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import spotlessnet as sn
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.jacobian import Jacobian, jacobian_rows


class Packed(nn.Module):
    """The last state of a GRU over the words that are not padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(7, 3), nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x != 0).sum(1).cpu()
        packed = pack_padded_sequence(self.words(x), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.body(packed)[1][-1])


def test_a_packed_sequence_has_a_fisher_diagonal() -> None:
    torch.manual_seed(0)
    trained = sn.Trained.of(Packed().double())
    x, y = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [2, 0, 0, 0]]), torch.tensor([0, 1, 1])
    found = fisher_diagonal(trained, sn.Data.of((x, y)), kind="empirical")
    net = trained.module()
    expected = torch.zeros_like(trained.weights)
    for one, label in zip(x, y, strict=True):
        net.zero_grad()
        nn.functional.cross_entropy(net(one[None]), label[None]).backward()
        expected += torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).square()
    assert found.numpy() == pytest.approx(expected.numpy(), rel=1e-9, abs=1e-15)


def test_a_packed_sequence_has_a_jacobian() -> None:
    torch.manual_seed(0)
    trained = sn.Trained.of(Packed().double())
    x, y = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]]), torch.tensor([0, 1])
    rows = jacobian_rows(trained, x)
    # The way back by the product, which transforms nothing.
    u = torch.randn(2, 2, dtype=torch.float64)
    expected = Jacobian(trained, sn.Data.of((x, y))).transpose_multiply(u)
    assert torch.einsum("ncp,nc->p", rows, u).numpy() == pytest.approx(expected.numpy(), rel=1e-9, abs=1e-15)
