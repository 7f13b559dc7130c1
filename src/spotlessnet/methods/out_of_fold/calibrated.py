"""Fold models' answers as the network would give them: what both say of held-out rows tells one from the other."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from spotlessnet.core.answers import margin
from spotlessnet.core.data import Data, evenly
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.fold_models import READ, FoldModels
from spotlessnet.precomputed.held_out_gap import lead

HELD = 1000
"""Held-out rows that network and fold models are asked about, at most, for the classes of a request together."""

ENOUGH = 30
"""Held-out rows of a class from which its margins are known."""


def told_by(held: Data | None, labels: Int64[Tensor, " k"], *, ordinary: bool) -> Data | None:
    """Which held-out rows are asked: of the classes of ordinary rows; wrong labels say nothing of what a picture is."""
    if held is None:
        return None
    if ordinary:
        held = held.select(torch.isin(held.labels().cpu(), labels.unique()).nonzero().squeeze(1))
    return held.select(evenly(len(held), HELD))


def read_held_out(fold_models: FoldModels, request: Data, held: Data | None, *, ordinary: bool) -> int:
    """How many answers about held-out rows `calibrated` takes: the network's, and those of fold models that it asks."""
    asked = told_by(held, request.labels().cpu().long(), ordinary=ordinary)
    part = fold_models.part[:, fold_models.keys.find(request)][fold_models.unseen_or_all(request)]
    return 0 if asked is None else (1 + len(part.unique())) * len(asked)


def calibrated(
    fold_models: FoldModels, network: Trained, data: Data, request: Data, held: Data | None, *, ordinary: bool
) -> Float[Tensor, "n C"]:
    r"""What fold models say that never saw the rows, as sure as the network is of rows that it never saw.

    A fold model saw fewer rows, so it is less sure than a retrained network, which misses the request alone. On
    held-out rows, which neither saw, their answers are multiplied by what makes the largest logit lead the second as in
    the network; then margins of `ordinary` rows of a class are moved,

    $$m \mapsto m + \overline m_{net} - \overline m_{fold},$$

    by what those of held-out rows of that class differ by in the mean. A row of the request is to a retrained network
    what a held-out row is to this one, so margins of forgotten rows come out as they would there, in the mean.
    """
    fold_models.check_belong_to(network, data)
    labels = data.labels().cpu().long()
    part = fold_models.part[:, fold_models.keys.find(data)][fold_models.unseen_or_all(request)]
    asked = told_by(held, labels, ordinary=ordinary)
    own = None if asked is None else network.predict(asked, READ).cpu()
    found: Float[Tensor, "n C"] | None = None
    for k in range(len(fold_models.weights)):
        mine = (part == k).any(dim=0).nonzero().squeeze(1)
        if not len(mine):
            continue
        fold = fold_models.fold(network, k)
        said = fold.predict(data.select(mine), READ).cpu()
        if own is not None and asked is not None:
            theirs = fold.predict(asked, READ).cpu()
            scale = float(lead(own) / lead(theirs).clamp(min=1e-9))
            said, theirs = scale * said, scale * theirs
            if ordinary:
                said = as_sure(said, labels[mine], theirs, own, asked.labels().cpu().long())
        elif fold_models.scales is not None:
            said = float(fold_models.scales[k]) * said
        found = said.new_zeros(len(data), said.shape[1]) if found is None else found
        found[mine] += said / len(part)
    assert found is not None  # every row has a fold model in every division
    return found


def as_sure(
    said: Float[Tensor, "n C"],
    labels: Int64[Tensor, " n"],
    theirs: Float[Tensor, "m C"],
    own: Float[Tensor, "m C"],
    known: Int64[Tensor, " m"],
) -> Float[Tensor, "n C"]:
    """Answers whose margins are moved as on held-out rows of the class, where there are enough."""
    said = said.clone()
    before, there = margin(theirs, known), margin(own, known)
    for c in labels.unique():
        mine, alike = labels == c, known == c
        if int(alike.sum()) >= ENOUGH:
            said[mine, c] += float(there[alike].mean() - before[alike].mean())
    return said
