"""Kronecker curvature against the dense Gauss-Newton matrix, block by block."""

import builtins

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import jacrev

from spotlessnet.core.covariance import Kronecker
from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, NeedError, SettingError
from spotlessnet.core.loss import BinaryCrossEntropy, CrossEntropy, Loss, PerSample, SquaredError
from spotlessnet.core.trained import Trained
from spotlessnet.operators.kronecker import kronecker

pytest.importorskip("curvlinops")

CLASSES = 3


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trained_of(network: nn.Module, seed: int = 0, loss: Loss | None = None) -> Trained:
    trained = Trained.of(network.double(), loss)
    weights = 0.5 * torch.randn(trained.size, generator=generator_of(seed), dtype=torch.float64)
    return trained.at(weights)


def data_of(*shape: int, seed: int = 0) -> Data:
    g = generator_of(seed)
    x = torch.randn(*shape, generator=g, dtype=torch.float64)
    return Data.of((x, torch.randint(CLASSES, (shape[0],), generator=g)))


def gauss_newton(trained: Trained, data: Data) -> Tensor:
    """Dense, by definition."""
    (batch,) = trained.batches(data, len(data))
    J = jacrev(lambda w: trained.outputs(batch.x, w))(trained.weights)
    S = trained.loss.hessian_root(trained.outputs(batch.x).detach(), batch.y)
    R = torch.einsum("ncp,ncr->nrp", J, S).reshape(-1, trained.size)
    return R.T @ R


def dense(F: Kronecker) -> Tensor:
    return F.multiply(torch.eye(F.size, dtype=torch.float64))


def blocks(trained: Trained, M: Tensor) -> dict[str, Tensor]:
    """What a matrix has on each parameter."""
    ends = torch.tensor([s.numel() for s in trained.shapes]).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    return {n: M[a:b, a:b] for n, a, b in zip(trained.names, starts, ends, strict=True)}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def convolutional() -> nn.Module:
    body = (nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.BatchNorm2d(3), nn.ReLU())
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(12, CLASSES, bias=False))


LOSSES = [CrossEntropy(), SquaredError(), PerSample(lambda f, y: (f - 1).pow(4).sum(dim=1))]


@pytest.mark.parametrize("kind", ["kfac", "ekfac"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_one_row_is_exact(kind, loss):
    """With one row and no weight sharing the blocks are Kronecker products: transposition and scale must be right."""
    trained, data = trained_of(mlp(), loss=loss), data_of(1, 4)
    F, G = kronecker(trained, data, kind=kind), gauss_newton(trained, data)
    for name, block in blocks(trained, dense(F)).items():
        torch.testing.assert_close(block, blocks(trained, G)[name])


@pytest.mark.parametrize("kind", ["kfac", "ekfac"])
def test_a_deep_linear_network_with_squared_error_is_exact(kind):
    """What comes back does not depend on the row, so the mean of the products is the product of the means."""
    network = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6, bias=False), nn.Linear(6, CLASSES))
    trained, data = trained_of(network, loss=SquaredError()), data_of(20, 4)
    F, G = kronecker(trained, data, kind=kind, batch_size=7), gauss_newton(trained, data)
    for name, block in blocks(trained, dense(F)).items():
        torch.testing.assert_close(block, blocks(trained, G)[name])


def test_several_yes_or_no_labels():
    g = generator_of(0)
    x, y = torch.randn(1, 4, generator=g, dtype=torch.float64), torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
    trained, data = trained_of(mlp(), loss=BinaryCrossEntropy()), Data.of((x, y))
    F, G = kronecker(trained, data), gauss_newton(trained, data)
    for name, block in blocks(trained, dense(F)).items():
        torch.testing.assert_close(block, blocks(trained, G)[name])


@pytest.mark.parametrize("kind", ["kfac", "ekfac"])
def test_a_convolution_with_one_place_is_exact(kind):
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, CLASSES))
    trained, data = trained_of(network), data_of(1, 2, 3, 3)
    F, G = blocks(trained, dense(kronecker(trained, data, kind=kind))), blocks(trained, gauss_newton(trained, data))
    for name in ("0.weight", "0.bias", "3.weight", "3.bias"):
        torch.testing.assert_close(F[name], G[name])
    for name in ("1.weight", "1.bias"):
        torch.testing.assert_close(F[name], G[name].diagonal().diag())


@given(seed=st.integers(0, 10**6), build=st.sampled_from([(mlp, (12, 4)), (convolutional, (12, 2, 4, 4))]))
@settings(max_examples=8, deadline=None)
def test_ekfac_is_nearer_than_kfac(seed, build):
    make, shape = build
    trained, data = trained_of(make(), seed), data_of(*shape, seed=seed)
    G = blocks(trained, gauss_newton(trained, data))
    near = blocks(trained, dense(kronecker(trained, data, kind="ekfac")))
    far = blocks(trained, dense(kronecker(trained, data, kind="kfac")))
    for name in trained.names:
        assert float((near[name] - G[name]).norm()) <= float((far[name] - G[name]).norm()) + 1e-12
        # In its own eigenbasis it has the exact diagonal, so the trace is exact too.
        assert float(near[name].trace()) == pytest.approx(float(G[name].trace()), rel=1e-9)
    weight = trained.names[0]
    assert float((near[weight] - G[weight]).norm()) < float((far[weight] - G[weight]).norm())


