"""The module itself, without what trainings put around it."""

from torch import nn


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside what `torch.compile` or data parallelism put around it."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if hasattr(model, "_orig_mod"):
        return unwrapped(model._orig_mod)  # type: ignore[arg-type]  # torch.compile keeps the module there
    return unwrapped(model.module) if isinstance(model, parallel) else model


def without_autocast(copied: nn.Module) -> nn.Module:
    """A copy's own `forward`, without the mixed precision that accelerate, and so `transformers.Trainer`, left there.

    It belongs to the training, and no derivative by row goes through it.
    """
    # Marked as prepared, it would be trained again without its mixed precision.
    copied.__dict__.pop("_is_accelerate_prepared", None)
    forward = copied.__dict__.pop("_original_forward", None)
    if forward is not None:
        copied.__dict__.pop("forward", None)
        if getattr(forward, "__func__", None) is not type(copied).forward:
            copied.forward = forward
    return copied
