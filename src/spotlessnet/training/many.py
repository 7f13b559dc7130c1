"""Many trainings: independent tasks, in turn or over a Ray cluster, and each finished one kept where that is asked for.

A task is one training, or many small ones as one program. What comes of it is a handful of tensors, so that it can be
fetched from another machine, or from a file that an interrupted run left.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError, check_choice
from spotlessnet.core.progress import track
from spotlessnet.core.trained import Trained
from spotlessnet.training.fingerprint import Fingerprint, check_known
from spotlessnet.training.fit import prepared, train
from spotlessnet.training.fit_many import AT_ONCE, fit_many, why_not_together
from spotlessnet.training.kept import Kept

Finished = dict[str, Tensor]
"""What came of a task, by name, on the CPU."""

BUFFER = "buffer/"
WORKERS = ("in turn", "ray")


@dataclass(frozen=True, eq=False)
class Task:
    """One training, from where its network stands.

    **Arguments:**

    - `begun`: the network; several that are trained as one program.
    - `seeds`: one for each network.
    - `keep`: the rows of the data that each network sees.
    - `is_coupled`: whether batches are those of all rows, with some left out, or of the network's own rows alone.
    - `label`: how it is called.
    """

    begun: tuple[Trained, ...]
    seeds: tuple[int, ...]
    keep: Bool[Tensor, "S N"]
    is_coupled: bool = True
    label: str = "training"

    def run(self, data: Data) -> Finished:
        """Train, on the rows that are kept."""
        [begun], [seed] = self.begun, self.seeds
        order = data if self.is_coupled else None
        return tensors_of(train(begun, self.rows(data), seed=seed, order_of=order, label=self.label))

    def rows(self, data: Data) -> Data:
        """Those that its only network sees."""
        return data.select(self.keep[0].nonzero().flatten())


@dataclass(frozen=True, eq=False)
class Together(Task):
    """Many trainings of small networks as one program: fast, and finished all at once."""

    def run(self, data: Data) -> Finished:
        """Train all of them."""
        starts = torch.stack([one.weights for one in self.begun])
        made = fit_many(self.begun[0], data, seeds=self.seeds, keep=self.keep, starts=starts, label=self.label)
        return {"weights": made.cpu()}


def tensors_of(made: Trained) -> Finished:
    """What training changed: weights and buffers."""
    buffers = {f"{BUFFER}{name}": value.detach().cpu() for name, value in made.model.named_buffers()}
    return {"weights": made.weights.cpu(), **buffers}


def network_of(begun: Trained, found: Finished) -> Trained:
    """The trained network, as `fit` or the trainer gave it."""
    known = prepared(begun, None if begun.trainer is not None else begun.recipe)
    buffers = {name.removeprefix(BUFFER): value for name, value in found.items() if name.startswith(BUFFER)}
    return known.at(found["weights"], buffers or None)


@dataclass(frozen=True)
class Executor:
    """How many trainings are carried out. Results are the same, bit for bit, with any number of workers.

    **Arguments:**

    - `folder`: where each finished training is kept, so that an interrupted run goes on with the rest; `None` keeps
      none. A file is used again only for the very same training: weights, rows, recipe or trainer, seed, and rows left
      out are bound into its name. **Such networks may know forgotten rows: destroy the folder with `spotless purge`.**
    - `workers`: `"in turn"`, or `"ray"`: over the Ray cluster that runs, or a local one (`pip install
      spotlessnet[ray]`).
    - `say`: called with a line where trainings are found that were kept before.
    """

    folder: str | PathLike[str] | None = None
    workers: str = "in turn"
    say: Callable[[str], None] = field(default=lambda line: None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_choice("workers", self.workers, WORKERS)
        if self.folder is not None and Path(self.folder).exists() and not Path(self.folder).is_dir():
            raise SettingError(f"Trainings are kept in a folder, but {self.folder} is a file. Give a folder.")
        if self.workers == "ray":
            from spotlessnet.training.over_ray import check_installed

            check_installed()

    def check(self, network: Trained) -> None:
        """Raise, before any work, where trainings of such a network cannot be told from others."""
        if self.folder is not None:
            check_known(network)

    def run(self, tasks: Sequence[Task], data: Data, label: str) -> list[Finished]:
        """What came of each task, in their order.

        **Arguments:**

        - `data`: all rows, of which each task keeps some.
        - `label`: what the progress bar says.
        """
        if self.folder is None:
            found = dict(self._work(tasks, data, label))
            return [found[i] for i in range(len(tasks))]
        kept = Kept(Path(self.folder))
        kept.sweep()
        fingerprint = Fingerprint.of(data)
        keys = [fingerprint.key(task) for task in tasks]
        before = {i: done for i, key in enumerate(keys) if (done := kept.read(key)) is not None}
        if before:
            self.say(f"{len(before)} of {len(tasks)} were kept in {kept.folder} and are not done again: {label}")
        rest = [i for i in range(len(tasks)) if i not in before]
        for j, done in self._work([tasks[i] for i in rest], data, label):
            kept.write(keys[rest[j]], done)
            before[rest[j]] = done
        return [before[i] for i in range(len(tasks))]

    def _work(self, tasks: Sequence[Task], data: Data, label: str) -> Iterator[tuple[int, Finished]]:
        """Number and result of each task, as they come."""
        if self.workers == "ray" and tasks:
            from spotlessnet.training.over_ray import over_ray

            yield from track(over_ray(tasks, data), label, total=len(tasks))
            return
        # A single one shows its own epochs.
        for i, task in enumerate(tasks if len(tasks) == 1 else track(tasks, label)):
            yield i, task.run(data)


def train_many(
    begun: Sequence[Trained],
    data: Data,
    *,
    seeds: Sequence[int],
    keep: Bool[Tensor, "S N"],
    together: bool = True,
    label: str = "training many",
    executor: Executor | None = None,
) -> list[Trained]:
    """One network per seed, each on the rows of `data` that it keeps, in the order of `data`.

    As one program where that is possible; one by one where it is not (a trainer of the user's own, dropout,
    augmentation, BatchNorm statistics that move, operations that do not vectorise). The networks are the same.
    """
    first = begun[0]
    executor = executor or Executor()
    recipe = first.recipe
    if together and first.trainer is None and recipe is not None and not why_not_together(first, recipe, data):
        groups = [slice(i, i + AT_ONCE) for i in range(0, len(begun), AT_ONCE)]
        programs = [Together(tuple(begun[g]), tuple(seeds[g]), keep[g], label=label) for g in groups]
        weights = torch.cat([found["weights"] for found in executor.run(programs, data, label)])
        return [one.at(w) for one, w in zip(begun, weights, strict=True)]
    tasks = [Task((one,), (seed,), rows[None]) for one, seed, rows in zip(begun, seeds, keep, strict=True)]
    made = executor.run(tasks, data, label)
    return [network_of(one, found) for one, found in zip(begun, made, strict=True)]
