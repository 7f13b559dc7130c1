"""Feature maps as plain values, so that a saved model can be put together again around its bare backbone."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spotlessnet.core.errors import DataError, SpotlessError
from spotlessnet.forgettable.features.linearised import Linearised
from spotlessnet.forgettable.features.mirrored import Mirrored
from spotlessnet.forgettable.features.pooled import Pooled
from spotlessnet.forgettable.features.tangent import TangentSketch


def described(features: nn.Module) -> dict[str, Any] | None:
    """What a feature map is made of, apart from its weights; `None` for one of the caller's own."""
    if isinstance(features, Mirrored):
        inside = described(features.features)
        return None if inside is None else {"kind": "mirrored", "inside": inside}
    if isinstance(features, Pooled):
        return {"kind": "pooled"}
    if isinstance(features, Linearised):
        return {"kind": "linearised", "layers": features.names}
    if isinstance(features, TangentSketch):
        shapes = {name: list(value.shape) for name, value in features.named_buffers() if "." not in name}
        settings = {"pooled": features.with_pooled, "even": features.even}
        return {"kind": "tangent", "layers": features.names, **settings, "shapes": shapes}
    return None


def rebuilt(backbone: nn.Module, description: dict[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """A feature map of this kind around a backbone, its sketches still empty.

    **Arguments:**

    - `description`: what `described` gave, from a file that anyone may have written.
    - `weights`: those that will be put into it. Sketches must have the shapes of theirs before memory is asked for.
    """
    try:
        return _rebuilt(backbone, description, {name: tuple(value.shape) for name, value in weights.items()})
    except SpotlessError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, RecursionError) as e:
        raise DataError(
            f"The file's description of its features cannot be ({type(e).__name__}). Give the feature map itself."
        ) from e


def _rebuilt(backbone: nn.Module, description: dict[str, Any], known: Mapping[str, tuple[int, ...]]) -> nn.Module:
    kind = description.get("kind")
    if kind == "mirrored":
        inside = {name.removeprefix("features."): shape for name, shape in known.items()}
        return Mirrored(_rebuilt(backbone, description["inside"], inside))
    if kind == "pooled":
        return Pooled(backbone)
    if kind == "linearised":
        return Linearised(backbone, tuple(description["layers"]))
    if kind == "tangent":
        shapes = description["shapes"]
        if any(known.get(name) != tuple(shape) for name, shape in shapes.items()):
            raise ValueError("a sketch has another shape than its weights")
        directions: Tensor = torch.zeros(shapes["directions"])
        # Files from before there was a choice kept all features.
        settings = {"pooled": bool(description["pooled"]), "even": bool(description.get("even", False))}
        made = TangentSketch(backbone, directions, description["layers"], **settings)
        device = next(backbone.parameters()).device
        for name, shape in shapes.items():
            setattr(made, name, torch.zeros(shape, device=device))
        return made
    raise DataError(f"The file speaks of features of an unknown kind, {str(kind)[:40]!r}. Give the feature map itself.")
