"""AMUN, LoTUS, MSG, CT and truncated retraining against their definitions, where one step can be written down."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import Retrain
from spotlessnet.methods.amun import AMUN
from spotlessnet.methods.ct import CT
from spotlessnet.methods.lotus import LoTUS
from spotlessnet.methods.msg import MSG
from spotlessnet.methods.truncated_retrain import TruncatedRetrain
from spotlessnet.operators.gradient import gradient
from spotlessnet.training.fit import fit
from tests.methods.problems import inputs

RATE = 0.1


def problem(classes: int = 3) -> tuple[Trained, Split]:
    """One batch holds everything, so an epoch is a single plain step."""
    torch.manual_seed(0)
    x = torch.randn(30, 4, dtype=float64)
    y = (x @ torch.randn(4, classes, dtype=float64)).argmax(dim=1)
    data = Data.of((x, y))
    recipe = Recipe(epochs=10, lr=RATE, momentum=0.0, batch_size=64)
    trained = Trained.of(nn.Linear(4, classes).double(), recipe=recipe)
    trained = fit(replace(trained, init=trained.weights), data)
    return trained, Split(forget=data.select(range(6)), kept=data.select(range(6, 30)))


def convolutions() -> tuple[Trained, Split]:
    torch.manual_seed(0)
    data = Data.of((torch.randn(30, 1, 6, 6, dtype=float64), torch.randint(3, (30,))))
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Conv2d(3, 2, (1, 2)), nn.Flatten(), nn.Linear(24, 3))
    recipe = Recipe(epochs=4, lr=RATE, momentum=0.0, batch_size=64)
    trained = Trained.of(model.double(), recipe=recipe)
    return replace(trained, init=trained.weights), Split(data.select(range(6)), data.select(range(6, 30)))


def step(trained: Trained, x: Tensor, answers: Tensor) -> Tensor:
    """Down the mean cross-entropy to soft answers, by dense autograd."""
    w = trained.weights.clone().requires_grad_()
    risk = -(answers * trained.outputs(x, w).log_softmax(dim=1)).sum(dim=1).mean()
    return trained.weights - RATE * torch.autograd.grad(risk, w)[0]


def test_amun_goes_straight_to_the_boundary_of_a_linear_network():
    """Two classes: the nearest wrong answer lies along the difference of their rows, at a known distance."""
    trained, split = problem(classes=2)
    x, y = inputs(split.forget)
    W, b = trained.weights[:8].view(2, 4), trained.weights[8:]
    sign = 2 * (y == 0).double() - 1
    far = (x @ (W[0] - W[1]) + b[0] - b[1]) * sign / (W[0] - W[1]).norm()
    moved, said = AMUN(epsilon=0.05).adversarial(trained, x, y)
    right = far > 0
    assert bool(right.any())
    assert torch.equal(said, 1 - y)
    away = moved - x
    direction = -sign.unsqueeze(1) * (W[0] - W[1]) / (W[0] - W[1]).norm()
    length = (away * direction).sum(dim=1)
    torch.testing.assert_close(away, length.unsqueeze(1) * direction)
    # The radius is doubled until it passes the boundary, so it is less than twice too far.
    radius = 0.05 * 2 ** (far[right] / 0.05).log2().ceil().clamp(min=0)
    torch.testing.assert_close(length[right], radius)


def test_amun_fine_tunes_on_all_rows_and_the_adversarial_ones():
    trained, split = problem()
    x, y = inputs(split.whole)
    moved, said = AMUN().adversarial(trained, *inputs(split.forget))
    told = nn.functional.one_hot(torch.cat([y, said]), 3).double()
    expected = step(trained, torch.cat([x, moved]), told)
    torch.testing.assert_close(AMUN(epochs=1)(trained, split).mean, expected)


def test_amun_says_before_any_work_that_it_cannot_move_texts():
    x, y = torch.randint(0, 9, (30, 6)), torch.arange(30) % 3
    data = Data.of((x, y))
    trained = Trained.of(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3)))
    gone = data.select(range(4))
    split = Split(forget=gone, kept=data.without(gone))
    with pytest.raises(SettingError, match=r"AMUN moves inputs a little, but these are not .* Use `SalUn`"):
        AMUN().check_needs(trained, split)


def test_lotus_tempers_by_how_much_better_forgotten_rows_are_answered():
    trained, split = problem()
    new = torch.randn(20, 4, dtype=float64)
    held = Data.of((new, (trained.outputs(new).argmax(dim=1) + (torch.arange(20) > 3)) % 3))
    split = replace(split, validation=held)
    accuracy = [float((trained.predict(d).argmax(1) == d.labels()).double().mean()) for d in (split.forget, held)]
    assert accuracy[0] > accuracy[1]
    tau = math.exp(1.5 * (accuracy[0] - accuracy[1]))
    z_f, z_r = trained.predict(split.forget), trained.predict(split.retain)
    told = torch.cat([(z_f / tau).softmax(1), nn.functional.one_hot(z_r.argmax(1), 3).double()])
    x = torch.cat([inputs(d)[0] for d in (split.forget, split.retain)])
    found = LoTUS(epochs=1, alpha=1.5, share=1.0, noise=False)(trained, split)
    torch.testing.assert_close(found.mean, step(trained, x, told))
    noisy = LoTUS(epochs=1, alpha=1.5, share=1.0)(trained, split)
    assert not torch.allclose(noisy.mean, found.mean)


def test_lotus_ends_where_forgotten_rows_are_answered_worse_than_new_ones():
    trained, split = problem()
    x = split.retain.fetch(split.retain.rows).x
    easy = Data.of((x, trained.predict(split.retain).argmax(dim=1)))
    wrong = split.forget.relabel((trained.predict(split.forget).argmax(dim=1) + 1) % 3)
    found = LoTUS(epochs=3)(trained, Split(wrong, split.retain, validation=easy))
    assert torch.equal(found.mean, trained.weights)
    with pytest.raises(SettingError, match=r"`LoTUS.share` must lie in \(0, 1\], but got 0"):
        LoTUS(share=0)


def test_msg_resets_the_smallest_and_masks_the_others():
    trained, split = convolutions()
    some = split.retain.select(torch.randperm(24, generator=torch.Generator().manual_seed(0))[:6])
    size = (gradient(trained, some) / 6 - gradient(trained, split.forget) / 6).abs()
    scrub = MSG(epochs=1, share=1 / 3)
    weights, reset = scrub._begun_anew(trained, size, 4, torch.Generator().manual_seed(5))
    first = size[:27].argsort()[:9]
    assert sorted(reset[:27].nonzero().squeeze(1).tolist()) == sorted(first.tolist())
    assert int(reset.sum()) == 9 + 4  # a third of 27 and of 12
    assert torch.equal(weights[~reset], trained.weights[~reset])
    many, _ = MSG(share=1.0)._begun_anew(trained, size, 4, torch.Generator().manual_seed(0))
    assert float(many[:27].std()) == pytest.approx(math.sqrt(2 / 27), rel=0.4)  # fan out: 3 kernels of 3 x 3
    # One step of fine-tuning: kernels that stayed move a tenth as fast. The rate of a first warm-up step is in both.
    draw = torch.Generator().manual_seed(0)
    torch.randperm(24, generator=draw)
    begun, fresh = scrub._begun_anew(trained, size, 4, draw)
    found = scrub(trained, split).mean - begun
    g = gradient(trained.at(begun), split.retain) / 24
    kernel = torch.zeros_like(fresh)
    kernel[:27] = True
    kernel[30:42] = True
    rate = found[-1] / g[-1]
    assert float(rate) < 0
    torch.testing.assert_close(found, rate * torch.where(kernel & ~fresh, 0.1, 1.0) * g)


def test_ct_is_fine_tuning_from_transposed_kernels():
    trained, split = convolutions()
    kernel = trained.weights[:27].view(3, 1, 3, 3)
    turned = trained.weights.clone()
    for o in range(3):
        for i in range(3):
            for j in range(3):
                turned[9 * o + 3 * i + j] = kernel[o, 0, j, i]
    g = gradient(trained.at(turned), split.retain) / 24
    torch.testing.assert_close(CT(epochs=1)(trained, split).mean, turned - RATE * g)
    flat, rows = problem()
    assert any("this is fine-tuning alone" in text for text in CT(epochs=1)(flat, rows).diagnostics["lost"])


def test_truncated_retraining_is_the_recipe_with_fewer_epochs():
    trained, split = problem()
    assert trained.recipe is not None
    short = replace(trained, recipe=trained.recipe.but(epochs=4))
    found = TruncatedRetrain(epoch_fraction=0.4)(trained, split).mean
    torch.testing.assert_close(found, Retrain()(short, split).mean, rtol=0, atol=0)
    whole = TruncatedRetrain(epoch_fraction=1.0)(trained, split).mean
    torch.testing.assert_close(whole, Retrain()(trained, split).mean, rtol=0, atol=0)
    share = TruncatedRetrain(epoch_fraction=0.4).cost(trained, split).usual / Retrain().cost(trained, split).usual
    assert share == pytest.approx(0.4)
