"""A whole class leaves, or every user does: one step, or zeros in place of the user weights."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.core.answers import error_rate
from spotlessnet.core.progress import Meter
from spotlessnet.core.split import Split, whole_class
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.experiment import Published, Sized
from spotlessnet.experiments.figures import panels, save
from spotlessnet.experiments.mixed_privacy.community import (
    Community,
    Town,
    full_community,
    measure_community,
    tiny_community,
    toy_community,
)
from spotlessnet.experiments.outside_the_box.scene import captioned, file_name, stored, wrapped
from spotlessnet.methods.mixed_linear import MixedLinear, MixedLinearFacts
from spotlessnet.readouts.activation_distance import distances

PAPER: tuple[Published, ...] = ()
"""No printed number is at hand. The claim: a class can be removed, and all users by setting their weights to zero."""

LABEL = 0
CORE, SCRUBBED = "core only", "mixed-linear forgetting"
SHOWN = (
    "error on leaving users",
    "error on remaining users",
    "error on test",
    "error on test rows of the class",
    "answers' distance to retrained",
    "answers' distance to core only",
)


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """Who leaves: `"class"` all users of class 0, `"all"` every user."""

    community: Community
    who: str
    tolerance: float = 1e-3
    reference: float = 1e-5

    @staticmethod
    def toy(part: str) -> "Settings":
        return Settings(community=toy_community(), who=part, seeds=(0, 1))

    @staticmethod
    def full(part: str) -> "Settings":
        return Settings(community=full_community("cifar10", "all-cnn"), who=part)

    @staticmethod
    def tiny(part: str) -> "Settings":
        community = tiny_community("cifar10", "all-cnn")
        return Settings(community=community, who=part, tolerance=0.1, reference=0.05, seeds=(0,))


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """The request, a seed at a time."""
    measure_community(out, settings.community, settings, data, partial(measure, settings))
    return stored(out)


def measure(settings: Settings, town: Town, seed: int) -> Iterator[Row]:
    """The network before and after, beside the retrained one and the core."""
    users = town.users(seed)
    name = town.community.name
    everyone = Split(users, users.select([]), town.test)
    split = everyone if settings.who == "all" else whole_class(LABEL)(users, town.test)
    core = town.core_network(seed)
    original = town.settled(core, users).trained
    nothing = town.without_users(core)
    with Meter(core.device) as quick:
        scrubbed = MixedLinear(tolerance=settings.tolerance)(original, split)
    with Meter(core.device) as slow:
        # With no user left, there is nothing to train: the user weights stay where they begin.
        retrained = nothing if not len(split.retain) else town.settled(core, split.retain, settings.reference).trained
    network = original.at(scrubbed.mean)
    found = scrubbed.diagnostics.of(MixedLinearFacts)
    assert found.distance is not None  # certified with every step
    gap = float((network.weights - retrained.weights).norm())
    note = "the user weights are zero" if found.zeroed else f"{found.products} curvature products"
    for readout, value in (("certified distance", found.distance), ("distance to retrained", gap)):
        yield Row(name, SCRUBBED, readout, seed, value, unit="weights", ideal="low", seconds=quick.seconds, note=note)
    for method, one, seconds in (
        (ORIGINAL, original, math.nan),
        (SCRUBBED, network, quick.seconds),
        (RETRAINED, retrained, slow.seconds),
        (CORE, nothing, math.nan),
    ):
        for readout, value, unit in looks(one, retrained, nothing, split):
            yield Row(name, method, readout, seed, value, unit=unit, seconds=seconds, note=note)


def looks(network: Trained, retrained: Trained, core: Trained, split: Split) -> Iterator[tuple[str, float, str]]:
    """Errors by group, and how differently the network answers about test rows."""
    of_class = split.tests.select((split.tests.labels() == LABEL).nonzero().squeeze(1))
    sets = (split.forget, split.retain, split.tests, of_class)
    for readout, data in zip(SHOWN[:4], sets, strict=True):
        if len(data):
            yield readout, error_rate(network, data), "share of rows"
    for readout, reference in zip(SHOWN[4:], (retrained, core), strict=True):
        yield readout, float(distances(network, reference, split.tests).max()), "probability, L1, largest"


def draw(rows: list[Row], out: Path) -> list[Path]:
    """A panel per quantity; the band is that of the retrained networks."""
    shown = [readout for readout in SHOWN if any(row.readout == readout for row in rows)]
    caption = wrapped(f"{rows[0].experiment}. Bars and band: 95 % intervals over seeds.", captioned(rows), width=110)
    here = [row for row in rows if row.readout in shown]
    return save(out, file_name(rows[0].experiment), panels(here, shown), (10, 4.6), caption)
