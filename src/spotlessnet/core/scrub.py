"""`Scrub`, the contract of every method: trained weights in, a Gaussian over scrubbed weights out, at a known cost."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from spotlessnet.core.buffers import reestimated
from spotlessnet.core.data import Data
from spotlessnet.core.deprecated import AcceptsOldNames
from spotlessnet.core.errors import DataError, NeedError
from spotlessnet.core.gaussian import Covariance, Gaussian, NoNoise
from spotlessnet.core.gaussian import Notes as Notes
from spotlessnet.core.progress import NOTHING, Footprint, Made, budget
from spotlessnet.core.registry import Entry, Registry
from spotlessnet.core.split import Split, as_split
from spotlessnet.core.trained import Trained, as_trained

BACK_AND_FORTH = 3
"""A gradient in units of an answer, where the counter sees neither: once through the network, and twice back."""


@dataclass(frozen=True)
class Work:
    """How much is to be done.

    >>> Work.sure(2.0) + Work(1.0, 5.0, bytes=8)
    Work(usual=3.0, most=7.0, bytes=8)

    **Arguments:**

    - `usual`, `most`: floating-point operations (FLOPs) as a rule, and if every solver runs to its limit. NaN where
      nobody has counted.
    - `bytes`: held at once, beside the network itself.
    - `touched`: bytes read and written again by operations that do little else, such as squares of single gradients.
    """

    usual: float
    most: float
    bytes: float = 0.0
    touched: float = field(default=0.0, repr=False)

    def __add__(self, other: "Work") -> "Work":
        # One thing is done after the other, so operations add up; memory is given back in between.
        held = max(self.bytes, other.bytes)
        return Work(self.usual + other.usual, self.most + other.most, held, self.touched + other.touched)

    @staticmethod
    def sure(flops: float, bytes: float = 0.0, touched: float = 0.0) -> "Work":
        """Work that does not depend on what is met on the way."""
        return Work(flops, flops, bytes, touched)

    @staticmethod
    def unknown() -> "Work":
        """What nobody has counted: not a number, so that no plan takes it for one."""
        return Work(math.nan, math.nan)


LOOKS = 4
"""Rows that a method looks at one by one before it begins, at most."""

AT_ONCE = 2**22
"""Entries of single gradients that are written out at a time."""


@dataclass(frozen=True)
class Sizes:
    """What counts are made of.

    **Arguments:**

    - `n`, `k`: retained and forgotten rows; no retained ones where they are not at hand.
    - `P`, `C`: weights, and outputs of a row.
    - `answer`, `gradient`: FLOPs of one row's outputs, and of its loss gradient, the outputs included.
    - `bytes`: of one weight.
    - `row`: what a row takes on its way through the network.
    - `room`: bytes that pieces of work are cut to.
    - `layers`: products with weights on a row's way: numbers that leave, numbers that enter, and positions.
    - `slow`: weights whose gradient for each row has no closed form, where somebody has looked.
    """

    n: int
    k: int
    P: int
    C: int
    answer: float
    gradient: float
    bytes: int
    row: Footprint = NOTHING
    room: float = math.inf
    layers: tuple[tuple[int, int, int], ...] = ()
    slow: int = 0

    @staticmethod
    def of(trained: Trained, split: Split) -> "Sizes":
        """Count the operations of one row on the network itself."""
        data = split.forget if len(split.forget) else split.whole
        batch = next(iter(trained.batches(data, 1)))
        with torch.no_grad(), Made() as made, FlopCounterMode(display=False) as forward:
            C = int(trained.outputs(batch.x)[0].numel())
        w = trained.weights.clone().requires_grad_()
        with torch.enable_grad(), FlopCounterMode(display=False) as both:
            trained.losses(batch.x, batch.y, w).sum().backward()
        # Networks of elementwise pieces count as nothing; every weight then takes part about once.
        answer = float(max(forward.get_total_flops(), 2 * trained.size))
        counted = float(both.get_total_flops())
        gradient = counted if counted > answer else BACK_AND_FORTH * answer
        n = 0 if split.kept is None else len(split.kept)
        size = trained.weights.element_size()
        room = budget(trained.device)
        k = len(split.forget)
        return Sizes(n, k, trained.size, C, answer, gradient, size, made.footprint, room, tuple(made.layers))

    @property
    def product(self) -> float:
        """FLOPs of one row's part in a curvature product: there in forward mode, and back on a tape of its own.

        In forward mode the first layer carries what enters it along too.
        """
        first = 2.0 * math.prod(self.layers[0]) if self.layers else 0.0
        return 2 * self.gradient + first

    @property
    def columns(self) -> int:
        """Backward passes for the exact Fisher matrix of a row."""
        return max(1, self.C - 1)

    @property
    def flat(self) -> int:
        """Weights of linear layers that are fed one vector a row: squares of their gradients are never written out."""
        return sum(leave * enter for leave, enter, positions in self.layers if positions == 1)

    def diagonal(self, kind: str = "exact") -> float:
        """FLOPs of one row's Fisher diagonal: an answer, and for each column a way back to all layers and squares."""
        columns = self.columns if kind == "exact" else 1
        back = max(self.gradient - self.answer - 2.0 * self.flat, self.answer)
        passing = self.answer + columns * back
        # Gradients that are written out are squared and added; of the others squares alone are ever made. For weights
        # without a closed form the row passes once more.
        return (2 if self.slow else 1) * passing + columns * 2.0 * (self.P - self.flat) + 2.0 * self.flat

    def diagonals(self, rows: float, kind: str = "exact") -> Work:
        """The Fisher diagonal of so many rows: every gradient is written out, squared and added."""
        columns = self.columns if kind == "exact" else 1
        # For every column as much comes back to the layers as a pass makes.
        passing = min(min(rows, 64) * self.row.graph * (1 + columns), self.room)
        written = self.P - self.flat
        held = passing + 3.0 * min(64 * columns * written, AT_ONCE) * self.bytes
        # Each entry is touched three times: made, squared, added; so is each pixel's copy for one of nine taps.
        touched = 3 * rows * columns * (written * self.bytes + 9 * self.row.convolved)
        return Work.sure(rows * self.diagonal(kind) + self.closed_forms, held, touched)

    @property
    def looks(self) -> float:
        """Rows that are answered alone, to see classes and shapes: of few rows to forget that may be much."""
        return LOOKS * self.answer

    @property
    def closed_forms(self) -> float:
        """Seeing which layers have per-sample gradients in closed form.

        A row goes there, then two there and back, and the gradient of the first is made both ways.
        """
        return self.answer + 3 * self.gradient


