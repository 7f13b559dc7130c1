"""How much a method has to do, by count: one function for every method, and none for what is not known."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from spotlessnet.core.data import Data
from spotlessnet.core.scrub import Chain, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import (
    NTK,
    SCRUB,
    SSD,
    BadTeacher,
    Finetune,
    Fisher,
    GradientAscent,
    Hiding,
    L1Sparse,
    MixedLinear,
    NegGradPlus,
    Newton,
    OutOfFoldDistillation,
    RandomLabels,
    RespondAndPolish,
    Retrain,
    SalUn,
    ShortRetrain,
    Variational,
    WithinBudget,
)
from spotlessnet.methods.noise_cost import ATTEMPTS, CONFIRMING
from spotlessnet.methods.out_of_fold.price import THERE_AND_BACK
from spotlessnet.methods.within_budget import GRID
from spotlessnet.operators.linear_response import EXPECTED_ITERATIONS, cheaper_form
from spotlessnet.operators.trust import RAISES
from spotlessnet.precomputed.step import SEEN, WIDEST
from spotlessnet.training.mixed import UserNetwork

READ = 1 / THERE_AND_BACK
"""A row that is only read, in units of a gradient."""

PRODUCT = 2
"""A curvature product in units of a gradient: 5/3 by count, two and a half by the clock on small networks."""

NOISY = 4
"""A row of variational training: two mirror images, each with a mean and a variance to carry there and back."""

KRONECKER = 4
"""Factors in units of an exact diagonal: two sweeps, and as much again to multiply into the factors."""

EIGEN = 9
"""Operations of an eigendecomposition, over the cube of its size."""

TRIES = 3
"""How many dampings a step is usually tried with where none was given."""

NEWTON_STEPS = 4
"""Steps that the exact linearised problem usually takes, the first of them solved roughly; 50 at most."""

BISECTIONS = 25
"""Noise levels that are looked at for the most noise within an error."""


@dataclass(frozen=True)
class Work:
    """How much is to be done, counted in loss gradients of one row, and bytes that must be held at once.

    NaN where nobody has counted.
    """

    usual: float
    most: float
    bytes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.usual + other.usual, self.most + other.most, max(self.bytes, other.bytes))

    @staticmethod
    def sure(count: float, bytes: float = 0.0) -> "Work":
        """Work that does not depend on what is met on the way."""
        return Work(count, count, bytes)


@dataclass(frozen=True)
class Sizes:
    """What counts are made of: retained and forgotten rows, weights, outputs, and operations of one answer."""

    n: int
    k: int
    P: int
    C: int
    answer: float
    bytes: int

    @staticmethod
    def of(trained: Trained, split: Split) -> "Sizes":
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            C = int(trained.predict(split.whole.select([0]))[0].numel())
        n, k = 0 if split.kept is None else len(split.retain), len(split.forget)
        # Networks of elementwise pieces count as nothing; every weight then takes part about once.
        answer = max(counter.get_total_flops(), 2 * trained.size)
        return Sizes(n, k, trained.size, C, answer, trained.weights.element_size())

    @property
    def columns(self) -> int:
        """Backward passes for the exact Fisher matrix of a row."""
        return max(1, self.C - 1)

    def dense(self, operations: float) -> float:
        """Plain linear algebra in units of a row's gradient."""
        return operations / (THERE_AND_BACK * self.answer)

    def diagonal(self, kind: str = "exact") -> float:
        """The Fisher diagonal of one row."""
        return READ + (self.columns if kind == "exact" else 1)


def work_of(scrub: Scrub, trained: Trained, split: Split) -> Work:
    """The count of a method; a chain is the sum of its links."""
    count = next((COUNTS[kind] for kind in type(scrub).__mro__ if kind in COUNTS), None)
    return Work(math.nan, math.nan) if count is None else count(scrub, trained, split)


def _of_chain(scrub: Chain, trained: Trained, split: Split) -> Work:
    return sum((work_of(link, trained, split) for link in scrub.links), Work(0, 0))


