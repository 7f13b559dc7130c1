"""Schedules: the learning rate at every step, as a plain function."""

from math import cos, pi

from spotlessnet.core.recipe import Recipe

WARM_UP = 0.3
"""The share of a one-cycle schedule that climbs."""


def lr_at(recipe: Recipe, step: int, total: int) -> float:
    r"""The learning rate of update `step`, counted from zero, out of `total`.

    Constant: $\eta$. Cosine: $\tfrac\eta2(1 + \cos\frac{\pi t}{T})$. Linear: $\eta (1 - t / T)$. Step: a tenth from
    half, a hundredth from three quarters. One-cycle: a cosine climb from $\eta / 25$ over the first 30 %, then a cosine
    fall to $\eta / 250000$. With a warm-up of $W$ steps the rate is $\eta (t + 1) / (W + 1)$ at first, and the
    schedule fills the steps that are left: torch's `SequentialLR` of a `LinearLR` and the schedule.

    >>> [lr_at(Recipe(lr=1.0, schedule="step"), t, 8) for t in (0, 3, 4, 6)]
    [1.0, 1.0, 0.1, 0.01]
    """
    lr = recipe.lr
    warm = round(recipe.warmup_ratio * total)
    if step < warm:
        return lr * (step + 1) / (warm + 1)
    step, total = step - warm, total - warm
    if recipe.schedule == "linear":
        return lr * (total - step) / total
    if recipe.schedule == "cosine":
        return _between(lr, 0.0, step / total)
    if recipe.schedule == "step":
        if 4 * step >= 3 * total:
            return lr / 100
        return lr / 10 if 2 * step >= total else lr
    if recipe.schedule == "one-cycle":
        peak = WARM_UP * total - 1
        if step <= peak:
            return _between(lr / 25, lr, step / peak)
        return _between(lr, lr / 25e4, (step - peak) / (total - 1 - peak))
    return lr


def _between(a: float, b: float, share: float) -> float:
    return b + (a - b) / 2 * (1 + cos(pi * share))
