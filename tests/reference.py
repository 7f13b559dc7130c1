"""Dense truth by `torch.func`, and small random networks to hold the operators against.

Everything here writes out whole Jacobians and matrices, by other means than the operators use, so that it
shares nothing with the code under test.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, float64, nn
from torch.func import hessian

from spotlessnet.core.data import Data
from spotlessnet.core.loss import Loss
from spotlessnet.core.trained import Trained

CLASSES = 3


class Residual(nn.Module):
    """Convolutions with BatchNorm around a shortcut; activations in place, as most networks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(3)
        self.second = nn.Conv2d(3, 3, 3, padding=1, stride=2)
        self.shortcut = nn.Conv2d(3, 3, 1, stride=2, bias=False)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.norm(self.first(x)))
        h = self.act(self.second(h) + self.shortcut(h))
        return self.head(h.mean(dim=(2, 3)))


class Tied(nn.Module):
    """One weight in two places: an embedding read both ways, and a layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(CLASSES, 5, bias=False)
        self.middle = nn.Linear(5, 5)
        self.back = nn.Linear(CLASSES, 5, bias=False)
        self.back.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(self.middle(self.embed(x)).tanh()).tanh()
        return h @ self.back.weight


class Words(nn.Module):
    """Token numbers and a mask by name in, an object with `logits` out: the shape of language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.mix = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> Any:
        h = self.drop(self.norm(self.embed(tokens) + self.mix(self.embed(tokens)).tanh()))
        return {"logits": self.head((h * mask.unsqueeze(2)).sum(dim=1))}


class Outside(nn.Module):
    """A weight used in its layer and once more outside it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.b = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.scale * self.a(x).tanh()) + (x @ self.a.weight.T)[:, :CLASSES]


class Grouped(nn.Module):
    """Grouped, dilated and unpadded convolutions, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(2, 4, (3, 2), padding=(2, 1), dilation=(2, 1))
        self.groups = nn.Conv2d(4, 6, 3, groups=2, stride=(1, 2))
        self.frozen = nn.Conv2d(6, 4, 1)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(4, CLASSES)
        self.head.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(self.groups(self.wide(x).tanh()).tanh()).mean(dim=(2, 3)))


class Positions(nn.Module):
    """Linear layers on several positions at once."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x).tanh()).mean(dim=1)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, CLASSES))


def _vectors(n: int, g: torch.Generator, width: int = 4) -> Tensor:
    return torch.randn(n, width, generator=g, dtype=float64)


def _images(n: int, g: torch.Generator) -> Tensor:
    return torch.randn(n, 2, 5, 5, generator=g, dtype=float64)


def _tokens(n: int, g: torch.Generator) -> dict[str, Tensor]:
    mask = torch.rand(n, 6, generator=g, dtype=float64)
    return {"tokens": torch.randint(7, (n, 6), generator=g), "mask": mask}


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, torch.Generator], Any]]] = {
    "linear": (lambda: nn.Linear(4, CLASSES), _vectors),
    "mlp": (_mlp, _vectors),
    "residual": (Residual, _images),
    "tied": (Tied, lambda n, g: _vectors(n, g, CLASSES)),
    "words": (Words, _tokens),
    "outside": (Outside, _vectors),
    "grouped": (Grouped, _images),
    "positions": (Positions, lambda n, g: torch.randn(n, 2, 3, generator=g, dtype=float64)),
}
"""Name: how to build the network, and how to draw inputs for it."""


def problem(name: str, seed: int, *, rows: int = 5, loss: Loss | None = None) -> tuple[Trained, Data]:
    """A random small network and data for it, in float64; BatchNorm has statistics other than zero and one."""
    g = torch.Generator().manual_seed(seed)
    build, inputs = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build().double()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for buffer in (module.running_mean, module.running_var, module.weight.data, module.bias.data):
                assert buffer is not None
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=g, dtype=float64))
    trained = Trained.of(network, loss, weight_decay=0.1)
    start = trained.weights + torch.randn(trained.size, generator=g, dtype=float64)
    trained = Trained.of(network, loss, weight_decay=0.1, init=start)
    return trained, Data.of((inputs(rows, g), torch.randint(CLASSES, (rows,), generator=g)))


def random_weights(rows: int, seed: int) -> Tensor:
    """Sample weights with one zero among them."""
    s = 0.2 + torch.rand(rows, generator=torch.Generator().manual_seed(seed), dtype=float64)
    s[seed % rows] = 0
    return s


def row(data: Data, i: int) -> tuple[Any, Tensor]:
    """One row, with a batch axis of one."""
    batch = data.fetch(data.rows[i : i + 1])
    return batch.x, batch.y


def dense_jacobian(trained: Trained, data: Data) -> Tensor:
    """`[N, C, P]`, one backward pass per row and output."""
    w, rows = trained.weights.detach().requires_grad_(), []
    for i in range(len(data)):
        outputs = trained.outputs(row(data, i)[0], w)[0].flatten()
        rows.append(torch.stack([torch.autograd.grad(o, w, retain_graph=True)[0] for o in outputs]))
    return torch.stack(rows)


def dense_output_hessian(trained: Trained, data: Data) -> Tensor:
    """`[N, C, C]`, by differentiating the loss twice."""
    matrices = []
    for i in range(len(data)):
        x, y = row(data, i)
        matrices.append(hessian(lambda out, y=y: trained.loss(out.unsqueeze(0), y)[0])(trained.outputs(x)[0].detach()))
    return torch.stack(matrices)


def dense_gauss_newton(trained: Trained, data: Data, s: Tensor | None = None, H: Tensor | None = None) -> Tensor:
    """`Σ s J' H J`, `[P, P]`."""
    J, H = dense_jacobian(trained, data), dense_output_hessian(trained, data) if H is None else H
    s = torch.ones(len(data), dtype=J.dtype) if s is None else s
    return torch.einsum("n,ncp,ncd,ndq->pq", s, J, H, J)


def summed_loss(trained: Trained, data: Data, w: Tensor, s: Tensor | None = None) -> Tensor:
    """`Σ s ℓ(w)`."""
    x, y, _ = data.fetch(data.rows)
    losses = trained.losses(x, y, w)
    return losses.sum() if s is None else (s * losses).sum()


def dense_hessian(trained: Trained, data: Data, s: Tensor | None = None) -> Tensor:
    """`Σ s ∇²ℓ`, `[P, P]`, one double backward pass per weight.

    Not `torch.func.hessian`: through `nn.LayerNorm` it is wrong (torch 2.13; finite differences tell).
    """
    w = trained.weights.detach().requires_grad_()
    slope = torch.autograd.grad(summed_loss(trained, data, w, s), w, create_graph=True)[0]
    return torch.stack([torch.autograd.grad(g, w, retain_graph=True)[0] for g in slope])
