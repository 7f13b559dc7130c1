"""Recipes beyond plain SGD against loops around `torch.optim`, which share no code with the package."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, SettingError
from spotlessnet.core.loss import CrossEntropy, SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes
from spotlessnet.core.trained import Trained
from spotlessnet.methods.finetune import Finetune
from spotlessnet.training import fit, fit_many, lr_at
from spotlessnet.training.batches import permutation

STEPS = 4 * 5  # four epochs of 40 rows in batches of 8
FULL = Recipe(
    epochs=4, batch_size=8, lr=0.02, optimizer="adamw", weight_decay=0.3, decay_toward="zero", decay_on="matrices",
    schedule="cosine", warmup_ratio=0.25, max_grad_norm=0.05, label_smoothing=0.1,
)  # fmt: skip


@pytest.fixture
def data() -> Data:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Data.of((x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()))


def made_network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3)).double()


def schedule_of(optimiser: torch.optim.Optimizer) -> LRScheduler:
    warm = LinearLR(optimiser, start_factor=1 / 6, total_iters=5)
    return SequentialLR(optimiser, [warm, CosineAnnealingLR(optimiser, STEPS - 5)], milestones=[5])


def plain_loop(model: nn.Module, data: Data, optimiser: torch.optim.Optimizer, *, smoothing=0.0, clip=None, warm=False):
    """What somebody would write by hand, batches in the order of seed 4."""
    scheduler = schedule_of(optimiser) if warm else None
    for epoch in range(4):
        for rows in permutation(40, 4, epoch).split(8):
            batch = data.fetch(rows)
            optimiser.zero_grad()
            cross_entropy(model(batch.x), batch.y, label_smoothing=smoothing).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimiser.step()
            if scheduler is not None:
                scheduler.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_full_adamw_recipe_is_the_loop_that_torch_users_write(data):
    model = made_network()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    want = plain_loop(model, data, torch.optim.AdamW(groups, lr=0.02), smoothing=0.1, clip=0.05, warm=True)
    made = fit(Trained.of(made_network()), data, FULL, seed=4)
    assert torch.allclose(made.weights, want, rtol=0, atol=1e-12)
    # Each setting changes something, so none of them can be dropped without this test failing.
    plain = {"optimizer": "adam", "decay_toward": "init", "decay_on": "all", "schedule": "linear", "warmup_ratio": 0.0}
    for name, value in (plain | {"max_grad_norm": None, "label_smoothing": 0.0, "weight_decay": 0.0}).items():
        other = fit(Trained.of(made_network()), data, FULL.but(**{name: value}), seed=4)
        assert float((other.weights - want).abs().max()) > 1e-6, name


@pytest.mark.parametrize(
    ("recipe", "optimiser"),
    [
        (
            Recipe(optimizer="adam", weight_decay=0.2, betas=(0.8, 0.95), eps=1e-6),
            lambda p: torch.optim.Adam(p, lr=0.03, weight_decay=0.2, betas=(0.8, 0.95), eps=1e-6),
        ),
        (
            Recipe(optimizer="adamw", weight_decay=0.2),
            lambda p: torch.optim.AdamW(p, lr=0.03, weight_decay=0.2),
        ),
        (
            Recipe(optimizer="sgd", momentum=0.8, weight_decay=0.2, max_grad_norm=0.3),
            lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8, weight_decay=0.2),
        ),
    ],
)  # fmt: skip
def test_every_optimiser_is_torchs(data, recipe, optimiser):
    model = made_network()
    want = plain_loop(model, data, optimiser(model.parameters()), clip=recipe.max_grad_norm)
    recipe = recipe.but(epochs=4, batch_size=8, lr=0.03, decay_toward="zero")
    made = fit(Trained.of(made_network()), data, recipe, seed=4)
    assert torch.allclose(made.weights, want, rtol=0, atol=1e-12)


def test_decoupled_decay_toward_the_start_is_that_of_adamw_around_it(data):
    """AdamW on the distance from the start is AdamW that decays toward the start."""

    class FromStart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.moved = made_network(), nn.ParameterDict()
            for name, p in self.inner.named_parameters():
                self.moved[name.replace(".", "/")] = nn.Parameter(torch.zeros_like(p))

        def forward(self, x: Tensor) -> Tensor:
            at = {n: p.detach() + self.moved[n.replace(".", "/")] for n, p in self.inner.named_parameters()}
            return torch.func.functional_call(self.inner, at, (x,))

    model = FromStart()
    optimiser = torch.optim.AdamW(model.moved.parameters(), lr=0.02, weight_decay=0.5)
    plain_loop(model, data, optimiser)
    recipe = Recipe(epochs=4, batch_size=8, lr=0.02, optimizer="adamw", weight_decay=0.5)
    start = Trained.of(made_network())
    made = fit(start, data, recipe, seed=4)
    want = torch.cat([model.moved[n.replace(".", "/")].detach().flatten() for n in start.names])
    assert torch.allclose(made.weights - start.weights, want, rtol=0, atol=1e-12)


def test_warmed_up_rates_are_those_of_torch():
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.02)
    theirs = schedule_of(optimiser)
    for step in range(STEPS):
        want = optimiser.param_groups[0]["lr"]
        assert lr_at(FULL, step, STEPS) == pytest.approx(want, rel=1e-12)
        optimiser.step()
        theirs.step()
    linear = LambdaLR(optimiser, lambda t: (t + 1) / 6 if t < 5 else (STEPS - t) / 15)
    for step in range(STEPS):
        assert lr_at(FULL.but(schedule="linear"), step, STEPS) == pytest.approx(linear.get_last_lr()[0], rel=1e-15)
        linear.step()


def test_label_smoothing_is_torchs_and_leaves_the_hessian_alone():
    outputs = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    ours = CrossEntropy(label_smoothing=0.2)
    want = cross_entropy(outputs, y, label_smoothing=0.2, reduction="none")
    assert torch.allclose(ours(outputs, y), want, rtol=0, atol=1e-14)
    dense = torch.func.hessian(lambda o: cross_entropy(o.unsqueeze(0), y[:1], label_smoothing=0.2))(outputs[0])
    v = torch.randn(6, 4, dtype=torch.float64)
    assert torch.allclose(ours.hessian_product(outputs, y, v)[0], dense @ v[0], rtol=0, atol=1e-14)


RECIPES = [
    FULL,
    FULL.but(optimizer="adam", decay_toward="init", decay_on="all"),
    FULL.but(optimizer="sgd", patience=0),
]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("batch_size", [2, 8])
def test_together_is_one_by_one(data, recipe, batch_size):
    recipe = recipe.but(epochs=3, batch_size=batch_size)
    start, seeds = Trained.of(made_network()), [3, 0, 3, 7]
    keep = torch.rand(4, 40, generator=torch.Generator().manual_seed(1)) < torch.tensor([[0.1], [0.5], [0.9], [1.0]])
    together = fit_many(start, data, recipe, seeds=seeds, keep=keep)
    for s, seed in enumerate(seeds):
        alone = fit(start, data.select(keep[s].nonzero().flatten()), recipe, seed=seed, order_of=data)
        assert torch.allclose(together[s], alone.weights, rtol=0, atol=1e-12)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.drop = made_network(), nn.BatchNorm1d(5).double(), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.drop(self.norm(x)))


def shifted(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 0.3 * torch.randn(x.shape, generator=generator, dtype=x.dtype)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("stop", [1, 3])
def test_interrupted_and_resumed_gives_the_same_bytes(data, tmp_path: Path, stop, optimizer):
    recipe = FULL.but(optimizer=optimizer, freeze_statistics=False, augment=shifted)
    start, path = Trained.of(Noisy()), tmp_path / "training.safetensors"

    def interrupt(epoch: int, now: Trained) -> None:
        if epoch == stop:
            raise KeyboardInterrupt

    whole = fit(start, data, recipe, seed=3)
    with pytest.raises(KeyboardInterrupt):
        fit(start, data, recipe, seed=3, checkpoint=path, watch=interrupt)
    resumed = fit(start, data, recipe, seed=3, checkpoint=path)
    assert torch.equal(whole.weights, resumed.weights)
    for (_, a), (_, b) in zip(whole.model.named_buffers(), resumed.model.named_buffers(), strict=True):
        assert torch.equal(a, b)
    for other in ({"optimizer": "sgd"}, {"augment": None}, {"betas": (0.5, 0.9)}, {"warmup_ratio": 0.0}):
        with pytest.raises(MismatchError, match="must come from this very training"):
            fit(start, data, recipe.but(**other), seed=3, checkpoint=path)


def test_augmentation_follows_seed_and_step_alone(data):
    recipe, start = Recipe(epochs=2, batch_size=8, augment=shifted), Trained.of(made_network())
    a, b, c = (fit(start, data, recipe, seed=s).weights for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not torch.equal(a, fit(start, data, recipe.but(augment=None), seed=1).weights)
    seen: list[tuple[int, float]] = []

    def remember(x: Tensor, generator: torch.Generator) -> Tensor:
        seen.append((len(x), float(torch.rand((), generator=generator))))
        return x

    fit(start, data, recipe.but(augment=remember), seed=1)
    whole, seen = seen, []
    fit(start, data.select(range(30)), recipe.but(augment=remember), seed=1, order_of=data)
    # Rows that are left out change what is drawn within a batch, but not what other batches draw.
    assert [drawn for _, drawn in seen] == [drawn for _, drawn in whole]
    assert sum(n for n, _ in seen) == 60


class LikeTorchvision(nn.Module):
    """The shape of a `torchvision.transforms.v2` object: a module with `forward(*inputs)`, torch's own generator."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0].roll(int(torch.randint(-1, 2, ())), dims=-1)


