"""BatchNorm statistics that are estimated anew: of all rows, augmented where training augments, of some of many."""

import pytest
import torch
from torch import Tensor, nn

from spotlessnet.core import buffers
from spotlessnet.core.buffers import reestimated
from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained


def network(augment: object = None) -> tuple[Trained, Data, Tensor]:
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)) + 2
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    recipe = Recipe(augment=augment, freeze_statistics=False)  # type: ignore[arg-type]
    return Trained.of(model, init=model, recipe=recipe), Data.of((x, torch.arange(100) % 2)), x


def test_they_are_those_of_the_rows() -> None:
    trained, data, x = network()
    found = reestimated(trained, data)
    torch.testing.assert_close(found["0.running_mean"], x.mean(dim=0))


def test_rows_are_augmented_as_in_training_by_transforms_of_either_kind() -> None:
    for augment in (lambda x: x + 5, lambda x, draw: x + 5 + 0 * torch.rand(x.shape, generator=draw)):
        trained, data, x = network(augment)
        torch.testing.assert_close(reestimated(trained, data)["0.running_mean"], x.mean(dim=0) + 5)
    noisy, data, _ = network(lambda x: x + torch.randn_like(x))
    before = torch.get_rng_state()
    first, second = (reestimated(noisy, data)["0.running_var"] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)
    assert float(first.mean()) > 1.5  # the rows' own variance is one


def test_of_very_many_rows_some_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MOST", 40)
    trained, data, x = network()
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:40]
    torch.testing.assert_close(reestimated(trained, data)["0.running_mean"], x[order].mean(dim=0))
