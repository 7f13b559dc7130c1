"""The training loop, spelt out from top to bottom, and `train`: the one door for whatever retrains, by a recipe or a
trainer of the user's own.
"""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from spotlessnet.core.data import Data, as_data
from spotlessnet.core.errors import MismatchError, NeedError, NumericsError, SettingError
from spotlessnet.core.loss import logits_of, smoothed
from spotlessnet.core.progress import track, working
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes
from spotlessnet.core.source import Inputs
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Buffers, Trained, as_trained, buffers_of, running_norms, unwrapped
from spotlessnet.core.trainer import Examples, check_read, name_of
from spotlessnet.training import checkpoint as checkpoints
from spotlessnet.training.batches import Order, Resident, augmented, mixed, repeatable
from spotlessnet.training.optimiser import Optimiser, lr_at

Watch = Callable[[int, Trained], bool | None]
Adjust = Callable[[Tensor, Tensor, float], None]

OTHERWISE = 1.5
"""How many times as far from its start a network lies that was trained otherwise: seeds change a few per cent."""

MOST_GONE = 0.1
"""Share of the rows that may go; without more of them the same recipe may well lead elsewhere."""

UNCOUPLED = (
    "networks were trained by a function, {name}: an original and its retrained partner share the initial weights and "
    "the seed, but not the order of their batches"
)
"""What a trainer of the user's own cannot do, and a recipe can."""


def fit(
    trained: Trained | nn.Module,
    data: Data,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    order_of: Data | None = None,
    checkpoint: str | PathLike[str] | None = None,
    label: str = "training",
    watch: Watch | None = None,
    adjust: Adjust | None = None,
) -> Trained:
    r"""Train from `trained.weights` on; the network that was handed in stays as it is.

    With SGD, the usual optimiser:

    $$g = \frac1{|b|}\sum_{i \in b} \nabla \ell_i(w) + \lambda (w - w_{start}), \qquad
      v \leftarrow m v + g, \qquad w \leftarrow w - \eta_t v$$

    Adam and AdamW take the steps of `torch.optim`. The same seed gives the same bytes, also when interrupted and
    resumed from a checkpoint.

    **Arguments:**

    - `recipe`: how to train; the network's own unless said.
    - `order_of`: coupled randomness. The batches are those of this data, with the rows that `data` lacks left out; a
      batch left empty is skipped, but the schedule moves on. `None` shuffles `data` by itself.
    - `checkpoint`: a file written after each epoch; if it is there, training goes on from it.
    - `watch`: called after each epoch with the number of epochs done and the network; training ends if it says `True`.
    - `adjust`: may change each gradient in place, given the gradient, the weights and the share of the training done.
    """
    trained, data = as_trained(trained), as_data(data)
    recipe = recipe or trained.recipe
    if recipe is None:
        raise NeedError("Training needs a recipe, but none is known. Give `recipe=Recipe(...)`.")
    trained = prepared(trained, recipe)
    network, w, g = _opened(trained, recipe)
    optimiser = Optimiser.of(trained, recipe, w, trained.anchor)
    order, rows = Order.of(data, order_of, recipe.batch_size, seed), Resident.of(trained, data)
    state = checkpoints.State(w, optimiser.slots)
    path = None if checkpoint is None else Path(checkpoint)
    digest = "" if path is None else checkpoints.digest_of(trained, data, order_of, recipe, seed)
    if path is not None and path.exists():
        state = checkpoints.read(path, state, network, digest)

    for epoch in track(range(state.epoch, 0 if state.finished else recipe.epochs), label):
        with repeatable(trained.device, mixed(seed, epoch, "noise")), torch.enable_grad():
            loss, mistakes = _epoch(trained, network, w, g, optimiser, order, rows, epoch, adjust)
        _check_sane(loss, w, epoch, recipe)
        state.epoch = epoch + 1
        if state.faultless_since is None and not mistakes.item():
            state.faultless_since = epoch
        stopped = state.faultless_since is not None and recipe.patience is not None
        stopped = stopped and epoch - (state.faultless_since or 0) >= (recipe.patience or 0)
        asked = watch is not None and watch(epoch + 1, _closed(trained, network, w))
        state.finished = bool(stopped or asked)
        if path is not None:
            checkpoints.write(path, state, network, digest)
        if state.finished:
            break
    for parameter in network.parameters():
        parameter.grad = None
    return replace(trained, model=network.eval(), weights=w.clone())


