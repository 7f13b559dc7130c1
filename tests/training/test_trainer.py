"""Networks that a function of the user's own trains: it is called as agreed, and what it learnt comes back whole."""

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from spotlessnet.core.chaining import chain
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, NeedError, NumericsError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.core.trainer import Examples, Trainer
from spotlessnet.methods.finetune import Finetune
from spotlessnet.methods.retrain import Retrain
from spotlessnet.methods.short_retrain import ShortRetrain
from spotlessnet.training import fit, train, train_many
from spotlessnet.training.fit import seeded


class Net(nn.Module):
    """Everything that does not vectorise: BatchNorm with moving statistics, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu()).mean(dim=(2, 3)))


def my_train(model: nn.Module, examples, seed: int, epochs: int = 5) -> nn.Module:
    """A loop as people write it; nothing of it is from the package."""
    torch.manual_seed(seed)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(epochs):
        for x, y in DataLoader(examples, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def begin() -> Net:
    torch.manual_seed(1)
    return Net()


@pytest.fixture(scope="module")
def rows() -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(60, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 3
    return list(zip(x + y.reshape(-1, 1, 1, 1).float(), y, strict=True))


@pytest.fixture(scope="module")
def made(rows) -> tuple[Trained, Split]:
    original = Trained.of(my_train(begin(), rows, 0), init=begin(), trainer=my_train)
    data = Data.of(rows)
    gone = data.select(range(12))
    return original, Split(forget=gone, kept=data.without(gone))


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_same(one: nn.Module, other: nn.Module) -> None:
    a, b = state(one), state(other)
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


def test_retraining_is_calling_the_function_to_the_bit(rows, made):
    original, split = made
    want = my_train(begin(), rows[12:], 7)
    found = Retrain(seed=7)(original, split)
    assert_same(original.at(found.mean, found.buffers).module(), want)
    assert "share the initial weights and the seed, but not the order" in found.diagnostics["assumed"][0]
    assert not Retrain(seed=7, coupled=False)(original, split).diagnostics["assumed"]


class Centred(nn.Module):
    """A mean of its own, which moves while the network trains and is no BatchNorm's, and a buffer that nobody saves."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.ones: Tensor
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("ones", torch.ones(5), persistent=False)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean(dim=(1, 2))
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(dim=0))
        return self.head((x - self.mean) * self.ones)


@pytest.mark.parametrize("method", [Retrain(seed=7), ShortRetrain(seed=7, epoch_fraction=1.0)])
@pytest.mark.parametrize("whole", [True, False])
def test_buffers_that_are_no_batchnorms_begin_at_the_start_too(rows, method, whole):
    torch.manual_seed(1)
    start = Centred()
    far = [(x + 50, y) for x, y in rows[:12]]  # what the mean of the forgotten rows is
    original = my_train(copy.deepcopy(start), far + rows[12:], 0)
    network = Trained.of(original, init=start if whole else start.state_dict(), trainer=my_train)
    assert network.moved_buffers == ["mean"]
    data = Data.of(far + rows[12:])
    gone = data.select(range(12))
    found = method(network, Split(forget=gone, kept=data.without(gone)))
    assert_same(network.at(found.mean, found.buffers).module(), my_train(copy.deepcopy(start), rows[12:], 7))


def test_methods_that_move_weights_say_which_buffers_they_leave(rows):
    torch.manual_seed(1)
    start = Centred()
    network = Trained.of(my_train(copy.deepcopy(start), rows, 0), init=start, trainer=my_train)
    data = Data.of(rows)
    gone = data.select(range(12))
    found = Finetune(epochs=1)(network, Split(forget=gone, kept=data.without(gone)))
    assert any(
        "buffers that training moved (mean) are those of the original" in a for a in found.diagnostics["assumed"]
    )


def test_a_function_that_leaves_seeding_to_others_repeats_itself(made):
    original, split = made
    drawn: list[tuple[float, float, float]] = []

    def careless(model, examples: Examples, seed: int) -> nn.Module:
        examples.tensors()
        drawn.append((float(torch.rand(())), float(np.random.rand()), random.random()))
        with torch.no_grad():
            model.head.bias.add_(torch.randn(3))
        return model

    def draw_three() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()

    def reset() -> None:
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)

    network = Trained.of(original.module(), init=begin(), trainer=careless)
    reset()
    expected = draw_three()
    reset()
    one, two, other = (Retrain(seed=s)(network, split).mean for s in (3, 3, 4))
    # The caller's generators are left alone; Python's own is also drawn from by the type checks that tests run with.
    assert draw_three()[:2] == expected[:2]
    reset()
    with seeded(torch.device("cpu"), 9):
        draw_three()
    assert draw_three() == expected
    assert torch.equal(one, two)
    assert drawn[0] == drawn[1]
    assert not torch.equal(one, other)
    assert all(a != b for a, b in zip(drawn[0], drawn[2], strict=True))


