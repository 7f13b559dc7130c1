"""The papers' baselines, each against what it is said to do."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, float64, nn

from spotlessnet.core.chaining import chain
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError, NumericsError, SettingError
from spotlessnet.core.loss import CrossEntropy, SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split, joined, some_of_class, whole_class
from spotlessnet.core.targets import Negated
from spotlessnet.core.trained import Trained
from spotlessnet.methods import Finetune, GradientAscent, Hiding, Newton, RandomLabels, Retrain
from spotlessnet.training.fit import fit
from tests.methods.problems import logistic_problem, optimum, ridge_problem


def gap(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm())


def loss_on(trained: Trained, data: Data) -> float:
    return float(torch.cat([trained.losses(b.x, b.y) for b in trained.batches(data)]).mean())


def test_retraining_finds_the_optimum_of_the_retained_data():
    trained, split = logistic_problem(0)
    best = optimum(trained, split.retain)
    for coupled in (True, False):
        torch.testing.assert_close(Retrain(coupled=coupled)(trained, split).mean, best, rtol=1e-5, atol=1e-5)


def test_coupled_retraining_repeats_the_order_with_the_rows_left_out():
    trained, split = logistic_problem(0)
    recipe = Recipe(epochs=3, lr=0.1, batch_size=5, weight_decay=0.1)
    known = replace(trained, recipe=recipe)
    assert known.init is not None
    by_hand = fit(known.at(known.init), split.retain, recipe, seed=4, order_of=split.whole).weights
    assert torch.equal(Retrain(seed=4)(known, split).mean, by_hand)
    other = Retrain(seed=4, coupled=False)(known, split).mean
    assert not torch.equal(other, by_hand)
    torch.testing.assert_close(other, fit(known.at(known.init), split.retain, recipe, seed=4).weights)


def test_retraining_needs_recipe_and_start():
    trained, split = logistic_problem(0)
    with pytest.raises(NeedError, match=r"but there is no recipe and init. Give both"):
        Retrain()(Trained.of(trained.module()), split)
    with pytest.raises(NeedError, match=r"but there is no init\."):
        Retrain()(Trained.of(trained.module(), recipe=Recipe()), split)
    moving = replace(trained, recipe=Recipe(epochs=1, freeze_statistics=False))
    # Statistics that move are retrained too, and this network keeps none: nothing is taken for granted.
    assert Retrain()(moving, split).diagnostics["assumed"] == []
    with pytest.raises(SettingError, match=r"`Retrain.seed` must be zero or positive, but got -1"):
        Retrain(seed=-1)


def test_retraining_may_keep_little_but_not_nothing():
    trained, split = logistic_problem(0, n=120, k=119)
    Retrain()(trained, split)
    nothing = Split(forget=split.whole, kept=split.whole.select([]))
    with pytest.raises(DataError, match="names all 120"):
        Retrain()(trained, nothing)


def test_long_fine_tuning_is_retraining_on_a_convex_problem():
    trained, split = logistic_problem(1)
    best = optimum(trained, split.retain)
    torch.testing.assert_close(Finetune(epochs=80)(trained, split).mean, best, rtol=1e-5, atol=1e-5)


def test_fine_tuning_changes_only_what_it_is_told_of_the_recipe():
    trained, split = logistic_problem(1)
    known = replace(trained, recipe=Recipe(epochs=50, lr=0.2, momentum=0.3, batch_size=7, weight_decay=0.1, patience=1))
    by_hand = fit(known, split.retain, Recipe(2, lr=0.2, momentum=0.0, batch_size=7, weight_decay=0.1), seed=3).weights
    assert torch.equal(Finetune(epochs=2, momentum=0.0, seed=3)(known, split).mean, by_hand)
    still = Finetune(epochs=0)(known, split)
    assert torch.equal(still.mean, known.weights)


def test_fine_tuning_says_what_it_did_not_know():
    trained, split = logistic_problem(1)
    blind = Finetune(epochs=1)(Trained.of(trained.module()), split).diagnostics["assumed"]
    assert any("recipe is not known" in text for text in blind)
    assert any("decay is not known" in text for text in blind)
    anchored = Finetune(epochs=1)(Trained.of(trained.module(), weight_decay=0.1, recipe=Recipe()), split).diagnostics[
        "assumed"
    ]
    assert anchored == ["the start of training is not known; the decay pulls to where the tuning begins"]
    assert Finetune(epochs=1)(trained, split).diagnostics["assumed"] == []


def test_a_step_and_finetuning_go_together():
    trained, split = logistic_problem(2)
    best = optimum(trained, split.retain)
    alone, finetuned = Newton()(trained, split).mean, Finetune(epochs=5)(trained, split).mean
    both = chain(Newton(), Finetune(epochs=5))(trained, split).mean
    assert gap(both, best) < gap(alone, best) < gap(trained.weights, best)
    assert gap(both, best) < gap(finetuned, best)


def test_negative_gradient_climbs_on_what_must_go():
    trained, split = logistic_problem(3)
    scrubbed = trained.at(GradientAscent(epochs=3, lr=0.1)(trained, split).mean)
    assert loss_on(scrubbed, split.forget) > loss_on(trained, split.forget) + 0.01
    alone = trained.at(GradientAscent(epochs=3, lr=0.1, descend=False)(trained, split).mean)
    assert loss_on(alone, split.retain) > loss_on(scrubbed, split.retain)


def test_one_climbing_step_is_the_gradient_with_its_sign_turned():
    trained, split = logistic_problem(3, weight_decay=0.0)
    once = GradientAscent(epochs=1, lr=0.1, momentum=0.0, descend=False)(trained, split)
    slope = torch.func.grad(lambda w: trained.risk(split.forget, w))(trained.weights)
    torch.testing.assert_close(once.mean, trained.weights + 0.1 * slope, rtol=1e-10, atol=1e-12)


def test_climbing_too_fast_is_noticed():
    trained, split = ridge_problem(0)
    with pytest.raises(NumericsError, match=r"Lower the learning rate"):
        GradientAscent(epochs=400, lr=1e6, descend=False)(trained, split)


def test_a_negated_loss_keeps_its_mistakes():
    f, y = torch.randn(3, 2), torch.tensor([0, 1, 0])
    torch.testing.assert_close(Negated(CrossEntropy())(f, y), -CrossEntropy()(f, y))
    assert torch.equal(Negated(CrossEntropy()).mistakes(f, y), CrossEntropy().mistakes(f, y))


def test_random_labels_are_never_the_true_ones_and_reach_every_other():
    trained, split = logistic_problem(0, n=300, k=150)
    drawn, truth = RandomLabels()._labels(trained, split.forget), split.forget.labels()
    assert not bool((drawn == truth).any())
    for label in range(3):
        shares = torch.bincount(drawn[truth == label], minlength=3) / (truth == label).sum()
        others = [c for c in range(3) if c != label]
        assert bool((shares[others] - 0.5).abs().max() < 0.25)


def test_random_labels_train_on_all_data_with_those_labels():
    trained, split = logistic_problem(4)
    method = RandomLabels(epochs=4, seed=2)
    x, y, _ = next(iter(split.whole.batches(1000)))
    y = y.clone()
    y[split.forgotten] = method._labels(trained, split.forget)
    notes_free = fit(trained, Data.of((x, y)), trained.recipe and trained.recipe.but(epochs=4), seed=2).weights
    torch.testing.assert_close(method(trained, split).mean, notes_free, rtol=1e-10, atol=1e-12)
    assert torch.equal(split.forget.labels(), logistic_problem(4)[1].forget.labels()), "the data keeps its labels"


def test_random_labels_work_across_sources_and_refuse_what_has_no_classes():
    trained, split = logistic_problem(4)
    x, y, _ = next(iter(split.forget.batches(1000)))
    apart = Split(forget=Data.of((x, y)), kept=split.retain)
    same = RandomLabels(epochs=2)(trained, split).mean
    torch.testing.assert_close(RandomLabels(epochs=2)(trained, apart).mean, same, rtol=1e-8, atol=1e-10)
    assert len(joined(split.retain, split.forget)) == len(split.whole)
    regression, rows = ridge_problem(0)
    with pytest.raises(SettingError, match=r"The method .random-labels. needs classes"):
        RandomLabels()(regression, rows)


def class_problem(model: nn.Module | None = None) -> tuple[Trained, Data]:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(30) % 3
    x = torch.randn(30, 4, generator=draw, dtype=float64) + 3 * nn.functional.one_hot(y, 4)
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)) if model is None else model
    trained = Trained.of(made.double(), recipe=Recipe(epochs=30, lr=0.1, batch_size=100), init=made)
    return fit(trained, Data.of((x, y))), Data.of((x, y))


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(4, 3),
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 3, bias=False)),
        nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 3, 1), nn.Flatten()),
    ],
    ids=["linear", "network", "no bias", "convolution"],
)
def test_hiding_shuts_one_class_and_leaves_the_others(model: nn.Module):
    trained, data = class_problem(model)
    split = whole_class(1)(data)
    result = Hiding()(trained, split)
    hidden = trained.at(result.mean)
    before, after = trained.predict(data), hidden.predict(data)
    assert not bool((after.argmax(dim=1) == 1).any())
    assert float(after.softmax(dim=1)[:, 1].max()) == 0.0
    torch.testing.assert_close(after[:, [0, 2]], before[:, [0, 2]], rtol=0, atol=0)
    if any(name.endswith("bias") for name in trained.names[-1:]):
        assert bool((after[:, 1] == -1e4).all()), "nothing of the class's own row may be left"
    assert result.diagnostics["hidden_class"] == 1
    assert result.is_noiseless


def test_hiding_refuses_what_it_cannot_hide():
    trained, data = class_problem()
    with pytest.raises(SettingError, match="forgets one whole class, but this request holds rows of 1 classes and lea"):
        Hiding()(trained, some_of_class(1, 3)(data))
    two = Split(forget=data.select([0, 1]), kept=data.select([2]))
    with pytest.raises(SettingError, match="holds rows of 2 classes and leaves 0 rows"):
        Hiding()(trained, Split(forget=two.forget, kept=data.select(range(2, 30, 3))))
    regression, rows = ridge_problem(0)
    with pytest.raises(SettingError, match=r"The method .hiding. needs classes"):
        Hiding()(regression, rows)
    signed = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))
    with pytest.raises(SettingError, match="last layer does not allow"):
        Hiding()(class_problem(signed)[0], whole_class(1)(data))
    mixed = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    with pytest.raises(SettingError, match="last layer does not allow"):
        Hiding()(class_problem(mixed)[0], whole_class(1)(data))
    frozen = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    frozen[2].requires_grad_(False)
    with pytest.raises(SettingError, match=r"last layer '2', but its weight and bias are frozen"):
        Hiding()(class_problem(frozen)[0], whole_class(1)(data))
    with pytest.raises(SettingError, match="needs a last Linear or Conv2d layer with 3 outputs"):
        Hiding()(class_problem(nn.Sequential(nn.Linear(4, 4), Narrow()))[0], whole_class(1)(data))


class Narrow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3]


@pytest.mark.parametrize("method", [Finetune, GradientAscent, RandomLabels])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": -1}, "epochs` must be zero or positive, but got -1"),
        ({"lr": 0.0}, "rate` must be positive, but got 0.0"),
        ({"batch_size": 0}, "batch` must be positive, but got 0"),
        ({"momentum": 1.0}, r"momentum` must be in \[0, 1\), but got 1.0"),
        ({"seed": -1}, "seed` must be zero or positive, but got -1"),
    ],
)
def test_bad_settings_are_named(method: type[Scrub], wrong: dict[str, Any], message: str):
    with pytest.raises(SettingError, match=f"`{method.__name__}.{message}"):
        method(**wrong)


def test_hiding_depth_must_be_positive():
    with pytest.raises(SettingError, match=r"`Hiding.depth` must be positive, but got -1.0"):
        Hiding(depth=-1.0)


def test_regression_can_be_fine_tuned_too():
    trained, split = ridge_problem(0)
    assert isinstance(trained.loss, SquaredError)
    assert loss_on(trained.at(Finetune(epochs=3)(trained, split).mean), split.retain) < loss_on(trained, split.retain)