def _epoch(
    trained: Trained,
    network: nn.Module,
    w: Float[Tensor, " P"],
    g: Float[Tensor, " P"],
    optimiser: Optimiser,
    order: Order,
    rows: Resident,
    epoch: int,
    adjust: Adjust | None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """One pass over the rows, in place; the summed loss and mistakes."""
    recipe, device = optimiser.recipe, trained.device
    total = recipe.epochs * order.steps
    # Sums stay on the device: reading one per step would make it wait for every batch.
    loss, mistakes = torch.zeros((), device=device), torch.zeros((), device=device)
    for step, x, y in _steps(order, rows, epoch):
        g.zero_()
        x = augmented(recipe.augment, x, order.seed, step)
        # Only the network runs in bfloat16: a loss summed in eight bits would not see small steps.
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.bf16):
            outputs = _answer(network, x)
        outputs = outputs.to(w.dtype)
        losses = trained.loss(outputs, y)
        losses.mean().backward()
        with torch.no_grad():
            optimiser.prepare_(g, w)
            if adjust is not None:
                adjust(g, w, step / total)
            optimiser.step_(w, g, lr_at(recipe, step, total))
            loss += losses.detach().sum()
            mistakes += trained.loss.mistakes(outputs.detach(), y).sum()
    return loss, mistakes


def training_mode(network: nn.Module, recipe: Recipe) -> nn.Module:
    """The network, with dropout and BatchNorm statistics switched as the recipe says."""
    network.train(recipe.dropout)
    for module in network.modules():
        if isinstance(module, _NormBase):
            module.train(not recipe.freeze_statistics)
    return network


def prepared(trained: Trained, recipe: Recipe | None) -> Trained:
    """The network with all that a training from here makes known of it: where it begins, and the recipe if any."""
    start = trained.weights if trained.init is None else trained.init
    known = replace(trained, init=start, init_buffers=start_buffers(trained))
    if recipe is None:
        return known
    loss = smoothed(trained.loss, recipe.label_smoothing)
    return replace(known, recipe=recipe, weight_decay=recipe.penalty, loss=loss)


def start_buffers(trained: Trained) -> Buffers | None:
    """Those that training begins with, where it begins at the start: they are what a retraining begins with too."""
    at_start = trained.init is None or torch.equal(trained.init, trained.weights)
    return buffers_of(trained.model) if trained.init_buffers is None and at_start else trained.init_buffers


def _opened(trained: Trained, recipe: Recipe) -> tuple[nn.Module, Float[Tensor, " P"], Float[Tensor, " P"]]:
    """A copy of the network whose parameters and gradients look into two flat vectors, which come with it."""
    network = training_mode(copy.deepcopy(trained.model), recipe)
    w = trained.weights.detach().clone()
    g = torch.zeros_like(trained.weights)
    parameters = dict(network.named_parameters())
    slopes = trained.unflatten(g)
    for name, value in trained.unflatten(w).items():
        parameters[name].data, parameters[name].grad = value, slopes[name]
    return network, w, g


def _closed(trained: Trained, network: nn.Module, w: Float[Tensor, " P"]) -> Trained:
    """A copy of where it stands, for someone who looks on while training goes on."""
    return replace(trained, model=copy.deepcopy(network).eval(), weights=w.detach().clone())


def _steps(order: Order, rows: Resident, epoch: int) -> Iterator[tuple[int, Inputs, Tensor]]:
    """The batches of an epoch that hold any row, each with its step number over the whole training."""
    batches = order.epoch(epoch)
    # One move per epoch, cut on the device: a move per batch would be as many waits.
    positions = rows.place(torch.cat(batches)).split([len(batch) for batch in batches])
    for step, batch in enumerate(positions, start=epoch * order.steps):
        if len(batch):
            yield step, *rows.take(batch)


def _answer(network: nn.Module, x: Inputs) -> Float[Tensor, "N *C"]:
    return logits_of(network(**x) if isinstance(x, dict) else network(x))


def _check_sane(loss: Float[Tensor, ""], w: Float[Tensor, " P"], epoch: int, recipe: Recipe) -> None:
    if not (loss.isfinite() & w.isfinite().all()):
        raise NumericsError(
            f"The training loss must be finite, but it is {loss.item()} in epoch {epoch + 1}. Lower the "
            f"learning rate of the recipe or of the method (`lr`, now {recipe.lr}), or look for NaN among the inputs."
        )


