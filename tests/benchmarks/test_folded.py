"""BatchNorm folded into convolutions: the same answers, gradients and training."""

import pytest
import torch
from benchmarks.captured import Captured
from benchmarks.folded import FoldedCaptured, folded
from torch import Tensor, nn
from torch.nn.functional import pad

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.models.resnet import ResNet


def moved(network: nn.Module) -> nn.Module:
    """With statistics, scales and shifts that are not those of the beginning."""
    torch.manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    return network.eval()


def small() -> list[nn.Module]:
    return [moved(AllCNN(4, filters=(6, 9))), moved(ResNet(4, width=0.05))]


def gradients(network: nn.Module, z: Tensor) -> list[Tensor]:
    toward = torch.randn(z.shape, generator=torch.Generator().manual_seed(0), dtype=z.dtype)
    return list(torch.autograd.grad((z * toward).sum(), list(network.parameters())))


@pytest.mark.parametrize("network", small(), ids=["all-cnn", "resnet"])
def test_same_answers_and_gradients(network: nn.Module) -> None:
    network = network.double()
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    expected = network(x)
    one = folded(network)
    found = one(pad(x, (0, 0, 0, 0, 0, 5)))
    assert torch.allclose(found, expected, rtol=1e-10)
    for mine, theirs in zip(gradients(one, found), gradients(network, expected), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-9 * float(theirs.abs().max()))


def test_same_training() -> None:
    recipe = Recipe(epochs=2, lr=0.05, batch_size=8, weight_decay=0.01)
    draw = torch.Generator().manual_seed(0)
    rows = Data.of((torch.randn(20, 3, 8, 8, generator=draw), torch.randint(0, 4, (20,), generator=draw)))
    network = moved(AllCNN(4, filters=(6, 9)))
    start = Trained.of(network, init=network, recipe=recipe)
    part = rows.select(range(15))
    plain, fast = (kind(start, rows).fit(start, part, seed=3, order_of=rows) for kind in (Captured, FoldedCaptured))
    step = plain.weights - start.weights
    assert float((fast.weights - plain.weights).norm()) < 1e-3 * float(step.norm())


def test_needs_statistics_that_stand_still() -> None:
    network = moved(AllCNN(4, filters=(6, 9)))
    rows = Data.of((torch.randn(8, 3, 8, 8), torch.zeros(8, dtype=torch.long)))
    with pytest.raises(SettingError, match="stand still"):
        FoldedCaptured(Trained.of(network, init=network, recipe=Recipe(freeze_statistics=False)), rows)


def test_a_batchnorm_by_itself_is_refused() -> None:
    with pytest.raises(SettingError, match="no convolution before it"):
        folded(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)))
