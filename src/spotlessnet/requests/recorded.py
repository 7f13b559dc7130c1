"""`recorded`: a training that `record` wrote down, as the network and the rows that a request needs."""

import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotlessnet import __version__
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, IntegrityError, MismatchError, SettingError
from spotlessnet.core.files import read_whole, write_whole
from spotlessnet.core.recorded_rows import RecordedRows
from spotlessnet.core.row_keys import next_salt
from spotlessnet.core.trained import Trained
from spotlessnet.requests.case import RECIPE, Case, called
from spotlessnet.requests.effects import check_rows_left
from spotlessnet.requests.lineage import Lineage
from spotlessnet.requests.references import changed_source, located, rebased
from spotlessnet.store.training_record import (
    INIT,
    RECORD,
    ROWS,
    SOURCES,
    TrainingRecord,
    read_record,
    read_rows,
    rows_as_bytes,
)

if TYPE_CHECKING:
    from spotlessnet.requests.folder import Folder
    from spotlessnet.requests.loading import LoadedRequest

HOW = ("train", "recipe", "weight_decay", *RECIPE)
"""Fields of a case that say how a network was trained: whoever gives one says all of it."""

FLAGS = {"trainer": "train"}
"""What a record calls otherwise than a case does."""

RECORDS = "training records"


