"""Parameter counts and shapes of the networks, counted by hand; starting weights by seed."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from spotlessnet.core.errors import SettingError
from spotlessnet.models import MLP, AllCNN, Logistic, ResNet, build


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_all_cnn():
    # 3x3: 3-96, 96-96 twice, 96-192, 192-192 three times; 1x1: 192-192; scale and shift each; head 192-10.
    convolutions = 9 * (3 * 96 + 2 * 96 * 96 + 96 * 192 + 3 * 192 * 192) + 192 * 192
    assert count(AllCNN(10)) == convolutions + 2 * (3 * 96 + 5 * 192) + 192 * 10 + 10
    assert count(AllCNN(10)) == 1_370_986
    assert AllCNN(7, channels=1, filters=(4, 6))(torch.zeros(2, 1, 32, 32)).shape == (2, 7)


def test_all_cnn_halves_the_image_twice():
    assert AllCNN(7, filters=(4, 6)).features(torch.zeros(2, 3, 32, 32)).shape == (2, 6, 8, 8)


@pytest.mark.parametrize(("width", "c"), [(1.0, (64, 128, 256, 512)), (0.4, (25, 51, 102, 204))])
def test_resnet(width, c):
    stem = 27 * c[0] + 2 * c[0]
    first = 4 * (9 * c[0] ** 2 + 2 * c[0])
    later = sum(9 * a * b + 27 * b * b + 8 * b + a * b + 2 * b for a, b in pairwise(c))
    assert count(ResNet(10, width=width)) == stem + first + later + c[3] * 10 + 10


def test_resnet_18_has_the_known_count_and_halves_the_image_thrice():
    assert count(ResNet(10)) == 11_173_962  # the well-known number for the CIFAR stem
    model = ResNet(10, width=0.05)
    assert model.blocks(model.stem(torch.zeros(2, 3, 32, 32))).shape == (2, 25, 4, 4)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_small_ones():
    assert count(MLP(64, 10, hidden=(32, 16))) == 65 * 32 + 33 * 16 + 17 * 10
    assert count(Logistic(64, 10)) == 650
    assert count(Logistic(64, 10, bias=False)) == 640
    assert MLP(64, 10)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("name", ["all-cnn", "resnet", "mlp", "logistic"])
def test_the_seed_decides_the_start_and_nothing_else_is_drawn(name):
    small: dict[str, dict[str, Any]] = {"all-cnn": {"filters": (2, 3)}, "resnet": {"width": 0.05}}
    options = small.get(name, {})
    torch.manual_seed(5)
    after = torch.rand(1)
    torch.manual_seed(5)
    a, b, c = (build(name, (3, 8, 8), 4, seed=s, **options).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.rand(1), after)
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert not torch.equal(a["head.weight"], c["head.weight"])


def test_unknown_names_are_refused():
    with pytest.raises(SettingError, match=r"`name` must be one of 'all-cnn'.*but got 'vgg'"):
        build("vgg", (3, 8, 8), 4)
    with pytest.raises(SettingError, match=r"`MLP.activation` must be one of 'relu'"):
        MLP(4, 2, activation="sine")