@pytest.mark.parametrize("kind", ["kfac", "ekfac"])
def test_powers_log_determinant_and_draws_are_those_of_the_matrix(kind):
    trained, data = trained_of(convolutional()), data_of(10, 2, 4, 4)
    F = kronecker(trained, data, kind=kind, ridge=0.3)
    D = dense(F)
    v = torch.randn(3, F.size, generator=generator_of(1), dtype=torch.float64)
    e, V = torch.linalg.eigh(0.5 * (D + D.T))
    assert float(e.min()) >= 0.3 - 1e-9
    for power in (-1.0, -0.5, -0.25):
        mapped = F.map(lambda x, power=power: x.pow(power))  # type: ignore[misc]  # a lambda with a default
        torch.testing.assert_close(mapped.multiply(v), v @ (V * e.pow(power)) @ V.T)
    assert F.logdet() == pytest.approx(float(torch.logdet(D)))
    torch.testing.assert_close(F.diagonal(), D.diagonal())
    root = F.map(torch.sqrt)
    torch.testing.assert_close(root.multiply(root.multiply(v)), v @ D)
    white = torch.randn(F.size, generator=generator_of(2), dtype=torch.float64)
    torch.testing.assert_close(F.draw(generator_of(2)), root.multiply(white))


def test_a_sum_over_rows_with_a_ridge():
    trained, data = trained_of(mlp()), data_of(10, 4)
    twice = data.select(torch.arange(10).repeat(2))
    once = dense(kronecker(trained, data))
    torch.testing.assert_close(dense(kronecker(trained, twice)), 2 * once)
    torch.testing.assert_close(
        dense(kronecker(trained, data, ridge=0.7)), once + 0.7 * torch.eye(trained.size, dtype=torch.float64)
    )


@pytest.mark.parametrize("kind", ["kfac", "ekfac"])
def test_monte_carlo_is_right_on_average(kind):
    trained, data = trained_of(mlp()), data_of(1, 4)
    G = blocks(trained, gauss_newton(trained, data))["2.bias"]
    g = generator_of(0)
    draws = torch.stack(
        [
            blocks(trained, dense(kronecker(trained, data, kind=kind, fisher="monte carlo", generator=g)))["2.bias"]
            for _ in range(150)
        ]
    )
    error = draws.std(dim=0) / len(draws) ** 0.5
    assert float(((draws.mean(dim=0) - G) / error.clamp(min=1e-12)).abs().max()) < 4.5


def _in_one_of_two(rank: int, where: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{where}/meet", rank=rank, world_size=2)
    try:
        trained, data = trained_of(convolutional()), data_of(9, 2, 4, 4)
        torch.save([dense(kronecker(trained, data, kind=kind)) for kind in ("kfac", "ekfac")], f"{where}/{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_result_of_one(tmp_path):
    torch.multiprocessing.spawn(_in_one_of_two, args=(str(tmp_path),), nprocs=2)  # type: ignore[attr-defined]  # not in its stub
    trained, data = trained_of(convolutional()), data_of(9, 2, 4, 4)
    for place, kind in enumerate(("kfac", "ekfac")):
        for rank in range(2):
            torch.testing.assert_close(
                torch.load(tmp_path / f"{rank}.pt")[place], dense(kronecker(trained, data, kind=kind))
            )


class Reused(nn.Module):
    """One layer called twice, two tied layers, a depthwise convolution, a free parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.twice = nn.Linear(4, 4)
        self.one, self.other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.other.weight = self.one.weight
        self.depthwise = nn.Conv2d(4, 4, 1, groups=4)
        self.scale = nn.Parameter(torch.ones(4))
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.twice(torch.tanh(self.twice(self.first(x))))
        x = self.other(torch.tanh(self.one(x)))
        x = self.depthwise(x[:, :, None, None])[:, :, 0, 0]
        return {"logits": self.last(x * self.scale)}


def test_what_no_kronecker_product_describes_gets_the_exact_diagonal():
    trained, data = trained_of(Reused()), data_of(6, 4)
    F = kronecker(trained, data)
    G = blocks(trained, gauss_newton(trained, data))
    for name, block in blocks(trained, dense(F)).items():
        if name.startswith(("first", "last")):
            assert float((block - block.diagonal().diag()).norm()) > 1e-6
        else:
            torch.testing.assert_close(block, G[name].diagonal().diag())
    assert {n for n in trained.names if "bias" in n} == {"first.bias", "twice.bias", "depthwise.bias", "last.bias"}


def test_frozen_parameters_and_the_callers_model_are_left_alone():
    network = mlp()
    network[0].weight.requires_grad_(False)  # type: ignore[index]  # a Sequential
    trained, data = trained_of(network), data_of(1, 4)
    F = kronecker(trained, data)
    assert F.size == trained.size == 5 + 15 + 3
    G = blocks(trained, gauss_newton(trained, data))
    for name, block in blocks(trained, dense(F)).items():
        torch.testing.assert_close(block, G[name])
    wants = [p.requires_grad for p in trained.model.parameters()]
    assert wants == [False, True, True, True]
    assert all(p.grad is None for p in trained.model.parameters())


def test_settings_are_checked():
    trained, data = trained_of(mlp()), data_of(2, 4)
    with pytest.raises(SettingError, match="`kind` must be one of 'kfac', 'ekfac', but got 'shampoo'"):
        kronecker(trained, data, kind="shampoo")
    with pytest.raises(SettingError, match="`fisher` must be one of"):
        kronecker(trained, data, fisher="empirical")
    with pytest.raises(NeedError, match="Monte Carlo Fisher needs a `generator`"):
        kronecker(trained, data, fisher="monte carlo")
    tokens = nn.Sequential(nn.Linear(4, CLASSES), nn.Unflatten(1, (CLASSES, 1)))
    with pytest.raises(MismatchError, match="one vector of outputs for each row, but a row has 2 axes"):
        kronecker(trained_of(tokens), data)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "curvlinops":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NeedError, match=r"pip install 'spotlessnet\[kfac\]'"):
        kronecker(trained_of(mlp()), data_of(2, 4))
