"""`record`: one line around a training, which writes what later requests to forget need."""

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, NeedError, SettingError, shown
from spotlessnet.core.files import check_free, write_folder
from spotlessnet.core.loss import LOSSES, Loss
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.recorded_rows import RecordedRows, check_steady
from spotlessnet.core.trained import unwrapped
from spotlessnet.core.trainer import Trainer, check_signature
from spotlessnet.requests.loading import as_data
from spotlessnet.requests.recorded import installed
from spotlessnet.requests.references import reference_to
from spotlessnet.store.checkpoints import weights_as_bytes
from spotlessnet.store.training_record import (
    INIT,
    RECORD,
    ROWS,
    WEIGHTS,
    Source,
    TrainingRecord,
    rows_as_bytes,
)
from spotlessnet.training.fit import seeded

MATTER = (
    "torch",
    "numpy",
    "transformers",
    "accelerate",
    "peft",
    "lightning",
    "pytorch_lightning",
    "torchvision",
    "timm",
)
"""Packages that decide what comes of a training, where it used them; rows are checked by their contents instead."""


def record(
    folder: str | Path,
    model: nn.Module,
    data: Any,
    *,
    build: str | Callable[..., nn.Module] | None = None,
    trainer: str | Trainer | None = None,
    recipe: Recipe | None = None,
    loss: Loss | Callable[..., Any] | str | None = None,
    seed: int = 0,
    id_column: str | None = None,
) -> "Recording":
    """Record a training for later requests: `with sn.record("run/", model, rows, build=build, trainer=train): ...`.

    What is in the block may be any training loop that changes `model`; one that makes another module says so by
    `run.model = ...`. In the block, generators of torch, numpy and Python start at `seed`, as they do when a request
    trains again. The folder is written at the end of the block, whole or not at all: initial and trained weights,
    keyed digests of the rows, names and digests of source files, package versions. No row, no id and no code. Then
    `spotless scrub --training run/ --forget ids.csv --out after/` needs nothing else.

    With a `Trainer` of Hugging Face or of Lightning instead of a block, its callback: `callbacks=[sn.record(...,
    seed=arguments.seed).hugging_face()]`, or `.lightning()`.

    **Arguments:**

    - `folder`: where to write; must be new or empty.
    - `model`: the network, at the weights where training begins.
    - `data`: what gives the rows that it is trained on: a function without arguments at the top of a file, text as for
      `--data`, or the rows themselves; a request must then be given them again.
    - `build`: what makes the network, a function or text as for `--model`; without it a request must be given that.
    - `trainer`, `recipe`: what trains it: a function `train(model, examples, seed) -> model` or its name, or a recipe.
    - `loss`: what is minimised; cross-entropy unless said.
    - `id_column`: the data's column of ids; `id` where the rows have one.
    """
    return Recording(Asked(Path(folder), data, build, trainer, recipe, loss, seed, id_column), model)


@dataclass(frozen=True, eq=False)
class Asked:
    """What `record` was given."""

    folder: Path
    data: Any
    build: Any
    trainer: Any
    recipe: Recipe | None
    loss: Any
    seed: int
    id_column: str | None

    def check(self) -> None:
        """What can be said before anything is read."""
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise SettingError(f"`seed` must be a whole number from 0 below 2⁶³, but got {shown(repr(self.seed))}.")
        check_free(self.folder)
        if self.trainer is not None and self.recipe is not None:
            raise SettingError("A network is trained by a recipe or by a trainer, but both were given. Give one.")
        if not isinstance(self.recipe, Recipe | None):
            raise SettingError(f"`recipe` must be a `sn.Recipe`, but got {type(self.recipe).__name__}.")


@dataclass(frozen=True, eq=False)
class Known:
    """What is known before training begins: all that can be refused is refused by then."""

    rows: RecordedRows
    record: Mapping[str, Any]

    @staticmethod
    def of(asked: Asked, model: nn.Module) -> "Known":
        """Read the rows, and find whatever is named.

        Not later: a module that is imported while a trainer is at work may disturb it, as one does that makes
        `TrainingArguments`.
        """
        with seeded(_device(model), asked.seed):  # whatever is drawn in here must not change the training
            data, told = _data_of(asked)
            check_steady(data)
            column = _column(data, asked.id_column)
            sources = {
                "model": _built(asked, model),
                "data": told,
                "trainer": _trainer(asked),
                "augment": _named(asked.recipe.augment if asked.recipe else None, "recipe.augment", asked.folder),
                "loss": _loss(asked),
            }
            rows = RecordedRows.of(data, column)
        recipe = None if asked.recipe is None else {n: v for n, v in vars(asked.recipe).items() if n != "augment"}
        return Known(rows, {**sources, "recipe": recipe, "seed": asked.seed, "id_column": column})


