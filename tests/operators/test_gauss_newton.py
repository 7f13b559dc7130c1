"""Gauss-Newton products against the dense matrix."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, SettingError
from spotlessnet.core.loss import BinaryCrossEntropy, PerSample, SquaredError
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.matrix import Matrix
from tests.reference import CLASSES, NETWORKS, dense_gauss_newton, dense_hessian, problem, random_weights

EVERY = st.sampled_from(sorted(NETWORKS))
EYE = torch.eye(CLASSES, dtype=float64)


def vectors(count: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=float64)


@given(name=EVERY, seed=st.integers(0, 999), batch=st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_is_the_dense_matrix(name, seed, batch):
    trained, data = problem(name, seed)
    s, v = random_weights(len(data), seed), vectors(3, trained.size, seed)
    G = GaussNewton(trained, data, sample_weights=s, ridge=0.3, batch_size=batch)
    truth = v @ dense_gauss_newton(trained, data, s) + 0.3 * v
    torch.testing.assert_close(G.multiply(v), truth)
    torch.testing.assert_close(G.multiply(v[0]), truth[0])


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_a_kept_linearisation_gives_the_same_again_and_again(name):
    trained, data = problem(name, 1)
    s, v = random_weights(len(data), 1), vectors(3, trained.size)
    G = GaussNewton(trained, data, sample_weights=s, keep=True)
    truth = v @ dense_gauss_newton(trained, data, s)
    torch.testing.assert_close(G.multiply(v[0]), truth[0])
    torch.testing.assert_close(G.multiply(v[1]), truth[1])
    torch.testing.assert_close(G.multiply(v), truth)


@given(name=EVERY, seed=st.integers(0, 999))
@settings(max_examples=8, deadline=None)
def test_is_linear_symmetric_and_positive(name, seed):
    trained, data = problem(name, seed)
    G = GaussNewton(trained, data)
    a, b = vectors(2, trained.size, seed)
    Ga, Gb, both = G.multiply(a), G.multiply(b), G.multiply(2 * a - 3 * b)
    torch.testing.assert_close(both, 2 * Ga - 3 * Gb)
    torch.testing.assert_close(a @ Gb, b @ Ga)
    assert a @ Ga >= 0
    assert b @ Gb >= 0


@pytest.mark.parametrize("loss", [SquaredError(), PerSample(lambda out, y: (out - y[:, None]).cosh().log().sum(dim=1))])
def test_takes_the_curvature_from_the_loss(loss):
    trained, data = problem("mlp", 1, loss=loss)
    v = vectors(2, trained.size)
    torch.testing.assert_close(GaussNewton(trained, data).multiply(v), v @ dense_gauss_newton(trained, data))


def test_yes_or_no_labels():
    torch.manual_seed(0)
    data = Data.of((torch.randn(6, 4, dtype=float64), torch.randint(2, (6, 3))))
    trained = Trained.of(nn.Linear(4, 3).double(), BinaryCrossEntropy())
    v = vectors(1, trained.size)[0]
    torch.testing.assert_close(GaussNewton(trained, data).multiply(v), dense_gauss_newton(trained, data) @ v)


def test_the_output_hessian_can_be_the_identity_or_given():
    trained, data = problem("residual", 2)
    v = vectors(1, trained.size)[0]
    identity = dense_gauss_newton(trained, data, H=EYE.expand(len(data), -1, -1))
    torch.testing.assert_close(GaussNewton(trained, data, "identity").multiply(v), identity @ v)
    B = torch.tensor([[2.0, 1, 0], [1, 3, 0], [0, 0, 1]], dtype=float64)
    given_one = GaussNewton(trained, data, lambda outputs, y, u: u @ B)
    truth = dense_gauss_newton(trained, data, H=B.expand(len(data), -1, -1))
    torch.testing.assert_close(given_one.multiply(v), truth @ v)


def test_is_the_hessian_for_logistic_regression():
    trained, data = problem("linear", 3)
    v = vectors(1, trained.size)[0]
    torch.testing.assert_close(GaussNewton(trained, data).multiply(v), dense_hessian(trained, data) @ v)


def test_more_vectors_than_go_together():
    trained, data = problem("mlp", 4)
    v = vectors(19, trained.size)
    torch.testing.assert_close(GaussNewton(trained, data).multiply(v), v @ dense_gauss_newton(trained, data))


def test_float32_agrees_with_float64():
    trained, data = problem("residual", 5)
    v = vectors(1, trained.size)[0]
    single = Trained.of(trained.module().float())
    found = GaussNewton(single, data).multiply(v.float())
    assert found.dtype == torch.float32
    truth = (dense_gauss_newton(trained, data) @ v).float()
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-4 * float(truth.abs().max()))


def test_rows_of_weight_zero_are_as_good_as_absent():
    trained, data = problem("mlp", 6)
    s, v = torch.ones(len(data), dtype=float64), vectors(1, trained.size)[0]
    s[:3] = 0
    without = GaussNewton(trained, data.select(range(3, 5))).multiply(v)
    torch.testing.assert_close(GaussNewton(trained, data, sample_weights=s).multiply(v), without)
    nothing = GaussNewton(trained, data, sample_weights=torch.zeros_like(s), ridge=2.0)
    torch.testing.assert_close(nothing.multiply(v), 2 * v)


def test_goes_through_attention():
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.MultiheadAttention(4, 2, batch_first=True)
            self.head = nn.Linear(4, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.heads(x, x, x, need_weights=False)[0]
            h = nn.functional.scaled_dot_product_attention(h, x, x)
            return self.head(h.mean(dim=1))

    torch.manual_seed(0)
    trained = Trained.of(Attention().double())
    data = Data.of((torch.randn(5, 3, 4, dtype=float64), torch.randint(CLASSES, (5,))))
    v = vectors(1, trained.size)[0]
    for keep in (False, True):
        product = GaussNewton(trained, data, keep=keep).multiply(v)
        torch.testing.assert_close(product, dense_gauss_newton(trained, data) @ v)


def test_outputs_with_two_axes():
    torch.manual_seed(0)
    loss = PerSample(lambda out, y: (out.logsumexp(2) - out.gather(2, y.unsqueeze(2)).squeeze(2)).sum(dim=1))
    trained = Trained.of(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double(), loss)
    data = Data.of((torch.randn(5, 2, 3, dtype=float64), torch.randint(3, (5, 2))))
    x, y = data.fetch(data.rows)[:2]
    J = torch.func.jacrev(lambda w: trained.outputs(x, w).flatten())(trained.weights)
    H = torch.func.hessian(lambda out: loss(out.view(5, 2, 3), y).sum())(trained.outputs(x).detach().flatten())
    v = vectors(1, trained.size)[0]
    torch.testing.assert_close(GaussNewton(trained, data, batch_size=2).multiply(v), J.T @ (H @ (J @ v)))


class Looking(nn.Module):
    """Looks at values while it answers, which leaves no graph to be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x * (1.0 if x.sum().item() < 1e9 else 0.0)).tanh()


