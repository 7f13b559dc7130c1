"""A class that leaves, taught inside: its rows get answers and features of retained rows that the start sees alike.

Lowering a logit leaves what every hidden layer knows of the class, and answers alone reach the last of them little. A
retrained network was never told of the class: it takes its rows for others.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.features import WithFeatures, hidden
from spotlessnet.core.loss import Loss
from spotlessnet.core.targets import WeightedDistillation
from spotlessnet.core.trained import Trained
from spotlessnet.methods.out_of_fold.lesson import Lesson

RIDGE = 0.01
"""Of the variances of the start's features."""

AT_ONCE = 1024
"""Rows whose features are read, or compared with all retained ones, together."""


class Inside(NamedTuple):
    """Features that rows are held to, forgotten ones first, in a basis where rows of a kind are spread alike."""

    features: Float[Tensor, "n d"]
    basis: Float[Tensor, "d d"]
    weight: float

    def pupil(self, trained: Trained, classes: int) -> Trained:
        """The same network, answering its features too, with the loss that holds them."""
        names = tuple(f"network.{name}" for name in trained.names)
        network = WithFeatures(trained.model, self.basis.to(trained.weights))
        return replace(trained, model=network, names=names, loss=TaughtInside(classes, self.weight))


def inside_of(trained: Trained, lesson: Lesson, weight: float) -> Inside:
    r"""Features of forgotten rows moved as takes their mean to their stand-ins', and retained rows' own.

    Of rows that are taken for the same class, each keeps what tells it from the others. The basis is $L$ with
    $L L^\top = (\Sigma + \rho \bar\sigma I)^{-1}$, $\Sigma$ the mean of both kinds' covariances: what a linear probe
    sees, and a logit hardly. `weight` is that of features in it, beside a logit that is off by one.
    """
    forget, retain, taken_for = lesson.forget.rows, lesson.retain.rows, lesson.taught.argmax(dim=1)
    known, own = (hidden(trained, data, AT_ONCE) for data in (retain, forget))
    moved = known[stand_ins(trained, forget, retain, known, taken_for, retain.labels().cpu().long())] - own
    target = own.clone()
    for c in taken_for.unique():
        target[taken_for == c] += moved[taken_for == c].mean(dim=0)
    spread = (known.T.cov() + own.T.cov()) / 2
    floor = RIDGE * spread.diagonal().mean().clamp(min=1e-12)
    values, vectors = torch.linalg.eigh(spread + floor * torch.eye(len(spread), dtype=spread.dtype))
    basis = vectors / values.clamp(min=floor).sqrt()
    return Inside((torch.cat([target, known]) @ basis).to(lesson.known), basis, weight)


def stand_ins(
    trained: Trained,
    forget: Data,
    retain: Data,
    known: Float64[Tensor, "n d"],
    taken_for: Int64[Tensor, " k"],
    labels: Int64[Tensor, " n"],
) -> Int64[Tensor, " k"]:
    r"""For each forgotten row a retained one that a network which never learnt the class would see likewise.

    What training makes of the start's features is fitted on retained rows alone, by ridge regression
    $\hat h = A \phi + b$; the stand-in of a row is the retained row of the class that it is `taken_for` whose
    $\hat h$ is the nearest to its own.
    """
    start = trained if trained.init is None else trained.at(trained.init, trained.init_buffers)
    theirs, own = (hidden(start, data, AT_ONCE) for data in (retain, forget))
    mean, spread = theirs.mean(dim=0), theirs.std(dim=0) + 1e-6
    theirs, own = ((x - mean) / spread for x in (theirs, own))
    ridge = RIDGE * len(theirs) * torch.eye(theirs.shape[1], dtype=theirs.dtype)
    A = torch.linalg.solve(theirs.T @ theirs + ridge, theirs.T @ (known - known.mean(dim=0)))
    there, here = theirs @ A, own @ A
    found = torch.zeros_like(taken_for)
    for c in taken_for.unique():
        alike, mine = (labels == c).nonzero().squeeze(1), (taken_for == c).nonzero().squeeze(1)
        if not len(alike):  # no row of that class is visited
            alike = torch.arange(len(labels))
        for some in mine.split(AT_ONCE):
            found[some] = alike[torch.cdist(here[some], there[alike]).argmin(dim=1)]
    return found


@dataclass(frozen=True)
class TaughtInside(Loss):
    r"""`WeightedDistillation` of the first `classes` outputs, and $\frac{\lambda}{2}\|h - h_t\|^2$ of the others.

    Labels are `[teacher's logits, teacher's features, temperature, weight]`.
    """

    name: ClassVar[str] = "distillation inside"
    classes: int = 0
    features_weight: float = 1.0

    def __call__(self, outputs: Float[Tensor, "N K"], y: Shaped[Tensor, "N D"]) -> Float[Tensor, " N"]:
        C, K = self.classes, outputs.shape[1]
        answers = torch.cat([y[:, :C], y[:, K:]], dim=1)
        off = (outputs[:, C:] - y[:, C:K]).square().sum(dim=1)
        return WeightedDistillation()(outputs[:, :C], answers) + 0.5 * self.features_weight * y[:, -1] * off