def test_short_retraining_asks_for_fewer_epochs(made):
    original, split = made
    asked: list[int] = []

    def counting(model: nn.Module, examples: Examples, seed: int, epochs: int = 10) -> nn.Module:
        asked.append(epochs)
        return my_train(model, examples, seed, epochs)

    network = Trained.of(original.module(), init=begin(), trainer=counting)
    found = ShortRetrain(error_tolerance=1.0)(network, split)
    assert asked == [2]
    assert found.diagnostics["share_of_training"] == 0.2
    want = my_train(begin(), Examples(split.retain), 0, epochs=2)
    assert_same(network.at(found.mean, found.buffers).module(), want)
    assert network.epochs == 10


def test_a_trainer_without_epochs_is_repeated_in_full_and_that_is_said(made):
    original, split = made
    whole = Trained.of(original.module(), init=begin(), trainer=lambda m, e, s: my_train(m, e, s))
    found = ShortRetrain(seed=3)(whole, split)
    assert torch.equal(found.mean, Retrain(seed=3)(original, split).mean)
    assert "has no argument `epochs` with a default" in found.diagnostics["assumed"][0]
    assert whole.epochs is None


def test_moving_statistics_begin_at_the_start_and_are_part_of_what_was_learnt(made):
    original, split = made
    assert original.statistics_moved
    assert_same(original.begin("A test").module(), begin())
    # A recipe too keeps what it moved, and begins where the start did.
    recipe = Recipe(epochs=3, batch_size=16, optimizer="adam", freeze_statistics=False)
    network = fit(Trained.of(begin(), recipe=recipe), split.whole, seed=2)
    found = Retrain(seed=2)(network, split)
    alone = fit(Trained.of(begin(), recipe=recipe), split.retain, seed=2, order_of=split.whole)
    assert_same(network.at(found.mean, found.buffers).module(), alone.module())


@pytest.mark.parametrize("scrub", [Finetune(epochs=1), chain(Retrain(), Finetune(epochs=1))])
def test_methods_that_move_weights_estimate_statistics_anew_from_retained_rows(made, scrub):
    original, split = made
    found = scrub(original, split)
    assert found.buffers is not None
    assert "estimated anew from the retained rows" in found.diagnostics["batchnorm_statistics"]
    # One batch holds all retained rows, so the statistics are theirs, in closed form.
    module = original.at(found.mean).module()
    assert isinstance(module, Net)
    x = torch.stack([x for x, _ in Examples(split.retain)])
    before = module.conv(x).detach()
    assert torch.allclose(found.buffers["norm.running_mean"], before.mean(dim=(0, 2, 3)), atol=1e-6)
    assert torch.allclose(found.buffers["norm.running_var"], before.var(dim=(0, 2, 3)), atol=1e-5)
    assert not torch.equal(found.buffers["norm.running_mean"], state(original.model)["norm.running_mean"])


class Nudge(Finetune):
    def shift(self, trained, split, notes):
        return trained.weights + 0.01


def test_without_retained_rows_statistics_stay_and_that_is_said(made):
    original, split = made
    found = Nudge()(original, Split(forget=split.forget))
    assert found.buffers is None
    assert "no retained rows to estimate them from" in found.diagnostics["assumed"][0]


def test_statistics_that_stood_still_are_left_alone(made):
    _, split = made
    still = Trained.of(begin(), init=begin(), trainer=my_train)
    assert not still.statistics_moved
    assert Finetune(epochs=1)(still, split).buffers is None
    by_recipe = Trained.of(begin(), init=begin(), recipe=Recipe(epochs=1))
    assert Finetune(epochs=1)(by_recipe, split).buffers is None


def test_examples_are_what_a_loop_expects(rows):
    own = Examples(Data.of(rows).select([5, 2]))
    assert own[0] is rows[5]
    assert [y for _, y in own] == [rows[5][1], rows[2][1]]
    named = Examples(Data.of(({"a": torch.arange(4.0), "b": torch.ones(4, 2)}, torch.arange(4))).select([3, 1]))
    assert named[1]["labels"] == 1
    assert named[0]["a"] == 3
    batch = next(iter(DataLoader(named, batch_size=2)))
    assert batch["b"].shape == (2, 2)
    relabelled = Examples(Data.of(rows).select([5, 2]).relabel(torch.tensor([9, 8])))
    assert [int(y) for _, y in relabelled] == [9, 8]
    x, y = relabelled.tensors()
    assert len(x) == len(y) == 2
    assert isinstance(my_train, Trainer)


