"""How long a forgetting step must be, read off held-out rows instead of a retrained network.

Rows that were never seen have a certain loss; forgotten rows of the same classes should have it too. That holds for
ordinary rows only: wrongly labelled ones, and classes that are gone altogether, must end up with a *higher* loss.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError, SettingError
from spotlessnet.core.progress import track
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained

LEAST, MOST = 0.25, 2.0
"""The factor is looked for between these."""

STEPS = 16
"""Into how many pieces that range is cut before the first crossing is halved down to."""


class Match(NamedTuple):
    """The factor, the forgotten rows' mean loss there, the held-out one to be met, and whether it was met."""

    scale: float
    forget_loss: float
    holdout_loss: float
    meets: bool


def check_holdout_can_match(trained: Trained, split: Split) -> Data:
    """The held-out rows of the forgotten classes; an error where their loss says nothing about the forgotten rows."""
    if not trained.loss.is_classification:
        raise SettingError(
            f'`calibrate="holdout"` compares rows of the same class, but the loss {trained.loss.name!r} has no '
            'classes. Use `calibrate="none"`.'
        )
    if split.request.mislabelled:
        raise SettingError(
            '`calibrate="holdout"` must not be used for mislabelled rows: forgetting a wrong label raises its loss '
            'above that of any held-out row. Use `calibrate="none"`.'
        )
    wanted, kept = split.forget.labels().unique(), split.retain.labels().unique()
    gone = wanted[~torch.isin(wanted, kept)]
    if len(gone):
        raise SettingError(
            f'`calibrate="holdout"` must not be used when a whole class goes: no retained row has class '
            f'{int(gone[0])}, so a retrained network would not know it. Use `calibrate="none"`.'
        )
    if split.validation is None:
        raise NeedError(
            '`calibrate="holdout"` needs held-out rows, but the split has no `validation`. Give some, or use '
            '`calibrate="none"`.'
        )
    labels = split.validation.labels()
    missing = wanted[~torch.isin(wanted, labels)]
    if len(missing):
        raise DataError(
            f'`calibrate="holdout"` needs held-out rows of every forgotten class, but none has class {int(missing[0])}.'
        )
    return split.validation.select(torch.isin(labels, wanted).nonzero().squeeze(1))


def holdout_scale(trained: Trained, split: Split, step: Float[Tensor, " P"], tolerance: float = 1e-3) -> Match:
    r"""The smallest `s` at which $w + s\delta$ has the mean loss on the forgotten rows that $w$ has on held-out ones.

    Held-out rows are weighted so that each class counts as often as it does among the forgotten ones. Their loss is
    taken at $w$, not along the step: it stands for a network that never saw the forgotten rows, and a step that harms
    everything must not look like one that forgets. Where it is not met between the limits, held-out rows do not tell
    about these, and the factor is one.
    """
    held = check_holdout_can_match(trained, split)
    share = _class_shares(split.forget.labels(), held.labels())
    target = float(_losses(trained, held) @ share.to(trained.device))

    def loss(scale: float) -> float:
        return float(_losses(trained.at(trained.weights + scale * step), split.forget).mean())

    seen: list[tuple[float, float]] = []
    for i in track(range(STEPS + 1), "matching held-out loss"):
        # Upwards in equal ratios: the first crossing is the smallest factor, and a later one would overshoot.
        scale = LEAST * (MOST / LEAST) ** (i / STEPS)
        seen.append((scale, loss(scale)))
        if seen[-1][1] >= target:
            break
    # Met at the very first factor means that the loss was already there: held-out rows then set no length.
    if len(seen) == 1 or seen[-1][1] < target:
        return Match(1.0, loss(1.0), target, meets=False)
    low, high = seen[-2:]
    while high[0] - low[0] > tolerance:
        middle = 0.5 * (low[0] + high[0])
        now = (middle, loss(middle))
        low, high = (low, now) if now[1] >= target else (now, high)
    return Match(*high, target, meets=True)


def _losses(trained: Trained, data: Data) -> Float[Tensor, " N"]:
    with torch.no_grad():
        return torch.cat([trained.losses(b.x, b.y) for b in trained.batches(data)]).double()


def _class_shares(forgotten: Tensor, held: Tensor) -> Float[Tensor, " M"]:
    """One weight per held-out row, summing to one: its class's share among the forgotten rows."""
    of_class = {int(c): float((forgotten == c).double().mean()) for c in forgotten.unique()}
    counts = {c: int((held == c).sum()) for c in of_class}
    return torch.tensor([of_class[int(c)] / counts[int(c)] for c in held], dtype=torch.float64)
