"""Train again, by a recipe or by a trainer of the user's own: the one door for everything that retrains."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, NeedError, NumericsError, SettingError
from spotlessnet.core.progress import track
from spotlessnet.core.trained import Trained, unwrapped
from spotlessnet.core.trainer import Examples, name_of
from spotlessnet.training.fit import fit, start_buffers
from spotlessnet.training.fit_many import fit_many, why_not_together
from spotlessnet.training.order import repeatable

UNCOUPLED = (
    "networks were trained by a function, {name}: an original and its retrained partner share the initial weights and "
    "the seed, but not the order of their batches"
)
"""What a trainer of the user's own cannot do, and a recipe can."""


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


def train_many(
    begun: Sequence[Trained],
    data: Data,
    *,
    seeds: Sequence[int],
    keep: Bool[Tensor, "S N"],
    together: bool = True,
    label: str = "training many",
) -> list[Trained]:
    """One network per seed, each on the rows of `data` that it keeps, in the order of `data`.

    As one program where that is possible; one by one where it is not (a trainer of the user's own, dropout,
    augmentation, BatchNorm statistics that move, operations that do not vectorise). The networks are the same.
    """
    first = begun[0]
    recipe = first.recipe
    if together and first.trainer is None and recipe is not None and not why_not_together(first, recipe, data):
        starts = torch.stack([one.weights for one in begun])
        weights = fit_many(first, data, recipe, seeds=seeds, keep=keep, starts=starts, label=label)
        return [one.at(w) for one, w in zip(begun, weights, strict=True)]
    each = list(zip(begun, seeds, keep, strict=True))
    return [
        train(one, data.select(rows.nonzero().flatten()), seed=seed, order_of=data, label="training")
        for one, seed, rows in track(each, label)
    ]


def _by_function(begun: Trained, data: Data, seed: int, epochs: int | None) -> Trained:
    trainer = begun.trainer
    assert trainer is not None  # the caller has looked
    less = {} if epochs is None else {"epochs": epochs}
    with seeded(begun.device, seed), torch.enable_grad():
        made = trainer(begun.module().train(), Examples(data), seed, **less)
    if not isinstance(made, nn.Module):
        raise SettingError(
            f"A trainer must return the trained module, but {name_of(trainer)} returned {type(made).__name__}. End it "
            "with `return model`."
        )
    made = unwrapped(made)
    _check_frozen(begun, made)
    weights = begun.vector(made)
    if not bool(weights.isfinite().all()):
        raise NumericsError(f"Trained weights must be finite, but those of {name_of(trainer)} are not (seed {seed}).")
    known = replace(begun, init=begun.weights if begun.init is None else begun.init, init_buffers=start_buffers(begun))
    return known.at(weights, dict(made.named_buffers()))


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
