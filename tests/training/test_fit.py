"""The training loop against closed forms, torch's own optimiser, and itself interrupted."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, NeedError, NumericsError, SettingError
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.retrain import Retrain
from spotlessnet.models import MLP
from spotlessnet.training import fit
from spotlessnet.training.batches import Order, permutation


@pytest.fixture
def data() -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    return Data.of((x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()))


def network(**options) -> Trained:
    return Trained.of(MLP(5, 3, hidden=(7,), **options).double())


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


def test_same_seed_same_bytes_and_other_seed_other_weights(data):
    recipe = Recipe(epochs=3, batch_size=8)
    a, b, c = (fit(network(), data, recipe, seed=s).weights for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_steps_are_those_of_torchs_optimiser(data):
    recipe = Recipe(epochs=3, batch_size=16, lr=0.1, momentum=0.9, weight_decay=0.01)
    # torch's weight decay pulls to zero, so the start is put there.
    trained = network()
    zero = Trained.of(trained.module(), init=torch.zeros_like(trained.weights))
    made = fit(zero, data, recipe, seed=4)
    model = trained.module()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for epoch in range(3):
        for rows in permutation(40, 4, epoch).split(16):
            batch = data.fetch(rows)
            optimiser.zero_grad()
            cross_entropy(model(batch.x), batch.y).backward()
            optimiser.step()
    assert torch.allclose(made.weights, zero.vector(model), rtol=0, atol=1e-14)


def test_decay_pulls_to_the_start_in_closed_form():
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(30, 1, generator=generator, dtype=torch.float64)
    w0 = torch.randn(4, generator=generator, dtype=torch.float64)
    trained = Trained.of(nn.Linear(4, 1, bias=False).double(), SquaredError())
    made = fit(
        trained.at(w0), Data.of((X, y)), Recipe(epochs=600, batch_size=30, lr=0.2, momentum=0.5, weight_decay=0.3)
    )
    ridge = 0.3 * torch.eye(4, dtype=torch.float64)
    want = torch.linalg.solve(X.T @ X / 30 + ridge, X.T @ y[:, 0] / 30 + ridge @ w0)
    assert torch.allclose(made.weights, want, rtol=0, atol=1e-12)
    assert made.init is not None
    assert torch.equal(made.init, w0)
    assert made.weight_decay == 0.3


def test_a_known_start_stays_the_anchor(data):
    trained = network()
    start = trained.weights + 1
    made = fit(Trained.of(trained.module(), init=start), data, Recipe(epochs=1))
    assert made.init is not None
    assert torch.equal(made.init, start)


@pytest.mark.parametrize("stop", [1, 2, 4])
@pytest.mark.parametrize("options", [{"dropout": 0.5}, {}])
def test_interrupted_and_resumed_gives_the_same_bytes(data, tmp_path: Path, stop, options):
    recipe = Recipe(epochs=5, batch_size=8, weight_decay=0.1, schedule="one-cycle", freeze_statistics=False)
    start = network(**options) if options else Trained.of(Normed().double())

    def interrupt(epoch: int, now: Trained) -> None:
        if epoch == stop:
            raise KeyboardInterrupt

    whole = fit(start, data, recipe, seed=3)
    path = tmp_path / "training.safetensors"
    with pytest.raises(KeyboardInterrupt):
        fit(start, data, recipe, seed=3, checkpoint=path, watch=interrupt)
    resumed = fit(start, data, recipe, seed=3, checkpoint=path)
    assert torch.equal(whole.weights, resumed.weights)
    for (_, a), (_, b) in zip(whole.model.named_buffers(), resumed.model.named_buffers(), strict=True):
        assert torch.equal(a, b)
    again = fit(start, data, recipe, seed=3, checkpoint=path)
    assert torch.equal(whole.weights, again.weights)
    assert [p.name for p in tmp_path.iterdir()] == ["training.safetensors"]


def test_resuming_really_skips_what_is_done(data, tmp_path: Path):
    recipe, seen = Recipe(epochs=4), []
    start = network()

    def interrupt(epoch: int, now: Trained) -> None:
        seen.append(epoch)
        if len(seen) == 3:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fit(start, data, recipe, checkpoint=tmp_path / "c", watch=interrupt)
    fit(start, data, recipe, checkpoint=tmp_path / "c", watch=interrupt)
    assert seen == [1, 2, 3, 3, 4]


def test_foreign_and_broken_checkpoints_are_refused(data, tmp_path: Path):
    start, path = network(), tmp_path / "c"
    fit(start, data, Recipe(epochs=1), checkpoint=path)
    for other in ({"seed": 1}, {"recipe": Recipe(epochs=2)}, {"data": data.select(range(30))}):
        arguments = {"data": data, "recipe": Recipe(epochs=1), "seed": 0} | other
        with pytest.raises(MismatchError, match=r"must come from this very training.*Give another `checkpoint`"):
            fit(start, checkpoint=path, **arguments)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"cannot be read.*Delete it to train from the beginning"):
        fit(start, data, Recipe(epochs=1), checkpoint=path)


def test_it_stops_some_epochs_after_the_training_error_is_zero():
    # One row far on the right side of the line: the first epoch already makes no mistake.
    easy = Data.of((torch.ones(1, 5, dtype=torch.float64), torch.tensor([1])))
    line = nn.Linear(5, 3).double()
    nn.init.zeros_(line.weight)
    with torch.no_grad():
        line.bias.copy_(torch.tensor([0.0, 9.0, 0.0]))
    start = Trained.of(line)
    seen: list[int] = []
    for patience, epochs in ((0, 1), (3, 4), (9, 6), (None, 6)):
        seen.clear()
        fit(start, easy, Recipe(epochs=6, patience=patience), watch=lambda epoch, now: seen.append(epoch))
        assert seen == list(range(1, epochs + 1))


def test_patience_counts_from_the_first_epoch_without_a_mistake(data):
    # The errors of an epoch are those of its own forward passes, and with one batch that is the network before it.
    data = data.select(range(10))
    start, recipe = network(), Recipe(epochs=300, lr=0.5, momentum=0.0, batch_size=10, patience=2)
    seen: list[int] = []
    fit(start, data, recipe, watch=lambda epoch, now: seen.append(epoch))
    now, wrong = start, []
    for _ in range(300):
        wrong.append(int((now.predict(data).argmax(1) != data.labels()).sum()))
        now = fit(now, data, recipe.but(epochs=1, patience=None))
        if not wrong[-1]:
            break
    assert wrong[-1] == 0
    assert len(seen) == len(wrong) + 2


def test_a_watch_that_says_true_ends_it(data, tmp_path: Path):
    recipe, start = Recipe(epochs=9), network()
    made = fit(start, data, recipe, checkpoint=tmp_path / "c", watch=lambda epoch, now: epoch == 2)
    assert torch.equal(made.weights, fit(start, data, recipe.but(epochs=2)).weights)
    assert torch.equal(made.weights, fit(start, data, recipe, checkpoint=tmp_path / "c").weights)


def test_coupled_batches_are_those_of_the_whole_with_rows_left_out(data):
    kept = data.select([i for i in reversed(range(40)) if i % 3])
    whole, part = Order.of(data, None, 8, 5), Order.of(kept, data, 8, 5)
    for epoch in range(3):
        for a, b in zip(whole.epoch(epoch), part.epoch(epoch), strict=True):
            assert kept.rows[b].tolist() == [row for row in data.rows[a].tolist() if row % 3]
    assert whole.epoch(0)[0].tolist() != whole.epoch(1)[0].tolist()


def test_coupling_to_itself_changes_nothing(data):
    recipe, start = Recipe(epochs=2, batch_size=8), network()
    assert torch.equal(fit(start, data, recipe).weights, fit(start, data, recipe, order_of=data).weights)


def listed_otherwise(data: Data, seed: int = 3) -> Data:
    return data.select(torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)))


def test_how_rows_are_listed_makes_no_other_training(data):
    recipe, start, mixed = Recipe(epochs=3, batch_size=8, lr=0.2), network(), listed_otherwise(data)
    assert torch.equal(fit(start, mixed, recipe, seed=2).weights, fit(start, data, recipe, seed=2).weights)
    for order_of in (data, mixed):
        part = mixed.select(range(25))
        sorted_part = data.select(part.rows.sort().values)
        found = [fit(start, one, recipe, seed=2, order_of=order_of).weights for one in (part, sorted_part)]
        assert torch.equal(found[0], found[1])


def test_retraining_follows_an_original_whose_rows_were_not_sorted(data):
    """By position, the retraining met other batches than the original did: 6.36 apart where 2.87 was the forgetting."""
    recipe, start = Recipe(epochs=4, batch_size=8, lr=0.3), network()
    apart = []
    for listed in (data, listed_otherwise(data)):
        original = fit(start, listed, recipe, seed=5)
        gone = listed.select((listed.rows % 10 == 3).nonzero().flatten())
        split = Split(forget=gone, kept=listed.without(gone))
        retrained = Retrain(seed=5)(original, split).mean
        apart.append(float((retrained - original.weights).norm()))
    w, v = start.weights.clone(), torch.zeros_like(start.weights)
    for epoch in range(4):
        for rows in permutation(40, 5, epoch).split(8):
            batch = data.fetch(rows[rows % 10 != 3])
            (g,) = torch.autograd.grad(start.losses(batch.x, batch.y, w.requires_grad_(True)).mean(), w)
            v = 0.9 * v + g
            w = w.detach() - 0.3 * v
    assert torch.allclose(retrained, w, rtol=0, atol=1e-12)
    assert apart[0] == apart[1]


def test_coupled_training_by_hand_with_empty_batches(data):
    recipe = Recipe(epochs=2, batch_size=2, lr=0.3, schedule="cosine", weight_decay=0.05)
    start, kept = network(), data.select(range(6))
    made = fit(start, kept, recipe, seed=7, order_of=data)
    w, v, t = start.weights.clone(), torch.zeros_like(start.weights), 0
    for epoch in range(2):
        for rows in permutation(40, 7, epoch).split(2):
            rows = rows[rows < 6]
            if len(rows):
                w.requires_grad_(True)
                batch = data.fetch(rows)
                (g,) = torch.autograd.grad(start.losses(batch.x, batch.y, w).mean(), w)
                w = w.detach()
                v = 0.9 * v + g + 0.05 * (w - start.weights)
                w = w - 0.15 * (1 + torch.cos(torch.tensor(torch.pi * t / 40, dtype=torch.float64))) * v
            t += 1
    assert torch.allclose(made.weights, w, rtol=0, atol=1e-13)


def test_coupling_refuses_strangers(data):
    start, recipe = network(), Recipe(epochs=1)
    with pytest.raises(MismatchError, match=r"10 of 40 rows are not in `order_of`"):
        fit(start, data, recipe, order_of=data.select(range(30)))
    other = Data.of((torch.zeros(40, 5), torch.zeros(40).long()))
    with pytest.raises(MismatchError, match="both look at the same source"):
        fit(start, data, recipe, order_of=other)
    with pytest.raises(MismatchError, match="`data` repeats some"):
        fit(start, data.select([0, 0]), recipe, order_of=data)
    relabelled = data.select([3, 1]).relabel(torch.tensor([0, 0]))
    fit(start, relabelled, recipe, order_of=data)


def test_dropout_follows_the_seed_alone_and_leaves_the_generator_alone(data):
    start, recipe = network(dropout=0.5), Recipe(epochs=2, batch_size=8)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    a = fit(start, data, recipe).weights
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(a, fit(start, data, recipe).weights)
    assert not torch.equal(a, fit(start, data, recipe.but(dropout=False)).weights)
    plain = Trained.of(MLP(5, 3, hidden=(7,)).double())
    assert torch.equal(fit(start, data, recipe.but(dropout=False)).weights, fit(plain, data, recipe).weights)


def test_batchnorm_statistics_stand_still_or_move(data):
    start, recipe = Trained.of(Normed().double()), Recipe(epochs=2, batch_size=8)
    before = {name: value.clone() for name, value in start.model.named_buffers()}
    still = dict(fit(start, data, recipe).model.named_buffers())
    assert all(torch.equal(value, before[name]) for name, value in still.items())
    moved = dict(fit(start, data, recipe.but(freeze_statistics=False)).model.named_buffers())
    assert int(moved["norm.num_batches_tracked"]) == 10
    mean = before["norm.running_mean"]
    for epoch in range(2):
        for rows in permutation(40, 0, epoch).split(8):
            x = data.fetch(rows).x
            assert isinstance(x, Tensor)
            mean = 0.9 * mean + 0.1 * x.mean(0)
    assert torch.allclose(moved["norm.running_mean"], mean, rtol=0, atol=1e-14)
    assert all(torch.equal(value, before[name]) for name, value in start.model.named_buffers())


def test_the_callers_model_is_not_touched(data):
    model = Normed().double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = fit(Trained.of(model), data, Recipe(epochs=1, freeze_statistics=False))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in (*model.parameters(), *made.model.parameters()))
    assert not made.model.training


def test_frozen_and_tied_parameters(data):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.head = nn.Linear(5, 5), nn.Linear(5, 3)
            self.b = self.a
            self.head.bias.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.b(self.a(x).tanh()))

    start = Trained.of(Tied().double())
    made = fit(start, data, Recipe(epochs=2)).module()
    assert isinstance(made, Tied)
    assert made.a.weight is made.b.weight
    assert torch.equal(made.head.bias, start.model.head.bias)  # type: ignore[arg-type, union-attr]  # a Tied
    assert not torch.equal(made.a.weight, start.model.a.weight)  # type: ignore[arg-type, union-attr]  # a Tied


def test_dictionaries_and_logits_train_too(data):
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = MLP(5, 3, hidden=(7,))

        def forward(self, pixels: Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.inner(pixels))

    named = Data.of(({"pixels": data.source.x}, data.source.y))
    recipe = Recipe(epochs=2, batch_size=8)
    made = fit(Trained.of(Named().double()), named, recipe)
    assert torch.equal(made.weights, fit(network(), data, recipe).weights)


def test_a_data_set_that_is_read_row_by_row_gives_the_same(data):
    rows = [(data.source.x[i], data.source.y[i]) for i in range(40)]
    recipe = Recipe(epochs=2, batch_size=8)
    assert torch.equal(fit(network(), Data.of(rows), recipe).weights, fit(network(), data, recipe).weights)


def test_it_trains_inside_no_grad(data):
    with torch.no_grad():
        made = fit(network(), data, Recipe(epochs=1))
    assert torch.equal(made.weights, fit(network(), data, Recipe(epochs=1)).weights)


def test_what_cannot_be_trained_is_refused(data):
    with pytest.raises(NumericsError, match=r"must be finite, but it is .* in epoch \d+. Lower the learning rate"):
        fit(network(), data, Recipe(epochs=50, lr=1e200))
    nan = Data.of((torch.full((4, 5), torch.nan, dtype=torch.float64), torch.zeros(4).long()))
    with pytest.raises(NumericsError, match=r"nan in epoch 1.*NaN among the inputs"):
        fit(network(), nan, Recipe(epochs=1))
    with pytest.raises(NeedError, match=r"Training needs a recipe.*Give `recipe="):
        fit(network(), data)
    with pytest.raises(DataError, match="There is no row to train on"):
        fit(network(), data.select([]), Recipe())
    with pytest.raises(SettingError, match="A seed must be zero or positive, but got -1"):
        fit(network(), data, Recipe(epochs=1), seed=-1)


def test_no_epochs_change_nothing_but_the_recipe(data):
    start = network()
    made = fit(start, data, Recipe(epochs=0, weight_decay=0.2))
    assert torch.equal(made.weights, start.weights)
    assert made.recipe == Recipe(epochs=0, weight_decay=0.2)
