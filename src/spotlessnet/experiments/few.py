"""Fewer rows where all of them would take too long: retained rows drawn once, and said so in the row's note."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.bound import Bound
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError
from spotlessnet.core.gaussian import Covariance, Gaussian
from spotlessnet.core.readout import Ideal, Reading, Readout
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.tuning import Tuning


def some(data: Data, count: int | None, seed: int = 0) -> Data:
    """At most `count` rows, drawn with a seed; all of them for `None`."""
    if count is None or count >= len(data):
        return data
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return data.select(order[:count].sort().values)


def fewer(split: Split, kept: int | None, forget: int | None = None) -> Split:
    """The same split with fewer retained, and if asked fewer forgotten, rows."""
    return replace(split, kept=some(split.retain, kept), forget=some(split.forget, forget))


@dataclass(frozen=True)
class Slower(Scrub):
    """A tuning that bursts, again at half the rate, until it ends with numbers; the notes say at which.

    **Arguments:**

    - `scrub`: the tuning.
    - `halvings`: the most.
    """

    scrub: Tuning
    halvings: int = 20

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        lr = self.scrub.recipe(trained, Notes()).lr
        for halving in range(self.halvings + 1):
            slower = replace(self.scrub, lr=lr / 2**halving)
            try:
                w = slower.shift(trained, split, notes)
            except NumericsError:
                continue
            if bool(w.isfinite().all()):
                notes.fact(lr=slower.lr, halvings=halving)
                return w
        raise NumericsError(
            f"A tuning must end with numbers at some rate, but bursts from {lr:g} down to "
            f"{lr / 2**self.halvings:.2g}. Look for NaN in the data."
        )


@dataclass(frozen=True)
class FromFew(Scrub):
    r"""A scrub whose curvature is measured on `kept` of the retained rows.

    Curvature and ridge are sums, so a step from $m$ of $N_r$ retained rows is $N_r / m$ times too long and is
    shortened by that; where the forgotten rows are thinned out by the same factor (`thin`) it already has its length.

    **Arguments:**

    - `scrub`: the method.
    - `kept`: $m$; `None` for all rows.
    - `thin`: take the same share of the forgotten rows: for whole classes.
    """

    scrub: Scrub
    kept: int | None
    thin: bool = False

    @property
    def is_noisy(self) -> bool:
        return self.scrub.is_noisy

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        m = min(self.kept or len(split.retain), len(split.retain))
        N_r = len(split.retain)
        # One row at least: a request for nothing would be a step of zero.
        forget = max(1, round(len(split.forget) * m / N_r)) if self.thin else None
        w = trained.weights
        small = fewer(split, m, forget)
        step = self.scrub.shift(trained, small, notes) - w
        return w + step if self.thin else w + (m / N_r) * step

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        return self.scrub.spread(trained, fewer(split, self.kept), notes)


@dataclass(frozen=True)
class Remembered(Scrub):
    """A scrub that answers a question asked twice in a row from memory: a step that two methods begin with."""

    scrub: Scrub
    last: list[tuple[Tensor, Split, Tensor]] = field(default_factory=list, compare=False, repr=False)

    @property
    def is_noisy(self) -> bool:
        return self.scrub.is_noisy

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        for w, asked, answer in self.last:
            if w is trained.weights and asked is split:
                return answer
        answer = self.scrub.shift(trained, split, notes)
        self.last[:] = [(trained.weights, split, answer)]
        return answer

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        return self.scrub.spread(trained, split, notes)


@dataclass(frozen=True)
class OnFew(Readout):
    """A readout that is shown at most `kept` of the retained rows, and `forget` of the forgotten ones."""

    unit: ClassVar[str] = ""
    ideal: ClassVar[Ideal] = "as retrained"

    readout: Readout
    kept: int | None
    forget: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", self.readout.unit)
        object.__setattr__(self, "ideal", self.readout.ideal)

    @property
    def name(self) -> str:
        return self.readout.name

    def __call__(self, network: Trained, split: Split) -> Reading:
        small = fewer(split, self.kept, self.forget)
        reading = self.readout(network, small)
        pairs = (("retained", small.retain, split.retain), ("forgotten", small.forget, split.forget))
        shown = ", ".join(f"{len(a)} of {len(b)} {name} rows" for name, a, b in pairs if a is not b)
        return replace(reading, note="; ".join(text for text in (reading.note, shown) if text))


@dataclass(frozen=True)
class WhiteBoxWithNoise(Bound):
    r"""White box for every method: one without noise of its own gets that of `noise`, and so does its reference.

    **Arguments:**

    - `noise`: what adds it, at the weights of each side.
    """

    noise: Scrub
    known: list[tuple[Tensor, Covariance]] = field(default_factory=list, compare=False, repr=False)

    @property
    def name(self) -> str:
        return "information bound"

    def __call__(self, scrubbed: Gaussian, reference: Gaussian, trained: Trained, split: Split) -> Reading:
        note = "its own noise"
        if scrubbed.is_noiseless:
            note = "Fisher noise added to both sides"
            scrubbed, reference = (self._noised(side, trained, split) for side in (scrubbed, reference))
        moved = (scrubbed.mean - reference.mean).double()
        means = 0.5 * float((moved * reference.covariance.solve(moved.to(scrubbed.mean)).double()).sum())
        nats = scrubbed.kl(reference)
        return Reading(max(nats, 0.0), note=f"{note}; means {means:.3g} + covariances {nats - means:.3g}")

    def _noised(self, side: Gaussian, trained: Trained, split: Split) -> Gaussian:
        for w, covariance in self.known:
            if w is side.mean:
                return Gaussian(w, covariance)
        covariance = self.noise.spread(trained.at(side.mean), split, Notes())
        # Two sides, so two are enough to remember.
        self.known[:] = [*self.known[-1:], (side.mean, covariance)]
        return Gaussian(side.mean, covariance)
