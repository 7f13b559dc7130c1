"""Cross-entropy of outputs with positions, against torch's own, sample by sample."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, float64
from torch.nn.functional import cross_entropy

from spotlessnet.core.answers import margin, margins_by_position
from spotlessnet.core.errors import MismatchError
from spotlessnet.core.loss import BinaryCrossEntropy, CrossEntropy, Flat, NextToken, SquaredError, smoothed

IGNORE = -100


def draw(
    shape: tuple[int, ...], classes: int, labels: tuple[int, ...], *, ignore: bool = True
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = 2 * torch.randn(shape, generator=generator, dtype=float64)
    y = torch.randint(classes, labels, generator=generator)
    if ignore:
        y[torch.rand(labels, generator=generator) < 0.3] = IGNORE
    return outputs, y


def by_torch(outputs: Tensor, y: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """The mean over the positions that count, one document or image at a time, classes on axis one."""
    return torch.stack(
        [
            cross_entropy(o[None], one[None], ignore_index=IGNORE, label_smoothing=smoothing)
            for o, one in zip(outputs, y, strict=True)
        ]
    )


LAYOUTS = {
    "text, classes last": ((3, 7, 5), (3, 7), lambda o: o.movedim(-1, 1)),
    "text, classes first": ((3, 5, 7), (3, 7), lambda o: o),
    "images, classes first": ((3, 5, 4, 2), (3, 4, 2), lambda o: o),
    "images, classes last": ((3, 4, 2, 5), (3, 4, 2), lambda o: o.movedim(-1, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_torchs_mean_over_the_positions_that_count(layout, smoothing):
    shape, labels, as_torch = LAYOUTS[layout]
    outputs, y = draw(shape, 5, labels)
    found = CrossEntropy(label_smoothing=smoothing)(outputs, y)
    torch.testing.assert_close(found, by_torch(as_torch(outputs), y, smoothing=smoothing))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_errors_and_margins_reduce_over_the_positions_that_count(layout):
    shape, labels, as_torch = LAYOUTS[layout]
    outputs, y = draw(shape, 5, labels)
    wrong, margins = CrossEntropy().mistakes(outputs, y), margins_by_position(CrossEntropy(), outputs, y)
    for i, (o, one) in enumerate(zip(as_torch(outputs), y, strict=True)):
        logits, label = o.flatten(1).T[one.flatten() >= 0], one[one >= 0]
        assert float(wrong[i]) == pytest.approx(float((logits.argmax(1) != label).double().mean()))
        assert float(margins[i]) == pytest.approx(float(margin(logits, label).mean()))


@pytest.mark.parametrize(
    "loss", [CrossEntropy(), CrossEntropy(label_smoothing=0.1), NextToken()], ids=["", "s", "next"]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_curvature_is_that_of_the_dense_hessian(layout, loss):
    shape, labels, _ = LAYOUTS[layout]
    if isinstance(loss, NextToken) and layout != "text, classes last":
        pytest.skip("the next token is for text with classes last")
    outputs, y = draw(shape, 5, labels)
    v = torch.randn(shape, dtype=float64, generator=torch.Generator().manual_seed(1))
    dense = torch.stack(
        [torch.func.hessian(lambda o, i=i: loss(o.reshape(1, *shape[1:]), y[i : i + 1]).sum())(outputs[i].flatten())
         for i in range(3)]
    )  # fmt: skip
    expected = torch.einsum("nab,nb->na", dense, v.flatten(1))
    torch.testing.assert_close(loss.hessian_product(outputs, y, v).flatten(1), expected)
    S = loss.hessian_root(outputs, y)
    torch.testing.assert_close(S @ S.mT, dense)
    flat = Flat(loss, torch.Size(shape[1:]))
    torch.testing.assert_close(flat(outputs.flatten(1), y), loss(outputs, y))
    torch.testing.assert_close(flat.hessian_product(outputs.flatten(1), y, v.flatten(1)), expected)
    torch.testing.assert_close(flat.hessian_root(outputs.flatten(1), y), S)


def test_the_next_token_is_what_causal_models_are_trained_on():
    outputs, y = draw((4, 6, 5), 5, (4, 6))
    shifted = by_torch(outputs[:, :-1].movedim(-1, 1), y[:, 1:])
    torch.testing.assert_close(NextToken()(outputs, y), shifted)
    with pytest.raises(MismatchError, match="positions of a text"):
        NextToken()(torch.zeros(2, 5), torch.zeros(2, dtype=torch.long))


def test_labels_are_drawn_position_by_position():
    outputs = torch.full((200, 3, 2), -20.0, dtype=float64)
    outputs[:, 0, 1] = outputs[:, 1, 0] = outputs[:, 2, 1] = 20.0
    drawn = CrossEntropy(class_axis=-1).sample(outputs, torch.Generator().manual_seed(0))
    assert drawn.tolist() == [[1, 0, 1]] * 200
    told = NextToken().sample(outputs, torch.Generator().manual_seed(0))
    assert told[:, 1:].tolist() == [[1, 0]] * 200, "the answer at a position is for the next one"


def test_another_padding_and_an_example_without_a_position_that_counts():
    outputs, y = draw((3, 7, 5), 5, (3, 7), ignore=False)
    y[0, 3:] = y[2] = 0
    found = CrossEntropy(ignore_index=0)(outputs, y)
    torch.testing.assert_close(found[:2], CrossEntropy()(outputs, torch.where(y == 0, IGNORE, y))[:2])
    assert float(found[2]) == 0


def test_an_ambiguous_layout_is_asked_for_and_a_wrong_one_refused():
    outputs, y = draw((3, 5, 5), 5, (3, 5))
    with pytest.raises(MismatchError, match="class_axis=-1"):
        CrossEntropy()(outputs, y)
    last, first = (CrossEntropy(class_axis=axis)(outputs, y) for axis in (-1, 1))
    torch.testing.assert_close(last, by_torch(outputs.movedim(-1, 1), y))
    torch.testing.assert_close(first, by_torch(outputs, y))
    with pytest.raises(MismatchError, match=r"labels of shape \(3, 4\) do not fit outputs of shape \(3, 5, 5\)"):
        CrossEntropy()(outputs, y[:, :4])


def test_smoothing_keeps_what_else_a_loss_says():
    assert smoothed(NextToken(ignore_index=0), 0.1) == replace(NextToken(ignore_index=0), label_smoothing=0.1)


@pytest.mark.parametrize("loss", [SquaredError(), BinaryCrossEntropy()], ids=lambda loss: loss.name)
def test_other_losses_sum_over_all_axes_of_an_example(loss):
    outputs, y = draw((3, 4, 2), 2, (3, 4, 2), ignore=False)
    torch.testing.assert_close(loss(outputs, y), loss(outputs.flatten(1), y.flatten(1)))
    torch.testing.assert_close(loss.mistakes(outputs, y), loss.mistakes(outputs.flatten(1), y.flatten(1)))
    S = loss.hessian_root(outputs, y)
    torch.testing.assert_close(S, loss.hessian_root(outputs.flatten(1), y.flatten(1)))


@pytest.mark.parametrize("loss", [CrossEntropy(class_axis=-1), NextToken()], ids=["each", "next"])
def test_outer_products_of_drawn_slopes_average_to_the_hessian(loss):
    """A mean over positions has the Hessian of one position over their number, not over its square."""
    outputs, y = draw((1, 3, 2), 2, (1, 3), ignore=False)
    y[0, 1] = IGNORE
    many, labels = outputs.expand(40_000, -1, -1), y.expand(40_000, -1)
    slopes = loss.score(many, labels, torch.Generator().manual_seed(0)).flatten(1)
    S = loss.hessian_root(outputs, y)[0]
    torch.testing.assert_close(slopes.T @ slopes / len(slopes), S @ S.mT, rtol=0, atol=0.01)
