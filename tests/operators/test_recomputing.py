"""Networks that compute activations anew on the way back: the same numbers, at any weights, and less kept."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spotlessnet as sn
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.hessian import Hessian
from spotlessnet.operators.room import kept_for_way_back


class Blocks(nn.Module):
    """Residual blocks, whose activations are stored or computed anew."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(4))
        self.head, self.reentrant = nn.Linear(8, 3), reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + (block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant))
        return self.head(x)


def network(reentrant: bool | None) -> sn.Trained:
    trained = sn.Trained.of(Blocks(reentrant), weight_decay=0.1)
    return trained.at(trained.weights + 0.1 * torch.randn(trained.size, generator=torch.Generator().manual_seed(1)))


@pytest.fixture(scope="module")
def data() -> sn.Data:
    return sn.Data.of((torch.randn(12, 8, generator=torch.Generator().manual_seed(2)), torch.arange(12) % 3))


WORK = {
    "gradient": gradient,
    "product": lambda trained, data: GaussNewton(trained, data).multiply(torch.ones_like(trained.weights)),
    "products": lambda trained, data: GaussNewton(trained, data).multiply(torch.ones(3, trained.size)),
    "kept": lambda trained, data: GaussNewton(trained, data, keep=True).multiply(torch.ones_like(trained.weights)),
    "Hessian": lambda trained, data: Hessian(trained, data).multiply(torch.ones_like(trained.weights)),
    "Fisher": fisher_diagonal,
}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("what", WORK)
def test_numbers_are_those_of_the_network_that_stores_them(data, what, reentrant) -> None:
    wanted = WORK[what](network(None), data)
    assert WORK[what](network(reentrant), data).allclose(wanted, rtol=1e-5, atol=1e-6)


def test_less_is_kept_for_the_way_back(data) -> None:
    x, kept = data.fetch(data.rows).x, []
    for reentrant in (None, False):
        trained = network(reentrant)
        w = trained.weights.detach().requires_grad_()
        with kept_for_way_back(trained) as saved:
            trained.outputs(x, w)
        kept.append(sum(saved.values()))
    assert kept[1] < 0.7 * kept[0]


def test_outside_a_pass_torch_is_as_it_was(data) -> None:
    before = torch.utils.checkpoint.CheckpointFunction
    with pytest.raises(RuntimeError):
        network(False).outputs(torch.ones(2, 5))
    assert torch.utils.checkpoint.CheckpointFunction is before
