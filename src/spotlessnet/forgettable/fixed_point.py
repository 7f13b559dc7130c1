"""Fixed-point features: whole numbers, whose sums of products carry no rounding at all."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int16
from torch import Tensor

from spotlessnet.core.errors import MismatchError, NumericsError, check_finite

LARGEST = 2**15 - 1
"""The largest code, so that a product of two has at most 30 bits."""

MOST_WEIGHT = 2**23
"""The largest sum of example weights: 2²³ products of 30 bits stay below 2⁵³, up to where float64 is exact."""


@dataclass(frozen=True, eq=False)
class FixedPoint:
    r"""$q_j = \mathrm{round}(x_j / s_j)$, clipped to 16 bits, with scales $s$ that no user example has touched.

    Codes are whole numbers, so moments of codes are exact in float64 in any order, and an example that is subtracted
    leaves nothing, not even rounding.

    **Arguments:**

    - `scale`: $s$, the size of one step, per feature; from core data only.
    """

    scale: Float[Tensor, " d"]

    @staticmethod
    def of_core(
        features: Float[Tensor, "n d"],
        blocks: list[int] | None = None,
        *,
        headroom: float = 4.0,
        per_feature: bool = False,
    ) -> "FixedPoint":
        """Scales under which every block of features has the same mean square, and room above the largest core value.

        **Arguments:**

        - `features`: those of core examples.
        - `blocks`: the sizes of groups of features that share one scale, such as the layers of a sketch.
        - `headroom`: how many times the largest core value can still be told apart; beyond it codes are clipped.
        - `per_feature`: give every feature the same mean square instead.
        """
        check_finite("Core features", features, "Look for NaN among the inputs.")
        if not bool(features.any()):
            raise NumericsError(
                "Core features must not all be zero, as no scale can be taken from them. Check the backbone."
            )
        sizes = [features.shape[1]] if blocks is None else blocks
        if sum(sizes) != features.shape[1]:
            raise MismatchError(f"Blocks of {sum(sizes)} features cannot scale {features.shape[1]}.")
        x = features.double()
        square = x.square().mean(dim=0)
        pieces = [p if per_feature else p.mean().expand_as(p) for p in square.split(sizes)]
        root = torch.cat(pieces).sqrt().clamp(min=1e-30)
        # One step for all blocks in units of their root mean square: blocks then weigh alike under one ridge.
        largest = float((x.abs().amax(dim=0) / root).max().clamp(min=1e-30))
        return FixedPoint((root * (headroom * largest / LARGEST)).float())

    def __call__(self, features: Float[Tensor, "n d"]) -> Int16[Tensor, "n d"]:
        """The codes of these features; NaN is refused, what lies beyond the range is clipped."""
        if features.shape[1] != len(self.scale):
            raise MismatchError(f"There are scales for {len(self.scale)} features, but {features.shape[1]} came.")
        q = (features / self.scale.to(features)).round().clamp(-LARGEST, LARGEST)
        if bool(q.isnan().any()):
            raise NumericsError("Features must be numbers, but some are NaN. Check the inputs and the backbone.")
        return q.to(torch.int16)

    def to(self, device: torch.device | str) -> "FixedPoint":
        """The same on another device."""
        return FixedPoint(self.scale.to(device))
