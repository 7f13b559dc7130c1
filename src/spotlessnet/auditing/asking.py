"""Ways of asking networks about the forgotten rows that go beyond their answers, each asked of test rows as well.

A network can be tuned until it answers every forgotten row as a retrained one would, and still carry the rows. So the
same question is put in other ways: to noisy copies, to the hidden layer through a new head, and after a little further
training on retained rows alone. Relearning half of the forgotten rows, weights of few bits, mixtures of rows and
gradients let as many such networks pass, or accused honest ones (`benchmarks/gauntlet_ways.py`), and are not asked.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from spotlessnet.auditing.exchanging import Channel
from spotlessnet.core.adapters import Arrays
from spotlessnet.core.buffers import share_buffers
from spotlessnet.core.data import Data, evenly
from spotlessnet.core.errors import NeedError, NumericsError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained, running_norms
from spotlessnet.readouts.linear_probe import hidden
from spotlessnet.readouts.matched_controls import MOST, drawn, margins_by_label
from spotlessnet.readouts.parts import class_labels, class_logits
from spotlessnet.readouts.scores import kind_of
from spotlessnet.training.many import train_many

NOISE = 0.15
"""Of copies near a row, in standard deviations of the inputs: what is memorised reaches further than the row itself."""

RETAINED = 1000
"""Retained rows that a probe is fitted on, and that networks are trained a little further on."""

EPOCHS = 2
"""Of that further training: what was tuned away on the rows comes back when nobody holds it down."""

RIDGE = 0.01
"""Of the probe, as a share of the mean variance."""

SURE = 4.0
"""Margin that a probe's score of one stands for."""

TOGETHER = 200_000
"""Weights up to which networks are trained further as one program."""

WAYS = ("noisy copies", "linear probe", "after more training on retained rows")
"""How they are called, in the order in which they are asked."""

Group = Sequence[Trained]


def answers(group: Group, data: Data) -> Float[Tensor, "S T C"] | None:
    """Margins of every label; nothing where a row has no one class."""
    if not group or kind_of(group[0], data) != "classes":
        return None
    return torch.stack([margins_by_label(class_logits(network, data)).cpu() for network in group])


def asked(group: Group, split: Split, recipe: Recipe | None = None) -> dict[str, Channel]:
    """What the networks say, by the way of asking; only ways that the data and the networks allow.

    **Arguments:**

    - `recipe`: of further training, the same for all groups that are compared; the networks' own unless said.
    """
    if split.test is None or not group or kind_of(group[0], split.forget) != "classes":
        return {}
    recipe = recipe or group[0].recipe or Recipe(lr=0.01)
    ways: list[Callable[[], Channel | None]] = [
        lambda: noisy_copies(group, split),
        lambda: probed(group, split),
        lambda: after_retained_rows(group, split, recipe),
    ]
    found = {name: way() for name, way in zip(WAYS, ways, strict=True)}
    return {name: channel for name, channel in found.items() if channel is not None}


def noisy_copies(group: Group, split: Split) -> Channel | None:
    """Answers to copies with noise; too many rows would take as much memory as the data."""
    if len(split.forget) > MOST:
        return None
    copies, others = _with_noise(split.forget), _with_noise(drawn(split.tests))
    if copies is None or others is None:
        return None
    return _channel(answers(group, copies), answers(group, others))


def probed(group: Group, split: Split) -> Channel | None:
    """Answers of a new linear head on the last hidden layer, fitted to retained rows: what the old head hides."""
    if split.kept is None:
        return None
    kept = _some(split.kept)
    labels = class_labels(group[0], kept).cpu()
    C = class_logits(group[0], split.forget.select([0])).shape[1]
    rows, controls = [], []
    try:
        for network in group:
            head = _head(hidden(network, kept), labels, C)
            rows.append(head(hidden(network, split.forget)))
            controls.append(head(hidden(network, drawn(split.tests))))
    except NeedError:  # no layer has weights
        return None
    return Channel(torch.stack(rows), torch.stack(controls))


def after_retained_rows(group: Group, split: Split, recipe: Recipe) -> Channel | None:
    """Answers after a little more training on retained rows alone, the same for every network."""
    if split.kept is None:
        return None
    kept = _some(split.kept)
    learnt = _trained_on(group, kept, recipe.but(epochs=EPOCHS))
    return _channel(answers(learnt, split.forget), answers(learnt, drawn(split.tests)))


def _trained_on(group: Group, data: Data, recipe: Recipe) -> Group:
    """Each network trained further, in one order for all."""
    plain = recipe.but(
        schedule="constant", warmup_ratio=0.0, patience=None, freeze_statistics=True, dropout=False, augment=None,
        bf16=False, label_smoothing=0.0, weight_decay=0.0,
    )  # fmt: skip
    begun = [replace(one, init=one.weights, recipe=plain, trainer=None) for one in group]
    # Networks with running statistics, or other buffers, of their own cannot share a program.
    together = group[0].size <= TOGETHER and not running_norms(group[0].model) and share_buffers(group)
    try:
        every = torch.ones(len(group), len(data), dtype=torch.bool)
        return train_many(begun, data, seeds=[0] * len(group), keep=every, together=together, label="asking again")
    except NumericsError:
        return group  # one that bursts when it is taught is asked as it is


def _head(
    inputs: Float[Tensor, "N d"], labels: Tensor, C: int
) -> Callable[[Float[Tensor, "M d"]], Float[Tensor, "M C"]]:
    """Ridge regression of the labels on what enters the last layer, with an intercept."""
    centre = inputs.mean(dim=0)
    spread = inputs.std(dim=0).mean().clamp(min=1e-12)
    x = (inputs - centre) / spread
    y = one_hot(labels, C).double()
    middle = y.mean(dim=0)
    N, d = x.shape
    floor = RIDGE * N
    if d <= N:
        W = torch.linalg.solve(x.T @ x + floor * torch.eye(d, dtype=x.dtype), x.T @ (y - middle))
    else:  # the same by fewer unknowns
        W = x.T @ torch.linalg.solve(x @ x.T + floor * torch.eye(N, dtype=x.dtype), y - middle)
    return lambda h: SURE * ((h - centre) / spread @ W + middle)


def _some(kept: Data) -> Data:
    return kept.select(evenly(len(kept), RETAINED))


def _channel(rows: Tensor | None, controls: Tensor | None) -> Channel | None:
    return None if rows is None or controls is None else Channel(rows, controls)


def _with_noise(data: Data) -> Data | None:
    batch = data.fetch(data.rows)
    x = batch.x
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return None
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(x)
    return Data(Arrays(x + NOISE * x.float().std().to(x) * noise, batch.y), torch.arange(len(data)))
