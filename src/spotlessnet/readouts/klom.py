"""KLoM: the KL divergence of margins by histogram, for a hundred models or more.

Georgiev, Rinberg, Park, Garg, Ilyas, Madry and Neel (2024), *Attribute-to-Delete*.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import check_positive
from spotlessnet.readouts.margin_kl import check_margins


def klom(
    scrubbed: Float[Tensor, "S T"],
    retrained: Float[Tensor, "R T"],
    *,
    bins: int = 20,
    clip: float = 100.0,
    smoothing: float = 1e-5,
) -> Float[Tensor, " T"]:
    r"""$\sum_b p_b \log (p_b / q_b)$ of each row's margins under scrubbed ($p$) and retrained ($q$) models, in nats.

    Equal bins from the smallest to the largest margin of either side, the last edge **included**: the published code
    loses the largest margin there. With 100 models a side equal distributions read 0.34 on average, with 10 they
    read 5.6, so compare it with its floor (`against_null`, or `klom_floor`).

    **Arguments:**

    - `clip`: margins beyond it count as it.
    - `smoothing`: added to every share, so that an empty bin costs much but not infinitely much.
    """
    check_margins(scrubbed, retrained, least=2)
    check_positive("bins", bins)
    check_positive("smoothing", smoothing)
    a, b = scrubbed.double().clamp(-clip, clip), retrained.double().clamp(-clip, clip)
    # Row by row: margins of hard and easy rows share no common range.
    low, high = torch.cat([a, b]).aminmax(dim=0)
    width = (high - low).clamp(min=1e-12) / bins
    p, q = (_shares(x, low, width, bins) + smoothing for x in (a, b))
    p, q = p / p.sum(dim=0), q / q.sum(dim=0)
    return (p * (p / q).log()).sum(dim=0)


def klom_floor(models: int, *, rows: int = 1000, bins: int = 20, seed: int = 0) -> Float[Tensor, " T"]:
    """What `klom` reads when both sides are samples of one Gaussian: its floor for this many models a side."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(2, models, rows, generator=generator, dtype=torch.float64)
    return klom(draw[0], draw[1], bins=bins)


def _shares(
    x: Float[Tensor, "S T"], low: Float[Tensor, " T"], width: Float[Tensor, " T"], bins: int
) -> Float[Tensor, "B T"]:
    # The clamp puts the largest margin into the last bin instead of one beyond it.
    bin_of = ((x - low) / width).floor().long().clamp(0, bins - 1)
    counts = torch.zeros(bins, x.shape[1], dtype=x.dtype, device=x.device)
    return counts.scatter_add(0, bin_of, torch.ones_like(x)) / len(x)
