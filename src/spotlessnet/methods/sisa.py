"""SISA: retrain the shards that held the rows, and nothing else."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import check_not_negative
from spotlessnet.core.gaussian import Measured
from spotlessnet.core.scrub import METHODS, Notes, Scrub, Work, gradients
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.fit import learnt_buffers, train
from spotlessnet.training.sharded import Sharded, ShardTrainer


@dataclass(frozen=True)
class SISAFacts(Measured):
    """How many shards there are, and how many of them held a row that must go."""

    shards: int | None = None
    shards_retrained: int | None = None


@METHODS.register(
    "sisa",
    summary="Retrain only the shards that held the forgotten rows, of a network that was trained in shards.",
    paper="Bourtoule et al. (2021), Machine Unlearning: SISA",
    needs=("retained data", "init", "recipe"),
    guarantee="exact for a network trained in shards: what a forgotten example touched is trained anew without it",
)
@dataclass(frozen=True)
class SISA(Scrub):
    r"""Shards whose rows must go are trained from the start on what is left of them; the others stay as they are.

    $$w_k \leftarrow \begin{cases} \mathrm{train}(D_k \setminus D_f) & D_k \cap D_f \ne \emptyset \\
      w_k & \text{else} \end{cases}$$

    That is the very network that sharded training gives on the retained rows, to the last bit on a CPU. A request of
    $k$ rows drawn at random touches $K (1 - (1 - 1/K)^k)$ of $K$ shards: five rows touch 4.1 of 10, a hundred touch all
    of them. Networks are not sliced. One that was not trained in shards is a single shard, and is retrained.

    **Arguments:**

    - `seed`: of the original training; only shards that are trained anew depend on it.
    """

    least_kept: ClassVar[float] = 0.0

    seed: int = 0

    def __post_init__(self) -> None:
        check_not_negative("SISA.seed", self.seed)

    def cost(self, trained: Trained, split: Split) -> Work:
        epochs = trained.epochs
        if trained.trainer is not None and epochs is None:
            return Work.unknown()
        found = _shards(trained)
        if found is None:
            return gradients(trained, split, (epochs or 0) * len(split.retain))
        model, trainer = found
        touched = trainer.shard_of(split.forget, len(model)).unique()
        rows = int(torch.isin(trainer.shard_of(split.retain, len(model)), touched).sum())
        # A row goes through the network of its own shard, not through all that answer.
        return gradients(trained, split, (epochs or 0) * rows / len(model))

    def check_needs(self, trained: Trained, split: Split) -> None:
        super().check_needs(trained, split)
        self._begin(trained)

    def _begin(self, trained: Trained) -> Trained:
        return trained.begin("SISA", instead="Finetune")

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        begun = self._begin(trained)
        found = _shards(trained)
        if found is None:
            notes.assume(
                "the network was not trained in shards, so all of it is one shard and was retrained",
                "nothing is saved against retraining; train a `Sharded` with a `ShardTrainer`",
            )
            notes.measure(SISAFacts, shards=1, shards_retrained=1)
            made = train(begun, split.retain, seed=self.seed, label="retraining")
            notes.buffers = learnt_buffers(trained, made.model)
            return made.weights
        model, trainer = found
        K = len(model)
        start, network = begun.module(), trained.module()
        assert isinstance(start, Sharded)
        assert isinstance(network, Sharded)
        part = trainer.shard_of(split.retain, K)
        touched = trainer.shard_of(split.forget, K).unique().tolist()
        for k in touched:
            rows = split.retain.select((part == k).nonzero().squeeze(1))
            network.shards[k] = trainer.train_one(start.shards[k], rows, self.seed + k)
        notes.measure(SISAFacts, shards=K, shards_retrained=len(touched))
        notes.buffers = learnt_buffers(trained, network)
        return trained.vector(network)


def _shards(trained: Trained) -> tuple[Sharded, ShardTrainer] | None:
    """The network and what trained it, where that was in shards."""
    if isinstance(trained.model, Sharded) and isinstance(trained.trainer, ShardTrainer):
        return trained.model, trained.trainer
    return None
