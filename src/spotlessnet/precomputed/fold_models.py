"""Fold models: networks that each miss a part of the rows, so that for every row there is one that never saw it."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from spotlessnet.core.answers import margin
from spotlessnet.core.data import Data, as_data, evenly, keyed_digests
from spotlessnet.core.deprecated import accepts_old_names
from spotlessnet.core.errors import MismatchError, NeedError, NumericsError, SettingError, check_positive
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.core.trained import Trained, as_trained, buffers_of
from spotlessnet.precomputed.effect import Effect
from spotlessnet.precomputed.grouped import BY_ID, Groups, grouped_folds, groups_of, joined_by_copies
from spotlessnet.precomputed.held_out_gap import gap_ratio, lead
from spotlessnet.store.checkpoints import is_following
from spotlessnet.training.batches import mixed
from spotlessnet.training.fit import train
from spotlessnet.training.many import Executor, Finished, Task, network_of, tensors_of

WATCHED = 256
"""Rows on which it is seen how far answers are from the network's own."""

SAME = 1e-5
"""Weights nearer than this share of their norm are the same: files may be rounded."""

READ = 1024
"""Rows that answers are read for at a time: on a GPU a few large batches take less time than many small ones."""

COMPARED = 2000
"""Rows whose margins tell what having seen a row does."""

ATTEMPTS = 3
"""So many orders of the rows are tried before a fold model's training is given up."""


@dataclass(frozen=True, eq=False)
class FoldModels:
    """Trained once, beside the network; asked at every request what a network says that never saw a row.

    **Arguments:**

    - `weights`: of each fold model.
    - `keys`: of all rows, so that each is known again wherever it stands.
    - `part`: for each of them, which fold model of every division never saw it. Copies of a row are in one part.
    - `scale`: what their logits are multiplied by. Fold models have seen fewer rows, so they are less sure than the
      network would be of a row that it has not seen either; on held-out rows it is known by how much.
    - `origin`: the weights of the network itself when they were trained. What it said of retained rows then tells how
      far requests have moved it. `None` for fold models of networks that no request has changed, which are their own
      origin.
    - `lack`: how far fold models are off, on rows that they never saw, from what the network says of them. `None`
      where it was not measured.
    - `scales`: for each fold model what `scale` is for all together, and
    - `gap_ratio`: what having seen a row does to the network, as a share of what it does to a fold model
      (`precomputed/held_out_gap.py`). `None` where there were no held-out rows.
    - `after_requests`: whether the network served a request before, which this one must not take back.
    - `buffers`: of each fold model, stacked, where training moves them (BatchNorm's running statistics).
    - `effects`: what earlier requests did to their rows, where that is still known. Never in a file, pickle or copy.
    """

    weights: Float[Tensor, "K P"]
    keys: RowKeys = field(repr=False)
    part: Int64[Tensor, "D N"]
    scale: float = 1.0
    origin: Float[Tensor, " P"] | None = None
    lack: float | None = None
    after_requests: bool = False
    buffers: Mapping[str, Tensor] | None = field(default=None, repr=False)
    effects: tuple[Effect, ...] | None = None
    scales: Float[Tensor, " K"] | None = None
    gap_ratio: float | None = None

    def __repr__(self) -> str:
        models, weights = self.weights.shape
        return f"FoldModels({models} models of {weights} weights, {len(self.keys)} examples)"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "effects": None}

    def fold(self, network: Trained, k: int) -> Trained:
        """One fold model, as a network of this kind."""
        own = None if self.buffers is None else {name: values[k] for name, values in self.buffers.items()}
        return network.at(self.weights[k].to(network.weights), own)

    def lacking(self, network: Trained, data: Data) -> float:
        """How far off the fold models are on these rows."""
        return off_by(self.answers(network, data), network.predict(data).cpu())

    def check_belong_to(self, network: Trained, data: Data) -> None:
        """Raise unless they are networks of this kind, trained beside these rows."""
        if self.weights.shape[1] != network.size:
            raise MismatchError(
                f"The fold models have {self.weights.shape[1]} weights, the network {network.size}. Train fold "
                f"models for it."
            )
        self.keys.check_hold(data, "the fold models")

    def check_serve(self, network: Trained, data: Data) -> None:
        """Raise unless the network is still the one that they were trained beside, and all their rows are here."""
        self.check_belong_to(network, data)
        if self.origin is None:
            raise MismatchError("The fold models do not say beside which network they were trained. Train new ones.")
        gap = float((self.origin.to(network.weights) - network.weights).norm())
        if gap > SAME * max(1.0, float(network.weights.norm())):
            raise MismatchError(
                f"The fold models were trained beside a network with other weights (distance {gap:.3g}): they know "
                "rows that a request may have removed since, and would bring them back. Train new ones on the rows "
                "that are left."
            )
        if len(data) != len(self.keys):
            raise MismatchError(
                f"The fold models were trained on {len(self.keys)} rows, but the data have {len(data)}: they know rows "
                "that are gone, and would bring them back. Train new ones on the rows that are left."
            )

    def without(self, forget: Data) -> "FoldModels":
        """The same without the keys of some rows, for experiments: most fold models were trained on these rows.

        Distilled again, they bring back what a request removed. `sn.unlearn` and the command never go on with them:
        the next request needs fold models that were trained on retained rows alone.
        """
        self.keys.check_hold(forget, "the fold models")
        gone = Counter(keyed_digests(forget, self.keys.salt))
        stay = []
        for i, key in enumerate(self.keys.listed):
            if gone[key]:
                gone[key] -= 1
            else:
                stay.append(i)
        return replace(self, keys=self.keys.without(forget), part=self.part[:, stay])

    def unseen_divisions(self, request: Data) -> Bool[Tensor, " D"]:
        """In which divisions all rows of a request lie in one part, so that one fold model saw none of them."""
        part = self.part[:, self.keys.find(request)]
        return (part == part[:, :1]).all(dim=1)

    def unseen_or_all(self, request: Data | None) -> Bool[Tensor, " D"]:
        """The divisions to ask: those of `unseen_divisions`, or all where there are none."""
        every = torch.ones(len(self.part), dtype=torch.bool)
        if request is None or not len(request):
            return every
        unseen = self.unseen_divisions(request)
        return unseen if bool(unseen.any()) else every

    def answers(self, network: Trained, data: Data, request: Data | None = None) -> Float[Tensor, "n C"]:
        """What is said of each row by the fold models that never saw it, in the mean over divisions, on the CPU.

        A fold model that missed a row but saw others of the same request still knows what those teach together. Where
        fold models saw none of the `request`, these alone are asked; where there are none, all that missed the row.
        """
        self.check_belong_to(network, data)
        part = self.part[:, self.keys.find(data)][self.unseen_or_all(request)]
        found: Float[Tensor, "n C"] | None = None
        for k in range(len(self.weights)):
            mine = (part == k).any(dim=0).nonzero().squeeze(1)
            if len(mine):
                said = self.fold(network, k).predict(data.select(mine), READ).cpu()
                found = said.new_zeros(len(data), said.shape[1]) if found is None else found
                found[mine] += self.scale / len(part) * said
        assert found is not None  # every row has a fold model in every division
        return found