def gradients(trained: Trained, split: Split, count: float, *, looks: bool = False) -> Work:
    """The work of so many loss gradients of one row, which is all that most methods do.

    **Arguments:**

    - `looks`: whether a few rows are looked at alone before.
    """
    sizes = Sizes.of(trained, split)
    return Work.sure(count * sizes.gradient + looks * sizes.looks)


class Scrub(metaclass=AcceptsOldNames):
    r"""Forget `split.forget`: $S(w) = h(w) + n$ with $n \sim N(0, \Sigma)$.

    To add a method, write one file in `spotlessnet/methods/` with one frozen dataclass whose fields are its
    settings, register it in `METHODS`, and say what `shift`, `cost` and, if it adds noise, `spread` are.
    """

    least_kept: ClassVar[float] = 0.05
    """The smallest share of the training data that must stay for the method to mean anything."""

    stays: ClassVar[bool] = False
    """Whether `shift` leaves the weights as they are, so that a budget need expect no less than what the rows did."""

    @abstractmethod
    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        """The deterministic part `h(w)`."""

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        """The noise covariance `Σ` around `trained.weights`, which are the shifted ones. None unless said."""
        return NoNoise.at(trained.weights)

    def cost(self, trained: Trained, split: Split) -> Work:
        """Operations and bytes that a request takes, by count. Not known unless a method says so: a plan shows that."""
        return Work.unknown()

    def foreseen(self, trained: Trained, split: Split) -> Work:
        """`cost` as a plan has it: where counts depend on what is met on the way, a few rows may be tried first."""
        return self.cost(trained, split)

    @property
    def is_noisy(self) -> bool:
        """Whether `spread` adds noise with these settings."""
        return False

    @property
    def budget(self) -> str:
        """The promise that the noise is fitted to, as written in Python; empty where there is none."""
        return ""

    @property
    def is_certified(self) -> bool:
        """Whether it fits its noise to a certificate, so that with any other the certificate would not hold."""
        return False

    def reference_spread(self, retrained: Trained, split: Split, notes: Notes) -> Covariance:
        r"""$\Sigma_0$, this method's own noise at retrained weights, from the retained rows alone.

        The forgotten rows are in no part of what it is made from: not in the split, and not through statistics, which
        are of the network that knew them. Noise that spells the rows would otherwise stand on both sides of a
        divergence and read zero.
        """
        alone = replace(self, statistics=None) if vars(self).get("statistics") is not None else self  # type: ignore[type-var]  # a dataclass
        return alone.spread(retrained, split.unasked, notes)

    def reference_for(self, scrubbed: Gaussian, retrained: Trained, split: Split) -> Gaussian:
        r"""What every bound compares `scrubbed` with: $N(w_{D_r}, \Sigma_0)$, where nothing knows the forgotten rows.

        The one definition for `compare`, `audit`, trade-off curves and budgets. Both the retrained weights and
        `reference_spread` depend on retained data alone, as the information bound asks of its second argument. So do
        running statistics, which are estimated anew as those of a scrubbed network are. Of a level that `WithinBudget`
        chose it knows only how likely one is, and its price says so.
        """
        notes = Notes()
        weights = retrained.weights
        retrained = with_statistics(retrained, split.unasked, notes)
        noise = NoNoise.at(weights) if scrubbed.is_noiseless else self.reference_spread(retrained, split, Notes())
        return Gaussian(weights, noise, buffers=notes.buffers)

    def reseeded(self, by: int) -> "Scrub":
        """The same method with its `seed`, if it has one, moved on: another draw of whatever it draws."""
        own = vars(self).get("seed")
        return replace(self, seed=own + by) if isinstance(own, int) else self  # type: ignore[type-var]  # a dataclass

    def __call__(self, trained: Trained | nn.Module, split: Split) -> Gaussian:
        """The distribution of the scrubbed weights, `N(h(w), Σ)`; a bare module is taken as `Trained.of(module)`."""
        trained, split, notes = as_trained(trained), as_split(split), Notes()
        if not len(split.forget):
            # Nothing to forget: the very same bytes come back, without noise.
            return Gaussian(trained.weights.clone(), NoNoise.at(trained.weights), notes.diagnostics())
        self.check_enough_is_kept(split)
        self.check_needs(trained, split)
        mean = self.shift(trained, split, notes).detach().clone()
        shifted = with_statistics(trained.at(mean), split, notes)
        return Gaussian(mean, self.spread(shifted, split, notes), notes.diagnostics(), notes.buffers)

    def check_needs(self, trained: Trained, split: Split) -> None:
        """Raise where the network is not of the kind that the method declared to need; called before any work."""
        declared = METHODS.declared(type(self))
        if declared is not None and "classes" in declared.needs:
            check_has_classes(f"The method {declared.name!r}", trained, split)

    def check_enough_is_kept(self, split: Split) -> None:
        """Raise where a request leaves too little for the method to mean anything."""
        if split.kept is None:
            return
        kept, gone = len(split.kept), len(split.forget)
        if kept == 0:
            raise DataError(
                f"A request must leave training rows, but this one names all {gone}. No network can be made from none: "
                "destroy the old one, or take rows off the list."
            )
        if kept < self.least_kept * (kept + gone):
            raise DataError(
                f"{type(self).__name__} must keep at least {self.least_kept:.0%} of the training rows, but this "
                f"request leaves {kept} of {kept + gone}. Train anew on what is left."
            )


