"""What a request will cost, from timing a few batches and counting products, before it is begun."""

import math
import time
from dataclasses import dataclass

import torch

from spotlessnet.core.damage import CHECKED
from spotlessnet.core.errors import ResourceError
from spotlessnet.core.room import free_bytes
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.linear_response import EXPECTED_ITERATIONS, cheaper_form
from spotlessnet.scrubs import (
    NTK,
    Finetune,
    Fisher,
    MixedLinear,
    Newton,
    Retrain,
    ShortRetrain,
    Unlabel,
    Variational,
    WithinBudget,
)
from spotlessnet.scrubs.noise_cost import CONFIRMING
from spotlessnet.scrubs.price import THERE_AND_BACK
from spotlessnet.scrubs.tuning import Tuning

TIMED = 3
"""Batches that are timed."""

ROWS = 64
"""Rows in each of them."""

PRODUCT = 3
"""A curvature product in units of a gradient: forward mode, then backward mode."""

COPIES = 8
"""Vectors of all weights that a run holds at once: the network twice, a solver's four, mean and noise."""

GIB = 2**30


@dataclass(frozen=True)
class Work:
    """How much is to be done, counted in loss gradients of one row, and bytes that must be held at once."""

    usual: float
    most: float
    bytes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.usual + other.usual, self.most + other.most, max(self.bytes, other.bytes))


@dataclass(frozen=True)
class Estimate:
    """Seconds and memory of a request, beside retraining on the same machine.

    **Arguments:**

    - `seconds`, `at_most`: usual, and if every solver runs to its limit.
    - `retraining`: seconds of one retraining; NaN where the recipe is not known.
    - `memory`, `available`: bytes.
    """

    seconds: float
    at_most: float
    retraining: float
    memory: float
    available: float

    def lines(self) -> list[str]:
        """For the plan."""
        share = self.seconds / self.retraining
        known = math.isfinite(share)
        retrain = f"{_seconds(self.retraining)} for one retraining" if known else "retraining: its recipe is not known"
        ratio = f" ({share:.1%} of it)" if known else ""
        return [
            f"time    about {_seconds(self.seconds)}{ratio}, at most {_seconds(self.at_most)}; {retrain}",
            f"memory  about {self.memory / GIB:.2g} GiB of {self.available / GIB:.3g} GiB available",
        ]

    def check_memory(self) -> None:
        """Refuse what would not fit."""
        if self.memory > self.available:
            raise ResourceError(
                f"This would need about {self.memory / GIB:.2g} GiB, but {self.available / GIB:.2g} GiB may be used. "
                "Take a method that needs less (see --dry-run), a smaller cohort, or another machine."
            )


def estimate(trained: Trained, split: Split, scrub: Scrub, limit: float | None = None) -> Estimate:
    """Time a few batches, count what the method will do, and look at the memory that is free.

    **Arguments:**

    - `limit`: GiB that may be used, if less than what is free.
    """
    each = seconds_per_row(trained, split)
    work = _work(scrub, trained, split) + _looking(split)
    size = trained.weights.element_size()
    free = available(trained.device)
    recipe = trained.recipe
    return Estimate(
        seconds=work.usual * each,
        at_most=work.most * each,
        retraining=math.nan if recipe is None else recipe.epochs * len(split.retain) * each,
        memory=COPIES * trained.size * size + work.bytes,
        available=free if limit is None else min(free, limit * GIB),
    )


def seconds_per_row(trained: Trained, split: Split) -> float:
    """Wall time of one row's loss gradient, in batches."""
    w = trained.weights.clone().requires_grad_()
    data = split.whole.pick(list(range(min(len(split.whole), TIMED * ROWS))))
    seconds, rows = math.inf, max(1, min(ROWS, len(data)))
    for batch in trained.batches(data, ROWS):
        began = time.perf_counter()
        trained.losses(batch.x, batch.y, w).sum().backward()
        if len(batch.rows) == rows:
            # The fastest: the first call also warms up.
            seconds = min(seconds, time.perf_counter() - began)
    return seconds / rows


