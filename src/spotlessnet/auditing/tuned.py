"""Networks that were tuned to look as if they had forgotten: an audit makes some of its own originals, to know others.

A network can be tuned until it answers every forgotten row as one that never saw it, and then its answers tell little.
But it has come another way, and that shows in the network as a whole: how large its weights are, how well it fits rows
that stay and which way it would go to fit them better (`traits`). So an audit tunes its own originals as a cheat would,
and asks whether a candidate resembles them more than networks retrained by the same recipe do (`likeness`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import cosine_similarity

from spotlessnet.auditing.asking import TOGETHER
from spotlessnet.auditing.descent import Place
from spotlessnet.core.buffers import share_buffers
from spotlessnet.core.data import Batch, Data, evenly
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained, running_norms
from spotlessnet.operators.rows import attention_spelled_out, by_row
from spotlessnet.readouts.matched_controls import Unseen
from spotlessnet.readouts.mean_loss import mean_loss
from spotlessnet.training.optimiser import Optimiser

ROWS = 1000
"""Retained rows, and forgotten ones, that traits are read from."""

LEAST = 1e-9
"""Added before a logarithm: a network may fit its rows exactly."""

STEPS = 150
"""Of tuning at a rate of `RATE`, a share of the root mean square of the weights, with other answers held."""

RATE = 0.03
FURTHER = 60
"""Steps of tuning while the training goes on."""

PULL = 0.3
"""Weight of the teacher's answers beside the loss on retained rows, meanwhile."""

LONGEST = 5.0
"""Norm of a step's slope, meanwhile: far from its teacher's answers a network would burst."""

ANSWERED = 256
"""Forgotten rows that are answered as the teacher does, and retained ones whose answers are held."""

AT_ONCE = 32
"""Of these, in one pass of a larger network."""

ENTRIES = 2**24
"""Numbers that a network may answer to all of them: of long texts fewer are taken."""


def traits(networks: Sequence[Trained], split: Split) -> Float64[Tensor, "S K"] | None:
    """Of each network as a whole: loss on retained and on test rows, its slope, and the size of every weight tensor.

    And how far the slope of the forgotten rows points where that of retained ones does. All but that as logarithms.
    """
    if split.kept is None or not networks:
        return None
    kept, forgotten = (data.select(evenly(len(data), ROWS)) for data in (split.kept, split.forget))
    return torch.stack([_traits_of(one, kept, forgotten, split.test) for one in networks])


def _traits_of(network: Trained, kept: Data, forgotten: Data, test: Data | None) -> Float64[Tensor, " K"]:
    slopes = [_slope(network, data) for data in (kept, forgotten)]
    sizes = [slopes[0].norm()] + [part.double().norm() for part in network.unflatten(network.weights).values()]
    losses = [mean_loss(network, data) for data in (kept, test) if data is not None]
    along = cosine_similarity(slopes[0], slopes[1], dim=0)
    of_size = torch.stack([*(size.cpu() for size in sizes), *torch.tensor(losses, dtype=torch.float64)])
    return torch.cat([(of_size + LEAST).log(), along.cpu().unsqueeze(0)])


def _slope(network: Trained, data: Data) -> Float64[Tensor, " P"]:
    """Of the summed loss, by the weights."""
    w = network.weights.detach().clone().requires_grad_(True)
    total = torch.zeros_like(w, dtype=torch.float64)
    for batch in network.batches(data):
        total += torch.autograd.grad(network.losses(batch.x, batch.y, w).sum(), w)[0]
    return total / len(data)


@dataclass(frozen=True, eq=False)
class Tuned:
    """What is read from originals that were tuned in one way."""

    traits: Float64[Tensor, "S K"]
    place: Place

    @staticmethod
    def of(networks: Sequence[Trained], split: Split) -> "Tuned | None":
        """Nothing where no retained rows are at hand."""
        found = traits(networks, split)
        unseen = Unseen.of(networks, split)
        place = Place([one.weights for one in networks], None if unseen is None else unseen.margins)
        return None if found is None else Tuned(found, place)

    def join(self, others: "Tuned") -> "Tuned":
        """Both groups, one after the other."""
        return Tuned(torch.cat([self.traits, others.traits]), self.place.join(others.place))