@torch.no_grad()
def check_has_classes(who: str, trained: Trained, split: Split) -> None:
    """Raise unless the network gives one logit per class and labels are class numbers; one row is looked at."""
    batch = next(iter(trained.batches(split.forget, 1)))
    outputs = trained.outputs(batch.x)
    numbers = trained.loss.is_classification or not batch.y.is_floating_point()
    if outputs.ndim != 2 or outputs.shape[1] < 2 or batch.y.ndim != 1 or not numbers:
        raise NeedError(
            f"{who} needs classes: one logit per class and one class number a row, but for the loss "
            f"{trained.loss.name!r} an answer has shape {tuple(outputs.shape[1:])} and a label "
            f"{tuple(batch.y.shape[1:])}, {batch.y.dtype}. Take a method without that need: `spotless list methods`."
        )


def with_statistics(shifted: Trained, split: Split, notes: Notes) -> Trained:
    """The shifted network with the running statistics that go with its weights, which `notes.buffers` then holds.

    Those that training moved are means over the forgotten rows too. What trained anew says its own; else they are made.
    """
    if notes.buffers is None and (left := shifted.moved_buffers):
        notes.assume(
            f"buffers that training moved ({', '.join(left[:3])}) are those of the original",
            "they still carry the forgotten rows; retrain, where that matters",
        )
    if notes.buffers is None and shifted.statistics_moved:
        if split.kept is None or len(split.kept) < 2:
            notes.assume(
                "BatchNorm's running statistics are those of the original, for there are no retained rows to estimate "
                "them from",
                "the statistics were gathered with the forgotten rows and still carry them",
            )
            return shifted
        notes.buffers = reestimated(shifted, split.kept)
        notes.fact(batchnorm_statistics="estimated anew from the retained rows, at the scrubbed weights")
    return shifted.at(shifted.weights, notes.buffers)