class Looking(nn.Module):
    """What `vmap` cannot do: `.item()`, and dropout that is in no list of layers."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.head, self.rate = nn.Linear(25, 3), rate

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if not self.rate and self.head.weight.sum().item() > 1e9:
            x = x + 1
        return self.head(dropout(x, self.rate, self.training))


@pytest.mark.parametrize("model", [Net, lambda: Looking(0.0), lambda: Looking(0.5)])
def test_what_does_not_vectorise_is_trained_one_by_one(rows, model):
    data, recipe = Data.of(rows), Recipe(epochs=2, batch_size=16, freeze_statistics=False)
    start = Trained.of(model(), recipe=recipe)
    keep = torch.rand(3, 60, generator=torch.Generator().manual_seed(0)) < 0.7
    many = train_many([start] * 3, data, seeds=[4, 5, 4], keep=keep)
    for network, seed, mine in zip(many, [4, 5, 4], keep, strict=True):
        alone = fit(start, data.select(mine.nonzero().flatten()), recipe, seed=seed, order_of=data)
        assert_same(network.module(), alone.module())


def test_trainers_that_break_the_contract_are_told_so(made):
    _, split = made

    def told(trainer, match, error, start):
        with pytest.raises(error, match=match):
            train(Trained.of(start, init=start, trainer=trainer), split.retain)

    def spoils(model, examples, seed):
        model.head.bias.data.fill_(torch.nan)
        return model

    def spoils_statistics(model, examples, seed):
        model.norm.running_mean.fill_(torch.nan)
        return model

    told(lambda m, e, s: None, "must return the trained module, but .* returned NoneType.", SettingError, begin())
    other = "must return the network that it was given, trained, but .* returned another: .* missing .* parameters"
    told(lambda m, e, s: nn.Linear(2, 2), other, MismatchError, begin())
    told(spoils, "Trained weights must be finite", NumericsError, begin())
    told(spoils_statistics, "Trained BatchNorm statistics must be finite", NumericsError, begin())
    frozen = begin()
    frozen.head.bias.requires_grad_(False)
    told(spoils, "what does not require gradients, but it changed 'head.bias'", MismatchError, frozen)
    with pytest.raises(SettingError, match="both were given"):
        Trained.of(begin(), recipe=Recipe(), trainer=my_train)
    with pytest.raises(NeedError, match=r"no init\. Give both.*or `trainer=\.\.\.`"):
        Retrain()(Trained.of(begin(), trainer=my_train), split)
    assert Trained.of(begin(), trainer=Recipe(epochs=2)).recipe == Recipe(epochs=2)


def test_an_average_over_training_is_taken_for_the_network_in_it(rows, made):
    original, split = made

    def averaging(model: nn.Module, examples: Examples, seed: int) -> nn.Module:
        average = AveragedModel(my_train(model, examples, seed))
        average.update_parameters(model)
        return average

    network = Trained.of(AveragedModel(original.module()), init=begin(), trainer=averaging)
    assert network.names == original.names
    found = Retrain(seed=7)(network, split)
    assert_same(network.at(found.mean, found.buffers).module(), my_train(begin(), rows[12:], 7))


def test_a_trainer_that_cannot_be_called_as_agreed_is_refused_before_any_work():
    def two(model, examples):
        return model

    def four(model, examples, seed, rate):
        return model

    wrong: list[tuple[Any, str]] = [
        (two, r"two\(model, examples\)"),
        (four, r"four\(model, examples, seed, rate\)"),
    ]
    for trainer, its in wrong:
        with pytest.raises(SettingError, match=rf"must be `train\(model, examples, seed\)`.* but .*{its}"):
            Trained.of(begin(), trainer=trainer)
    Trained.of(begin(), trainer=lambda *anything, rate=0.1: anything[0])


def test_a_training_on_data_of_its_own_is_refused(rows, made):
    _, split = made

    def cheats(model, examples, seed, epochs=1):
        return my_train(model, rows, seed, epochs)

    def peeks(model, examples, seed, epochs=1):
        examples[0]
        return my_train(model, rows, seed, epochs)

    def told(trainer, count):
        with pytest.raises(DataError, match=rf"must train on `examples`.*read {count} of {len(split.retain)} of them"):
            train(Trained.of(begin(), init=begin(), trainer=trainer), split.retain)

    told(cheats, 0)
    told(peeks, 1)
    peeks.reads_some_rows = True  # type: ignore[attr-defined]  # as the page says
    train(Trained.of(begin(), init=begin(), trainer=peeks), split.retain)
    cheats.reads_some_rows = True  # type: ignore[attr-defined]  # as the page says
    told(cheats, 0)


def test_rows_are_counted_however_they_are_read(rows):
    def examples():
        return Examples(Data.of(rows))

    one = examples()
    assert (one.rows_read, repr(one)) == (0, f"Examples({len(rows)} rows)")
    one[3], one[3], one[-1]
    assert one.rows_read == 2
    for read in (
        list,
        lambda e: e.tensors(),
        lambda e: e.rows,
        lambda e: pickle.dumps(e),
        lambda e: list(DataLoader(e, batch_size=16, num_workers=1)),
        lambda e: list(DataLoader(torch.utils.data.Subset(e, range(len(e))), batch_size=16)),
    ):
        one = examples()
        read(one)
        assert one.rows_read == len(rows)
