"""Sharded training: several networks, each on rows of its own, that answer together; a row is in one of them only.

Bourtoule, Chandrasekaran, Choquette-Choo, Jia, Travers, Zhang, Lie and Papernot (2021), *Machine Unlearning* (SISA).
"""

import copy
import hashlib
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from spotlessnet.core.data import Data, value_digests
from spotlessnet.core.errors import SettingError, check_not_negative, check_positive
from spotlessnet.core.loss import logits_of
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.core.trainer import Examples
from spotlessnet.training.fit import fit


class Sharded(nn.Module):
    r"""Networks of one kind; the answer is the logarithm of their mean probabilities, $\log \frac1K \sum_k p_k$.

    **Arguments:**

    - `network`: where every one of them begins; it is copied.
    - `shards`: how many.
    """

    def __init__(self, network: nn.Module, shards: int) -> None:
        super().__init__()
        check_positive("Sharded.shards", shards)
        self.shards = nn.ModuleList(copy.deepcopy(network) for _ in range(shards))

    def __len__(self) -> int:
        return len(self.shards)

    def forward(self, x: Tensor) -> Float[Tensor, "N C"]:
        """The logarithm of a mean over networks, whose softmax is that mean."""
        each = torch.stack([logits_of(shard(x)).log_softmax(dim=1) for shard in self.shards])
        return each.logsumexp(dim=0) - math.log(len(self))


@dataclass(frozen=True)
class ShardTrainer:
    """Trains each network of a `Sharded` on the rows of its shard, by one recipe: `Trained.of(..., trainer=...)`.

    A row's shard follows from the row's numbers, by a keyed digest, and from nothing else: copies of a row share
    theirs, in whatever number format (float32 or finer) or shape they come, and rows that leave move no other.

    **Arguments:**

    - `recipe`: of every network.
    - `draw`: another number divides the rows otherwise.
    """

    recipe: Recipe
    draw: int = 0

    def __post_init__(self) -> None:
        check_not_negative("ShardTrainer.draw", self.draw)

    @property
    def epochs(self) -> int:
        """Of a training, unless fewer are asked for."""
        return self.recipe.epochs

    def __call__(self, model: nn.Module, examples: Examples, seed: int, epochs: int | None = None) -> nn.Module:
        """All shards, one after the other."""
        if not isinstance(model, Sharded):
            raise SettingError(f"Shards are trained in a `Sharded`, but got {type(model).__name__}. Wrap the network.")
        part = self.shard_of(examples.data, len(model))
        for k in range(len(model)):
            rows = examples.data.select((part == k).nonzero().squeeze(1))
            model.shards[k] = self.train_one(model.shards[k], rows, seed + k, epochs)
        return model

    def shard_of(self, data: Data, shards: int) -> Int64[Tensor, " N"]:
        """The number of each row's shard."""
        key = f"shards, {self.draw}".encode()
        # Of the numbers alone: the same rows read in another format or shape must be found in the shards that saw them.
        digests = (hashlib.blake2b(one, digest_size=8, key=key).digest() for one in value_digests(data, "float32"))
        return torch.tensor([int.from_bytes(digest, "big") % shards for digest in digests], dtype=torch.long)

    def train_one(self, network: nn.Module, rows: Data, seed: int, epochs: int | None = None) -> nn.Module:
        """One network, from where it stands; without rows it stays there."""
        if not len(rows):
            return network
        recipe = self.recipe if epochs is None else self.recipe.but(epochs=epochs)
        return fit(Trained.of(network, recipe=recipe), rows, recipe, seed=seed, label="training a shard").module()
