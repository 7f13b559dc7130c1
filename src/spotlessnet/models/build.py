"""A network by its name, for commands and experiment files."""

from math import prod
from typing import Any

from torch import nn

from spotlessnet.core.errors import check_choice
from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.models.logistic import Logistic
from spotlessnet.models.mlp import MLP
from spotlessnet.models.resnet import ResNet

NAMES = ("all-cnn", "resnet", "mlp", "logistic")


def build(name: str, shape: tuple[int, ...], classes: int, *, seed: int = 0, **options: Any) -> nn.Module:
    """A fresh network for inputs of this shape (channels first), with the options of its class.

    >>> type(build("mlp", (1, 8, 8), 10, hidden=(16,))).__name__
    'MLP'
    """
    check_choice("name", name, NAMES)
    if name == "all-cnn":
        return AllCNN(classes, channels=shape[0], seed=seed, **options)
    if name == "resnet":
        return ResNet(classes, channels=shape[0], seed=seed, **options)
    if name == "mlp":
        return MLP(prod(shape), classes, seed=seed, **options)
    return Logistic(prod(shape), classes, seed=seed, **options)