class Recording:
    """A training that is being recorded; `record` makes one."""

    def __init__(self, asked: Asked, model: nn.Module) -> None:
        asked.check()
        if not isinstance(model, nn.Module):
            raise SettingError(
                f"`model` must be a torch module, the one that is trained, but got {type(model).__name__}. `build` may "
                "be text."
            )
        self.asked = asked
        self.model = model
        self._known = Known.of(asked, unwrapped(model)) if _writes() else None
        self._init: bytes | None = None
        self._held = ExitStack()

    def __enter__(self) -> "Recording":
        self.begin()
        self._held.enter_context(seeded(_device(self.model), self.asked.seed))
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._held.close()
        if kind is None:
            self.end()

    def begin(self) -> None:
        """Keep the weights as they are now; called by the block or the callback."""
        if _writes():
            self._init = weights_as_bytes(unwrapped(self.model))

    def end(self) -> None:
        """Write the folder; called by the block or the callback."""
        if not _writes():
            return
        if self._init is None or self._known is None:
            raise NeedError("A recording must be begun before it ends. Use it in a `with` block or as a callback.")
        files = {
            INIT: self._init,
            WEIGHTS: weights_as_bytes(unwrapped(self.model)),
            ROWS: rows_as_bytes(self._known.rows),
        }
        if files[INIT] == files[WEIGHTS]:
            raise MismatchError(
                "The recorded network must have been trained, but no weight of it has changed, so nothing was "
                "written. If the training made another module, say so in the block: `run.model = trained`."
            )
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        device = "cuda" if _device(self.model).type == "cuda" else "cpu"
        found = TrainingRecord(**self._known.record, device=device, digests=digests, packages=packages())
        write_folder(self.asked.folder, {**files, RECORD: found.as_json()})

    def hugging_face(self) -> Any:
        """A `TrainerCallback` that records: `Trainer(..., callbacks=[sn.record(...).hugging_face()])`."""
        from spotlessnet.training.hugging_face import recording_callback

        return recording_callback(self, self.asked.seed)

    def lightning(self) -> Any:
        """A callback of Lightning that records: `Trainer(..., callbacks=[sn.record(...).lightning()])`."""
        from spotlessnet.training.lightning import recording_callback

        return recording_callback(self)


def packages() -> dict[str, str]:
    """Versions of Python, of this package, and of those that matter and are in use."""
    used = {name: installed(name) for name in ("spotlessnet", *MATTER) if name in sys.modules}
    return {"python": sys.version.split()[0], **{name: found for name, found in used.items() if found is not None}}


def _writes() -> bool:
    """Whether this process is the one that writes, where several train together."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not together or torch.distributed.get_rank() == 0


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _data_of(asked: Asked) -> tuple[Data, Source | None]:
    """The rows, and where they come from if that was said."""
    given = asked.data
    if isinstance(given, str) and ":" not in given:
        # A data set by name or an archive: what it holds is told by the digests of its rows.
        from spotlessnet.datasets.registry import load

        place = os.path.relpath(given, asked.folder.resolve()) if given.endswith(".npz") else given
        return load(given).train, Source(place)
    if isinstance(given, str) or (callable(given) and not hasattr(given, "__len__")):
        source, found = reference_to(given, "data", asked.folder)
        return as_data(found() if callable(found) else found, "`data`", asked.id_column), source
    return as_data(given, "`data`", asked.id_column), None


def _column(data: Data, asked: str | None) -> str | None:
    """The column of ids, if there is one; row numbers need none, for the order of the rows is kept."""
    if asked == "row":
        return None
    try:
        data.column(asked or "id")
    except DataError:
        if asked is not None:
            raise
        return None
    return asked or "id"


def _named(given: Any, what: str, folder: Path) -> Source | None:
    return None if given is None else reference_to(given, what, folder)[0]


def _trainer(asked: Asked) -> Source | None:
    if asked.trainer is None:
        return None
    source, found = reference_to(asked.trainer, "trainer", asked.folder)
    if not callable(found):
        raise SettingError(f"`trainer` must be a function `train(model, examples, seed)`, but is {found!r:.80}.")
    check_signature(found)
    return source


def _loss(asked: Asked) -> Source:
    given = asked.loss or "cross-entropy"
    if isinstance(given, Loss):
        names = [name for name, kind in LOSSES.items() if type(given) is kind and kind() == given]
        if not names:
            raise SettingError(
                f"`loss` must be one that a request finds again, but {given!r:.60} has settings of its own. Name it at "
                'the top of a file and give that: `loss="train.py:loss"`.'
            )
        given = names[0]
    if isinstance(given, str) and ":" not in given:
        if given not in LOSSES:
            raise SettingError(f"`loss` must be {', '.join(LOSSES)} or `file.py:function`, but got {given[:60]!r}.")
        return Source(given)
    return reference_to(given, "loss", asked.folder)[0]


def _built(asked: Asked, model: nn.Module) -> Source | None:
    """What makes the network, seen to make one of the same kind."""
    if asked.build is None:
        return None
    source, found = reference_to(asked.build, "build", asked.folder)
    other = found if isinstance(found, nn.Module) else found()
    if not isinstance(other, nn.Module):
        raise SettingError(f"`build` must make a torch module, but gave {type(other).__name__}.")
    for name, mine, theirs in (
        ("weights", _shapes(model), _shapes(other)),
        ("weights that take part", _trainable(model), _trainable(other)),
    ):
        if mine != theirs:
            odd = sorted(set(mine) ^ set(theirs))
            raise MismatchError(
                f"`build` must make the network that is trained, but it has other {name}, first {odd[0]}. Give what "
                "made `model`."
            )
    return source


def _shapes(model: nn.Module) -> list[str]:
    return [f"{name} {tuple(value.shape)} {value.dtype}" for name, value in model.state_dict().items()]


def _trainable(model: nn.Module) -> list[str]:
    return [name for name, value in model.named_parameters() if value.requires_grad]