def _of_budget(scrub: WithinBudget, trained: Trained, split: Split) -> Work:
    n, N = len(split.retain), len(split.whole)
    rows = n if split.validation is None else len(split.validation)
    # The curve, on all rows; on half of them each, levels that are tried, and fresh draws that confirm.
    curve, confirmed = len(GRID) * (scrub.draws + 1), (CONFIRMING + 1) / 2
    tried = 0.0 if scrub.max_nats is not None else BISECTIONS * (scrub.draws + 1) / 2
    errors = Work(
        (curve + tried + confirmed) * rows * READ,
        (curve + tried + confirmed * (ATTEMPTS if tried else 1)) * rows * READ,
    )
    gap = Work(0, 0)
    if scrub.reference is None:
        # One more Newton step where the scrub ends, and another where it began if that is elsewhere.
        gap = Work(N + n + EXPECTED_ITERATIONS * PRODUCT * n, N + 2 * n + 2 * 1.1 * 200 * PRODUCT * n)
    return work_of(scrub.scrub, trained, split) + errors + gap


def _of_retrain(scrub: Retrain, trained: Trained, split: Split) -> Work:
    return Work.sure(_epochs(trained) * len(split.retain))


def _of_short_retrain(scrub: ShortRetrain, trained: Trained, split: Split) -> Work:
    n, stage = len(split.retain), max(1, round(scrub.epoch_fraction * _epochs(trained)))
    stages = -(-_epochs(trained) // stage)
    # One stage where it is as good at once; error is looked at before the first and after each.
    return Work((stage + 2 * READ) * n, (stages * stage + (stages + 1) * READ) * n)


def _of_distillation(scrub: OutOfFoldDistillation, trained: Trained, split: Split) -> Work:
    return Work.sure(scrub.price(split).of(scrub.rows_in_a_round(trained, split)) / THERE_AND_BACK)


def _of_finetune(scrub: Finetune | L1Sparse, trained: Trained, split: Split) -> Work:
    return Work.sure(scrub.epochs * len(split.retain))


def _of_all_rows(scrub: RandomLabels | NegGradPlus, trained: Trained, split: Split) -> Work:
    return Work.sure(scrub.epochs * len(split.whole))


def _of_saliency(scrub: SalUn, trained: Trained, split: Split) -> Work:
    return Work.sure(scrub.epochs * len(split.whole) + len(split.forget))


def _of_negative_gradient(scrub: GradientAscent, trained: Trained, split: Split) -> Work:
    return Work.sure(scrub.epochs * (len(split.forget) + (len(split.retain) if scrub.descend else 0)))


def _of_bad_teacher(scrub: BadTeacher, trained: Trained, split: Split) -> Work:
    teachers = 1 if trained.init is None else 2
    return Work.sure((scrub.epochs + teachers * READ) * len(split.whole))


def _of_student(scrub: SCRUB, trained: Trained, split: Split) -> Work:
    away = min(scrub.away, scrub.epochs)
    return Work.sure(READ * len(split.whole) + away * len(split.forget) + scrub.epochs * len(split.retain))


def _of_respond_and_polish(scrub: RespondAndPolish, trained: Trained, split: Split) -> Work:
    n, k = len(split.retain), len(split.forget)
    coreset = min(scrub.coreset, n)
    step = k + coreset * (1 + PRODUCT * (scrub.iterations + 1)) if scrub.iterations else 0
    # As the method itself has it: a share of the recipe's epochs, and its own only where there is no recipe.
    epochs = scrub.epochs if trained.recipe is None else max(1, round(scrub.epoch_fraction * trained.recipe.epochs))
    return Work.sure(step + epochs * n)


def _of_hiding(scrub: Hiding, trained: Trained, split: Split) -> Work:
    return Work.sure(2 * READ * len(split.forget) + 1)


def _of_dampening(scrub: SSD, trained: Trained, split: Split) -> Work:
    return Work.sure(Sizes.of(trained, split).diagonal("empirical") * (len(split.whole) + len(split.forget)))


def _of_variational(scrub: Variational, trained: Trained, split: Split) -> Work:
    n = len(split.retain)
    # The last batch of a sweep is smaller; a quarter more batches look at the answer.
    return Work.sure(1.25 * NOISY * scrub.steps * n / math.ceil(n / scrub.batch_size))


def _of_fisher(scrub: Fisher, trained: Trained, split: Split) -> Work:
    sizes = Sizes.of(trained, split)
    if scrub.statistics is not None:
        return Work.sure(0 if scrub.structure == "kronecker" else sizes.k * sizes.diagonal(scrub.kind))
    return _of_noise(sizes, scrub.structure, scrub.kind)


def _of_noise(sizes: Sizes, structure: str, kind: str = "exact") -> Work:
    held = 64.0 * sizes.columns * sizes.P * sizes.bytes
    if structure == "kronecker":
        return Work.sure(KRONECKER * sizes.n * sizes.diagonal("exact" if kind == "exact" else "monte carlo"), held)
    return Work.sure(sizes.n * sizes.diagonal(kind), held)


def _of_newton(scrub: Newton, trained: Trained, split: Split) -> Work:
    sizes = Sizes.of(trained, split)
    n, k, P = sizes.n, sizes.k, sizes.P
    if scrub.statistics is not None:
        noise = Work.sure(k * sizes.diagonal()) if scrub.is_noisy else Work(0, 0)
        return _of_memory(sizes, scrub.statistics, 1) + noise
    # An indefinite Hessian is given up for Gauss-Newton.
    again = 2 if scrub.curvature == "auto" else 1
    written = Work(PRODUCT * P * (n + k), again * PRODUCT * P * (n + k), 4 * 8.0 * P * P)
    cube = sizes.dense(P**3)
    if scrub.time is not None:
        step = written + Work.sure((6 * EIGEN + 6) * cube)
    elif scrub.dense_up_to >= P:
        step = written + Work.sure(2 * EIGEN * cube)
    else:
        step = _products(scrub.max_iterations, n)
    search = Work.sure(2 * READ * n if scrub.search and scrub.time is None else 0)
    noise = Work(0, 0)
    if scrub.is_noisy:
        dense = written + Work.sure(2 * EIGEN * cube)
        noise = dense if scrub.structure == "dense" else _of_noise(sizes, scrub.structure)
    return Work.sure(n + k) + step + search + noise


def _of_memory(sizes: Sizes, memory: Any, tries: int) -> Work:
    """The cohort's gradient and kernel, and the algebra of the kept directions with its own."""
    P, rank = sizes.P, 0 if memory.values is None else memory.values.numel()
    seen = max(1, min(sizes.k, SEEN // sizes.C))
    roots = seen * sizes.columns
    width = min(WIDEST, roots)
    algebra = (seen * sizes.C) ** 2 * P + 2 * P * seen * sizes.C * width + 4.0 * P * (rank + width) ** 2
    algebra += EIGEN * (roots**3 + (rank + width) ** 3)
    passes = sizes.k + 2 * seen * (READ + sizes.C) + tries * PRODUCT * sizes.k
    return Work.sure(passes + sizes.dense(algebra), 3.0 * (rank + width) * P * sizes.bytes)


def _of_ntk(scrub: NTK, trained: Trained, split: Split) -> Work:
    sizes = Sizes.of(trained, split)
    n, k = sizes.n, sizes.k
    if scrub.statistics is not None:
        return _of_memory(sizes, scrub.statistics, RAISES if scrub.damping == "auto" else 1)
    D_r, D = split.retain, split.whole
    if scrub.variant == "published":
        return Work.sure(2 * n + k) + _solve(scrub, trained, sizes, D_r) + _solve(scrub, trained, sizes, D)
    work = Work.sure(n + k)
    if scrub.residual == "solve":
        work += _solve(scrub, trained, sizes, D_r) + _solve(scrub, trained, sizes, D)
    elif scrub.damping == "auto" and scrub.linearised == "end":
        # The tilt, its height, the curvature along the push; then a solve and a height for every damping.
        usual, most = _solve(scrub, trained, sizes, D_r), _solve(scrub, trained, sizes, D_r, again=True)
        tries, last = TRIES - 1, RAISES
        fixed = n * (1 + READ + PRODUCT)
        work += usual + Work(fixed + tries * (most.usual + READ * n), fixed + last * (most.most + READ * n))
    else:
        work += _solve(scrub, trained, sizes, D_r)
    if scrub.calibrate == "holdout":
        return work + Work.sure(READ * (30 * k + (0 if split.validation is None else len(split.validation))))
    if scrub.trapezium:
        work += Work.sure(n + k) + _solve(scrub, trained, sizes, D)
    return work + Work.sure(n + k + 2 * READ * n if scrub.search else 0)


def _solve(scrub: NTK, trained: Trained, sizes: Sizes, data: Data, *, again: bool = False) -> Work:
    """One linear system over these rows; `again` with another ridge, for which kernels and directions are known."""
    rows, P, C, R = len(data), sizes.P, sizes.C, sizes.columns if scrub.output == "softmax" else sizes.C
    if scrub.output == "exact":
        # Through the linearised network, whose answers are products themselves.
        steps = 2.0 * PRODUCT * rows
        return Work(NEWTON_STEPS * steps * (1 + EXPECTED_ITERATIONS / 2), 50 * steps * (1 + scrub.max_iterations))
    form = cheaper_form(trained, data) if scrub.solution == "auto" else scrub.solution
    if form == "dual":
        passes = 0.0 if again else rows * (READ + C)
        made = 0.0 if again else (rows * C) ** 2 * (_kernel_width(trained) + 2.0 * R)
        total = passes + sizes.dense(made + (rows * R) ** 3 / 3) + 2 * 2 * PRODUCT * rows
        return Work.sure(total, 3 * 8.0 * (rows * C) ** 2 + 2.0 * scrub.batch_size * C * P * sizes.bytes)
    if form == "low rank":
        found = 0.0 if again else _directions(scrub.rank, rows, sizes)
        return Work.sure(found + PRODUCT * rows, 3.0 * scrub.rank * P * sizes.bytes)
    first = 0.0 if again or not scrub.precondition else _directions(scrub.precondition, rows, sizes)
    return Work.sure(first) + _products(scrub.max_iterations, rows)


def _kernel_width(trained: Trained) -> float:
    """Operations of one entry of the kernel: gradients of a linear layer are outer products, others are written out."""
    layers = [m for m in trained.model.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad]
    return trained.size + sum(2.0 * m.out_features - m.weight.numel() for m in layers)


def _directions(rank: int, rows: int, sizes: Sizes) -> float:
    """The strongest directions of the curvature, from a Krylov space of twice as many."""
    width = 2.0 * min(rank, sizes.P)
    return width * PRODUCT * rows + sizes.dense(8.0 * sizes.P * width**2 + EIGEN * width**3)


def _products(most: int, rows: int) -> Work:
    """Conjugate gradients; the true residual is looked at once more every fifty products, and at the end."""
    usual = min(EXPECTED_ITERATIONS, most)
    return Work((1 + 1.02 * usual) * PRODUCT * rows, (2 + 1.1 * most) * PRODUCT * rows)


def _of_mixed_linear(scrub: MixedLinear, trained: Trained, split: Split) -> Work:
    if split.kept is not None and not len(split.retain):
        return Work(0, 0)
    sizes, n = Sizes.of(trained, split), len(split.retain)
    linear = trained.model.core_network() if isinstance(trained.model, UserNetwork) else trained
    looks = Work(3 * n, 5 * n)
    if cheaper_form(linear, split.retain) == "dual":
        made = (n * sizes.C) ** 2 * _kernel_width(linear) + (n * sizes.C) ** 3 / 3
        return looks + Work.sure(n * (READ + sizes.C) + sizes.dense(made) + 8 * PRODUCT * n)
    return looks + Work(2 * EXPECTED_ITERATIONS * PRODUCT * n, 1.1 * scrub.max_iterations * PRODUCT * n)


def _epochs(trained: Trained) -> int:
    """Of the recipe; without one these methods refuse, which is for them to say."""
    return trained.recipe.epochs if trained.recipe else 0


COUNTS: dict[type[Scrub], Callable[[Any, Trained, Split], Work]] = {
    Chain: _of_chain,
    WithinBudget: _of_budget,
    NTK: _of_ntk,
    Newton: _of_newton,
    Fisher: _of_fisher,
    Variational: _of_variational,
    MixedLinear: _of_mixed_linear,
    Retrain: _of_retrain,
    ShortRetrain: _of_short_retrain,
    OutOfFoldDistillation: _of_distillation,
    RespondAndPolish: _of_respond_and_polish,
    Finetune: _of_finetune,
    L1Sparse: _of_finetune,
    RandomLabels: _of_all_rows,
    NegGradPlus: _of_all_rows,
    GradientAscent: _of_negative_gradient,
    SalUn: _of_saliency,
    BadTeacher: _of_bad_teacher,
    SCRUB: _of_student,
    SSD: _of_dampening,
    Hiding: _of_hiding,
}
"""Who counts for which method. One that is not here has no count, and the plan says so."""
