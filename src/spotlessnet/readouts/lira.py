"""LiRA: is this margin more like those of models that saw the row, or of models that did not?

Carlini, Chien, Nasr, Song, Terzis and Tramèr (2022), *Membership Inference Attacks From First Principles*.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Normal, StudentT

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError, check_choice, check_positive
from spotlessnet.core.intervals import Interval, auc_interval
from spotlessnet.core.readout import READOUTS, Ideal, Reading, Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.scores import scores, scores_of

Spread = Literal["student", "pooled", "own"]
SPREADS = ("student", "pooled", "own")


def lira_scores(
    shadows: Float[Tensor, "S T"],
    member: Bool[Tensor, "S T"],
    seen: Float[Tensor, "M T"],
    *,
    spread: Spread = "student",
    prior: float = 4.0,
) -> Float[Tensor, "M T"]:
    r"""$\log p(\varphi \mid \text{in}) - \log p(\varphi \mid \text{out})$, row by row.

    With few shadows the variance is what limits the attack. By default it has a normal-inverse-gamma prior whose
    scale is the variance **within** rows, pooled over all of them, so that the predictive density is Student's:

    $$t_{\nu}\Big(\bar\varphi,\ \big(1 + \tfrac1n\big)\tfrac{\nu_0 s_0^2 + SS}{\nu}\Big), \qquad \nu = \nu_0 + n - 1$$

    **Arguments:**

    - `shadows`, `member`: margins of the shadow models, and whether each model saw each row.
    - `seen`: margins to be judged, of models that are **not** among the shadows.
    - `spread`: `student`; `pooled`, a Gaussian with one variance for all rows; `own`, one variance for each row, which
      needs 64 shadows or more.
    - `prior`: $\nu_0$, how many observations the pooled variance is worth.
    """
    inside = _density(shadows.double(), member, spread, prior)
    outside = _density(shadows.double(), ~member, spread, prior)
    # In float64: far in the tails both logarithms are large, and their difference decides.
    return inside.log_prob(seen.double()) - outside.log_prob(seen.double())


def held_out_scores(
    phi: Float[Tensor, "S T"],
    member: Bool[Tensor, "S T"],
    *,
    spread: Spread = "student",
    prior: float = 4.0,
) -> Float[Tensor, "S T"]:
    """Score the first half of the models with densities fitted to the second half, and the other way round.

    No model is judged by a density that it helped to fit, so the area under the curve is one half where nothing is
    to be found; leaving out one model at a time would land below.
    """
    # Halves, not all but one: a left-out model pulls the mean of the others away from itself, which shows as AUC < ½.
    first, second = torch.arange(len(phi)).tensor_split(2)
    scores = torch.empty_like(phi, dtype=torch.float64)
    for fitted, judged in ((first, second), (second, first)):
        scores[judged] = lira_scores(phi[fitted], member[fitted], phi[judged], spread=spread, prior=prior)
    return scores


def _density(phi: Float[Tensor, "S T"], mask: Bool[Tensor, "S T"], spread: Spread, prior: float) -> Normal | StudentT:
    check_choice("spread", spread, SPREADS)
    check_positive("prior", prior)
    n = mask.sum(dim=0).double()
    needed = 2 if spread == "own" else 1
    if n.min() < needed or n.max() < 2:
        raise DataError(
            f"Each row needs at least {needed} shadow models that saw it and as many that did not, and some row two, "
            f"but one has {int(n.min())}. Train more shadows."
        )
    mean = (phi * mask).sum(dim=0) / n
    squares = ((phi - mean).square() * mask).sum(dim=0)
    # Margins that never vary would make the density infinite; this is far below any variance of real ones.
    floor = 1e-12 * (1 + mean.square().mean())
    pooled = (squares.sum() / (n - 1).sum()).clamp(min=floor)
    if spread == "pooled":
        return Normal(mean, pooled.sqrt().expand_as(mean))
    if spread == "own":
        return Normal(mean, (squares / (n - 1)).clamp(min=floor).sqrt())
    freedom = prior + n - 1
    return StudentT(freedom, mean, ((1 + 1 / n) * (prior * pooled + squares) / freedom).sqrt())


def tail_auc(
    outside: Float[Tensor, "S T"], seen: Float[Tensor, " T"], forgotten: int, *, prior: float = 4.0
) -> Interval:
    """Area under the curve of `LiRA` where scores are known already, with its limits.

    **Arguments:**

    - `outside`: of networks trained without any of the rows.
    - `seen`: of the network under test; the first `forgotten` of them are those of $D_f$.
    - `prior`: how many observations the pooled variance is worth.
    """
    density = _density(outside, torch.ones_like(outside, dtype=torch.bool), "student", prior)
    # All rows have the same degrees of freedom, so the standardised margin orders them as the tail does.
    z = (seen - density.loc) / density.scale
    return auc_interval(z[:forgotten], z[forgotten:])


@READOUTS.register(
    "lira",
    paper="Carlini, Chien, Nasr, Song, Terzis and Tramèr (2022), Membership Inference Attacks From First Principles",
    needs=("retrained networks", "test data"),
)
@dataclass(frozen=True)
class LiRA(Readout):
    r"""Area under the curve of forgotten against other rows, each score judged by networks that never saw the row.

    $$z(x) = \frac{\varphi(x) - \bar\varphi_{out}(x)}{s_{out}(x)}$$

    The score $\varphi$ is the margin, or the negative loss where there are no classes. The references are networks
    retrained without $D_f$: they are non-members for $D_f$ and for the other rows alike, so a further retrained network
    gives one half, whatever the difficulty or the labels of the rows. A network that was trained differently gives one
    half only beside `matched_controls` (see there): of a wrong label it is less unsure, of a right one less sure.

    **Arguments:**

    - `references`: at least two networks trained without $D_f$, none of them the one under test.
    - `others`: rows that nobody trained on; the test rows unless given.
    - `prior`: how many observations the pooled variance is worth.
    """

    unit: ClassVar[str] = "AUC"
    ideal: ClassVar[Ideal] = "as retrained"

    references: tuple[Trained, ...]
    others: Data | None = None
    prior: float = 4.0

    def __post_init__(self) -> None:
        check_positive("LiRA.prior", self.prior)
        if len(self.references) < 2:
            raise NeedError(
                f"LiRA needs at least two networks trained without the forgotten rows, but got {len(self.references)}. "
                "Retrain with more seeds."
            )

    def __call__(self, network: Trained, split: Split) -> Reading:
        others = split.tests if self.others is None else self.others
        outside = torch.cat([scores_of(self.references, rows) for rows in (split.forget, others)], dim=1)
        seen = torch.cat([scores(network, rows) for rows in (split.forget, others)]).cpu()
        return Reading(*tail_auc(outside, seen, len(split.forget), prior=self.prior))
