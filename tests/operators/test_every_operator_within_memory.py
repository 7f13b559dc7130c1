"""Every operator: within a limit that holds nothing, rows pass one by one, and the answer is the same."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from spotlessnet.core.data import Data
from spotlessnet.core.progress import memory_limit
from spotlessnet.core.trained import Trained
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.hessian import Hessian
from spotlessnet.operators.jacobian import Jacobian
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.kronecker import kronecker

ROWS = 6

SEEN: list[int] = []
"""How many rows passed at once; not in the network, for some operators copy that."""


class Counting(nn.Module):
    """Notes what passes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(len(x))
        return self.net(x)


def ones(trained: Trained, *shape: int) -> Tensor:
    return torch.ones(*shape, trained.size, dtype=trained.dtype)


Work = Callable[[Trained, Data], Tensor]
OPERATORS: dict[str, Work] = {
    "gradient": gradient,
    "Gauss-Newton": lambda t, d: GaussNewton(t, d).multiply(ones(t)),
    "Gauss-Newton, three vectors": lambda t, d: GaussNewton(t, d).multiply(ones(t, 3)),
    "Hessian": lambda t, d: Hessian(t, d).multiply(ones(t)),
    "Jacobian": lambda t, d: Jacobian(t, d).multiply(ones(t)),
    "Jacobian, transposed": lambda t, d: Jacobian(t, d).transpose_multiply(torch.ones(ROWS, 3, dtype=t.dtype)),
    "Fisher diagonal": fisher_diagonal,
    "kernel": kernel,
    "Kronecker factors": lambda t, d: kronecker(t, d, kind="kfac").multiply(ones(t)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_rows_pass_one_by_one_and_the_answer_is_the_same(name: str) -> None:
    if name.startswith("Kronecker"):
        pytest.importorskip("curvlinops")
    trained = Trained.of(Counting(), weight_decay=0.1)
    draw = torch.Generator().manual_seed(1)
    data = Data.of((torch.randn(ROWS, 5, generator=draw, dtype=torch.float64), torch.arange(ROWS) % 3))
    SEEN.clear()
    whole = OPERATORS[name](trained, data)
    assert max(SEEN) == ROWS or name == "kernel"  # whose rows pass one by one in any case, all of them by `vmap`
    SEEN.clear()
    with memory_limit(1):
        few = OPERATORS[name](trained, data)
    assert max(SEEN) <= 2  # two where the first rows are looked at to learn what one takes
    assert SEEN.count(2) <= 1
    torch.testing.assert_close(few, whole, rtol=1e-9, atol=1e-12)
