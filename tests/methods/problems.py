"""Small problems whose answers are known: ridge regression, logistic regression, tiny networks."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.loss import CrossEntropy, SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


def ridge_problem(
    seed: int, n: int = 30, k: int = 6, d: int = 4, outputs: int = 1, weight_decay: float = 0.1
) -> tuple[Trained, Split]:
    """Linear regression without bias, trained to the optimum on all rows, pulled to a random start."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=draw, dtype=float64)
    y = torch.randn(n, outputs, generator=draw, dtype=float64)
    start = torch.randn(d * outputs, generator=draw, dtype=float64)
    data = Data.of((x, y))
    split = Split(forget=data.select(torch.arange(k)), kept=data.select(torch.arange(k, n)))
    trained = Trained.of(
        nn.Linear(d, outputs, bias=False).double(), SquaredError(), weight_decay=weight_decay, init=start
    )
    return trained.at(ridge_optimum(trained, data)), split


def ridge_optimum(trained: Trained, data: Data) -> Tensor:
    """The minimiser of the mean of ½‖Wx − y‖² plus ½ decay ‖w − start‖²."""
    x, y, _ = next(iter(data.batches(len(data))))
    assert isinstance(x, Tensor)
    W0 = trained.anchor.view(y.shape[1], -1)
    gram = x.T @ x / len(x) + trained.known_weight_decay * torch.eye(x.shape[1], dtype=float64)
    return torch.linalg.solve(gram, x.T @ (y - x @ W0.T) / len(x)).T.reshape(-1) + trained.anchor


def logistic_problem(seed: int, n: int = 40, k: int = 8, weight_decay: float = 0.1) -> tuple[Trained, Split]:
    """Three-class logistic regression at its optimum, some rows of one class with wrong labels to forget."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 4, generator=draw, dtype=float64) + 2 * nn.functional.one_hot(y, 4)
    y = torch.where(torch.arange(n) < k, (y + 1) % 3, y)
    data = Data.of((x, y))
    recipe = Recipe(epochs=80, lr=0.5, momentum=0.5, batch_size=10_000, weight_decay=weight_decay)
    model = nn.Linear(4, 3).double()
    nn.init.normal_(model.weight, std=0.1, generator=draw)
    nn.init.zeros_(model.bias)
    trained = Trained.of(model, init=model, recipe=recipe)
    split = Split(forget=data.select(torch.arange(k)), kept=data.select(torch.arange(k, n)))
    return trained.at(optimum(trained, data)), split


def optimum(trained: Trained, data: Data, steps: int = 12) -> Tensor:
    """The minimiser of a convex risk, by dense Newton steps."""
    risk, w = plain_risk(trained, data), torch.zeros_like(trained.weights)
    for _ in range(steps):
        w = w - torch.linalg.solve(torch.func.hessian(risk)(w), torch.func.grad(risk)(w))
    assert float(torch.func.grad(risk)(w).norm()) < 1e-10
    return w


def plain_risk(trained: Trained, data: Data) -> Callable[[Tensor], Tensor]:
    """The mean objective, written out once more, without the package's own streaming."""
    x, y, _ = next(iter(data.batches(len(data))))
    model = trained.module()
    names, shapes = trained.names, [shape.numel() for shape in trained.shapes]

    def risk(w: Tensor) -> Tensor:
        parts = {n: p.view(s) for n, p, s in zip(names, w.split(shapes), trained.shapes, strict=True)}
        outputs = torch.func.functional_call(model, parts, (x,))
        if isinstance(trained.loss, SquaredError):
            losses = 0.5 * (outputs - y).square().sum(dim=1)
        else:
            losses = nn.functional.cross_entropy(outputs, y, reduction="none")
        return losses.mean() + 0.5 * trained.known_weight_decay * (w - trained.anchor).square().sum()

    return risk


def dense_gradient(trained: Trained, data: Data) -> Tensor:
    """Of the mean objective, decay included."""
    return torch.func.grad(plain_risk(trained, data))(trained.weights)


def dense_hessian(trained: Trained, data: Data) -> Tensor:
    """Of the mean objective, decay included."""
    return torch.func.hessian(plain_risk(trained, data))(trained.weights)


def unchecked(cls: type[Any], **settings: Any) -> Any:
    """Make a method as it is made where no type checker runs, so that its own checks speak."""
    made = object.__new__(cls)
    for one in fields(cls):
        if one.init:
            object.__setattr__(made, one.name, settings.get(one.name, one.default))
    made.__post_init__()
    return made


class Ridge:
    """A linear network with squared loss at its optimum on D, and the dense truth about it."""

    def __init__(
        self, seed: int, weight_decay: float = 0.1, rows: int = 14, gone: int = 4, inputs: int = 5, outputs: int = 3
    ):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, inputs, dtype=float64, generator=draw)
        y = torch.randn(rows, outputs, dtype=float64, generator=draw)
        self.data = Data.of((x, y))
        start = torch.randn(outputs * (inputs + 1), dtype=float64, generator=draw)
        network = Trained.of(nn.Linear(inputs, outputs).double(), SquaredError(), weight_decay=weight_decay, init=start)
        self.weight_decay, self.start, self.any = weight_decay, start, network
        chosen = torch.randperm(rows, generator=draw)[:gone]
        self.split = Split(forget=self.data.select(chosen), kept=self.data.without(self.data.select(chosen)))
        self.trained = network.at(self.optimum(self.data))
        self.retrained = self.optimum(self.split.retain)

    def jacobian(self, data: Data) -> Tensor:
        x, _ = data.source.fetch(data.rows)
        J = torch.func.jacrev(lambda w: self.any.outputs(x, w))(self.any.weights)
        return J.reshape(-1, self.any.size)

    def targets(self, data: Data) -> Tensor:
        return data.source.fetch(data.rows)[1].reshape(-1)

    def optimum(self, data: Data, ridge: float | None = None) -> Tensor:
        J, e = self.jacobian(data), self.targets(data) - self.jacobian(data) @ self.start
        rho = len(data) * self.weight_decay if ridge is None else ridge
        return self.start + torch.linalg.solve(J.T @ J + rho * torch.eye(J.shape[1], dtype=float64), J.T @ e)


def classifier(seed: int, weight_decay: float = 0.05) -> tuple[Trained, Split]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(18, 4, dtype=float64, generator=draw)
    data = Data.of((x, torch.randint(3, (18,), generator=draw)))
    network = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    trained = Trained.of(network, CrossEntropy(), weight_decay=weight_decay)
    trained = Trained.of(
        network,
        CrossEntropy(),
        weight_decay=weight_decay,
        init=0.3 * torch.randn(trained.size, dtype=float64, generator=draw),
    )
    trained = trained.at(trained.anchor + 0.3 * torch.randn(trained.size, dtype=float64, generator=draw))
    chosen = data.select(torch.randperm(18, generator=draw)[:4])
    return trained, Split(forget=chosen, kept=data.without(chosen))


def inputs(data: Data) -> tuple[Tensor, Tensor]:
    x, y = data.source.fetch(data.rows)
    assert isinstance(x, Tensor)
    return x, y
