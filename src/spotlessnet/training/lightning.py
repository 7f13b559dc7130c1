"""Lightning's `Trainer` as a trainer of this package; Lightning itself is imported only when it trains."""

import copy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.trainer import Examples, Recorder, check_from_the_start

SOME = ("max_steps", "max_time", "limit_train_batches", "overfit_batches", "fast_dev_run")
"""Options of Lightning's trainer that end a training, or an epoch, before all rows were seen."""


@dataclass(frozen=True, eq=False)
class LightningTrainer:
    """Trains a `LightningModule` on the rows it is given: `Trained.of(model, init=..., trainer=LightningTrainer(...))`.

    **Arguments:**

    - `epochs`, `batch_size`: of a training; rows are shuffled by the seed.
    - `wrap`: makes the `LightningModule` around the network that is handed in, whose weights it trains in place;
      `None` where the network is one itself.
    - `options`: what else the training gave to its `Trainer`, such as `{"gradient_clip_val": 1.0}`.
    - `loader`: what else it gave to its `DataLoader`, such as a `collate_fn`.
    """

    epochs: int
    batch_size: int
    wrap: Callable[[nn.Module], nn.Module] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    loader: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "max_epochs" in self.options:
            raise SettingError("`options` must not hold 'max_epochs': `epochs` says it.")

    @property
    def reads_some_rows(self) -> bool:
        """Whether the options say that a training sees but some of the rows."""
        return any(self.options.get(name) is not None for name in SOME)

    def __call__(self, model: nn.Module, examples: Examples, seed: int, epochs: int | None = None) -> nn.Module:
        """Train the model in place and give it back."""
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        # A checkpoint of every audited network would fill the disk, and know the rows.
        how = {**quiet, **self.options, "enable_checkpointing": False, "max_epochs": epochs or self.epochs}
        how["callbacks"] = _callbacks(self.options.get("callbacks"))
        order = torch.Generator().manual_seed(seed)
        rows = DataLoader(examples, self.batch_size, shuffle=True, generator=order, **self.loader)
        module = model if self.wrap is None else self.wrap(model)
        _lightning(module).Trainer(**how).fit(module, rows)
        return model


def _callbacks(given: Any) -> list[Any]:
    """A copy of each, for callbacks count and one training must not go on where another stopped; none saves any."""
    listed = given if isinstance(given, (list, tuple)) else [given]
    saves = ["Checkpoint" in {base.__name__ for base in type(one).__mro__} for one in listed]
    return [copy.deepcopy(one) for one, is_saving in zip(listed, saves, strict=True) if not (is_saving or one is None)]


def _lightning(module: nn.Module | None = None) -> ModuleType:
    """Lightning under the name by which a module, or else the program, imported it: one does not take the other's."""
    names = ["lightning.pytorch", "pytorch_lightning"]  # one code base, and the first brings the second along
    old = {"pytorch_lightning"}
    if old & {base.__module__.partition(".")[0] for base in type(module).__mro__} or (
        module is None and "lightning" not in sys.modules and old <= sys.modules.keys()
    ):
        names.reverse()
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            continue
    raise NeedError("`LightningTrainer` needs Lightning. Install it: `pip install lightning`.")


def recording_callback(recorder: Recorder) -> Any:
    """A callback of Lightning that tells a recorder when training begins and ends; see `spotlessnet.record`."""
    callback: Any = _lightning().Callback

    class RecordingCallback(callback):  # type: ignore[misc]  # of either name, found above
        """Writes the record of a training when that has ended."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            check_from_the_start(trainer.global_step)
            recorder.begin()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            recorder.end()

    return RecordingCallback()
