"""Evidence: what groups of networks make of the forgotten rows, of copies near them, and of rows that nobody saw."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from spotlessnet.auditing.exchanging import NEAR, Channel, evened
from spotlessnet.core.adapters import Arrays
from spotlessnet.core.data import Data
from spotlessnet.core.loss import Loss
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.error import Error
from spotlessnet.readouts.matched_controls import MOST, Unseen, drawn, margins_by_label
from spotlessnet.readouts.parts import class_logits
from spotlessnet.readouts.scores import kind_of, scores_of

NOISE = 0.15
"""Of copies near a row, in standard deviations of the inputs: what is memorised reaches further than the row itself."""

EMPTY = torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is read from one group of networks, one per seed.

    **Arguments:**

    - `margins`: of the forgotten rows, `[seeds, rows]`; their scores where a row has no one margin (`readouts.scores`).
    - `forget_error`, `test_error`: shares of wrong answers; the latter empty where there is no test data.
    - `unseen`: what they make of rows that nobody trained on.
    - `errors_are_losses`: errors are mean losses, for the loss knows no wrong answers.
    - `answers`: margins of every label of the forgotten rows; `None` where a row has no one class.
    - `near`: the same of copies with some noise, and of such copies of the test rows; `None` where inputs have no
      noise, such as words.
    - `retain_error`: share of wrong answers on retained rows; empty where they are not at hand.
    """

    margins: Float[Tensor, "S T"]
    forget_error: Float[Tensor, " S"]
    test_error: Float[Tensor, " R"]
    unseen: Unseen | None = None
    errors_are_losses: bool = False
    answers: Float[Tensor, "S T C"] | None = None
    near: Channel | None = None
    retain_error: Float[Tensor, " Q"] = EMPTY

    @staticmethod
    def of(networks: Iterable[Trained], split: Split) -> "Evidence":
        """Look at each network once."""
        group = list(networks)
        parts = {"forget": True, "test": split.test is not None, "retain": split.kept is not None}
        errors = {
            on: torch.tensor([float(Error(on)(n, split)) for n in group if is_there], dtype=torch.float64)  # type: ignore[arg-type]  # a name of a part
            for on, is_there in parts.items()
        }
        return Evidence(
            margins=scores_of(group, split.forget),
            forget_error=errors["forget"],
            test_error=errors["test"],
            unseen=Unseen.of(group, split),
            errors_are_losses=bool(group) and type(group[0].loss).mistakes is Loss.mistakes,
            answers=_answers(group, split.forget),
            near=_near(group, split),
            retain_error=errors["retain"],
        )

    def __len__(self) -> int:
        return len(self.margins)

    @property
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
            return [Channel(evened(self.margins.double()).unsqueeze(2), evened(pairs[:, some].double()).unsqueeze(2))]
        allowed = _allowed(unseen)
        if int(allowed.sum()) <= NEAR:
            return None
        asked = [Channel(self.answers, unseen.margins), *([] if self.near is None else [self.near])]
        return [Channel(evened(one.rows.double()), evened(one.controls[:, allowed].double())) for one in asked]

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
            near=None if self.near is None else Channel(self.near.rows[networks], self.near.controls[networks]),
        )

    def with_rows_moved(self, original: "Evidence", retrained: "Evidence", rows: Bool[Tensor, " T"]) -> "Evidence":
        """What these networks would answer if they knew some rows as much better as the original does."""

        def moved(ours: Tensor, known: Tensor, unknown: Tensor) -> Tensor:
            mask = rows.reshape(-1, *[1] * (ours.ndim - 2))
            return torch.where(mask, ours + known.mean(dim=0) - unknown.mean(dim=0), ours)

        found = replace(self, margins=moved(self.margins, original.margins, retrained.margins))
        if self.answers is not None and original.answers is not None and retrained.answers is not None:
            found = replace(found, answers=moved(self.answers, original.answers, retrained.answers))
        if self.near is None or original.near is None or retrained.near is None:
            return found
        near = moved(self.near.rows, original.near.rows, retrained.near.rows)
        return replace(found, near=replace(self.near, rows=near))


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


def _answers(group: Sequence[Trained], data: Data) -> Float[Tensor, "S T C"] | None:
    if not group or kind_of(group[0], data) != "classes":
        return None
    return torch.stack([margins_by_label(class_logits(network, data)).cpu() for network in group])


def _near(group: Sequence[Trained], split: Split) -> Channel | None:
    """Answers to copies with noise; too many rows would take as much memory as the data."""
    if split.test is None or len(split.forget) > MOST:
        return None
    copies, others = _with_noise(split.forget), _with_noise(drawn(split.test))
    if copies is None or others is None:
        return None
    rows, controls = _answers(group, copies), _answers(group, others)
    return None if rows is None or controls is None else Channel(rows, controls)


def _with_noise(data: Data) -> Data | None:
    batch = data.fetch(data.rows)
    x = batch.x
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return None
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(x)
    return Data(Arrays(x + NOISE * x.float().std().to(x) * noise, batch.y), torch.arange(len(data)))
