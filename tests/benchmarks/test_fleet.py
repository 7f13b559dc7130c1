"""Trainings side by side: the same as a plain loop around `torch.optim`, one by one."""

from dataclasses import replace

import torch
from benchmarks.fleet import Fleet, Job, ResNet9, Whitened, moved
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.training.batches import mixed, permutation
from spotlessnet.training.optimiser import lr_at

RECIPE = Recipe(epochs=2, lr=0.1, momentum=0.9, batch_size=8, weight_decay=5e-3, decay_toward="zero",
                schedule="one-cycle", label_smoothing=0.1, freeze_statistics=False)  # fmt: skip


def _begun(recipe: Recipe = RECIPE) -> Trained:
    torch.manual_seed(0)
    network = Trained.of(ResNet9(3, channels=1, width=2, small=True).double(), recipe=recipe)
    return replace(network, init=network.weights, init_buffers=buffers_of(network.model))


def _data() -> Data:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(30, 1, 6, 6, generator=draw, dtype=torch.float64)
    return Data.of((x, torch.arange(30) % 3))


def _by_hand(begun: Trained, data: Data, seed: int, epochs: int) -> tuple[nn.Module, list[float]]:
    """`torch.optim.SGD` over the whole batches of each epoch."""
    model = begun.module().train()
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-3)
    loss_of, rates = nn.CrossEntropyLoss(label_smoothing=0.1), []
    steps = len(data) // 8
    for epoch in range(epochs):
        rows = data.rows[permutation(len(data), seed, epoch)]
        for i in range(steps):
            batch = data.fetch(rows[8 * i : 8 * i + 8])
            rates.append(lr_at(RECIPE.but(epochs=epochs), epoch * steps + i, epochs * steps))
            optimiser.param_groups[0]["lr"] = rates[-1]
            optimiser.zero_grad()
            loss_of(model(batch.x), batch.y).backward()
            optimiser.step()
    return model, rates


def test_networks_side_by_side_are_trained_as_by_hand() -> None:
    begun, data = _begun(), _data()
    some = data.select(range(3, 28))
    jobs = [Job(begun, data, 5), Job(begun, some, 6), Job(begun, data, 7, epochs=1)]
    made = Fleet(begun, data, at_once=2).fit(jobs)
    for job, network in zip(jobs, made, strict=True):
        model, rates = _by_hand(begun, job.data, job.seed, job.epochs or 2)
        assert max(rates) > 0.05
        for name, value in model.named_parameters():
            # Rates lie in float32 on the device; everything else is float64.
            torch.testing.assert_close(network.unflatten(network.weights)[name], value, rtol=1e-6, atol=1e-8)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffers_of(network.model)[name], buffer, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(made[0].weights, made[1].weights)


def test_images_are_moved_as_a_loop_would() -> None:
    x = torch.arange(4 * 3 * 5 * 5, dtype=torch.float32).reshape(4, 3, 5, 5)
    found = moved(x, torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(0)
    flips = torch.rand(4, 1, generator=draw) < 0.5
    by = torch.randint(0, 5, (2, 4, 1), generator=draw)
    for n in range(4):
        wide = nn.functional.pad(x[n], (2, 2, 2, 2), mode="reflect")
        i, j = int(by[0, n]), int(by[1, n])
        window = wide[:, i : i + 5, j : j + 5]
        assert torch.equal(found[n], window.flip(2) if bool(flips[n]) else window)
    assert flips.any()
    assert not flips.all()


def test_images_are_mirrored_in_every_other_epoch() -> None:
    begun, data = _begun(RECIPE.but(augment=moved)), _data()
    lane = Fleet(begun, data, at_once=1).lanes[0]
    lane.begin(Job(begun, data, 5))
    first = lane.mirror.clone()
    assert 0 < int(first.sum()) < 30
    lane.refresh(Job(begun, data, 5), 0)
    even = lane.seen.clone()
    lane.refresh(Job(begun, data, 5), 1)
    assert not torch.equal(even, lane.seen)
    draw = torch.Generator()
    for epoch, mirror in ((0, first), (1, ~first)):
        lane.refresh(Job(begun, data, 5), epoch)
        assert torch.equal(lane.seen, moved(lane.images, draw.manual_seed(mixed(5, epoch, "augment")), mirror))


def test_a_whitening_layer_gives_uncorrelated_answers_of_equal_size() -> None:
    draw = torch.Generator().manual_seed(2)
    mixing = torch.randn(3, 3, generator=draw)
    images = torch.einsum("dc,nchw->ndhw", mixing, torch.randn(400, 3, 12, 12, generator=draw))
    layer = Whitened(images, width=2, small=True)
    with torch.no_grad():
        found = nn.functional.conv2d(images, layer.filters)
    count = len(layer.filters) // 2
    assert count == 12
    torch.testing.assert_close(found[:, :count], -found[:, count:])
    size = found[:, :count].transpose(0, 1).flatten(1).cov()
    assert float((size - torch.diag(size.diagonal())).abs().max()) < 1e-3
    assert bool((size.diagonal() <= 1.001).all())
    assert "filters" not in dict(layer.named_parameters())
