"""SISA beside sharded training on the retained rows, which it must equal, and beside a shard trained by hand."""

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.methods.sisa import SISA, SISAFacts
from spotlessnet.training.fit import fit, train
from spotlessnet.training.sharded import Sharded, ShardTrainer

SHARDS = 4
RECIPE = Recipe(epochs=4, lr=0.2, batch_size=8, weight_decay=0.01, freeze_statistics=False)


def problem(*, norm: bool = False, shards: int = SHARDS) -> tuple[Trained, Data]:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 3
    x = torch.randn(80, 4, generator=draw) + nn.functional.one_hot(y, 4)
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(4, 8), nn.BatchNorm1d(8)] if norm else [nn.Linear(4, 8)]
    model = Sharded(nn.Sequential(*layers, nn.ReLU(), nn.Linear(8, 3)), shards)
    # A last batch of one row has no variance, so BatchNorm is given all rows of a shard at once.
    recipe = RECIPE.but(batch_size=80) if norm else RECIPE
    return Trained.of(model, init=model, trainer=ShardTrainer(recipe)), Data.of((x, y))


def trained(begun: Trained, data: Data, seed: int = 3) -> Trained:
    return train(begun, data, seed=seed)


def shards_of(network: Trained, data: Data) -> torch.Tensor:
    assert isinstance(network.trainer, ShardTrainer)
    return network.trainer.shard_of(data, SHARDS)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("count", [1, 2, 30])
def test_equals_sharded_training_without_the_rows(norm: bool, count: int) -> None:
    begun, data = problem(norm=norm)
    network = trained(begun, data)
    split = Split(forget=data.select(range(count)), kept=data.select(range(count, 80)))
    done = SISA(seed=3)(network, split)
    expected = trained(begun, split.retain)
    assert torch.equal(done.mean, expected.weights)
    assert not torch.equal(done.mean, network.weights)
    if norm:
        assert done.buffers is not None
        assert all(torch.equal(done.buffers[n], v) for n, v in buffers_of(expected.model).items())


def test_only_touched_shards_move_and_the_moved_one_is_trained_by_hand() -> None:
    begun, data = problem()
    network = trained(begun, data)
    split = Split(forget=data.select([5]), kept=data.without(data.select([5])))
    done = SISA(seed=3)(network, split)
    k = int(shards_of(network, split.forget))
    assert done.diagnostics.of(SISAFacts) == SISAFacts(shards=SHARDS, shards_retrained=1)
    moved = (done.mean != network.weights).reshape(SHARDS, -1).any(dim=1)
    assert moved.nonzero().flatten().tolist() == [k]
    start = begun.module()
    assert isinstance(start, Sharded)
    mine = split.retain.select((shards_of(network, split.retain) == k).nonzero().squeeze(1))
    by_hand = fit(Trained.of(start.shards[k], recipe=RECIPE), mine, seed=3 + k)
    assert torch.equal(done.mean.reshape(SHARDS, -1)[k], by_hand.weights)


def test_a_row_is_in_one_shard_whoever_else_is_there() -> None:
    begun, data = problem()
    part = shards_of(begun, data)
    assert part.bincount(minlength=SHARDS).min() > 5
    assert torch.equal(shards_of(begun, data.select(range(40, 80))), part[40:])
    x, y, _ = data.fetch(data.rows[:1])
    assert isinstance(x, torch.Tensor)
    twins = Data.of((torch.cat([x, x]), torch.cat([y, y])))
    assert shards_of(begun, twins).unique().numel() == 1
    assert not torch.equal(ShardTrainer(RECIPE, draw=1).shard_of(data, SHARDS), part)


def test_answers_are_mean_probabilities() -> None:
    begun, data = problem()
    network = trained(begun, data)
    model = network.module()
    assert isinstance(model, Sharded)
    x = torch.randn(5, 4)
    each = torch.stack([shard(x).softmax(dim=1) for shard in model.shards])
    torch.testing.assert_close(model(x).exp(), each.mean(dim=0))


def test_cost_is_that_of_the_touched_shards() -> None:
    begun, data = problem()
    split = Split(forget=data.select([5]), kept=data.without(data.select([5])))
    rows = int((shards_of(begun, split.retain) == int(shards_of(begun, split.forget))).sum())
    whole = sn.Retrain().cost(begun, split).usual
    assert SISA().cost(begun, split).usual == pytest.approx(whole * rows / len(split.retain) / SHARDS)


def test_a_plain_network_is_one_shard() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    begun = Trained.of(model, init=model, recipe=RECIPE)
    _, data = problem()
    network = fit(begun, data, seed=1)
    split = Split(forget=data.select([0]), kept=data.select(range(1, 80)))
    done = SISA(seed=1)(network, split)
    assert torch.equal(done.mean, fit(begun, split.retain, seed=1).weights)
    assert "not trained in shards" in done.diagnostics.assumed[0]


def test_other_networks_are_refused_by_the_trainer() -> None:
    _, data = problem()
    model = nn.Linear(4, 3)
    begun = Trained.of(model, init=model, trainer=ShardTrainer(RECIPE))
    with pytest.raises(SettingError, match=r"Shards are trained in a `Sharded`, but got Linear"):
        train(begun, data)


def test_rows_read_in_another_format_or_shape_are_in_the_same_shards() -> None:
    """Else a request that reads them so would retrain shards that never saw them, and leave the one that did."""
    begun, data = problem()
    batch = next(iter(data.batches(80)))
    x, y = batch.x, batch.y
    assert isinstance(x, torch.Tensor)
    expected = shards_of(begun, data)
    for other in ((x.double(), y), (x, y.int()), (x.reshape(80, 2, 2), y), (x, y.unsqueeze(1))):
        assert torch.equal(shards_of(begun, Data.of(other)), expected)
    network = trained(begun, data)
    wide = Data.of((x.double(), y.int()))
    done = SISA(seed=3)(network, Split(forget=wide.select([0]), kept=wide.select(range(1, 80))))
    held = int(expected[0])
    moved = (done.mean - network.weights).reshape(SHARDS, -1).abs().sum(1).nonzero().flatten().tolist()
    assert moved == [held]
