"""Errors, losses, margins, entropies and distances against closed forms."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from spotlessnet.core.answers import margin
from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, NeedError, SettingError
from spotlessnet.core.loss import BinaryCrossEntropy
from spotlessnet.core.readout import Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts import READOUTS, ActivationDistance, Confidence, Entropy, Error, Margin, MeanLoss
from spotlessnet.readouts.activation_distance import along_path
from spotlessnet.readouts.curve import loss_along_line
from spotlessnet.readouts.entropy import confidences, entropies, histogram
from spotlessnet.readouts.margin import margins
from tests.readouts.problems import blobs, fixed, linear, unchecked


def logits(seed, rows=7, classes=5, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return z, torch.randint(classes, (rows,), generator=generator)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000))
def test_margin_is_the_log_odds_of_the_label(seed):
    z, y = logits(seed)
    p = z.softmax(1)[torch.arange(len(y)), y]
    torch.testing.assert_close(margin(z, y), (p / (1 - p)).log(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(margin(z + 100, y), margin(z, y))


def test_margin_of_two_classes_is_the_difference_of_logits():
    z, y = logits(0, classes=2)
    expected = torch.where(y == 0, z[:, 0] - z[:, 1], z[:, 1] - z[:, 0])
    torch.testing.assert_close(margin(z, y), expected)


def test_margin_neither_saturates_nor_cancels():
    sure = torch.tensor([[500.0, 0.0, 0.0], [-500.0, 0.0, 0.0]], dtype=torch.float32)
    found = margin(sure, torch.tensor([0, 0]))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor([500.0, -500.0], dtype=torch.float64) - math.log(2))


@pytest.mark.parametrize("on", ["retain", "forget", "test"])
def test_each_part_is_looked_at(on):
    split, network = blobs(), linear()
    data = {"retain": split.kept, "forget": split.forget, "test": split.test}[on]
    assert data is not None
    outputs, y = network.predict(data), data.labels()
    wrong = (outputs.argmax(1) != y).double().mean().item()
    assert float(Error(on)(network, split)) == pytest.approx(wrong)
    assert Error(on).name == f"error on {on}"
    loss = nn.functional.cross_entropy(outputs, y).item()
    assert float(MeanLoss(on)(network, split)) == pytest.approx(loss)
    assert float(Margin(on)(network, split)) == pytest.approx(margin(outputs, y).mean().item())
    p = outputs.softmax(1)
    assert float(Confidence(on)(network, split)) == pytest.approx(p.max(1).values.mean().item())
    assert float(Entropy(on)(network, split)) == pytest.approx(-(p * p.log()).sum(1).mean().item())


def test_only_a_sample_has_limits():
    split, network = blobs(), linear()
    assert math.isnan(Error("forget")(network, split).low)
    seen = Error("test")(network, split)
    assert 0 <= seen.low < seen.value < seen.high <= 1


def test_entropy_and_confidence_at_the_extremes():
    split = blobs()
    even, sure = fixed(torch.zeros(3)), fixed(torch.tensor([1000.0, 0.0, 0.0]))
    assert float(Entropy()(even, split)) == pytest.approx(math.log(3))
    assert float(Confidence()(even, split)) == pytest.approx(1 / 3)
    assert float(Entropy()(sure, split)) == 0
    assert float(Confidence()(sure, split)) == 1


def test_histograms_hold_every_row_once():
    split, network = blobs(), linear()
    assert split.kept is not None
    seen = histogram(confidences(network, split.kept), bins=10, high=1.0)
    assert seen.edges.shape == (11,)
    assert seen.shares.sum() == pytest.approx(1)
    spread = histogram(entropies(network, split.kept), high=math.log(3))
    assert spread.shares.sum() == pytest.approx(1)
    assert histogram(torch.zeros(4)).shares[0] == 1
    assert histogram(torch.tensor([-1.0, 2.0]), bins=2, high=1.0).shares.tolist() == [0.5, 0.5]


def test_distance_is_zero_for_the_same_answers_and_two_for_opposite_ones():
    split, network = blobs(), linear()
    assert float(ActivationDistance(network)(network, split)) == 0
    # The same answers from other weights: softmax does not see a shift of all logits.
    assert float(ActivationDistance(fixed(torch.zeros(3)))(fixed(torch.full((3,), 7.0)), split)) == 0
    one, other = fixed(torch.tensor([900.0, 0.0, 0.0])), fixed(torch.tensor([0.0, 900.0, 0.0]))
    assert float(ActivationDistance(one)(other, split)) == 2
    half = ActivationDistance(fixed(torch.tensor([0.0, 0.0, -900.0])))(one, split)
    assert float(half) == pytest.approx(1)


def test_distance_is_the_mean_l1_norm():
    split, a, b = blobs(), linear(seed=1), linear(seed=2)
    p, q = a.predict(split.tests).softmax(1), b.predict(split.tests).softmax(1)
    expected = (p - q).abs().sum(1).mean().item()
    assert float(ActivationDistance(b, on="test")(a, split)) == pytest.approx(expected)


def test_distance_along_the_path_ends_at_both_ends():
    split, start, end = blobs(), linear(seed=1), linear(seed=2)
    curve = along_path(start, end, end, split.forget, steps=4)
    assert curve.positions.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert curve.values[0].item() == pytest.approx(float(ActivationDistance(end)(start, split)))
    assert curve.values[-1].item() == 0
    assert (curve.values.diff() < 0).all()


def test_loss_along_a_line_is_convex_for_a_linear_model():
    split, start, end = blobs(), linear(seed=1), linear(seed=2)
    curve = loss_along_line(start, end, split.tests, steps=10, low=-0.5, high=1.5)
    assert (curve.values[2:] - 2 * curve.values[1:-1] + curve.values[:-2] > 0).all()
    inside = loss_along_line(start, end, split.tests, steps=1)
    assert inside.values[0].item() == pytest.approx(float(MeanLoss("test")(start, split)))
    assert inside.values[1].item() == pytest.approx(float(MeanLoss("test")(end, split)))


def test_one_output_counts_as_two_classes():
    x, y = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 3)
    data = Data.of((x, y.unsqueeze(1)))
    network = Trained.of(nn.Linear(4, 1).double(), BinaryCrossEntropy())
    f = network.predict(data).squeeze(1)
    torch.testing.assert_close(margins(network, data), torch.where(y == 1, f, -f))
    p = f.sigmoid()
    torch.testing.assert_close(entropies(network, data), -(p * p.log() + (1 - p) * (1 - p).log()))


def test_messages():
    split, network = blobs(), linear()
    for readout in (Error, MeanLoss, Margin, Confidence, Entropy):
        with pytest.raises(SettingError, match=rf"`{readout.__name__}.on` must be one of 'retain', 'forget', 'test'"):
            unchecked(readout, "nowhere")
    with pytest.raises(SettingError, match=r"`ActivationDistance.on` must be one of"):
        unchecked(ActivationDistance, network, on="nowhere")
    with pytest.raises(MismatchError, match="answers with 3 classes, the reference with 4"):
        ActivationDistance(linear(4))(network, split)
    with pytest.raises(NeedError, match="needs test data"):
        Error("test")(network, replace(split, test=None))
    with pytest.raises(NeedError, match=r"one logit per class, but the network answers with shape \(9, 1\)"):
        Entropy()(Trained.of(nn.Linear(4, 1).double()), split)
    flags = Data.of((torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 2)))
    with pytest.raises(MismatchError, match=r"one class number a row, but labels have shape \(3, 2\)"):
        Margin()(network, Split(forget=flags))
    with pytest.raises(SettingError, match="`steps` must be at least 1, but got 0"):
        loss_along_line(network, network, split.tests, steps=0)


@pytest.mark.parametrize("readout", READOUTS.things())
def test_every_readout_says_what_its_number_means(readout):
    assert issubclass(readout, Readout)
    assert readout.unit
    assert readout.ideal in ("low", "high", "as retrained")
    assert readout.__doc__
