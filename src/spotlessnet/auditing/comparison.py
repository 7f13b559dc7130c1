"""Compare: scrubs × readouts × bounds × seeds become rows, always beside the original and the retrained network."""

import math
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn

from spotlessnet.auditing.rows import Key, Row, append_rows, read_rows
from spotlessnet.auditing.seeds import scrub_seed
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.core.bound import Bound
from spotlessnet.core.errors import NumericsError, SettingError
from spotlessnet.core.gaussian import Gaussian, NoNoise
from spotlessnet.core.progress import Meter, track
from spotlessnet.core.readout import Reading, Readout
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split, as_split
from spotlessnet.core.trained import Trained, as_trained
from spotlessnet.training.fit import train


@dataclass(frozen=True, eq=False)
class Context:
    """What belongs to one seed: the original, its coupled retrained partner, and the split."""

    original: Trained
    retrained: Trained
    split: Split
    seed: int


Origin = Trained | Callable[[int], Trained]
ReadoutOf = Readout | Callable[[Context], Readout]
ScrubOf = Scrub | Callable[[Context], Scrub]


@dataclass(frozen=True, eq=False)
class Job:
    """A comparison as a value, so that other processes can run parts of it."""

    original: Origin
    split: Split
    scrubs: Mapping[str, ScrubOf]
    readouts: Mapping[str, ReadoutOf]
    bounds: tuple[Bound, ...]
    experiment: str

    @property
    def methods(self) -> list[str]:
        """Every method in the order of the rows."""
        return [ORIGINAL, *self.scrubs, RETRAINED]

    def keys(self, seed: int) -> set[Key]:
        """All rows that this seed must give."""
        columns = [*self.readouts, *(bound.name for bound in self.bounds)]
        return {(self.experiment, method, column, seed) for method in self.methods for column in columns}


def compare(
    original: Origin | nn.Module,
    split: Split,
    *,
    scrubs: Mapping[str, ScrubOf],
    readouts: Mapping[str, ReadoutOf] | Sequence[Readout],
    bounds: Sequence[Bound] = (),
    seeds: Sequence[int] = (0,),
    experiment: str = "comparison",
    out: str | os.PathLike[str] | None = None,
    workers: int = 1,
) -> list[Row]:
    """Run every scrub on every seed and look at the result with every readout and bound.

    For each seed the original is trained, and the reference retrained in the same order with the forgotten rows left
    out. A scrub draws anew for every seed, as in an audit, and one with noise is looked at through one draw; a bound
    sees the whole Gaussian, against the scrub's own noise around the retrained weights. Where a scrub or a readout
    diverges, a row without a value says so.

    **Arguments:**

    - `original`: a network that knows its start and recipe, which is then trained anew for each seed; or a function
      of the seed that returns the trained original.
    - `scrubs`: methods by the name of their row; a function of the `Context` may make one per seed.
    - `readouts`: a list, or by the name of their column. One that needs a reference is a function of the `Context`:
      `{"activation distance": lambda c: ActivationDistance(c.retrained)}`.
    - `out`: a file of JSON lines. Rows that stand there are not measured again; new ones are appended at once.
    - `workers`: processes, each with one thread and a seed at a time. Everything must then be picklable (functions
      defined in a module), and a script must guard its start with `if __name__ == "__main__"`.
    """
    origin = as_trained(original) if isinstance(original, nn.Module) else original
    job = Job(origin, as_split(split), dict(scrubs), _named(readouts), tuple(bounds), experiment)
    _check(job, seeds, workers)
    rows = {} if out is None else {row.key: row for row in read_rows(out)}
    missing = {seed: job.keys(seed) - rows.keys() for seed in seeds}
    todo = [seed for seed in seeds if missing[seed]]
    if workers > 1 and len(todo) > 1:
        batches = _in_processes(job, todo, missing, workers)
    else:
        batches = ([row] for seed in track(todo, "comparing") for row in measure(job, seed, missing[seed]))
    for batch in batches:
        if out is not None:
            append_rows(out, batch)
        rows |= {row.key: row for row in batch}
    columns = [*job.readouts, *(bound.name for bound in job.bounds)]
    keys = [(experiment, method, column, seed) for method in job.methods for column in columns for seed in seeds]
    return [rows[key] for key in keys]


@dataclass(frozen=True, eq=False)
class _Subject:
    """What a row looks at: a network, the Gaussian it was drawn from, the scrub that made it, and what that took."""

    network: Trained
    gaussian: Gaussian
    scrub: Scrub | None
    meter: Meter

    @staticmethod
    def untouched(network: Trained, meter: Meter) -> "_Subject":
        return _Subject(network, Gaussian(network.weights, NoNoise.at(network.weights)), None, meter)


def measure(job: Job, seed: int, missing: set[Key]) -> Iterator[Row]:
    """The missing rows of one seed, as they are found."""
    with Meter() as trained:
        original = original_of(job.original, job.split, seed)
    with Meter(original.device) as retrained:
        reference = retrained_of(original, job.split, seed)
    context = Context(original, reference, job.split, seed)
    built = {name: one if isinstance(one, Readout) else one(context) for name, one in job.readouts.items()}
    known = {ORIGINAL: _Subject.untouched(original, trained), RETRAINED: _Subject.untouched(reference, retrained)}
    for method in job.methods:
        if not any(key[1] == method for key in missing):
            continue
        try:
            subject = known[method] if method in known else _scrubbed(job.scrubs[method], context)
        except NumericsError as error:
            yield from _without_value(job, context, method, built, missing, f"no number: {error}")
            continue
        for name, reading, unit, ideal in _readings(job, context, method, built, subject, missing):
            yield Row(
                job.experiment, method, name, seed, float(reading.value), float(reading.low), float(reading.high),
                unit, ideal, subject.meter.seconds, subject.meter.memory, reading.censored, reading.note,
            )  # fmt: skip


