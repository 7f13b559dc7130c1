"""`Bank`: originals of several seeds, trained once and kept, from which the audits of many requests begin.

An audit trains originals, and networks without the rows. The former are the same for every request on a model: a bank
keeps them, so that a request costs but a few trainings without its rows. After a request that was served, the bank's
networks are those that were scrubbed, as the network that was handed out: so it never knows more than that one.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from spotlessnet.auditing.wording import PASSED
from spotlessnet.core.data import Data, contents_of
from spotlessnet.core.errors import SettingError
from spotlessnet.core.files import overwrite
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.training.fingerprint import told
from spotlessnet.training.kept import Kept
from spotlessnet.training.many import BUFFER, Executor, network_of, train_many
from spotlessnet.training.pairs import begin, rows_seen

Start = Trained | Callable[[int], Trained]

LEAST_NETWORKS, LEAST_REFERENCES = 5, 2
"""With fewer, networks cannot be told from retrained ones however far they are apart: too few can be exchanged."""

LOOKS = (3, 5, 8, 12, 16)
"""References after which a sequential audit looks."""

FIRST_REFERENCE = 10_000
"""The seed of the first network without the rows; the bank's own begin at 0."""


@dataclass(frozen=True)
class Bank:
    """A folder of originals, found again by the recipe, the start and the rows that they were trained on.

    Networks in it know rows that a request may remove. `spotless purge` with the folder destroys it.

    **Arguments:**

    - `networks`: originals; 5 at least.
    - `references`: networks without the rows that every request trains; 2 at least, 3 unless said.
    - `sequential`: look after 3, 5, 8, 12 and 16 references, and stop as soon as there is a verdict: a clear case costs
      as little, and an unclear one is told from more. Type-I error holds over all looks (`betting`).
    - `follows`: after a verdict that lets the network be used, keep the scrubbed networks for the next request, on the
      rows that are left, and destroy those that know the rows.
    """

    folder: str | PathLike[str]
    networks: int = 8
    references: int = 3
    follows: bool = False
    sequential: bool = False

    def __post_init__(self) -> None:
        for name, least in (("networks", LEAST_NETWORKS), ("references", LEAST_REFERENCES)):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int) or given < least:
                raise SettingError(f"`Bank.{name}` must be a whole number of at least {least}, but got {given!r}.")
        if Path(self.folder).exists() and not Path(self.folder).is_dir():
            raise SettingError(f"A bank is a folder, but {self.folder} is a file. Give a folder.")

    def holds(self, start: Start, split: Split) -> bool:
        """Whether the originals for a request are there, so that none must be trained."""
        return self._read(_begun(start, self.networks), split.whole) is not None

    def originals(self, start: Start, split: Split, executor: Executor | None = None) -> list[Trained]:
        """The bank's networks, trained now if they are not there."""
        begun = _begun(start, self.networks)
        found = self._read(begun, split.whole)
        if found is not None:
            return found
        keep = rows_seen(split)[0].expand(self.networks, -1)
        made = _train(begun, split, keep, range(self.networks), "training the bank", executor)
        self._write(begun, split.whole, made)
        return made

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many references the networks are looked at."""
        later = [m for m in LOOKS if m > self.references] if self.sequential else []
        return (self.references, *later)

    def without_rows(
        self, start: Start, split: Split, count: int, executor: Executor | None = None, *, after: int = 0
    ) -> list[Trained]:
        """References of one request: networks that never saw the rows, with seeds of their own, `after` some others."""
        first = FIRST_REFERENCE + after
        seeds = range(first, first + count)
        begun = _begun(start, count, first)
        keep = rows_seen(split)[1].expand(count, -1)
        return _train(begun, split, keep, seeds, "training without the rows", executor)

    def after(self, start: Start, split: Split, scrubbed: Sequence[Trained], outcome: str) -> str:
        """What becomes of the bank after an audit, in one sentence; it moves on where the verdict lets it."""
        if not self.follows or outcome not in PASSED:
            return (
                "The bank's networks were trained on the forgotten rows: destroy its folder with `spotless purge` when "
                "the original network goes."
            )
        begun = _begun(start, self.networks)
        # The next one first: a run that is killed in between leaves both, and the next purge takes either.
        self._write(begun, split.retain, scrubbed)
        old = Kept(Path(self.folder)).path(self._key(begun, split.whole))
        if old.exists():
            overwrite(old)
        return "The bank's networks were scrubbed as the network was; those that knew the rows are destroyed."

    def _key(self, begun: Sequence[Trained], data: Data) -> str:
        about = {"networks": [_known(one) for one in dict.fromkeys(begun)], "count": self.networks}
        sha = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        sha.update(contents_of(data).sha256.encode())
        return sha.hexdigest()

    def _read(self, begun: Sequence[Trained], data: Data) -> list[Trained] | None:
        kept = Kept(Path(self.folder))
        if not kept.is_one:
            return None
        found = kept.read(self._key(begun, data))
        if found is None:
            return None
        return [network_of(one, {name: t[i] for name, t in found.items()}) for i, one in enumerate(begun)]

    def _write(self, begun: Sequence[Trained], data: Data, networks: Sequence[Trained]) -> None:
        tensors = {"weights": torch.stack([one.weights.cpu() for one in networks])}
        each = [buffers_of(one.model) for one in networks]
        tensors |= {f"{BUFFER}{name}": torch.stack([_plain(b[name]) for b in each]) for name in each[0]}
        Kept(Path(self.folder)).write(self._key(begun, data), tensors)


def _plain(buffer: Tensor) -> Tensor:
    return buffer.detach().cpu()


def _begun(start: Start, count: int, first: int = 0) -> list[Trained]:
    """Where each training begins; one object where all begin alike."""
    if isinstance(start, Trained):
        return [begin(start)] * count
    return [begin(start(seed)) for seed in range(first, first + count)]


def _train(
    begun: Sequence[Trained], split: Split, keep: Tensor, seeds: Sequence[int], label: str, executor: Executor | None
) -> list[Trained]:
    data = split.first_trained_on
    return train_many(begun, data, seeds=seeds, keep=keep, label=label, executor=executor)


def _known(begun: Trained) -> dict[str, object]:
    """What tells one training from another, but not the weights that a module happens to hold: requests change them."""
    frozen = {name: value for name, value in begun.model.named_parameters() if not value.requires_grad}
    parts = ("init", "recipe", "trainer", "loss", "weight_decay", "names", "init_buffers")
    return {"model": repr(begun.model), "frozen": told(frozen)} | {part: told(getattr(begun, part)) for part in parts}