def fields_of(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a case that a record gives where nobody said otherwise; refused where code has changed since.

    **Arguments:**

    - `given`: what was said, which the record does not change.
    """
    record = read_record(folder)
    record.check_files(folder)
    _check_recipe(folder, record)
    found: dict[str, Any] = {"weights": folder / record.weights, "init": folder / INIT, "device": record.device}
    if record.id_column is not None:
        found["id_column"] = record.id_column
    sources = _sources(record, given)
    found |= {FLAGS.get(name, name): located(source, folder) for name, source in sources.items()}
    augment = found.pop("augment", None)
    if record.recipe is not None and not _says_how(given):
        found["recipe"] = {**record.recipe, **({} if augment is None else {"augment": augment})}
    parts = [part.strip() for part in str(given.get("method") or "").split("+")]
    if record.seed and "retrain" in parts:
        said = {key.rpartition(".")[2] for key in given.get("settings") or {}}
        # Beside what was said: a retraining follows the order of the training itself.
        found["settings"] = {} if "seed" in said else {"retrain.seed": record.seed}
    changes = changes_of(folder, record, given)
    if changes and not given.get("accept_changes"):
        raise MismatchError(
            f"The training at {folder} was recorded with other code: {'; '.join(changes)}. Training again would not "
            "repeat it. Bring back what it was, or name it by flags of your own; --accept-changes goes on, and says so."
        )
    return found


def _check_recipe(folder: Path, record: TrainingRecord) -> None:
    try:
        Case(recipe=record.recipe).as_recipe()
    except SettingError as e:
        raise DataError(f"The training record {folder / RECORD} is damaged: its recipe cannot be. {e}") from e


def _says_how(given: Mapping[str, Any]) -> bool:
    return any(given.get(name) is not None for name in HOW)


def _sources(record: TrainingRecord, given: Mapping[str, Any]) -> dict[str, Any]:
    """The references of a record that a case uses: what a person names instead is not held to it."""
    found = {name: getattr(record, name) for name in SOURCES}
    without = ("trainer", "augment") if _says_how(given) else ()
    return {
        name: source
        for name, source in found.items()
        if source is not None and given.get(FLAGS.get(name, name)) is None and name not in without
    }


def changes_of(folder: Path, record: TrainingRecord, given: Mapping[str, Any]) -> list[str]:
    """How source files and packages differ from those of the training; rows are compared by their contents."""
    found = []
    for name, source in _sources(record, given).items():
        if source.sha256 is not None and name != "data" and (change := changed_source(source, folder)):
            found.append(f"{change} ({'--' + FLAGS.get(name, name)})")
    return [*found, *_other_versions(record)]


def _other_versions(record: TrainingRecord) -> Iterator[str]:
    """Packages whose first two numbers have changed: later ones repair and seldom change what comes of a training."""
    for name, version in record.packages.items():
        if name == "python":
            continue
        now = installed(name)
        if now is None:
            yield f"{name} {version} is not installed"
        elif _release(now) != _release(version):
            yield f"{name} was {version} and is {now}"


def _packages_now(record: TrainingRecord) -> dict[str, str]:
    """Of the packages that a training ran with those that are still there, in their versions of today."""
    found = {name: installed(name) for name in record.packages}
    python = {"python": platform.python_version()} if "python" in record.packages else {}
    return python | {name: version for name, version in found.items() if version is not None and name != "python"}


def installed(name: str) -> str | None:
    """The version of a package, which is not imported for that; `None` where it is not installed."""
    if name == "spotlessnet":
        return __version__
    try:
        return version_of(name)
    except (PackageNotFoundError, ValueError):  # a name that no package can have
        return None


def _release(version: str) -> list[str]:
    return re.findall(r"\d+", version.partition("+")[0])[:2]


def check_rows(case: Case, data: Data) -> None:
    """Raise unless a case with a record has the very rows of its training."""
    if case.training is None:
        return
    column = read_record(case.training).id_column
    if column is not None:
        try:
            data.column(column)
        except DataError as e:
            raise MismatchError(
                f"The rows of {called(case, 'data')} must have the ids that they had when they were trained on, but "
                f"have no column {column!r}. Give it too."
            ) from e
    try:
        read_rows(case.training).check(data, column, called(case, "data"))
    except MismatchError:
        # As long as the request before tells which rows it forgot, the reason is known.
        with suppress(IntegrityError):
            check_rows_left(case.weights, data)
        raise


def lineages_of(case: Case) -> list[Lineage]:
    """The note of who was served from a record: each serves one request, which writes the one for the next."""
    if case.training is None:
        return []
    lineage = Lineage(case.training / RECORD, RECORDS)
    lineage.check_free(case.training if case.out is None else case.out)
    return [] if case.out is None else [lineage]


def keep_record(folder: "Folder", opened: "LoadedRequest", weights: Mapping[str, str]) -> dict[str, str]:
    """Write the record for the next request: of the new network, and without the rows that went.

    **Arguments:**

    - `weights`: the name of the new network's file, with its SHA-256.
    """
    case, split = opened.case, opened.split
    if case.training is None:
        return {}
    old, out = case.training, folder.path
    record = read_record(old)
    salt = None if case.seed is None else next_salt(read_rows(old).keys.salt, case.seed)
    rows = rows_as_bytes(RecordedRows.of(split.retain, record.id_column, salt))
    init = bytes(read_whole(old / INIT, "checkpoint"))
    digests = {name: write_whole(out / name, content, replace=folder.again) for name, content in
               ((INIT, init), (ROWS, rows))}  # fmt: skip
    # What was accepted once, with a limit in the receipt, is what the next request is held to.
    accepted = bool(case.accept_changes)
    sources: dict[str, Any] = {name: rebased(getattr(record, name), old, out, anew=accepted) for name in SOURCES}
    packages = _packages_now(record) if accepted else record.packages
    new = replace(
        record,
        **sources,
        digests={**digests, **weights},
        weights=next(iter(weights)),
        packages=packages,
        requests=record.requests + 1,
    )
    return {**digests, RECORD: write_whole(out / RECORD, new.as_json(), replace=folder.again)}


def limits_of_record(case: Case) -> list[str]:
    """What a receipt says of the record that a request was served from."""
    if case.training is None:
        return []
    limits = [
        "The training records that were given to this request hold the network from before it and keyed digests of the "
        "forgotten rows: destroy them, with `spotless purge`. Those written here, if any, go on without these rows."
    ]
    changes = changes_of(case.training, read_record(case.training), {})
    if case.accept_changes and changes:
        limits.append(f"Code has changed since the training was recorded, which was accepted: {'; '.join(changes)}.")
    return limits


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded training: `sn.unlearn(sn.recorded("run/"), forget=...)`.

    **Arguments:**

    - `folder`: what `sn.record` wrote.
    - `record`: what it says.
    - `given`: the rows, where the record does not say where they come from.
    """

    folder: Path
    record: TrainingRecord
    given: Data | None = None
    accept_changes: bool = False

    @cached_property
    def case(self) -> Case:
        """All that the record says, checked: raises where code has changed."""
        return Case.of({"training": self.folder, "accept_changes": self.accept_changes, "data": self.given})

    @cached_property
    def trained(self) -> Trained:
        """The trained network, with where its training began and what trained it."""
        from spotlessnet.requests.loading import load_network

        self.case.need("model")
        return load_network(self.case).trained

    @cached_property
    def data(self) -> Data:
        """The rows, seen to be those of the training."""
        from spotlessnet.requests.loading import rows_of

        self.case.need("data")
        found = rows_of(self.case, "data")
        check_rows(self.case, found)
        return found

    def retrain(self) -> Trained:
        """Train again, on all rows: the very weights that were recorded, where the training can be repeated."""
        from spotlessnet.training.fit import train

        return train(self.trained.begin("Training again from a record"), self.data, seed=self.record.seed)


def recorded(folder: str | Path, data: Any = None, *, accept_changes: bool = False) -> Recorded:
    """Read what `sn.record` wrote; nothing is imported before it is needed.

    **Arguments:**

    - `data`: the rows, where they were recorded without a name.
    - `accept_changes`: go on where source files or package versions have changed since; the receipt says so.
    """
    from spotlessnet.requests.loading import as_data

    record = read_record(Path(folder))
    rows = None if data is None else as_data(data, "`data`", record.id_column)
    return Recorded(Path(folder), record, rows, accept_changes)