def transform_of_torchvision() -> nn.Module:
    try:
        v2 = importlib.import_module("torchvision.transforms.v2")
    except (ImportError, RuntimeError) as error:  # a build for another torch fails with a RuntimeError
        pytest.skip(f"torchvision cannot be imported: {error}")
    return v2.RandomAffine(degrees=30, translate=(0.2, 0.2))


@pytest.mark.parametrize("make", [LikeTorchvision, transform_of_torchvision])
def test_transforms_of_torchvision_work_and_follow_the_seed(make):
    transform = make()
    x = torch.rand(20, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    data = Data.of((x, torch.arange(20) % 3))
    start = Trained.of(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)))
    recipe = Recipe(epochs=2, batch_size=8, augment=transform)
    a, b, c = (fit(start, data, recipe, seed=s).weights for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert type(transform).__name__ in recipe.described()["augment"]


def test_a_transform_that_does_not_return_the_batch_is_refused(data):
    with pytest.raises(DataError, match=r"must return the 8 inputs of a batch, but gave Tensor of 7"):
        fit(Trained.of(made_network()), data, Recipe(epochs=1, batch_size=8, augment=lambda x: x[1:]))


def test_bf16_rounds_the_forward_pass_and_keeps_the_weights(data):
    recipe, start = Recipe(epochs=3, batch_size=8, lr=0.1), Trained.of(made_network().float())
    full, half = (fit(start, data, recipe.but(bf16=b)) for b in (False, True))
    assert half.dtype == torch.float32
    moved, apart = (full.weights - start.weights).norm(), (full.weights - half.weights).norm()
    assert 0 < float(apart) < 0.1 * float(moved)
    assert torch.equal(half.weights, fit(start, data, recipe.but(bf16=True)).weights)


def test_a_decay_that_is_no_penalty_is_not_told_as_one(data):
    start = made_network()
    for recipe, penalty in (
        (Recipe(weight_decay=0.2), 0.2),
        (Recipe(weight_decay=0.2, optimizer="adam"), 0.2),
        (Recipe(weight_decay=0.2, optimizer="adamw"), None),
        (Recipe(weight_decay=0.0, optimizer="adamw"), 0.0),
        (Recipe(weight_decay=0.2, decay_on="matrices"), None),
    ):
        assert Trained.of(start, recipe=recipe).weight_decay == penalty
        assert fit(Trained.of(start), data, recipe.but(epochs=1)).weight_decay == penalty
    to_zero = Trained.of(start, init=start, recipe=Recipe(decay_toward="zero"))
    assert not to_zero.anchor.any()
    assert to_zero.init is not None
    assert to_zero.init.any()


def test_fine_tuning_goes_on_with_the_optimiser_and_decay_of_the_training():
    start = made_network()
    tuned = Finetune(epochs=2).recipe(Trained.of(start, init=start, recipe=FULL), Notes())
    # At a tenth of the rate: the training's had fallen, and its peak would undo what was learnt at the end.
    assert tuned == FULL.but(epochs=2, lr=FULL.lr / 10, schedule="constant", warmup_ratio=0.0, label_smoothing=0.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"betas": (0.9, 1.0)}, r"`Recipe.betas\[1\]` must be in \[0, 1\)"),
        ({"warmup_ratio": 1.0}, "`Recipe.warmup_ratio` must be in"),
        ({"warmup_ratio": 0.1, "schedule": "one-cycle"}, "must be zero with the one-cycle schedule"),
        ({"label_smoothing": -0.1}, "`Recipe.label_smoothing` must be in"),
        ({"max_grad_norm": 0.0}, "`Recipe.max_grad_norm`"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong, said):
    with pytest.raises(SettingError, match=said):
        Recipe(**wrong)


def test_smoothing_and_time_are_refused_where_they_are_not_defined(data):
    with pytest.raises(SettingError, match="needs softmax cross-entropy, but the loss is 'squared error'"):
        fit(Trained.of(made_network(), SquaredError()), data, Recipe(label_smoothing=0.1))
    with pytest.raises(SettingError, match='defined for `optimizer="sgd"`'):
        Recipe(optimizer="adam").time(3)