def _scrubbed(made: ScrubOf, context: Context) -> _Subject:
    scrub = made if isinstance(made, Scrub) else made(context)
    found = scrub_seed(scrub, context.original, context.split, context.seed)
    return _Subject(found.network, found.gaussian, found.scrub, found.meter)


def _without_value(
    job: Job, context: Context, method: str, readouts: Mapping[str, Readout], missing: set[Key], why: str
) -> Iterator[Row]:
    """Rows that say why there is no number: a method that breaks down costs its own rows, not those of the others."""
    columns = [(name, one.unit, one.ideal) for name, one in readouts.items()]
    columns += [(bound.name, bound.unit, "low") for bound in job.bounds]
    for name, unit, ideal in columns:
        if (job.experiment, method, name, context.seed) in missing:
            yield Row(job.experiment, method, name, context.seed, math.nan, unit=unit, ideal=ideal, note=why)


def original_of(original: Origin, split: Split, seed: int) -> Trained:
    """The original of this seed: trained anew from its start, or whatever the function of the seed returns."""
    if not isinstance(original, Trained):
        return original(seed)
    begun = original.begin("A comparison with retrained networks")
    return train(begun, split.whole, seed=seed, order_of=split.first_trained_on, label="training the original")


def retrained_of(original: Trained, split: Split, seed: int) -> Trained:
    """Its coupled partner: the same start, recipe, seed and order, with the forgotten rows left out."""
    begun = original.begin("A comparison with retrained networks")
    return train(begun, split.retain, seed=seed, order_of=split.first_trained_on, label="retraining")


def reference_of(scrub: Scrub, gaussian: Gaussian, context: Context) -> Gaussian:
    """What a bound compares with: `Scrub.reference_for`, the method's own noise made from retained data alone."""
    return scrub.reference_for(gaussian, context.retrained, context.split)


def _readings(
    job: Job,
    context: Context,
    method: str,
    readouts: Mapping[str, Readout],
    subject: _Subject,
    missing: set[Key],
) -> Iterator[tuple[str, Reading, str, str]]:
    def wanted(column: str) -> bool:
        return (job.experiment, method, column, context.seed) in missing

    for name, readout in readouts.items():
        if wanted(name):
            yield name, _looked_at(readout, subject.network, job.split), readout.unit, readout.ideal
    bounds = [bound for bound in job.bounds if wanted(bound.name)]
    if not bounds:
        return
    weights = context.retrained.weights
    still = Gaussian(weights, NoNoise.at(weights))
    reference = still if subject.scrub is None else reference_of(subject.scrub, subject.gaussian, context)
    for bound in bounds:
        reading = _looked_at(bound, subject.gaussian, reference, context.original, job.split)
        yield bound.name, reading, bound.unit, "low"


def _looked_at(look: Callable[..., Reading], *at: Any) -> Reading:
    """The reading, or one without a value that says why: a network can be too broken to relearn from."""
    try:
        return look(*at)
    except NumericsError as error:
        return Reading(math.nan, note=f"no number: {error}")


def _in_processes(job: Job, seeds: Sequence[int], missing: Mapping[int, set[Key]], workers: int) -> Iterator[list[Row]]:
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise SettingError(
            f"Several workers need scrubs, readouts and networks that can be pickled, but one cannot ({e}). Define "
            "functions at the top of a module, or use `workers=1`."
        ) from e
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        futures = [pool.submit(_all_rows, job, seed, missing[seed]) for seed in seeds]
        for future in track(as_completed(futures), "comparing", total=len(futures)):
            yield future.result()


def _all_rows(job: Job, seed: int, missing: set[Key]) -> list[Row]:
    return list(measure(job, seed, missing))


def _one_thread() -> None:
    torch.set_num_threads(1)


def _named(readouts: Mapping[str, ReadoutOf] | Sequence[Readout]) -> dict[str, ReadoutOf]:
    if isinstance(readouts, Mapping):
        return dict(readouts)
    for readout in readouts:
        if not isinstance(readout, Readout):
            raise SettingError(
                "A readout that is made per seed needs a name for its column. "
                "Pass a dictionary: `{name: lambda context: ...}`."
            )
    return {readout.name: readout for readout in readouts}


def _check(job: Job, seeds: Sequence[int], workers: int) -> None:
    taken = {ORIGINAL, RETRAINED} & set(job.scrubs)
    if taken:
        raise SettingError(f"{sorted(taken)[0]!r} is always compared; give the scrub of that name another one.")
    columns = [*job.readouts, *(bound.name for bound in job.bounds)]
    if len(columns) != len(set(columns)) or not columns:
        raise SettingError(f"Columns need one name each and there must be at least one, but got {columns}.")
    if not seeds or len(set(seeds)) != len(seeds):
        raise SettingError(f"Seeds must be different and at least one, but got {list(seeds)}.")
    if workers < 1:
        raise SettingError(f"`workers` must be at least 1, but got {workers}.")
