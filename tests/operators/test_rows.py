"""Networks that look into their inputs are answered row by row, with the same result."""

import pytest
import torch
from torch import Tensor, float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.jacobian import jacobian_rows
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.rows import by_row


class Curious(nn.Module):
    """Looks into its mask before it answers, as transformers does."""

    def __init__(self, *, looks: bool) -> None:
        super().__init__()
        self.looks, self.free = looks, nn.Parameter(torch.linspace(0, 1, 4, dtype=float64))
        self.head = nn.Linear(4, 3).double()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.looks and bool((mask == 0).any()):
            raise ValueError("nothing is masked here")
        return self.head((x * self.free).tanh() * mask)


def curious(*, looks: bool) -> tuple[Trained, Data]:
    torch.manual_seed(0)
    inputs = {"x": torch.randn(6, 4, dtype=float64), "mask": torch.ones(6, 4, dtype=float64)}
    return Trained.of(Curious(looks=looks)), Data.of((inputs, torch.randint(3, (6,))))


def test_a_curious_network_has_the_same_jacobian_fisher_and_kernel():
    (plain, data), (looking, _) = curious(looks=False), curious(looks=True)
    x = next(iter(data.batches(6))).x
    torch.testing.assert_close(jacobian_rows(looking, x), jacobian_rows(plain, x))
    torch.testing.assert_close(fisher_diagonal(looking, data), fisher_diagonal(plain, data))
    torch.testing.assert_close(kernel(looking, data), kernel(plain, data))


def test_other_errors_are_not_swallowed():
    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("out of cheese")

    with pytest.raises(RuntimeError, match="out of cheese"):
        by_row(broken, torch.zeros(3, 1))


class Recurrent(nn.Module):
    """Weights of a recurrent layer cannot be batched, so neither `vmap` nor a closed form goes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


def test_a_recurrent_network_has_the_fisher_diagonal_of_plain_autograd():
    torch.manual_seed(0)
    trained = Trained.of(Recurrent().double())
    data = Data.of((torch.randn(4, 5, 3, dtype=float64), torch.tensor([0, 1, 2, 0])))
    model = trained.module()
    expected = torch.zeros(trained.size, dtype=float64)
    rows = data.fetch(data.rows).x
    assert isinstance(rows, Tensor)
    for x in rows:
        logits = model(x[None])[0]
        p = logits.softmax(0).detach()
        for c in range(3):
            slope = torch.autograd.grad(logits.log_softmax(0)[c], list(model.parameters()), retain_graph=True)
            expected += p[c] * torch.cat([one.flatten() for one in slope]).square()
    torch.testing.assert_close(fisher_diagonal(trained, data), expected)
