"""Canaries: rows that a coin puts into the training, so that an audit needs no other network.

Steinke, Nasr and Jagielski (2023), *Privacy Auditing with One (1) Training Run*.
"""

import math
import secrets
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int64
from scipy import optimize, stats
from torch import Tensor, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, SettingError
from spotlessnet.core.files import write_whole
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.scores import scores
from spotlessnet.store.checkpoints import read_metadata, read_weights, to_bytes
from spotlessnet.training.batches import mixed

FORMAT = "spotlessnet canaries 1"
FEWEST = 10
"""With fewer canaries even a perfect guess has a p-value near that of luck."""


@dataclass(frozen=True)
class CanaryAudit:
    r"""What a network still knows of the coins.

    **Arguments:**

    - `correct`, `guesses`: coins that were guessed right, of so many.
    - `p`: the probability of as many by luck, $P[\mathrm{Bin}(k, \tfrac12) \ge W]$: exact, for coins are the only
      chance in it, whatever the network, its training or its data.
    - `epsilon`: a lower limit at `confidence`: nothing that satisfies $(\varepsilon, 0)$-differential privacy with a
      smaller one toward the canaries lets so many be guessed. 0 where luck would do.
    """

    correct: int
    guesses: int
    p: float
    epsilon: float
    confidence: float

    @property
    def remembers(self) -> bool:
        """Whether luck is ruled out at this confidence."""
        return self.p <= 1 - self.confidence

    def __str__(self) -> str:
        told = "canaries are remembered" if self.remembers else "no memory of canaries was found"
        return (
            f"{told}: {self.correct} of {self.guesses} coins guessed right, p = {self.p:.2g}, "
            f"epsilon at least {self.epsilon:.2f} at {self.confidence:.0%} confidence"
        )


