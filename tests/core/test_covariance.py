"""Each covariance against the dense matrix it stands for."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spotlessnet.core.covariance import Block, Kronecker, LowRankPlusRidge
from spotlessnet.core.errors import MismatchError, NumericsError
from spotlessnet.core.gaussian import Covariance, Diagonal, NoNoise, trace_of_product

SIZE = 13
KINDS = ("still", "diagonal", "kronecker", "low rank", "low rank, negative", "dense")
NOISY = KINDS[1:]


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rotation(n: int, g: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64))[0]


def positive(*shape: int, g: torch.Generator) -> Tensor:
    return 0.2 + torch.rand(*shape, generator=g, dtype=torch.float64)


def made(kind: str, seed: int = 0) -> Covariance:
    g = generator_of(seed)
    if kind == "still":
        return NoNoise.at(torch.zeros(SIZE, dtype=torch.float64))
    if kind == "diagonal":
        return Diagonal(positive(SIZE, g=g))
    if kind == "kronecker":
        weight = Block(rotation(2, g), rotation(3, g), positive(2, 3, g=g))
        bias = Block(rotation(2, g), None, positive(2, 1, g=g))
        scale = Block(None, None, positive(3, 1, g=g))
        right = Block(None, rotation(2, g), positive(1, 2, g=g))
        return Kronecker((weight, bias, scale, right))
    if kind == "dense":
        Q = rotation(SIZE, g)
        return LowRankPlusRidge.dense((Q * positive(SIZE, g=g)) @ Q.T)
    sign = -0.4 if kind.endswith("negative") else 1.0
    return LowRankPlusRidge(rotation(SIZE, g)[:, :4], sign * positive(4, g=g), 0.7)


def dense(c: Covariance) -> Tensor:
    """Written out by definition, not by `multiply`."""
    if isinstance(c, NoNoise):
        return torch.zeros(c.size, c.size, dtype=torch.float64)
    if isinstance(c, Diagonal):
        return c.variance.diag()
    if isinstance(c, LowRankPlusRidge):
        return c.ridge * torch.eye(c.size, dtype=torch.float64) + c.basis @ c.values.diag() @ c.basis.T
    assert isinstance(c, Kronecker)
    pieces = []
    for b in c.blocks:
        r, n = b.values.shape
        left = torch.eye(r, dtype=torch.float64) if b.left is None else b.left
        right = torch.eye(n, dtype=torch.float64) if b.right is None else b.right
        Q = torch.kron(left, right)
        pieces.append(Q @ b.values.reshape(-1).diag() @ Q.T)
    return torch.block_diag(*pieces)


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_products_diagonal_and_trace(kind, seed):
    c, D = made(kind, seed), dense(made(kind, seed))
    v = torch.randn(3, SIZE, generator=generator_of(seed), dtype=torch.float64)
    assert c.size == SIZE
    torch.testing.assert_close(c.multiply(v), v @ D)
    torch.testing.assert_close(c.multiply(v[0]), D @ v[0])
    torch.testing.assert_close(c.diagonal(), D.diagonal())
    torch.testing.assert_close(c.pushforward(v), v @ D @ v.T)
    torch.testing.assert_close(dense(c.scaled(2.5)), 2.5 * D)
    assert c.trace() == pytest.approx(float(D.trace()), abs=1e-12)


@pytest.mark.parametrize("kind", NOISY)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_inverse_logdet_and_powers(kind, seed):
    c, D = made(kind, seed), dense(made(kind, seed))
    v = torch.randn(2, SIZE, generator=generator_of(seed), dtype=torch.float64)
    torch.testing.assert_close(c.solve(v), torch.linalg.solve(D, v.T).T)
    torch.testing.assert_close(dense(c.inverse()), torch.linalg.inv(D))
    assert c.logdet() == pytest.approx(float(torch.logdet(D)), abs=1e-10)
    quarter = dense(c.map(lambda e: e.pow(-0.25)))
    torch.testing.assert_close(torch.linalg.matrix_power(quarter, 4), torch.linalg.inv(D))


@pytest.mark.parametrize("kind", NOISY)
def test_measured_covariance_of_draws_is_the_declared_one(kind):
    c, D, count = made(kind, 3), dense(made(kind, 3)), 20_000
    g = generator_of(7)
    # One draw at a time is slow; the root applied to rows of unit noise is the same computation.
    root = c.map(lambda e: e.clamp(min=0).sqrt())
    first = c.draw(generator_of(5))
    torch.testing.assert_close(first, root.multiply(torch.randn(SIZE, generator=generator_of(5), dtype=torch.float64)))
    draws = root.multiply(torch.randn(count, SIZE, generator=g, dtype=torch.float64))
    measured = draws.T @ draws / count
    deviation = ((D.diagonal().unsqueeze(1) * D.diagonal() + D**2) / count).sqrt()
    assert float(((measured - D) / deviation).abs().max()) < 5


def test_same_generator_state_gives_the_same_draw():
    c = made("kronecker")
    assert c.draw(generator_of(1)).equal(c.draw(generator_of(1)))
    assert not c.draw(generator_of(1)).equal(c.draw(generator_of(2)))


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_trace_of_product(one, other):
    a, b = made(one, 1), made(other, 2)
    assert trace_of_product(a, b) == pytest.approx(float((dense(a) @ dense(b)).trace()), abs=1e-12)


def test_trace_of_product_of_a_factored_and_a_plain_block():
    a = made("kronecker", 1)
    assert isinstance(a, Kronecker)
    plain = [Block(None, None, positive(b.values.numel(), 1, g=generator_of(4))) for b in a.blocks]
    b = Kronecker(tuple(plain))
    expected = float((dense(a) @ dense(b)).trace())
    assert trace_of_product(a, b) == pytest.approx(expected, abs=1e-12)
    assert trace_of_product(b, a) == pytest.approx(expected, abs=1e-12)


def test_trace_of_product_refuses_what_does_not_fit():
    with pytest.raises(MismatchError, match="over 13 and 2 weights"):
        trace_of_product(made("diagonal"), Diagonal(torch.ones(2)))
    a = Kronecker((Block(None, None, torch.ones(4, 1)), Block(None, None, torch.ones(2, 1))))
    b = Kronecker((Block(None, None, torch.ones(3, 1)), Block(None, None, torch.ones(3, 1))))
    with pytest.raises(MismatchError, match="same parameters"):
        trace_of_product(a, b)

    with pytest.raises(MismatchError, match="No rule for the trace of Strange times Kronecker"):
        trace_of_product(Strange(6), a)


class Strange(Covariance):
    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def map(self, f):
        return self

    def multiply(self, v):
        return v

    def diagonal(self):
        return torch.ones(self._size)

    def logdet(self):
        return 0.0

    def double(self):
        return self

    @property
    def _like(self):
        return torch.zeros(())


def test_no_noise_has_no_inverse_but_a_sum_with_a_ridge_has():
    still = made("still")
    with pytest.raises(NumericsError, match="no inverse covariance"):
        still.inverse()
    assert still.logdet() == -math.inf
    assert isinstance(still.scaled(3.0), NoNoise)
    assert not still.draw(generator_of(0)).any()
    torch.testing.assert_close(dense(still.map(lambda e: e + 2)), 2 * torch.eye(SIZE, dtype=torch.float64))


def test_a_low_rank_without_ridge_has_no_inverse():
    c = LowRankPlusRidge(rotation(SIZE, generator_of(0))[:, :4], torch.ones(4, dtype=torch.float64), 0.0)
    assert c.logdet() == -math.inf
    assert c.rank == 4
    with pytest.raises(NumericsError, match="9 directions have the eigenvalue 0"):
        c.inverse()


def test_a_full_basis_keeps_its_ridge():
    Q, e = rotation(SIZE, generator_of(0)), torch.linspace(1, 2, SIZE, dtype=torch.float64)
    c = LowRankPlusRidge(Q, e, 0.5)
    D = dense(c)
    torch.testing.assert_close(dense(c.inverse()), torch.linalg.inv(D))
    assert c.logdet() == pytest.approx(float(torch.logdet(D)))


@pytest.mark.parametrize("kind", NOISY)
def test_float32_stays_float32(kind):
    c = made(kind)
    v = torch.randn(SIZE, generator=generator_of(0))
    small = to_float32(c)
    assert small.multiply(v).dtype == small.solve(v).dtype == small.draw(generator_of(0)).dtype == torch.float32
    torch.testing.assert_close(small.solve(v).double(), c.solve(v.double()), rtol=1e-4, atol=1e-5)


def to_float32(c: Covariance) -> Covariance:
    if isinstance(c, Diagonal):
        return Diagonal(c.variance.float())
    if isinstance(c, LowRankPlusRidge):
        return LowRankPlusRidge(c.basis.float(), c.values.float(), c.ridge)
    assert isinstance(c, Kronecker)
    parts = ((b.left, b.right, b.values) for b in c.blocks)
    return Kronecker(tuple(Block(*(None if t is None else t.float() for t in part)) for part in parts))  # type: ignore[arg-type]  # only factors may be missing
