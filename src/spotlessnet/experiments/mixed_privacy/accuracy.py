"""What linear user weights cost in accuracy: against fine-tuning everything, and against the core alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spotlessnet.auditing.rows import Row
from spotlessnet.core.progress import Meter
from spotlessnet.core.split import Split
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
from spotlessnet.readouts import Error

PAPER: tuple[Published, ...] = ()
"""No printed number is at hand. The claim: mixed-linear comes close to fine-tuning, well above the core alone."""

CORE, MIXED, TUNED = "core only", "mixed-linear", "fine-tuned"
READOUTS = {"error on test": "test", "error on users": "forget", "error on core": "retain"}


@dataclass(frozen=True, kw_only=True)
class Settings(Sized):
    """Which slices and networks."""

    communities: tuple[Community, ...]

    @staticmethod
    def toy() -> "Settings":
        return Settings(communities=(toy_community(),))

    @staticmethod
    def full() -> "Settings":
        which = (("cifar10", "all-cnn"), ("cifar10", "resnet"), ("faces10", "all-cnn"))
        return Settings(communities=tuple(full_community(*one) for one in which))

    @staticmethod
    def tiny() -> "Settings":
        which = (("cifar10", "all-cnn"), ("faces10", "resnet"))
        return Settings(communities=tuple(tiny_community(*one) for one in which), seeds=(0,))


def run(settings: Settings, data: Path | None, out: Path) -> list[Row]:
    """The three networks of every community and seed."""
    for community in settings.communities:
        measure_community(out, community, settings, data, measure)
    return stored(out)


def measure(town: Town, seed: int) -> Iterator[Row]:
    """Errors on test, user and core rows, with the seconds that each training took."""
    split = Split(forget=town.users(seed), kept=town.core(seed), test=town.test)
    with Meter(town.stage.opened.start.device) as for_core:
        core = town.core_network(seed)
    with Meter(core.device) as for_users:
        settled = town.settled(core, split.forget)
    with Meter(core.device) as for_tuning:
        tuned = town.fine_tuned(core, seed)
    note = (
        settled.failure
        or f"{settled.products} curvature products in full float32, certified within {settled.distance:.2g}"
    )
    rows: tuple[tuple[str, Trained, Meter, str], ...] = (
        (CORE, core, for_core, ""),
        (MIXED, settled.trained, for_users, note),
        (TUNED, tuned, for_tuning, ""),
    )
    for method, network, meter, said in rows:
        for readout, on in READOUTS.items():
            found = Error(on)(network, split)  # type: ignore[arg-type]  # the parts are literals above
            yield Row(
                town.community.name, method, readout, seed, found.value, found.low, found.high, Error.unit, "low",
                meter.seconds, meter.memory, note=said,
            )  # fmt: skip


def draw(rows: list[Row], out: Path) -> list[Path]:
    """A panel per kind of rows and a file per slice."""
    drawn = []
    for experiment in dict.fromkeys(row.experiment for row in rows):
        here = [row for row in rows if row.experiment == experiment]
        caption = wrapped(f"{experiment}. Bars: 95 % intervals over seeds.", captioned(here), width=100)
        drawn += save(out, file_name(experiment), panels(here, [*READOUTS]), (9, 2.6), caption)
    return drawn
