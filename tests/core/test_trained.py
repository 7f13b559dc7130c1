"""Any network as a point in weight space, whatever its shape, and never touched."""

import copy
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, float64, nn

from spotlessnet.core.buffers import share_buffers
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, NumericsError, SettingError
from spotlessnet.core.loss import CrossEntropy, PerSample, SquaredError, as_loss, logits_of
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import Fisher
from spotlessnet.precomputed.fold_models import train_fold_models
from spotlessnet.precomputed.precompute import precompute


class Answer:
    """What transformers return."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class WithLogits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Answer:
        return Answer(self.head(x))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(left) - self.head(right)}


class Tied(nn.Module):
    """An embedding that is also the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x))


def bn_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2)).double()


def bytes_of(model: nn.Module) -> bytes:
    return b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())


def test_outputs_are_the_modules_own_in_eval_mode():
    model = bn_network()
    x = torch.randn(7, 3, dtype=float64)
    trained = Trained.of(model)
    torch.testing.assert_close(trained.outputs(x), copy.deepcopy(model).eval()(x), rtol=0, atol=0)


def test_batch_statistics_stand_still_and_dropout_is_off():
    model = bn_network().train()
    before = bytes_of(model)
    trained = Trained.of(model)
    x = 5 + torch.randn(20, 3, dtype=float64)
    first, second = trained.outputs(x), trained.outputs(x)
    assert torch.equal(first, second)
    assert bytes_of(model) == before
    assert model.training, "the caller's module keeps its mode"
    assert bytes_of(trained.model) == before


def test_the_callers_module_is_never_shared():
    model = nn.Linear(2, 2)
    trained = Trained.of(model)
    with torch.no_grad():
        model.weight.zero_()
    assert trained.weights[:4].abs().sum() > 0
    assert trained.module().weight.abs().sum() > 0  # type: ignore[operator]  # a Linear


def test_at_moves_a_copy_and_module_takes_it_away():
    trained = Trained.of(nn.Linear(2, 2))
    moved = trained.at(torch.ones(6))
    assert not torch.equal(trained.weights, moved.weights)
    taken = moved.module()
    assert all(bool((p == 1).all()) for p in taken.parameters())
    assert not torch.equal(trained.module().weight, taken.weight)  # type: ignore[arg-type]  # Linear's own


