"""How likely a request finds a fold model that saw none of it."""

import math

from spotlessnet.core.errors import SettingError, check_positive


def chance_unseen(request: int, folds: int, repeats: int = 1, *, groups: int) -> float:
    r"""The chance that in some division all of a request lies in one fold, so that one fold model saw none of it.

    $$1 - \Big(1 - \sum_{j=1}^{K} \binom{n_j}{m} \Big/ \binom{N}{m}\Big)^{R}$$

    with $m$ groups asked for among $N$ of equal size, $K$ folds of $n_j = \lfloor N/K \rfloor$ or one more, and $R$
    independent divisions. For many groups one division has nearly $K^{1-m}$: one group always, two about one time in
    $K$, ten hardly ever. Count what goes together as one group: one person's 1,000 rows are one.

    **Arguments:**

    - `request`: how many groups it names, rows where there are no groups.
    - `folds`, `repeats`: as `train_fold_models` has them.
    - `groups`: how many there are in all.

    >>> chance_unseen(1, 3, groups=100), round(chance_unseen(2, 2, groups=4), 6)
    (1.0, 0.333333)
    """
    for name, value in (("request", request), ("repeats", repeats)):
        check_positive(name, value)
    if not 2 <= folds <= groups:
        raise SettingError(f"`folds` must be at least 2 and at most one per group, but got {folds} for {groups}.")
    if request > groups:
        raise SettingError(f"`request` must be among the {groups} groups, but it names {request}.")
    small, larger = divmod(groups, folds)
    whole = math.comb(groups, request)
    # Whole numbers divided once: binomials of a thousand have no place in a float.
    alone = larger * math.comb(small + 1, request) + (folds - larger) * math.comb(small, request)
    once = alone / whole
    return -math.expm1(repeats * math.log1p(-once)) if once < 1 else 1.0


def share_seen(request: int, folds: int, *, groups: int) -> float:
    r"""The share of the other groups of a request that the fold model of one of them has seen, in the mean.

    $$1 - \frac{\sum_j n_j (n_j - 1)}{N (N - 1)}$$

    The chance that another group lies in another fold; 0 for a request of one group. This is what is left to see where
    `chance_unseen` is small.
    """
    if request < 2:
        return 0.0
    small, larger = divmod(groups, folds)
    pairs = larger * (small + 1) * small + (folds - larger) * small * (small - 1)
    return 1 - pairs / (groups * (groups - 1))
