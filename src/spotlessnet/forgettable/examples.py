"""The user examples that a model still holds: their ids and labels, and where kept, their features."""

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int16, Int64
from torch import Tensor

from spotlessnet.core.errors import DataError, IntegrityError


@dataclass(eq=False)
class Examples:
    """Rows of a problem, addressed by id; several examples may share one, as those of a person do.

    **Arguments:**

    - `codes`: features in fixed point, `[n, R, d]`, or `None` where they are not kept and a request brings its inputs.
    - `targets`: `[n, R, C]`.
    - `labels`: class numbers, -1 for an example that has gone.
    - `weights`: whole numbers.
    - `digests`: of each example's codes, so that features computed again are known to be the same.
    - `order`: counts examples as they came; places that others left are used again, so that places do not tell it.
    """

    targets: Int16[Tensor, "n R C"]
    labels: Int64[Tensor, " n"]
    weights: Int64[Tensor, " n"]
    ids: list[Hashable]
    codes: Int16[Tensor, "n R d"] | None = None
    digests: list[str] = field(default_factory=list)
    places: dict[Hashable, list[int]] = field(default_factory=dict)
    order: Int64[Tensor, " n"] = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    _count: int = 0

    def __post_init__(self) -> None:
        self.order = torch.arange(len(self.labels))
        self._count = int((self.labels != GONE).sum())
        if not self.places:
            for i, (name, label) in enumerate(zip(self.ids, self.labels.tolist(), strict=True)):
                if label != GONE:
                    self.places.setdefault(name, []).append(i)

    def __len__(self) -> int:
        return self._count

    def find(self, ids: Iterable[Hashable]) -> Int64[Tensor, " k"]:
        """Places of all examples with these ids, id after id; those of one id in the order in which they came."""
        wanted = list(dict.fromkeys(ids))
        missing = [name for name in wanted if name not in self.places]
        if missing:
            raise DataError(
                f"{len(missing)} of {len(wanted)} ids belong to no example of this model. They may have been forgotten "
                "before; check the list."
            )
        return torch.tensor([i for name in wanted for i in self.places[name]], dtype=torch.long)

    def of_class(self, label: int) -> Int64[Tensor, " k"]:
        """Places of all examples of a class."""
        return self._as_they_came((self.labels == label).nonzero().squeeze(1))

    def all(self) -> Int64[Tensor, " k"]:
        """Places of every example that is left."""
        return self._as_they_came((self.labels != GONE).nonzero().squeeze(1))

    def _as_they_came(self, places: Int64[Tensor, " k"]) -> Int64[Tensor, " k"]:
        return places[self.order[places].argsort()]

    def copies_of(self, places: Int64[Tensor, " k"]) -> int:
        """How many other examples have the very features of one of these."""
        others = torch.ones(len(self.labels), dtype=torch.bool)
        others[places] = False
        others &= self.labels != GONE
        if self.codes is None:
            gone = {self.digests[i] for i in places.tolist()}
            return sum(self.digests[i] in gone for i in others.nonzero().squeeze(1).tolist())
        # Sums first: only where they agree can features, which may be gigabytes, be the same.
        sums = torch.cat([part.sum(dim=(1, 2), dtype=torch.long).cpu() for part in self.codes.split(1024)])
        alike = (others & torch.isin(sums, sums[places])).nonzero().squeeze(1)
        gone = {one.numpy().tobytes() for one in self.codes[places.to(self.codes.device)].cpu()}
        return sum(self.codes[i].cpu().numpy().tobytes() in gone for i in alike.tolist())

    def compact(self) -> "Examples":
        """A copy without the places of examples that have gone, in the order in which the others came."""
        live = self.all()
        here = live.to(self.targets.device)
        return Examples(
            self.targets[here],
            self.labels[live],
            self.weights[live],
            [self.ids[i] for i in live.tolist()],
            None if self.codes is None else self.codes[here.to(self.codes.device)],
            [self.digests[i] for i in live.tolist()] if self.digests else [],
        )

    def erase(self, places: Int64[Tensor, " k"]) -> None:
        """Overwrite everything kept about these examples."""
        for i in places.tolist():
            where = self.places[self.ids[i]]
            where.remove(i)
            if not where:
                del self.places[self.ids[i]]
            self.ids[i] = None
            if self.digests:
                self.digests[i] = ""
        self.targets[places.to(self.targets.device)] = 0
        self.labels[places], self.weights[places], self.order[places] = GONE, 0, GONE
        self._count -= len(places)
        if self.codes is not None:
            self.codes[places.to(self.codes.device)] = 0

    def append(
        self,
        codes: Int16[Tensor, "k R d"],
        targets: Int16[Tensor, "k R C"],
        labels: Tensor,
        weights: Tensor,
        ids: Sequence[Hashable],
    ) -> None:
        """More examples, in places that others left where there are any."""
        free = (self.labels == GONE).nonzero().squeeze(1)[: len(ids)]
        more = len(ids) - len(free)
        if more > 0:
            self._grow(max(more, len(self.labels) // 8))
            free = (self.labels == GONE).nonzero().squeeze(1)[: len(ids)]
        at = free.to(self.targets.device)
        self.targets[at] = targets.to(self.targets.device)
        self.labels[free], self.weights[free] = labels.cpu().long(), weights.cpu().long()
        self.order[free] = int(self.order.max()) + 1 + torch.arange(len(free))
        self._count += len(free)
        if self.codes is not None:
            self.codes[free.to(self.codes.device)] = codes.to(self.codes.device)
        for i, name in zip(free.tolist(), ids, strict=True):
            self.ids[i] = name
            self.places.setdefault(name, []).append(i)
        if self.digests:
            for i, digest in zip(free.tolist(), digests_of(codes), strict=True):
                self.digests[i] = digest

    def _grow(self, count: int) -> None:
        def longer(value: Tensor, fill: int) -> Tensor:
            return torch.cat([value, value.new_full((count, *value.shape[1:]), fill)])

        self.targets, self.weights = longer(self.targets, 0), longer(self.weights, 0)
        self.labels, self.order = longer(self.labels, GONE), longer(self.order, GONE)
        self.ids.extend([None] * count)
        if self.digests:
            self.digests.extend([""] * count)
        if self.codes is not None:
            self.codes = longer(self.codes, 0)

    def check_same(self, places: Int64[Tensor, " k"], codes: Int16[Tensor, "k R d"]) -> None:
        """Raise unless these are the features that the examples were put in with."""
        wrong = sum(d != self.digests[i] for i, d in zip(places.tolist(), digests_of(codes), strict=True))
        if wrong:
            raise IntegrityError(
                f"The features of {wrong} of {len(places)} examples are not those that were put in, so taking them out "
                "would leave something. Give the same inputs on the machine that put them in: another device, count of "
                "threads or version of torch may round features otherwise, as do states from before an example's bytes "
                "chose its place in a batch. With `keep_features=True` nothing is computed again."
            )


GONE = -1


def digests_of(codes: Int16[Tensor, "k R d"]) -> list[str]:
    """Sixteen hex digits for each example's codes."""
    return [hashlib.blake2b(one.contiguous().numpy().tobytes(), digest_size=8).hexdigest() for one in codes.cpu()]