def drawn_network(trained: Trained, gaussian: Gaussian, weights: Float[Tensor, " P"], kept: Data | None) -> Trained:
    """The network at weights that were drawn, with running statistics of its own.

    Those of the mean are functions of the mean, without noise: beside noisy weights they would tell what it hides.
    Estimated anew at the drawn weights they are a function of what is released and of retained rows.
    """
    after = trained.at(weights, gaussian.buffers)
    if gaussian.buffers is None or gaussian.is_noiseless or kept is None or len(kept) < 2:
        return after
    return after.at(weights, reestimated(after, kept))


METHODS: Registry[type[Scrub]] = Registry("method", "spotlessnet.methods")
"""Every method. A file of `spotlessnet.methods` enters its own: `@METHODS.register("ntk", paper=..., needs=...)`."""

NEEDS = (
    "retained data",
    "retained data or statistics",
    "init",
    "recipe",
    "classes",
    "whole class",
    "fold models or validation data",
    "user weights",
    "a method that adds noise",
)
"""Words for what a method cannot do without, beside the network and the forgotten examples."""

READS = ("statistics", "fold models", "init", "recipe")
"""Words for what a method reads where it is given."""


def declared_by(scrub: Scrub) -> set[Entry[type[Scrub]]]:
    """What the parts of a method declared of themselves: those of a chain, and the one inside a budget."""
    inside = getattr(scrub, "scrub", None)
    parts = (*getattr(scrub, "links", ()), *([inside] if isinstance(inside, Scrub) else []))
    own = METHODS.declared(type(scrub))
    return {entry for part in parts for entry in declared_by(part)} | (set() if own is None else {own})