@dataclass(frozen=True, eq=False)
class Canaries:
    """Rows with random labels, and for each a coin that says whether it belongs in the training. Made by `canaries`.

    Keep it as secret as the coins must be: whoever scrubs must not know them.

    **Arguments:**

    - `rows`: all of them.
    - `coins`: which are to be trained on.
    """

    rows: Data
    coins: Bool[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def included(self) -> Data:
        """Those that belong in the training, and later in the request to forget."""
        return self.rows.select(self.coins.nonzero().flatten())

    def audit(
        self, network: Trained | nn.Module, *, guesses: int | None = None, confidence: float = 0.95
    ) -> CanaryAudit:
        """Guess the coins from one network: the highest scores were trained on, the lowest were not.

        **Arguments:**

        - `network`: a module with a cross-entropy loss, or a `Trained`.
        - `guesses`: how many coins are guessed; all unless said. Fewer, of the surest alone, give a larger epsilon
          where little is remembered well. It must be fixed before looking.
        """
        k = len(self) if guesses is None else guesses
        if not FEWEST <= k <= len(self):
            raise SettingError(f"`guesses` must lie between {FEWEST} and {len(self)}, but got {k}.")
        if not 0 < confidence < 1:
            raise SettingError(f"`confidence` must lie between 0 and 1, but got {confidence}. Usual is 0.95.")
        known = Trained.of(network) if isinstance(network, nn.Module) else network
        seen = scores(known, self.rows).double().cpu()
        if not bool(seen.isfinite().all()):
            raise DataError("The network's answers to the canaries are not finite. It has diverged.")
        # Ties in the order of the rows, which knows nothing of the coins.
        order = seen.argsort(descending=True, stable=True)
        most = math.ceil(k / 2)
        said_in, said_out = order[:most], order[len(order) - (k - most) :]
        correct = int(self.coins[said_in].sum()) + int((~self.coins[said_out]).sum())
        p = float(stats.binom.sf(correct - 1, k, 0.5))
        return CanaryAudit(correct, k, p, epsilon_from_guesses(correct, k, confidence), confidence)

    def write(self, path: str | PathLike[str]) -> None:
        """One safetensors file, for its owner alone: whoever reads it knows the coins."""
        batch = self.rows.fetch(self.rows.rows)
        if isinstance(batch.x, dict):
            raise DataError("Canaries of several inputs cannot be written. Keep the object.")
        tensors = {"x": batch.x.contiguous(), "y": batch.y.contiguous(), "coins": self.coins.to(torch.uint8)}
        write_whole(Path(path), to_bytes(tensors, {"format": FORMAT}))

    @staticmethod
    def read(path: str | PathLike[str]) -> "Canaries":
        """What `write` wrote; nothing in the file is executed."""
        path = Path(path)
        found = read_weights(path)
        if read_metadata(path).get("format") != FORMAT or not found.keys() >= {"x", "y", "coins"}:
            raise DataError(f"{path} must hold canaries, but does not say so. `Canaries.write` writes them.")
        x, y, coins = found["x"], found["y"], found["coins"]
        # A tensor without sides has no length, and a complex number no order: each is asked for its kind first.
        is_sound = coins.ndim == 1 and coins.dtype == torch.uint8 and x.shape[:1] == y.shape[:1] == coins.shape
        if not is_sound or not bool((coins <= 1).all()):
            raise DataError(f"The canaries in {path} are damaged: rows and coins do not belong together.")
        return Canaries(Data.of((x, y)), coins.bool())


def canaries(spare: Any, count: int = 60, *, classes: int, seed: int | None = None) -> Canaries:
    """Make canaries from rows that are not trained on otherwise: another label each, and a coin.

    Train on your rows and on `canaries(...).included`; name these among the rows to forget; then ask
    `canaries.audit(network)`. No other network is trained. A label at random is learnt by heart or not at all, so such
    rows tell more of memory than usual ones: what holds of them need not hold of every row.

    **Arguments:**

    - `spare`: rows with their labels, as for `Data.of`; the first `count` are used.
    - `count`: canaries; 60 tell a network that remembers most of them from luck.
    - `classes`: how many labels there are.
    - `seed`: of labels and coins, for experiments; secret unless said.
    """
    data = spare if isinstance(spare, Data) else Data.of(spare)
    if count < FEWEST:
        raise SettingError(f"`count` must be at least {FEWEST}, but got {count}: fewer tell nothing from luck.")
    if len(data) < count:
        raise DataError(f"{count} canaries need as many spare rows, but there are {len(data)}.")
    if classes < 2:
        raise SettingError(f"`classes` must be at least 2, but got {classes}.")
    few = data.select(range(count))
    y = few.labels().long()
    if y.ndim != 1 or int(y.min()) < 0 or int(y.max()) >= classes:
        raise DataError(f"Canaries need one label from 0 to {classes - 1} for each row.")
    ahead, coins = _drawn(count, classes, seed)
    wrong = (y + ahead.to(y)) % classes
    batch = few.fetch(few.rows)
    if isinstance(batch.x, dict):
        raise DataError("Canaries need rows of one input.")
    return Canaries(Data.of((batch.x, wrong)), coins)


def _drawn(count: int, classes: int, seed: int | None) -> tuple[Int64[Tensor, " n"], Bool[Tensor, " n"]]:
    """How far each label is moved, and the coins; secret ones from the system, for torch keeps 32 bits of a seed."""
    if seed is None:
        moved = [1 + secrets.randbelow(classes - 1) for _ in range(count)]
        return torch.tensor(moved), torch.tensor([bool(secrets.randbits(1)) for _ in range(count)])
    # Mixed: whoever shuffles the rows by the same seed must not make coins that follow the rows.
    draw = torch.Generator().manual_seed(mixed(seed, 0, "canaries"))
    return torch.randint(1, classes, (count,), generator=draw), torch.randint(2, (count,), generator=draw).bool()


def epsilon_from_guesses(correct: int, guesses: int, confidence: float = 0.95) -> float:
    r"""The largest $\varepsilon$ that so many right guesses rule out, by Theorem 5.2 of the paper with $\delta = 0$.

    Under $\varepsilon$-differential privacy the number of right guesses is stochastically dominated by
    $\mathrm{Bin}(k, e^\varepsilon / (1 + e^\varepsilon))$.

    >>> round(epsilon_from_guesses(60, 60), 2), epsilon_from_guesses(30, 60)
    (2.97, 0.0)
    """

    def above(epsilon: float) -> float:
        share = 1 / (1 + math.exp(-epsilon))
        return float(stats.binom.sf(correct - 1, guesses, share)) - (1 - confidence)

    if above(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(above, 0.0, 50.0))