def test_weights_follow_named_parameters_and_come_back():
    model = bn_network()
    trained = Trained.of(model)
    assert trained.names == tuple(n for n, _ in model.named_parameters())
    torch.testing.assert_close(trained.weights, torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    pieces = trained.unflatten(trained.weights)
    assert all(torch.equal(pieces[n], p) for n, p in model.named_parameters())


def test_frozen_parameters_stay_in_the_module():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    trained = Trained.of(model)
    assert trained.names == ("1.weight", "1.bias")
    x = torch.randn(5, 3)
    torch.testing.assert_close(trained.outputs(x), model(x))
    moved = trained.at(torch.zeros(10))
    assert torch.equal(moved.module()[0].weight, model[0].weight)  # type: ignore[index, arg-type]  # a Sequential


def test_tied_parameters_count_once_and_move_together():
    model = Tied()
    trained = Trained.of(model)
    assert trained.size == 15
    assert trained.names == ("embed.weight",)
    w = torch.randn(15)
    x = torch.tensor([0, 3])
    E = w.view(5, 3)
    torch.testing.assert_close(trained.outputs(x, w), E[x] @ E.T)
    taken = trained.module(w)
    assert taken.head.weight is taken.embed.weight  # type: ignore[union-attr]
    torch.testing.assert_close(taken(x), E[x] @ E.T)


def test_named_inputs_and_answers_with_logits():
    model = TwoInputs()
    data = Data.of(({"left": torch.randn(6, 3), "right": torch.randn(6, 3)}, torch.tensor([0, 1, 0, 1, 0, 1])))
    trained = Trained.of(model)
    batch = next(iter(trained.batches(data, 4)))
    assert isinstance(batch.x, dict)
    torch.testing.assert_close(trained.outputs(batch.x), model(**batch.x)["logits"])
    assert trained.predict(data).shape == (6, 2)
    x = torch.randn(4, 3)
    wrapped = WithLogits()
    torch.testing.assert_close(Trained.of(wrapped).outputs(x), wrapped(x).logits)


def test_logits_are_found_in_tuples_and_single_outputs_get_an_axis():
    assert logits_of((torch.ones(3, 2), None)).shape == (3, 2)
    assert logits_of(torch.ones(3)).shape == (3, 1)
    with pytest.raises(DataError, match=r"must answer with a tensor or an object with `.logits`, but gave str"):
        logits_of("no")


@pytest.mark.parametrize("dtype", [torch.float32, float64, torch.bfloat16])
def test_inputs_follow_the_networks_number_format(dtype: torch.dtype):
    trained = Trained.of(nn.Linear(3, 2).to(dtype))
    data = Data.of((torch.randn(5, 3, dtype=float64), torch.zeros(5, dtype=torch.long)))
    assert trained.dtype == dtype
    assert trained.predict(data).dtype == dtype
    integers = Data.of((torch.tensor([[0, 1]]), torch.tensor([0])))
    assert next(iter(trained.batches(integers))).x.dtype == torch.long  # type: ignore[union-attr]


def test_parallel_and_compiled_wrappers_are_taken_off():
    model = nn.Linear(3, 2)
    plain = Trained.of(model)
    for wrapped in (nn.DataParallel(model), torch.compile(model), torch.compile(nn.DataParallel(model))):
        trained = Trained.of(wrapped)  # type: ignore[arg-type]  # torch.compile returns a module
        assert trained.names == plain.names
        assert torch.equal(trained.weights, plain.weights)
        assert torch.equal(plain.vector(wrapped), plain.weights)  # type: ignore[arg-type]


def test_start_may_be_a_module_a_state_dict_or_a_vector():
    model, began = nn.Linear(2, 2), nn.Linear(2, 2)
    flat = torch.cat([began.weight.detach().reshape(-1), began.bias.detach()])
    starts: list[Any] = [began, began.state_dict(), flat]
    for start in starts:
        trained = Trained.of(model, init=start)
        assert trained.init is not None
        assert torch.equal(trained.init, flat)
        assert torch.equal(trained.anchor, flat)
    assert torch.equal(Trained.of(model).anchor, torch.zeros(6))


def test_decay_comes_from_the_recipe_unless_given():
    model = nn.Linear(2, 2)
    assert Trained.of(model).weight_decay is None
    assert Trained.of(model).known_weight_decay == 0.0
    assert Trained.of(model, recipe=Recipe(weight_decay=0.3)).weight_decay == 0.3
    assert Trained.of(model, recipe=Recipe(weight_decay=0.3), weight_decay=0.1).weight_decay == 0.1


def test_risk_is_mean_loss_plus_decay_toward_the_start():
    torch.manual_seed(1)
    model, x, y = nn.Linear(3, 2).double(), torch.randn(9, 3, dtype=float64), torch.randint(2, (9,))
    start = torch.randn(8, dtype=float64)
    trained = Trained.of(model, weight_decay=0.7, init=start)
    by_hand = nn.functional.cross_entropy(model(x), y) + 0.35 * (trained.weights - start).square().sum()
    torch.testing.assert_close(trained.risk(Data.of((x, y))), by_hand.detach(), rtol=1e-12, atol=0)


def test_outputs_differentiate_in_the_weights():
    trained = Trained.of(bn_network())
    x = torch.randn(4, 3, dtype=float64)
    J = torch.func.jacrev(lambda w: trained.outputs(x, w))(trained.weights)
    v = torch.randn(trained.size, dtype=float64)
    step = 1e-6
    ahead, behind = (trained.outputs(x, trained.weights + s * step * v) for s in (1, -1))
    torch.testing.assert_close(J @ v, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


def test_losses_may_be_named_given_or_left_out():
    assert isinstance(as_loss(None), CrossEntropy)
    assert isinstance(as_loss(SquaredError()), SquaredError)
    assert isinstance(as_loss(lambda out, y: out.sum(dim=1)), PerSample)
    with pytest.raises(SettingError, match=r"must be a `Loss`, one of .* or a function of \(outputs, y\), but got 3"):
        as_loss(3)


def test_what_cannot_be_wrapped_is_refused_with_the_reason():
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(SettingError, match="No parameter requires a gradient"):
        Trained.of(frozen)
    broken = nn.Linear(2, 2)
    nn.init.constant_(broken.bias, float("nan"))
    with pytest.raises(NumericsError, match="The weights of the network must be finite, but 2 of 6"):
        Trained.of(broken)
    two_places = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(MismatchError, match="must live on one device, but lies on cpu, meta"):
        Trained.of(two_places)
    with pytest.raises(SettingError, match=r"`Trained.decay` must be zero or positive, but got -1"):
        Trained.of(nn.Linear(2, 2), weight_decay=-1)


def test_weights_that_do_not_fit_are_refused():
    trained = Trained.of(nn.Linear(2, 2))
    with pytest.raises(MismatchError, match="has 6 weights, but got 5"):
        trained.at(torch.ones(5))
    with pytest.raises(MismatchError, match="has 6 weights, but got 7"):
        trained.vector(torch.ones(7))
    with pytest.raises(MismatchError, match="missing 1 parameters, first 'bias'"):
        trained.vector({"weight": torch.ones(2, 2)})
    with pytest.raises(MismatchError, match=r"'weight' has another shape, \(3, 2\)"):
        trained.vector({"weight": torch.ones(3, 2), "bias": torch.ones(2)})


def test_no_rows_give_no_answer():
    empty = Data.of((torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)))
    with pytest.raises(DataError, match="no row to answer about"):
        Trained.of(nn.Linear(2, 2)).predict(empty)


def test_training_mode_is_the_only_thing_that_wrapping_changes():
    model = bn_network()
    before = bytes_of(model)
    trained = Trained.of(model)
    trained.risk(Data.of((torch.randn(8, 3, dtype=float64), torch.zeros(8, dtype=torch.long))))
    trained.at(torch.zeros_like(trained.weights)).module()
    assert bytes_of(model) == before
    assert bytes_of(trained.model) == before


def test_a_notebook_is_not_flooded_with_numbers():
    network = Trained.of(nn.Linear(40, 30), recipe=Recipe(epochs=2, lr=0.1), init=nn.Linear(40, 30))
    x, y = torch.randn(40, 40), torch.arange(40) % 30
    data = Data.of((x, y))
    made = [network, Fisher()(network, Split(data.select([0]), data.select(range(1, 40))))]
    made += [precompute(network, data, rank=2), train_fold_models(network, data, folds=2)]
    assert str(network) == (
        "Trained(Linear, 1230 weights, loss='cross-entropy', weight_decay=0.0, known: init, recipe)"
    )
    assert all(len(repr(one)) < 200 and "tensor" not in repr(one) for one in made), made
    assert repr(made[1]).startswith("Gaussian(1230 weights, noise Diagonal")


def test_mixed_precision_that_a_training_left_around_forward_is_taken_off():
    """As accelerate does: `transformers.Trainer(bf16=True)` hands back such a network, and `Fisher` broke on it."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    plain = Trained.of(model)
    model._original_forward, model._is_accelerate_prepared = model.forward, True
    model.forward = MethodType(torch.autocast("cpu", torch.bfloat16)(model.forward.__func__), model)
    trained = Trained.of(model)
    assert torch.equal(trained.outputs(x), plain.outputs(x))
    assert not {"forward", "_original_forward", "_is_accelerate_prepared"} & trained.module().__dict__.keys()
    assert "_original_forward" in model.__dict__  # the caller's own is left as it is
    split = Split(forget=Data.of((x[:4], y[:4])), kept=Data.of((x[4:], y[4:])))
    assert Fisher()(trained, split).mean.isfinite().all()


def test_a_forward_of_the_modules_own_stays_under_mixed_precision():
    model: Any = nn.Linear(4, 3)
    own = model.forward = lambda x: x[:, :3]
    model._original_forward, model.forward = own, torch.autocast("cpu", torch.bfloat16)(own)
    assert torch.equal(Trained.of(model).module()(torch.ones(2, 4)), torch.ones(2, 3))


def test_networks_share_buffers_where_they_differ_by_weights_alone():
    norm = nn.BatchNorm1d(3)
    one = Trained.of(norm)
    assert share_buffers([one, one.at(one.weights + 1), one.at(one.weights)])
    moved = {name: value + 1 for name, value in norm.named_buffers()}
    assert not share_buffers([one, one.at(one.weights, moved)])


def test_buffers_that_no_state_dict_holds_are_no_reason_to_forget_the_others():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model.register_buffer("places", torch.arange(3), persistent=False)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    model[1].running_mean.add_(1)  # type: ignore[operator]  # BatchNorm's
    trained = Trained.of(model, init=start)
    assert trained.statistics_moved
    assert trained.init_buffers is not None
    assert torch.equal(trained.init_buffers["places"], torch.arange(3))
    assert torch.equal(trained.init_buffers["1.running_mean"], torch.zeros(3))
