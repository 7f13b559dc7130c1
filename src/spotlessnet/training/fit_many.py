"""Many trainings as one program: copies of a small network that differ in seed, start and rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from spotlessnet.core.data import Data, as_data
from spotlessnet.core.errors import DataError, MismatchError, NeedError, NumericsError, SettingError, check_positive
from spotlessnet.core.loss import logits_of, smoothed
from spotlessnet.core.progress import track
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.source import Inputs
from spotlessnet.core.trained import Trained, as_trained
from spotlessnet.operators.rows import attention_spelled_out
from spotlessnet.training.batches import Resident, by_number, permutation, repeatable
from spotlessnet.training.fit import training_mode
from spotlessnet.training.optimiser import Optimiser, lr_at

AT_ONCE = 128
"""Networks per program: more take more memory, and are hardly faster."""

Slope = Callable[..., tuple[Tensor, tuple[Tensor, Tensor]]]


def fit_many(
    trained: Trained | nn.Module,
    data: Data,
    recipe: Recipe | None = None,
    *,
    seeds: Sequence[int],
    keep: Bool[Tensor, "S N"] | None = None,
    starts: Float[Tensor, "S P"] | None = None,
    at_once: int = AT_ONCE,
    label: str = "training many",
) -> Float[Tensor, "S P"]:
    """Weights of `S` networks, as if each had been trained by `fit(..., seed=seeds[s], order_of=data)` on its rows.

    **Arguments:**

    - `seeds`: one per network.
    - `keep`: the rows of `data` that each network sees; all unless said. The others are left out of its batches.
    - `starts`: where each network begins, and what its decay pulls to; `trained.weights` unless said.
    - `at_once`: networks per program; fewer take less memory.
    """
    trained, data = as_trained(trained), as_data(data)
    recipe = recipe or trained.recipe
    if recipe is None:
        raise NeedError("Training needs a recipe, but none is known. Give `recipe=Recipe(...)`.")
    S = len(seeds)
    keep = torch.ones(S, len(data), dtype=torch.bool) if keep is None else keep.cpu()
    _check(trained, data, recipe, seeds, keep, starts)
    check_positive("at_once", at_once)
    trained = replace(trained, loss=smoothed(trained.loss, recipe.label_smoothing))
    w = trained.weights.repeat(S, 1) if starts is None else starts.detach().to(trained.weights, copy=True)
    pull = trained.weights if trained.init is None else trained.init
    anchors = pull.expand(S, -1) if starts is None else w.clone()
    rows = Resident.of(trained, data)
    slope = _slope(trained)
    for group in torch.arange(S).split(at_once):
        one = slice(int(group[0]), int(group[-1]) + 1)
        optimiser = Optimiser.of(trained, recipe, w[one], anchors[one])
        _train(w[one], optimiser, [seeds[s] for s in group.tolist()], keep[one], rows, slope, label)
    return w


def _train(
    weights: Float[Tensor, "S P"],
    optimiser: Optimiser,
    seeds: Sequence[int],
    keep: Bool[Tensor, "S N"],
    rows: Resident,
    slope: Slope,
    label: str,
) -> None:
    """Train one group in place; a network that has stopped is left out of the program from then on."""
    going = torch.arange(len(weights))
    since = torch.full((len(weights),), -1)
    recipe = optimiser.recipe
    listed = by_number(rows.data)
    for epoch in track(range(recipe.epochs), label):
        order = torch.stack([listed[permutation(keep.shape[1], seeds[s], epoch)] for s in going.tolist()])
        here = going.to(weights.device)
        w = weights[here]
        loss, mistakes = _epoch(w, optimiser, order, keep[going], epoch, rows, slope)
        weights[here] = w
        _check_sane(loss, w, [seeds[s] for s in going.tolist()], epoch, recipe)
        since[going] = torch.where((since[going] < 0) & (mistakes.cpu() == 0), epoch, since[going])
        if recipe.patience is not None:
            stay = (since[going] < 0) | (epoch - since[going] < recipe.patience)
            if not stay.all():
                going, optimiser = going[stay], optimiser.take(stay.to(weights.device))
        if not len(going):
            break


def _epoch(
    w: Float[Tensor, "s P"],
    optimiser: Optimiser,
    order: Int64[Tensor, "s N"],
    keep: Bool[Tensor, "s N"],
    epoch: int,
    rows: Resident,
    slope: Slope,
) -> tuple[Float[Tensor, " s"], Float[Tensor, " s"]]:
    """One epoch of every network, in place; their summed losses and mistakes."""
    recipe = optimiser.recipe
    loss = torch.zeros(len(w)).to(w)
    mistakes = torch.zeros(len(w)).to(w)
    batches = _batches(order, keep.gather(1, order), recipe.batch_size)
    for t, (positions, present) in enumerate(batches, start=epoch * len(batches)):
        some = present.any(1)
        if not some.any():
            continue
        x, y = rows.take(rows.place(positions.flatten()))
        each = positions.shape
        x = {n: c.unflatten(0, each) for n, c in x.items()} if isinstance(x, dict) else x.unflatten(0, each)
        g, (total, wrong) = slope(w, x, y.unflatten(0, each), present.to(w))
        optimiser.prepare_(g, w)
        # A network whose batch is empty sits this step out, momentum included.
        moves = None if some.all() else some.unsqueeze(1).to(w.device)
        optimiser.step_(w, g, lr_at(recipe, t, recipe.epochs * len(batches)), moves)
        loss += total
        mistakes += wrong
    return loss, mistakes


def _slope(trained: Trained) -> Slope:
    """For every network: the gradient of its mean loss over the rows present, its summed loss and its mistakes."""

    def risk(w: Tensor, x: Inputs, y: Tensor, present: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        with attention_spelled_out():
            outputs = trained.outputs(x, w)
        total = (trained.loss(outputs, y) * present).sum()
        mistakes = (trained.loss.mistakes(outputs, y) * present).sum()
        return total / present.sum().clamp(min=1), (total, mistakes)

    return vmap(grad(risk, has_aux=True))


def _batches(
    order: Int64[Tensor, "s N"], present: Bool[Tensor, "s N"], size: int
) -> list[tuple[Int64[Tensor, "s _"], Bool[Tensor, "s _"]]]:
    """Positions and presence per step; rows present come first, and what no network needs is cut off."""
    batches = []
    for positions, here in zip(order.split(size, 1), present.split(size, 1), strict=True):
        if here.all():
            batches.append((positions, here))
            continue
        longest = int(here.sum(1).max())
        first = here.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :longest]
        batches.append((positions.gather(1, first), here.gather(1, first)))
    return batches


def _check(
    trained: Trained, data: Data, recipe: Recipe, seeds: Sequence[int], keep: Tensor, starts: Tensor | None
) -> None:
    S, N = len(seeds), len(data)
    if not S:
        raise SettingError("Training many networks needs at least one seed, but got none. Give one per network.")
    if keep.shape != (S, N):
        raise MismatchError(f"`keep` must say for {S} networks and {N} rows, but has shape {tuple(keep.shape)}.")
    if not keep.any(1).all():
        raise DataError(f"Network {int((~keep.any(1)).nonzero()[0])} has no row to train on. Keep at least one.")
    if starts is not None and starts.shape != (S, trained.size):
        raise MismatchError(
            f"`starts` must hold {S} vectors of {trained.size} weights, but has shape {tuple(starts.shape)}."
        )
    reason = why_not_together(trained, recipe)
    if reason:
        raise SettingError(reason)


def why_not_together(trained: Trained, recipe: Recipe, data: Data | None = None) -> str:
    """Why this recipe cannot train many such networks as one program, and what to do; empty where it can.

    With `data`, two rows of it are tried: what a network computes may draw at random or not vectorise.
    """
    layers = list(trained.model.modules())
    if recipe.dropout and any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in layers):
        return "Dropout cannot be repeated across many networks. Use `recipe.but(dropout=False)`, or `fit`."
    if not recipe.freeze_statistics and any(isinstance(layer, _NormBase) for layer in layers):
        return (
            "Many networks at once must share their BatchNorm statistics. Use `recipe.but(freeze_statistics=True)`, "
            "or `fit`."
        )
    if recipe.augment is not None:
        # A batch of many networks is padded where rows are left out, and a transform would draw for the padding too.
        return "Augmentation cannot be repeated across many networks. Use `recipe.but(augment=None)`, or `fit`."
    if recipe.bf16:
        return "Networks trained as one program do not use autocast. Use `recipe.but(bf16=False)`, or `fit`."
    return "" if data is None else _why_not_on(trained, recipe, data.select(range(min(2, len(data)))))


def _why_not_on(trained: Trained, recipe: Recipe, data: Data) -> str:
    batch = trained.fetch(data, data.rows)
    try:
        x = {n: c.unsqueeze(0) for n, c in batch.x.items()} if isinstance(batch.x, dict) else batch.x.unsqueeze(0)
        present = torch.ones(1, len(data)).to(trained.weights)
        _slope(trained)(trained.weights.unsqueeze(0), x, batch.y.unsqueeze(0), present)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        return f"The network does not vectorise over copies of itself ({str(error).splitlines()[0]}). Use `fit`."
    # Functional dropout is in no list of layers; with the seed it shows.
    module = training_mode(trained.module(), recipe)
    answers = []
    for seed in (0, 1):
        with repeatable(trained.device, seed), torch.no_grad():
            answers.append(logits_of(module(**batch.x) if isinstance(batch.x, dict) else module(batch.x)))
    if not torch.equal(*answers):
        return "The network draws at random in training, which cannot be repeated across many. Use `fit`."
    return ""


def _check_sane(
    loss: Float[Tensor, " s"], w: Float[Tensor, "s P"], seeds: Sequence[int], epoch: int, recipe: Recipe
) -> None:
    bad = (~(loss.isfinite() & w.isfinite().all(1))).nonzero().flatten().tolist()
    if bad:
        raise NumericsError(
            f"The training loss must be finite, but {len(bad)} of {len(seeds)} networks diverged in epoch {epoch + 1}, "
            f"first the one with seed {seeds[bad[0]]}. Lower the learning rate of the recipe or of the method "
            f"(`lr`, now {recipe.lr})."
        )