def train(
    begun: Trained,
    data: Data,
    *,
    seed: int = 0,
    order_of: Data | None = None,
    epochs: int | None = None,
    label: str = "training",
) -> Trained:
    """Train from where the network stands, by its own trainer or recipe.

    **Arguments:**

    - `order_of`: as in `fit`; a trainer of the user's own is given the rows and the seed alone.
    - `epochs`: fewer than usual, of a trainer that can be asked for them.
    """
    if begun.trainer is not None:
        return _by_function(begun, data, seed, epochs)
    if begun.recipe is None:
        raise NeedError("Training needs a recipe or a trainer, but none is known. Give `Trained.of(..., trainer=...)`.")
    recipe = begun.recipe if epochs is None else begun.recipe.but(epochs=epochs)
    return fit(begun, data, recipe, seed=seed, order_of=order_of, label=label)


def _by_function(begun: Trained, data: Data, seed: int, epochs: int | None) -> Trained:
    trainer = begun.trainer
    assert trainer is not None  # the caller has looked
    less = {} if epochs is None else {"epochs": epochs}
    examples = Examples(data)
    # Nobody can count the steps of somebody else's loop, but a retraining may take hours, and must not look dead.
    with working(f"training by {name_of(trainer)}"), seeded(begun.device, seed), torch.enable_grad():
        made = trainer(begun.module().train(), examples, seed, **less)
    if not isinstance(made, nn.Module):
        raise SettingError(
            f"A trainer must return the trained module, but {name_of(trainer)} returned {type(made).__name__}. End it "
            "with `return model`."
        )
    made = unwrapped(made)
    _check_frozen(begun, made)
    try:
        weights = begun.vector(made)
    except MismatchError as e:
        raise MismatchError(
            f"A trainer must return the network that it was given, trained, but {name_of(trainer)} returned another: "
            f"{e}"
        ) from e
    # Of buffers only these: a mask may well be infinite.
    statistics = [value for norm in running_norms(made) for value in norm.buffers(recurse=False)]
    for what, values in (("weights", [weights]), ("BatchNorm statistics", statistics)):
        if not all(bool(value.isfinite().all()) for value in values):
            raise NumericsError(
                f"Trained {what} must be finite, but those of {name_of(trainer)} are not (seed {seed})."
            )
    check_read(trainer, examples)
    return prepared(begun, None).at(weights, dict(made.named_buffers()))


def _check_frozen(begun: Trained, made: nn.Module) -> None:
    """Frozen parameters are in no vector of weights: if training moves them, they would be lost without a word."""
    found = dict(made.named_parameters())
    for name, value in begun.model.named_parameters():
        if name not in begun.names and name in found and not torch.equal(value.to(found[name]), found[name]):
            raise MismatchError(
                f"A trainer must leave alone what does not require gradients, but it changed {name!r}. Unfreeze it "
                "before `Trained.of`."
            )


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Inside, torch, numpy and Python draw from `seed` on; afterwards they are as they were."""
    numbers = np.random.get_state()
    python = random.getstate()
    with repeatable(device, seed):
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numbers)
            random.setstate(python)


def note_other_training(trained: Trained, made: Trained, split: Split, notes: Notes) -> None:
    """Note a retrained network whose weights moved much further, or much less far, than those of the one given."""
    if trained.init is None or len(split.forget) > MOST_GONE * len(split.whole):
        return
    ours, theirs = (float((one.weights - trained.init).double().norm()) for one in (made, trained))
    if theirs == 0 or (ours <= OTHERWISE * theirs and theirs <= OTHERWISE * ours):
        return
    by = "the recipe" if trained.trainer is None else name_of(trained.trainer)
    moved = "less far from" if ours < theirs else "further from"
    notes.assume(
        f"{by} leads to weights that lie much {moved} the initial ones than those of the network that was given, so "
        "it may not be how that one was trained",
        "the retrained network is another one than the same training without the rows would give; check epochs, lr, "
        "weight decay and initial weights",
    )


def learnt_buffers(before: Trained, made: nn.Module) -> dict[str, Tensor] | None:
    """Buffers that a training anew learnt beside its weights; `None` where they stood still."""
    found = buffers_of(made)
    stood = not before.statistics_moved and all(torch.equal(b, found[n]) for n, b in before.model.named_buffers())
    return None if stood else found
