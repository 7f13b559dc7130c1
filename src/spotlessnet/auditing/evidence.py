"""Evidence: what groups of networks make of the forgotten rows, of copies near them, and of rows that nobody saw."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from spotlessnet.auditing.asking import answers, asked
from spotlessnet.auditing.descent import Place
from spotlessnet.auditing.exchanging import NEAR, Channel, evened
from spotlessnet.auditing.tuned import traits
from spotlessnet.core.loss import Loss, SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.error import Error
from spotlessnet.readouts.matched_controls import MOST, Unseen
from spotlessnet.readouts.scores import scores_of

EMPTY = torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is read from one group of networks, one per seed.

    **Arguments:**

    - `margins`: of the forgotten rows, `[seeds, rows]`; their scores where a row has no one margin (`readouts.scores`).
    - `forget_error`, `test_error`: shares of wrong answers; the latter empty where there is no test data.
    - `unseen`: what they make of rows that nobody trained on.
    - `errors_are_losses`: errors are mean losses, for the loss knows no wrong answers.
    - `half_squares`: scores are half a squared distance from the label, turned round.
    - `answers`: margins of every label of the forgotten rows; `None` where a row has no one class.
    - `further`: the same asked in other ways, by name (`asking.WAYS`), each of test rows as well.
    - `retain_error`: share of wrong answers on retained rows; empty where they are not at hand.
    - `has_copies`: retained rows hold copies of forgotten ones.
    - `traits`: of each network as a whole (`tuned`); nothing where no retained rows are at hand.
    - `place`: where the networks lie (`descent`).
    """

    margins: Float[Tensor, "S T"]
    forget_error: Float[Tensor, " S"]
    test_error: Float[Tensor, " R"]
    unseen: Unseen | None = None
    errors_are_losses: bool = False
    half_squares: bool = False
    answers: Float[Tensor, "S T C"] | None = None
    further: Mapping[str, Channel] = field(default_factory=dict)
    retain_error: Float[Tensor, " Q"] = EMPTY
    has_copies: bool = False
    traits: Float64[Tensor, "S K"] | None = None
    place: Place | None = None

    @staticmethod
    def of(networks: Iterable[Trained], split: Split, recipe: Recipe | None = None) -> "Evidence":
        """Look at each network.

        **Arguments:**

        - `recipe`: by which networks are trained a little further (`asking`); the same for all groups of an audit.
        """
        group = list(networks)
        parts = {"forget": True, "test": split.test is not None, "retain": split.kept is not None}
        errors = {
            on: torch.tensor([float(Error(on)(n, split)) for n in group if is_there], dtype=torch.float64)  # type: ignore[arg-type]  # a name of a part
            for on, is_there in parts.items()
        }
        unseen = Unseen.of(group, split)
        return Evidence(
            margins=scores_of(group, split.forget),
            forget_error=errors["forget"],
            test_error=errors["test"],
            unseen=unseen,
            errors_are_losses=bool(group) and type(group[0].loss).mistakes is Loss.mistakes,
            half_squares=bool(group) and isinstance(group[0].loss, SquaredError),
            answers=answers(group, split.forget),
            further=asked(group, split, recipe),
            retain_error=errors["retain"],
            has_copies=bool(split.request.copies),
            traits=traits(group, split),
            place=Place([one.weights for one in group], None if unseen is None else unseen.margins),
        )

    def __len__(self) -> int:
        return len(self.margins)

    @cached_property
    def channels(self) -> list[Channel] | None:
        """The ways of asking, each with its controls; nothing where too few rows may serve as controls."""
        unseen = self.unseen
        if unseen is None:
            return None
        if self.answers is None or unseen.labels is None:
            # One score a row: every label of every test row is a control.
            pairs = unseen.margins.flatten(1)
            some = torch.randperm(pairs.shape[1], generator=torch.Generator().manual_seed(0))[:MOST]
            if len(some) <= NEAR:
                return None
            rows, controls = (self._even(one.double()).unsqueeze(2) for one in (self.margins, pairs[:, some]))
            return [Channel(rows, controls)]
        allowed = _allowed(unseen)
        if int(allowed.sum()) <= NEAR:
            return None
        every = [Channel(self.answers, unseen.margins), *self.further.values()]
        return [Channel(evened(one.rows.double()), evened(one.controls[:, allowed].double())) for one in every]

    def _even(self, scores: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
        """Scores that chance moves alike, whatever they are: it moves a square further the larger it is."""
        return evened(-(-2 * scores).clamp(min=0).sqrt() if self.half_squares else scores)

    @property
    def labels(self) -> Int64[Tensor, " T"]:
        """Which column of a channel is that of the label."""
        known = None if self.answers is None or self.unseen is None else self.unseen.labels
        return torch.zeros(self.margins.shape[1], dtype=torch.long) if known is None else known

    @property
    def has_lost_classes(self) -> bool:
        """Whether a class of forgotten rows has no retained row."""
        return self.unseen is not None and self.unseen.gone is not None and len(self.unseen.gone) > 0

    def select(self, networks: Int64[Tensor, " R"]) -> "Evidence":
        """Some of the networks."""
        return replace(
            self,
            margins=self.margins[networks],
            forget_error=self.forget_error[networks],
            test_error=self.test_error[networks] if len(self.test_error) else self.test_error,
            retain_error=self.retain_error[networks] if len(self.retain_error) else self.retain_error,
            unseen=None if self.unseen is None else self.unseen.select(networks),
            answers=None if self.answers is None else self.answers[networks],
            further={name: one.select(networks) for name, one in self.further.items()},
            traits=None if self.traits is None else self.traits[networks],
            place=None if self.place is None else self.place.select(networks),
        )

    def join(self, others: "Evidence") -> "Evidence":
        """Both groups, one after the other; of the same rows, asked in the same ways."""
        unseen, more = self.unseen, others.unseen
        margins, *errors = (torch.cat([getattr(self, name), getattr(others, name)]) for name in _OF_NETWORKS)
        if unseen is not None and more is not None:
            unseen = replace(unseen, margins=torch.cat([unseen.margins, more.margins]))
        answers, traits = (_both(getattr(self, name), getattr(others, name)) for name in ("answers", "traits"))
        further = {name: one.join(others.further[name]) for name, one in self.further.items()}
        place = None if self.place is None or others.place is None else self.place.join(others.place)
        return replace(
            self, margins=margins, forget_error=errors[0], test_error=errors[1], retain_error=errors[2], unseen=unseen,
            answers=answers, further=further, traits=traits, place=place,
        )  # fmt: skip


_OF_NETWORKS = ("margins", "forget_error", "test_error", "retain_error")


def _both(ours: Tensor | None, theirs: Tensor | None) -> Tensor | None:
    return None if ours is None or theirs is None else torch.cat([ours, theirs])


def channels_of(group: Evidence) -> list[Channel]:
    """The ways of asking; where there are no controls, the margins alone beside none."""
    margins = group.margins.double().unsqueeze(2)
    return group.channels or [Channel(margins, margins[:, :0])]


def joined(groups: Sequence[Sequence[Channel]]) -> list[Channel]:
    """The channels of several groups of networks as those of one."""
    first, *others = groups
    found = list(first)
    for group in others:
        found = [ours.join(theirs) for ours, theirs in zip(found, group, strict=True)]
    return found


def _allowed(unseen: Unseen) -> Bool[Tensor, " U"]:
    if unseen.own is None or unseen.gone is None:
        return torch.ones(unseen.margins.shape[1], dtype=torch.bool)
    return ~torch.isin(unseen.own, unseen.gone)
