"""What a ridge problem sees of an example: pooled features, tangent sketches, or a whole Jacobian."""

from spotlessnet.forgettable.features.linearised import Linearised
from spotlessnet.forgettable.features.mirrored import Mirrored
from spotlessnet.forgettable.features.pooled import Pooled, pool
from spotlessnet.forgettable.features.tangent import TangentSketch, sketchable

__all__ = ["Linearised", "Mirrored", "Pooled", "TangentSketch", "pool", "sketchable"]
