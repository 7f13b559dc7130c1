"""The network's own answers less what rows taught: fold models that saw a row against those that did not."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.fold_models import READ, FoldModels


class Corrected(NamedTuple):
    """Centred logits.

    - `answers`: for each row.
    - `kept`: the share that was kept of how the network differs from fold models that saw the rows as it did.
    - `noise`: the variance of that difference by chance alone; `None` where no two fold models can be compared.
    """

    answers: Float[Tensor, "n C"]
    kept: float
    noise: float | None


def in_minus_out(
    fold_models: FoldModels,
    network: Trained,
    data: Data,
    request: Data,
    *,
    shrunk: bool = False,
    ordinary: bool = False,
) -> Corrected:
    """`corrected` for rows of a request; `out` saw none of the request, where there are any such fold models.

    For `ordinary` rows, where held-out rows have told it (`measure_held_out`), every fold model is as sure as the
    network is of rows that neither saw, and what a row taught is what it teaches a network that saw all of them. Rows
    whose labels were wrong make a network less sure of all others, which is a part of what they taught: there fold
    models are only made surer, never less.
    """
    fold_models.check_belong_to(network, data)
    part = fold_models.part[:, fold_models.keys.find(data)]
    K = len(fold_models.weights)
    said = torch.stack([fold_models.fold(network, k).predict(data, READ).cpu() for k in range(K)])
    ratio = 1.0
    if fold_models.scales is not None and not shrunk:
        scales = fold_models.scales.to(said)
        said = said * (scales if ordinary else scales.clamp(min=1))[:, None, None]
        ratio = fold_models.gap_ratio if ordinary and fold_models.gap_ratio is not None else 1.0
    division = torch.arange(K) // (K // len(part))
    missed = part[division] == torch.arange(K).unsqueeze(1)
    out = missed & fold_models.unseen_or_all(request)[division].unsqueeze(1)
    return corrected(network.predict(data, READ).cpu(), said, ~missed, out, shrunk=shrunk, ratio=ratio)


def corrected(
    own: Float[Tensor, "n C"],
    said: Float[Tensor, "K n C"],
    saw: Bool[Tensor, "K n"],
    out: Bool[Tensor, "K n"],
    *,
    shrunk: bool,
    ratio: float = 1.0,
) -> Corrected:
    r"""Own logits less what having seen the row changed in fold models, which is the same as

    $$t_i = \bar z_i^{out} + B\,(z_i - \bar z_i^{in}), \qquad B = 1,$$

    what networks say that never saw the row, and what this network knows beyond them: fold models saw fewer rows. That
    difference may be chance: two trainings differ, too. Shrunk by James and Stein's positive-part rule,

    $$B = \Big(1 - \frac{(q - 2)\,\frac{\nu}{\nu + 2}\, s^2}{\sum_i \|z_i - \bar z_i^{in}\|^2}\Big)_+, \qquad
      s^2 = \hat\sigma^2 \Big(1 + \frac{1}{n_{in}}\Big),$$

    with $q = n (C - 1)$ and $\hat\sigma^2$, of $\nu$ degrees of freedom, from how fold models on one side differ from
    each other. Where it is chance alone, the out-of-fold answers remain.

    With a `ratio` $\rho$ below 1, $t_i = z_i - \rho\,(\bar z_i^{in} - \bar z_i^{out})$: a row teaches less where there
    are more of them. Not together with `shrunk`.
    """
    C = own.shape[1]
    z, mine = (x.double() - x.double().mean(dim=-1, keepdim=True) for x in (said, own))
    sides = [side.double() for side in (saw, out)]
    counts = [side.sum(dim=0) for side in sides]
    inside, outside = (torch.einsum("kn,knc->nc", side / n, z) for side, n in zip(sides, counts, strict=True))
    beyond = mine - inside
    goal = torch.lerp(inside, outside, ratio)
    freedom = float(sum((n - 1).sum() for n in counts)) * (C - 1)
    if freedom <= 0:
        return Corrected((goal + beyond).to(own), 1.0, None)
    off = sum(
        (side.unsqueeze(2) * (z - mean).square()).sum() for side, mean in zip(sides, (inside, outside), strict=True)
    )
    noise = float(off) / freedom * float((1 + 1 / counts[0]).mean())
    kept = 1.0
    if shrunk:
        total = float(beyond.square().sum())
        q = len(own) * (C - 1)
        kept = max(0.0, 1 - max(q - 2, 0) * freedom / (freedom + 2) * noise / total) if total else 0.0
    return Corrected((goal + kept * beyond).to(own), kept, noise)