def _work(scrub: Scrub, trained: Trained, split: Split) -> Work:
    """The count for each kind of method; a chain is the sum of its links."""
    n, k, P = len(split.retain), len(split.forget), trained.size
    size = trained.weights.element_size()
    if isinstance(scrub, WithinBudget):
        # Levels that are tried, the curve, and the draws that confirm.
        levels = (60 * scrub.draws + 3 * CONFIRMING) * (n if split.validation is None else len(split.validation)) / 3
        gap = 0 if scrub.reference is not None else 2 * PRODUCT * n
        return _work(scrub.scrub, trained, split) + Work(levels + 50 * gap, levels + 200 * gap)
    if hasattr(scrub, "links"):
        return sum((_work(link, trained, split) for link in scrub.links), Work(0, 0))
    if isinstance(scrub, NTK):
        return _of_ntk(scrub, trained, split)
    if isinstance(scrub, Newton):
        if scrub.dense_up_to >= P:
            return Work(2 * PRODUCT * P * (n + k), 2 * PRODUCT * P * (n + k), 4 * 8.0 * P * P)
        return Work(EXPECTED_ITERATIONS * PRODUCT * n, scrub.max_iterations * PRODUCT * n)
    if isinstance(scrub, Retrain):
        passes = trained.recipe.epochs if trained.recipe else 0
        return Work(passes * n, passes * n)
    if isinstance(scrub, ShortRetrain):
        passes = trained.recipe.epochs if trained.recipe else 0
        return Work(scrub.effort * passes * n, passes * n)
    if isinstance(scrub, Unlabel):
        there_and_back = scrub.price(split).of(scrub.rows_in_a_round(trained, split)) / THERE_AND_BACK
        return Work(there_and_back, there_and_back)
    if isinstance(scrub, Tuning):
        rows = n if isinstance(scrub, Finetune) else n + k
        return Work(scrub.epochs * rows, scrub.epochs * rows)
    if isinstance(scrub, Fisher):
        per_row = _outputs(trained, split) if scrub.kind == "exact" and scrub.memory is None else 1
        return Work(per_row * n, per_row * n, 64.0 * per_row * P * size)
    if isinstance(scrub, Variational):
        return Work(2.0 * scrub.steps * scrub.batch, 2.0 * scrub.steps * scrub.batch)
    if isinstance(scrub, MixedLinear):
        return Work(100.0 * PRODUCT * n, float(scrub.max_iterations * PRODUCT * n))
    # What is left looks at every row once, and at the forgotten ones again.
    return Work(n + 2 * k, n + 2 * k)


def _of_ntk(scrub: NTK, trained: Trained, split: Split) -> Work:
    n, k, P, C = len(split.retain), len(split.forget), trained.size, _outputs(trained, split)
    size = trained.weights.element_size()
    form = cheaper_form(trained, split.whole) if scrub.solution == "auto" else scrub.solution
    twice = 2 if scrub.residual == "solve" else 1
    if form == "dual":
        # Products and factor of the dense kernel, with three times 2P operations for a gradient.
        dense = ((n * C) ** 2 * P + (n * C) ** 3 / 3) / (6 * P)
        total = twice * (n * C + dense) + 3 * (n + k)
        return Work(total, total, 3 * 8.0 * (n * C) ** 2 + 2.0 * scrub.batch * C * P * size)
    if form == "low rank":
        total = twice * 4.0 * scrub.rank * PRODUCT * n + n + k
        return Work(total, total, 3.0 * scrub.rank * P * size)
    usual, most = min(EXPECTED_ITERATIONS, scrub.max_iterations), scrub.max_iterations
    return Work(twice * PRODUCT * usual * n + n + k, twice * PRODUCT * most * n + n + k)


def _looking(split: Split) -> Work:
    """Two networks answer a few rows that stay before anything is written; an answer is a third of a gradient."""
    held_out = split.validation if split.validation is not None else split.test
    rows = sum(min(CHECKED, len(data)) for data in (split.kept, held_out) if data is not None)
    return Work(2 * rows / 3, 2 * rows / 3)


def _outputs(trained: Trained, split: Split) -> int:
    return int(trained.predict(split.whole.pick([0]))[0].numel())


def available(device: torch.device) -> float:
    """Bytes that may still be asked for, here or on the GPU; infinite where the system does not tell."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return free_bytes()


def _seconds(value: float) -> str:
    if value < 1:
        return f"{value:.2g} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