def tuned_networks(
    group: Sequence[Trained], teachers: Sequence[Trained], split: Split, recipe: Recipe | None = None
) -> list[list[Trained]]:
    """Originals that answer forgotten rows as their teachers do: once with as little change as may be, and once while
    the training goes on.

    **Arguments:**

    - `teachers`: a network without the rows for each.
    - `recipe`: of the training that goes on; that of the networks unless said.
    """
    assert split.kept is not None
    first = group[0]
    recipe = (recipe or first.recipe or Recipe(lr=0.01)).but(schedule="constant", warmup_ratio=0.0)
    long = first.predict(split.forget.select([0])).numel()
    count = min(ANSWERED, max(1, ENTRIES // long))
    forget, others = (data.select(evenly(len(data), count)) for data in (split.forget, split.kept))
    together = first.size <= TOGETHER and not running_norms(first.model) and share_buffers(group)
    size, at_once = (len(group), ANSWERED) if together else (1, AT_ONCE)
    found = []
    for i in range(0, len(group), size):
        some, taught = group[i : i + size], teachers[i : i + size]
        goals = _goals(taught, forget, at_once)
        found.append(
            [_held(some, [*goals, *_goals(some, others, at_once)]), _going_on(some, goals, split.kept, recipe)]
        )
    ways = [torch.cat(way) for way in zip(*found, strict=True)]
    # A network that bursts all the same resembles nobody.
    sound = [way for way in ways if bool(way.isfinite().all())]
    return [[one.at(w) for one, w in zip(group, way, strict=True)] for way in sound]


@dataclass(frozen=True, eq=False)
class _Goal:
    """Rows, what shall be answered to them, and what share they are of all."""

    batch: Batch
    answers: Float[Tensor, "S N *C"]
    share: float

    def apart(self, network: Trained, weights: Float[Tensor, "S P"]) -> Float[Tensor, ""]:
        """How far networks with these weights are from there, summed over them."""
        gaps = (_answers(network, weights, self.batch) - self.answers).square()
        return self.share * gaps.flatten(1).mean(dim=1).sum()


def _goals(group: Sequence[Trained], data: Data, at_once: int) -> list[_Goal]:
    """What these networks answer, in as many pieces as there are passes."""
    with torch.no_grad():
        return [
            _Goal(batch, _answers(group[0], _weights(group), batch), len(batch.rows) / len(data))
            for batch in group[0].batches(data, at_once)
        ]


def _held(group: Sequence[Trained], goals: Sequence[_Goal]) -> Float[Tensor, "S P"]:
    """Weights after tuning to the teachers' answers of forgotten rows and to the own ones of retained rows."""
    w = _weights(group)
    optimiser = torch.optim.Adam([w], lr=RATE * float(w.square().mean().sqrt()))
    for _ in range(STEPS):
        w.grad = _slope_to(goals, group[0], w)
        optimiser.step()
    return w


def _going_on(group: Sequence[Trained], goals: Sequence[_Goal], kept: Data, recipe: Recipe) -> Float[Tensor, "S P"]:
    """Weights after some more steps on retained rows, while forgotten ones are answered as the teacher does."""
    network = group[0]
    w = _weights(group)
    generator = torch.Generator().manual_seed(0)
    optimiser = Optimiser.of(network, recipe, w, w.clone())
    for _ in range(FURTHER):
        chosen = torch.randperm(len(kept), generator=generator)[: recipe.batch_size]
        batch = network.fetch(kept, kept.rows[chosen])
        here = w.detach().requires_grad_(True)
        losses = [network.loss(answers, batch.y).mean() for answers in _answers(network, here, batch)]
        [slope] = torch.autograd.grad(torch.stack(losses).sum(), here)
        slope += PULL * _slope_to(goals, network, w)
        slope *= (LONGEST / slope.norm(dim=1, keepdim=True)).clamp(max=1)
        optimiser.prepare_(slope, w)
        optimiser.step_(w, slope, recipe.lr)
    return w


def _slope_to(goals: Sequence[_Goal], network: Trained, w: Float[Tensor, "S P"]) -> Float[Tensor, "S P"]:
    total = torch.zeros_like(w)
    for goal in goals:
        here = w.detach().requires_grad_(True)
        total += torch.autograd.grad(goal.apart(network, here), here)[0]
    return total


def _weights(group: Sequence[Trained]) -> Float[Tensor, "S P"]:
    return torch.stack([one.weights for one in group])


def _answers(network: Trained, weights: Float[Tensor, "S P"], batch: Batch) -> Float[Tensor, "S N *C"]:
    """Of the rows, at each of these weights."""
    if len(weights) == 1:  # without what `vmap` asks of a network
        return network.outputs(batch.x, weights[0]).unsqueeze(0)
    with attention_spelled_out():
        return by_row(lambda w: network.outputs(batch.x, w), weights)