@pytest.mark.parametrize("rows", [1, 3])
def test_a_network_that_looks_at_values_can_be_kept_too(rows):
    trained = Trained.of(Looking().double())
    data = Data.of((torch.randn(9, 4, dtype=float64), torch.arange(9) % CLASSES))
    kept, plain = GaussNewton(trained, data, keep=True), GaussNewton(trained, data)
    v = vectors(rows, trained.size)
    for _ in range(2):
        torch.testing.assert_close(kept.multiply(v), plain.multiply(v))


class Reading(nn.Module):
    """A recurrent network as people write it, whose fused layer torch cannot derive forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(7, 3), nn.LSTM(3, 4, 2, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.words(x))[0][:, -1])


@pytest.mark.parametrize("keep", [False, True])
def test_goes_through_an_lstm(keep):
    trained = Trained.of(Reading())  # in float32, for which there are fused kernels
    data = Data.of((torch.arange(30).reshape(6, 5) % 7, torch.arange(6) % CLASSES))
    v = vectors(2, trained.size).float()
    truth = v @ dense_gauss_newton(trained, data)
    torch.testing.assert_close(GaussNewton(trained, data, keep=keep).multiply(v), truth, rtol=1e-4, atol=1e-4)
    assert torch.backends.mkldnn.enabled


def test_what_a_stopped_sweep_left_is_not_used():
    trained, data = problem("mlp", 7)
    G, v = GaussNewton(trained, data, keep=True, batch_size=2), vectors(1, trained.size)[0]
    next(G._linearised())
    torch.testing.assert_close(G.multiply(v), dense_gauss_newton(trained, data) @ v)


def test_errors_say_what_to_do():
    trained, data = problem("linear", 0)
    with pytest.raises(SettingError, match="`output` must be one of 'loss', 'identity', but got 'softmax'"):
        GaussNewton(trained, data, "softmax")
    with pytest.raises(MismatchError, match="Build it from the same network"):
        GaussNewton(trained, data).multiply(torch.zeros(4, dtype=float64))
    assert isinstance(GaussNewton(trained, data), Matrix)