def begin_fold_models(network: Trained, data: Data, folds: int, groups: Groups = BY_ID) -> Trained:
    """Where every fold model's training begins; an error, before any work, where none can be trained."""
    if not network.can_retrain:
        raise NeedError("Fold models are trained like the network, but its start or recipe is not known. Give both.")
    if not network.loss.is_classification:
        raise SettingError(
            f"Fold models are asked for classes, but the loss {network.loss.name!r} has none. Train none."
        )
    if not 2 <= folds <= len(data):
        raise SettingError(f"Fold models' `folds` must be at least 2 and at most one per row, but got {folds}.")
    groups_of(data, groups, folds)
    begun = network.begin("Fold models")
    return begun if begun.recipe is None else replace(begun, recipe=begun.recipe.but(patience=None))


@accepts_old_names(parts="folds", divisions="repeats")
def train_fold_models(
    network: Trained | nn.Module,
    data: Data,
    *,
    folds: int = 2,
    repeats: int = 1,
    groups: Groups = BY_ID,
    held: Data | None = None,
    seed: int = 0,
    salt: bytes | None = None,
    after_requests: bool = False,
    executor: Executor | None = None,
) -> FoldModels:
    r"""Train fold models by the network's own recipe from its start, each without one of `folds` folds of the rows.

    That takes as long as `folds - 1` trainings: with two folds, each fold model sees half of the rows. The mean of
    several networks is surer than one: `repeats` divides the rows so many times anew, at that many times the price.

    Rows that will be asked to go together belong in one fold: a fold model that missed a third of a person's rows still
    learnt that person from the others. `groups` says who belongs together: a column, an entry for every row, or `None`
    for every row by itself. Unless said it is the column `id` where the data have one. `chance_unseen` says how often
    a request of several groups finds a fold model that saw none of it.

    $$s = \frac{\overline{z_{(1)} - z_{(2)}}(w_0)}{\overline{z_{(1)} - z_{(2)}}(fold models)}$$

    on `held`, rows that nobody was trained on, with $z_{(1)}$ and $z_{(2)}$ the two largest logits; 1 without them.
    `salt` is that of the keys; a new one unless given. `after_requests`: the network has served requests already,
    which the next one must not take back; what `unlearn` gave is known to have. `executor`: how they are trained, in
    turn unless said; see `Executor`.
    """
    network, data = as_trained(network), as_data(data)
    begun = begin_fold_models(network, data, folds, groups)
    check_positive("repeats", repeats)
    keys = RowKeys.of(data, salt)
    drawn = []
    place = keys.find(data)
    group = groups_of(data, groups, folds)
    for d in range(repeats):
        draw = torch.Generator().manual_seed(seed if not d else mixed(seed, d, "division"))
        if group is None:
            part = _together(torch.randperm(len(data), generator=draw) % folds, place)
        else:
            part = grouped_folds(joined_by_copies(group, place), folds, draw)
        drawn.append(part + d * folds)
    count = folds * repeats
    tasks = [
        FoldTraining((begun,), (seed + k,), (drawn[k // folds] != k)[None], False, f"fold model {k + 1} of {count}")
        for k in range(count)
    ]
    found = (executor or Executor()).run(tasks, data, "training fold models")
    made = [network_of(begun, one) for one in found]
    W = torch.stack([one.weights for one in made])
    part = torch.zeros(repeats, len(data), dtype=torch.long)
    part[:, place] = torch.stack(drawn)
    buffers = _stacked(made) if made[0].statistics_moved or made[0].moved_buffers else None
    later = after_requests or is_following(network.model)
    plain = FoldModels(W, keys, part, origin=network.weights.clone(), after_requests=later, buffers=buffers)
    scaled = plain if held is None else measure_held_out(plain, network, data, held)
    return replace(scaled, lack=scaled.lacking(network, data.select(evenly(len(data), WATCHED))))


def _stacked(made: Sequence[Trained]) -> dict[str, Tensor]:
    each = [buffers_of(one.model) for one in made]
    return {name: torch.stack([buffers[name] for buffers in each]) for name in each[0]}


def _together(part: Int64[Tensor, " N"], place: Int64[Tensor, " N"]) -> Int64[Tensor, " N"]:
    """The same division with copies of a row in the part of the first: no fold model that is asked saw the row's
    twin.
    """
    of_key = part.new_zeros(len(place)).scatter(0, place.flip(0), part.flip(0))
    return of_key[place]


def off_by(answers: Float[Tensor, "n C"], others: Float[Tensor, "n C"]) -> float:
    """The mean over rows of the L1 distance between what two networks answer."""
    return float((answers.softmax(dim=1) - others.softmax(dim=1)).abs().sum(dim=1).mean())


@dataclass(frozen=True, eq=False)
class FoldTraining(Task):
    """One fold model. A recipe that just holds for all rows may break on a part of them, so another order is tried."""

    def run(self, data: Data) -> Finished:
        """Train, in up to `ATTEMPTS` orders."""
        [begun], [seed] = self.begun, self.seeds
        rows = self.rows(data)
        for attempt in range(ATTEMPTS - 1):
            again = mixed(seed, attempt, "again") if attempt else seed
            try:
                return tensors_of(train(begun, rows, seed=again, label=self.label))
            except NumericsError as error:
                text = f"The training of {self.label} broke and begins again in another order. {error}"
                warnings.warn(text, stacklevel=3)
        return tensors_of(train(begun, rows, seed=mixed(seed, ATTEMPTS - 1, "again"), label=self.label))


def measure_held_out(fold_models: FoldModels, network: Trained, data: Data, held: Data) -> FoldModels:
    """The same with `scale`, `scales` and `gap_ratio`, from `held`, rows that nobody was trained on."""
    K, D = len(fold_models.weights), len(fold_models.part)
    own = network.predict(held, READ).cpu()
    said = torch.stack([fold_models.fold(network, k).predict(held, READ).cpu() for k in range(K)])
    # One of every division together: so they are asked.
    scale = float(lead(own) / lead(said.unflatten(0, (D, -1)).mean(dim=0)).mean())
    scales = lead(own) / lead(said)
    seen = data.select(evenly(len(data), COMPARED))
    y = seen.labels().cpu().long()
    mine = margin(network.predict(seen, READ).cpu(), y)
    theirs = torch.stack(
        [margin(scales[k] * fold_models.fold(network, k).predict(seen, READ).cpu(), y) for k in range(K)]
    )
    part = fold_models.part[:, fold_models.keys.find(seen)].repeat_interleave(K // D, dim=0)
    ratio = gap_ratio(mine, margin(own, held.labels().cpu().long()), theirs, part == torch.arange(K).unsqueeze(1))
    return replace(fold_models, scale=scale, scales=scales, gap_ratio=ratio)
