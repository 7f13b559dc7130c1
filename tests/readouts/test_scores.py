"""What rows are compared by, for each kind of network, against formulas of torch alone."""

import pytest
import torch
from torch import Tensor, float64, nn
from torch.nn.functional import cross_entropy, softplus

import spotlessnet as sn
from spotlessnet.core.answers import margin
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError
from spotlessnet.core.loss import BinaryCrossEntropy, CrossEntropy, Loss, NextToken, PerSample, SquaredError
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.activation_distance import ActivationDistance
from spotlessnet.readouts.entropy import Confidence, Entropy
from spotlessnet.readouts.loss_attack import LossAttack
from spotlessnet.readouts.margin import Margin
from spotlessnet.readouts.matched_controls import Unseen, matched, matched_controls, other_labels
from spotlessnet.readouts.scores import kind_of, scores

N, T, V = 12, 5, 4


class PerToken(nn.Module):
    """Logits for every position of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(V, 6), nn.Linear(6, V)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x).tanh())


def world(kind: str, seed: int = 0) -> tuple[Trained, Data]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, 3, generator=draw, dtype=float64)
    tokens = torch.randint(V, (N, T), generator=draw)
    masked = tokens.where(torch.rand(N, T, generator=draw) > 0.3, -100)
    masked[:, 1] = tokens[:, 1]  # every text has a position that counts
    made: dict[str, tuple[nn.Module, Loss, Tensor, Tensor]] = {
        "classes": (nn.Linear(3, V), CrossEntropy(), x, torch.arange(N) % V),
        "one yes or no": (nn.Linear(3, 1), BinaryCrossEntropy(), x, torch.arange(N) % 2),
        "labels": (nn.Linear(3, V), BinaryCrossEntropy(), x, torch.randint(2, (N, V), generator=draw)),
        "regression": (nn.Linear(3, 1), SquaredError(), x, torch.randn(N, 1, generator=draw, dtype=float64)),
        "a loss of ones own": (nn.Linear(3, 2), PerSample(huber), x, torch.randn(N, 2, generator=draw, dtype=float64)),
        "text": (PerToken(), NextToken(), tokens, masked),
    }
    torch.manual_seed(seed)
    for part in made[kind][0].modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            part.reset_parameters()
    model, loss, inputs, y = made[kind]
    return Trained.of(model.double(), loss), Data.of((inputs, y))


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    return ((outputs - y).square() + 1).sqrt().sum(dim=1)


@pytest.mark.parametrize(
    ("kind", "found"),
    [("classes", "classes"), ("one yes or no", "classes"), ("labels", "labels"), ("regression", "losses"),
     ("a loss of ones own", "losses"), ("text", "positions")],
)  # fmt: skip
def test_the_loss_decides_what_rows_are_compared_by(kind, found):
    assert kind_of(*world(kind)) == found


def test_margins_of_classes_are_as_ever():
    network, data = world("classes")
    torch.testing.assert_close(scores(network, data), margin(network.predict(data), data.labels()))


def test_the_score_of_a_text_is_the_mean_margin_of_its_tokens_that_count():
    network, data = world("text")
    answers, y = network.predict(data)[:, :-1], data.labels()[:, 1:]
    for i, found in enumerate(scores(network, data).tolist()):
        counts = y[i] >= 0
        p = answers[i].softmax(1).gather(1, y[i].clamp(min=0)[:, None])[counts]
        assert found == pytest.approx(float((p / (1 - p)).log().mean()))


def test_the_score_of_many_labels_is_their_mean_log_odds():
    network, data = world("labels")
    p = network.predict(data).sigmoid()
    right = torch.where(data.labels() == 1, p, 1 - p)
    torch.testing.assert_close(scores(network, data), (right / (1 - right)).log().mean(dim=1))


@pytest.mark.parametrize("kind", ["regression", "a loss of ones own"])
def test_without_classes_the_score_is_the_negative_loss(kind):
    network, data = world(kind)
    y = data.labels()
    f = network.predict(data)
    expected = 0.5 * (f - y).square().sum(1) if kind == "regression" else huber(f, y)
    torch.testing.assert_close(scores(network, data), -expected)
    with pytest.raises(NeedError, match="needs one logit per class"):
        Margin()(network, Split(forget=data))


def test_entropy_confidence_and_distance_of_a_text_are_means_over_its_tokens_that_count():
    (network, data), (other, _) = world("text"), world("text", seed=1)
    counts = (data.labels()[:, 1:] >= 0).double()
    share = counts / counts.sum(1, keepdim=True)
    p, q = (one.predict(data)[:, :-1].softmax(2) for one in (network, other))
    split = Split(forget=data)
    for readout, values in (
        (Entropy(), -(p * p.log()).sum(2)),
        (Confidence(), p.max(2).values),
        (ActivationDistance(other), (p - q).abs().sum(2)),
    ):
        assert float(readout(network, split)) == pytest.approx(float((share * values).sum(1).mean()))


def test_and_those_of_many_labels_are_means_over_labels():
    (network, data), (other, _) = world("labels"), world("labels", seed=1)
    p, q = (one.predict(data).sigmoid() for one in (network, other))
    split = Split(forget=data)
    entropy = softplus(network.predict(data)) - p * network.predict(data)
    assert float(Entropy()(network, split)) == pytest.approx(float(entropy.mean()))
    assert float(ActivationDistance(other)(network, split)) == pytest.approx(float(2 * (p - q).abs().mean()))


@pytest.mark.parametrize("kind", ["regression", "text", "classes"])
def test_the_loss_attack_is_the_share_of_pairs_in_the_right_order(kind):
    network, data = world(kind)
    split = Split(forget=data.select(range(4)), kept=data.select(range(4, 8)), test=data.select(range(8, 12)))
    y = data.labels()
    f = network.predict(data)
    if kind == "regression":
        loss = 0.5 * (f - y).square().sum(1)
    elif kind == "classes":
        loss = cross_entropy(f, y, reduction="none")
    else:
        loss = torch.stack([cross_entropy(a[:-1], b[1:]) for a, b in zip(f, y, strict=True)])
    pairs = (loss[:4, None] < loss[None, 8:]).double() + 0.5 * (loss[:4, None] == loss[None, 8:]).double()
    assert float(LossAttack()(network, split)) == pytest.approx(float(pairs.mean()))


def parted(kind: str) -> tuple[list[Trained], Split]:
    networks = [world(kind, seed)[0] for seed in range(3)]
    _, data = world(kind)
    return networks, Split(forget=data.select(range(4)), kept=data.select([4, 5]), test=data.select(range(6, 12)))


@pytest.mark.parametrize("kind", ["regression", "labels", "text"])
def test_controls_without_classes_are_test_rows_of_the_nearest_score_under_labels_they_could_have(kind):
    networks, split = parted(kind)
    unseen = Unseen.of(networks, split)
    assert unseen is not None
    assert unseen.labels is None
    own = torch.stack([scores(one, split.forget) for one in networks])
    place, column = matched(own, unseen, each=2)
    base = unseen.margins.mean(0)
    gaps = (base.flatten()[:, None] - own.mean(0)).abs()
    nearest = gaps.topk(2, dim=0, largest=False).values.sort(0).values
    torch.testing.assert_close((base[place, column] - own.mean(0)).abs().sort(0).values, nearest)
    # As data of their own, they score what was matched.
    controls = matched_controls(networks, split, each=2)
    again = torch.stack([scores(one, controls) for one in networks]).mean(0)
    wanted = torch.stack([place, column]).flatten(1).unique(dim=1)
    torch.testing.assert_close(again, base[wanted[0], wanted[1]])


def test_labels_that_rows_could_have():
    networks, split = parted("labels")
    y = split.tests.labels()
    found = other_labels(networks[0], split.tests)
    assert torch.equal(found[0], y)
    assert any(torch.equal(one, 1 - y) for one in found)
    networks, split = parted("text")
    y = split.tests.labels()
    wrong = other_labels(networks[0], split.tests)[4]
    assert torch.equal(wrong == -100, y == -100)
    assert bool(((wrong != y) | (y == -100)).all())
    assert len(other_labels(networks[0], split.tests)) == 1 + 3 + (V - 1)
    networks, split = parted("regression")
    assert len(other_labels(networks[0], split.tests)) == 4


def test_names_are_exported():
    assert sn.NextToken is NextToken
    assert sn.LossAttack is LossAttack
