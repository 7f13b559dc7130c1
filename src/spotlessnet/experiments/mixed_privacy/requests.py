"""One request after another: users leave in groups, and after each the network is certified close to retraining."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.core.data import Data
from spotlessnet.core.intervals import t_interval
from spotlessnet.core.progress import Meter
from spotlessnet.core.readout import Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.experiments.experiment import Published, Sized
from spotlessnet.experiments.figures import colour, mark, save
from spotlessnet.experiments.mixed_privacy.community import (
    Community,
    Town,
    full_community,
    measure_community,
    tiny_community,
    toy_community,
)
from spotlessnet.experiments.outside_the_box.curves import at, curve
from spotlessnet.experiments.outside_the_box.scene import captioned, stored, wrapped
from spotlessnet.methods.mixed_linear import MixedLinear, MixedLinearFacts
from spotlessnet.readouts import ActivationDistance, EntropyAttack, Error, MeanLoss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER: tuple[Published, ...] = ()
"""No printed number is at hand. The claim: sequential requests are served without loss of accuracy."""

SCRUBBED = "mixed-linear forgetting"
SHOWN = (
    "error on test",
    "error on forget",
    "loss on forget",
    "activation distance on forget",
    "distance to retrained",
    "certified nats",
)


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """The community and its requests.

    **Arguments:**

    - `requests`, `each`: how many there are, and how many users leave with each.
    - `noise`: standard deviation on each user weight.
    - `tolerance`: of the step that forgets; `reference` that of retraining.
    """

    community: Community
    requests: int = 5
    each: int = 25
    noise: float = 1e-3
    tolerance: float = 1e-2
    reference: float = 1e-5

    @staticmethod
    def toy() -> "Settings":
        return Settings(community=toy_community(), requests=3, each=4, tolerance=1e-3, seeds=(0, 1))

    @staticmethod
    def full() -> "Settings":
        return Settings(community=full_community("cifar10", "all-cnn"))

    @staticmethod
    def tiny() -> "Settings":
        community = tiny_community("cifar10", "all-cnn")
        return Settings(community=community, requests=2, each=2, tolerance=0.1, reference=0.05, seeds=(0,))


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """All requests, a seed at a time."""
    measure_community(out, settings.community, settings, data, partial(measure, settings))
    return stored(out)


def groups(users: Data, count: int, each: int, seed: int) -> list[Data]:
    """Users who leave together, drawn by the seed, no one twice."""
    order = torch.randperm(len(users), generator=torch.Generator().manual_seed(seed))
    return [users.select(part.sort().values) for part in order[: count * each].split(each)]


def measure(settings: Settings, town: Town, seed: int) -> Iterator[Row]:
    """After each request: the network that forgot, the one that did nothing, the one that was retrained."""
    users = town.users(seed)
    name = town.community.name
    core = town.core_network(seed)
    original = network = town.settled(core, users).trained
    scrub = MixedLinear(noise=settings.noise, tolerance=settings.tolerance)
    split = None
    draw = torch.Generator().manual_seed(seed)
    for k, leaving in enumerate(groups(users, settings.requests, settings.each, seed), start=1):
        split = Split(leaving, users.without(leaving), town.test) if split is None else split.next_request(leaving)
        with Meter(core.device) as meter:
            scrubbed = scrub(network, split)
        with Meter(core.device) as slow:
            retrained = town.settled(core, split.retain, settings.reference)
        # The noise is for whoever gets this network; the next request goes on from the mean.
        network, released = network.at(scrubbed.mean), network.at(scrubbed.draw(draw))
        found = scrubbed.diagnostics.of(MixedLinearFacts)
        assert found.distance is not None  # retained rows stay, so there is a solve
        assert found.nats is not None  # and there is noise
        assert found.products is not None
        gap = (scrubbed.mean - retrained.trained.weights).norm()
        last = k == settings.requests  # a table shows the last request, a figure all
        certain = f"request {k}; full float32; retrained within {retrained.distance:.2g}"
        for readout, value, unit in (
            ("distance to retrained", float(gap), "weights"),
            ("certified distance", found.distance, "weights"),
            ("certified nats", found.nats, "nats"),
            ("curvature products", found.products, "products"),
        ):
            yield Row(name, SCRUBBED, at(readout, k), seed, value, unit=unit * last, ideal="low", note=certain)
        networks: tuple[tuple[str, Trained, float], ...] = (
            (ORIGINAL, original, 0.0),
            (SCRUBBED, released, meter.seconds),
            (RETRAINED, retrained.trained, slow.seconds),
        )
        for method, one, seconds in networks:
            for row in looks(name, method, one, retrained.trained, split.joint(), k, seed, seconds):
                yield row if last else replace(row, unit="")


def looks(
    name: str, method: str, network: Trained, retrained: Trained, split: Split, k: int, seed: int, seconds: float
) -> Iterator[Row]:
    """Readouts over all rows that left so far."""
    readouts: list[Readout] = [Error("test"), Error("retain"), Error("forget"), MeanLoss("forget")]
    readouts += [ActivationDistance(retrained)]
    if find_spec("sklearn") is not None:
        readouts += [EntropyAttack("svc")]
    for readout in readouts:
        found = readout(network, split)
        yield Row(
            name, method, at(readout.name, k), seed, found.value, found.low, found.high, readout.unit, readout.ideal,
            seconds, note=found.note,
        )  # fmt: skip


def draw(rows: list[Row], out: Path) -> list[Path]:
    """Each quantity over the requests, with its interval over seeds."""

    def fill(figure: "Figure") -> None:
        for axes, readout in zip(figure.subplots(2, 3).flat, SHOWN, strict=True):
            unit = next(row.unit for row in rows if row.readout.startswith(readout) and row.unit)
            for i, method in enumerate((ORIGINAL, RETRAINED, SCRUBBED)):
                found = {k: t_interval(values) for k, values in curve(rows, method, readout).items()}
                if not found:
                    continue
                means = [m.value for m in found.values()]
                # Scrubbed and retrained lie on each other: an open mark shows both.
                look = {"ms": 8, "mfc": "none", "ls": "--"} if method == RETRAINED else {"ms": 4}
                axes.plot([*found], means, color=colour((1, 2, 0)[i]), marker=mark(i), label=method, **look)
                if len({row.seed for row in rows}) > 1:
                    lows, highs = [m.low for m in found.values()], [m.high for m in found.values()]
                    axes.fill_between([*found], lows, highs, color=colour((1, 2, 0)[i]), alpha=0.15, lw=0)
            if readout == "distance to retrained":
                sure = curve(rows, SCRUBBED, "certified distance")
                means = [sum(v) / len(v) for v in sure.values()]
                axes.plot([*sure], means, color=colour(3), ls="--", marker="x", label="certified distance")
                axes.legend(fontsize=7)
            if readout in ("distance to retrained", "certified nats"):
                axes.set_yscale("log")
            axes.set_title(readout, fontsize=10)
            axes.set_xticks(sorted(curve(rows, SCRUBBED, readout)))
            axes.set_xlabel("requests served")
            axes.set_ylabel(unit, fontsize=8)
        figure.axes[0].legend(fontsize=7)

    caption = wrapped(f"{rows[0].experiment}. Bands: 95 % intervals over seeds.", captioned(rows))
    return save(out, "requests", fill, (10, 5.6), caption)
