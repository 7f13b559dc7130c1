"""A second opinion on mislabelled rows: what the network makes of the picture beside what its wrong label says."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def blend_own_logits(
    fold_models: Float[Tensor, "n C"], own: Float[Tensor, "n C"], labels: Int64[Tensor, " n"], counts: float
) -> Float[Tensor, "n C"]:
    r"""Logits of fold models, mixed with the network's own among the classes that a row's wrong label does not name.

    $$z_y = t_y, \qquad
      z_j = \log \sum_{k \ne y} e^{t_k} + \log \mathrm{softmax}_{j \ne y}\big((1 - a)\, t_j + a\, o_j\big), \qquad
      a = c\,\big(1 - p_y(o)\big)$$

    What the label is worth stays with fold models, for they were never told it. The network has seen more rows than a
    fold model has, so its view of the other classes is worth hearing, and the less so the surer it is of the label: it
    `counts` in full where the label has taught it nothing.
    """
    y = labels.unsqueeze(1)
    a = counts * (1 - own.softmax(dim=1).gather(1, y))
    # Struck out before the softmax: the other classes share their own mass, and the label keeps its own.
    both = ((1 - a) * fold_models + a * own).scatter(1, y, -torch.inf).log_softmax(dim=1)
    mass = fold_models.scatter(1, y, -torch.inf).logsumexp(dim=1, keepdim=True)
    return (mass + both).scatter(1, y, fold_models.gather(1, y))
