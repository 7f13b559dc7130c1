"""Each loss against automatic differentiation of its own formula."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, float64

from spotlessnet.core.errors import MismatchError, NeedError
from spotlessnet.core.loss import BinaryCrossEntropy, CrossEntropy, Loss, PerSample, SquaredError, targets_like


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    """A smooth loss of a user's own."""
    return ((outputs - y).square() + 1).sqrt().sum(dim=1)


def problem(loss: Loss, seed: int, n: int, c: int, scale: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    outputs = scale * torch.randn(n, c, generator=generator, dtype=float64)
    if isinstance(loss, CrossEntropy):
        return outputs, torch.randint(c, (n,), generator=generator)
    if isinstance(loss, BinaryCrossEntropy):
        return outputs, torch.randint(2, (n, c), generator=generator)
    return outputs, torch.randn(n, c, generator=generator, dtype=float64)


LOSSES: list[Loss] = [CrossEntropy(), SquaredError(), BinaryCrossEntropy(), PerSample(huber)]

problems = given(
    seed=st.integers(0, 2**31), n=st.integers(1, 4), c=st.integers(2, 6), scale=st.sampled_from([0.1, 1.0, 5.0])
)


def dense(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    """`[N, C, C]` by differentiating each row twice."""
    rows = [
        torch.func.hessian(lambda out, i=i: loss(out[None], y[i : i + 1]).sum())(outputs[i])
        for i in range(len(outputs))
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@problems
@settings(max_examples=20, deadline=None)
def test_hessian_product_is_the_dense_hessian(loss: Loss, seed: int, n: int, c: int, scale: float):
    outputs, y = problem(loss, seed, n, c, scale)
    v = torch.randn(n, c, dtype=float64, generator=torch.Generator().manual_seed(seed + 1))
    expected = (dense(loss, outputs, y) @ v.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(loss.hessian_product(outputs, y, v), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@problems
@settings(max_examples=20, deadline=None)
def test_hessian_root_squares_to_the_dense_hessian(loss: Loss, seed: int, n: int, c: int, scale: float):
    outputs, y = problem(loss, seed, n, c, scale)
    S = loss.hessian_root(outputs, y)
    torch.testing.assert_close(S @ S.mT, dense(loss, outputs, y), rtol=1e-8, atol=1e-9)


def test_softmax_root_has_one_column_less_and_survives_certainty():
    outputs = torch.tensor([[800.0, 0.0, -800.0], [0.0, 0.0, 0.0]], dtype=float64)
    S = CrossEntropy().hessian_root(outputs, torch.tensor([0, 1]))
    assert S.shape == (2, 3, 2)
    assert S.isfinite().all()
    p = outputs.softmax(dim=1)
    torch.testing.assert_close(S @ S.mT, p.diag_embed() - p.unsqueeze(2) * p.unsqueeze(1), rtol=0, atol=1e-14)


def test_values_are_those_of_torch():
    torch.manual_seed(0)
    f = 3 * torch.randn(6, 4, dtype=float64)
    y = torch.randint(4, (6,))
    F = torch.nn.functional
    torch.testing.assert_close(CrossEntropy()(f, y), F.cross_entropy(f, y, reduction="none"))
    z = torch.randint(2, (6, 4)).double()
    expected = F.binary_cross_entropy_with_logits(f, z, reduction="none").sum(dim=1)
    torch.testing.assert_close(BinaryCrossEntropy()(f, z), expected)
    one_hot = F.one_hot(y, 4).double()
    torch.testing.assert_close(SquaredError()(f, y), 0.5 * (f - one_hot).square().sum(dim=1))


SAMPLED: list[tuple[Loss, Callable[[Tensor], Tensor]]] = [
    (CrossEntropy(), lambda f: f.softmax(dim=1)),
    (BinaryCrossEntropy(), torch.sigmoid),
    (SquaredError(), lambda f: f),
]


@pytest.mark.parametrize(("loss", "mean"), SAMPLED, ids=lambda v: getattr(v, "name", ""))
def test_labels_are_drawn_from_the_models_distribution(loss: Loss, mean: Callable[[Tensor], Tensor]):
    f = torch.tensor([[0.3, -1.0, 0.8]], dtype=float64)
    n = 20_000
    y = loss.sample(f.expand(n, -1), torch.Generator().manual_seed(0))
    if y.ndim == 1:
        y = torch.nn.functional.one_hot(y, 3)
    gap = (y.double().mean(dim=0) - mean(f)[0]).abs()
    assert (gap < 5 / n**0.5).all()
    again = loss.sample(f.expand(n, -1), torch.Generator().manual_seed(0))
    first = loss.sample(f.expand(n, -1), torch.Generator().manual_seed(0))
    assert torch.equal(again, first)


def test_squared_scores_of_drawn_labels_average_to_the_hessian():
    f = torch.tensor([[0.3, -1.0, 0.8]], dtype=float64).expand(40_000, -1)
    for loss in (CrossEntropy(), BinaryCrossEntropy(), SquaredError()):
        y = loss.sample(f, torch.Generator().manual_seed(1))
        score = torch.func.grad(lambda out, loss=loss, y=y: loss(out, y).sum())(f)
        measured = score.T @ score / len(f)
        torch.testing.assert_close(measured, dense(loss, f[:1], y[:1])[0], rtol=0, atol=0.03)


def test_mistakes_are_what_people_read():
    f = torch.tensor([[2.0, 1.0], [0.0, 3.0]])
    assert CrossEntropy().mistakes(f, torch.tensor([0, 0])).tolist() == [0.0, 1.0]
    assert BinaryCrossEntropy().mistakes(f - 1.5, torch.tensor([[1, 0], [1, 1]])).tolist() == [0.0, 0.5]
    assert SquaredError().mistakes(f, f).tolist() == [0.0, 0.0]


def test_a_loss_without_a_distribution_says_so():
    with pytest.raises(NeedError, match=r"'given per sample' has no distribution .* Use the exact Fisher"):
        PerSample(huber).sample(torch.ones(1, 2), torch.Generator())


def test_a_reduced_loss_is_refused():
    with pytest.raises(MismatchError, match=r"one number per sample, shape \(3,\), but gave \(\).*reduction=\"none\""):
        PerSample(lambda out, y: out.mean())(torch.ones(3, 2), torch.ones(3))


def test_targets_take_the_shape_of_the_outputs():
    f = torch.zeros(3, 2)
    assert targets_like(f, torch.tensor([1, 0, 1])).tolist() == [[0, 1], [1, 0], [0, 1]]
    assert targets_like(f, torch.ones(3, 2)).shape == (3, 2)
    assert targets_like(torch.zeros(3, 1), torch.tensor([1, 2, 3])).tolist() == [[1], [2], [3]]
    with pytest.raises(MismatchError, match=r"shape \(3, 4\) do not fit outputs of shape \(3, 2\)"):
        targets_like(f, torch.ones(3, 4))
