"""What a network's answers come to: margins, mistakes, and how much worse rows that stay are answered after a scrub.

Every layer reads margins and error rates here: methods, readouts, guards and experiments then mean the same by them.
The guard is here too: a network that lost more than the request may cost is refused.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from torch import Tensor, nn

from spotlessnet.core.data import Data, evenly
from spotlessnet.core.errors import DamageError, check_positive
from spotlessnet.core.loss import BinaryCrossEntropy, CrossEntropy, Loss, wrong_class
from spotlessnet.core.scrub import Scrub, declared_by
from spotlessnet.core.split import Split, as_split
from spotlessnet.core.trained import Trained, as_trained

KNOWN_BY, KNOWN_AT_ONCE = 64, 16
"""Training rows by which it is seen what a network knows about labels, and how many of them are answered together."""

NOTHING, SOMETHING = 0.05, 0.1
"""Shares of the loss that knowing the labels saves: less than the one may be chance, more than the other is not."""

DOUBT = (
    "the network answers its training rows as if it had never seen them: are these its weights, its code and its data, "
    "prepared as in training?"
)
"""What a plan says where answers have nothing to do with labels: a result cannot be told from a ruined one."""

ACCEPTED = "The new network answers rows that stay worse than is allowed: any damage was accepted (`--accept-damage`)."
"""What receipt and command say of a network that would have been refused."""

MOST = 0.05
"""The rise of the error that is borne unless said: five points."""

CHECKED = 2048
"""Rows of each kind that are looked at, evenly spaced."""

AT_ONCE = 256
"""Rows of them that are answered together."""

LEAST = 30
"""Rows, retained and held-out together, below which nobody can tell whether a network was ruined."""

OF_ONE_CLASS = 5
"""Rows of a class below which its share of wrong answers says nothing and stays out of the balanced error."""

BORNE = {"error": 1.0, "balanced error": 3.0, "loss": 10.0}
"""Times the limit that each rise may be. Few rows carry a balanced error, and confidence falls with any noise: five
points of error go with fifteen of the balanced error, and with half of what a loss knows about the labels."""

INSIST = (
    "--max-damage says how much may be lost, --accept-damage insists (in Python `max_damage=`, `accept_damage=True`)."
)


def margin(logits: Float[Tensor, "N C"], y: Int[Tensor, " N"]) -> Float64[Tensor, " N"]:
    r"""$\varphi = \log p_y - \log \sum_{c \ne y} p_c$ of each row, in float64.

    Computed from the logits, $z_y - \mathrm{logsumexp}_{c \ne y} z_c$, so that it neither saturates nor cancels where
    the network is certain.

    >>> margin(torch.tensor([[1000.0, 0.0]]), torch.tensor([0])).tolist()
    [1000.0]
    """
    z = logits.double()
    right = y.long().unsqueeze(1)
    others = z.scatter(1, right, -torch.inf)
    return z.gather(1, right).squeeze(1) - others.logsumexp(dim=1)


def margins_by_position(
    loss: CrossEntropy, outputs: Float[Tensor, "N *C"], y: Shaped[Tensor, "N *d"]
) -> Float64[Tensor, " N"]:
    """The mean margin of each row over its positions that count."""
    at = loss.positions(outputs, y)
    each = margin(at.logits.flatten(0, 1), at.y.flatten()).reshape(at.y.shape)
    # A margin is infinite where another class is impossible, and zero times that is no number.
    return at.mean(each.where(at.counts, 0.0))


@torch.no_grad()
def mistakes(network: Trained, data: Data) -> Float64[Tensor, " N"]:
    """The error of each row as its loss counts it: one or zero for classes, the loss itself otherwise; on the CPU."""
    found = [network.loss.mistakes(network.outputs(b.x), b.y).double().cpu() for b in network.batches(data)]
    return torch.cat(found)


def error_rate(network: Trained, data: Data) -> float:
    """The mean of `mistakes`: for classes, the share of wrong answers."""
    return float(mistakes(network, data).mean())


@dataclass(frozen=True)
class Utility:
    """What a scrub cost on some rows.

    **Arguments:**

    - `on`: which rows; `rows` says how many were looked at.
    - `before`, `after`: the mean mistake of the original and of the scrubbed network.
    - `scale`: what the rise is counted in: one for shares; for a loss what the network knows about the labels.
    - `kind`: `error`, a share of wrong answers; `balanced error`, the mean of that share over classes, which an answer
      that is always the commonest class does not pass; `loss`, the mean loss.
    - `borne`: times the limit that its rise may be; see `BORNE`.
    """

    on: str
    rows: int
    before: float
    after: float
    scale: float = 1.0
    kind: str = "error"
    borne: float = 1.0

    @property
    def rise(self) -> float:
        """How much worse: 0.05 is five points, or a twentieth of all that the network knows about the labels."""
        return (self.after - self.before) / self.scale

    @property
    def share(self) -> float:
        """The rise in units of the limit. More than all that a network knows cannot be lost."""
        most = 1.0 if self.kind == "loss" and self.borne > 1 else float("inf")
        return min(self.rise, most) / self.borne if self.rise == self.rise else self.rise

    def __str__(self) -> str:
        if math.isinf(self.after):
            return f"answers to {self.rows} {self.on} are not finite numbers"
        if self.kind == "loss":
            return f"the mean loss of {self.rows} {self.on} is {self.after:.3g}, {self.before:.3g} before"
        of = "" if self.kind == "error" else ", every class counting the same,"
        return f"{self.after:.1%} of {self.rows} {self.on}{of} are answered wrong, {self.before:.1%} before"

    def allowed(self, limit: float) -> str:
        """How far it may rise, in the unit in which it is told.

        >>> Utility("rows", 9, 0.1, 0.2).allowed(0.05)
        'a rise by 5 points is allowed'
        >>> Utility("rows", 9, 0.1, 0.9, scale=0.7, kind="loss", borne=10).allowed(0.05)
        'a rise by 0.35 is allowed, 50 % of what the network knows about the labels'
        """
        share = 100 * self.borne * limit
        if self.kind != "loss":
            return f"a rise by {share:g} points is allowed"
        most = f"{share / 100 * self.scale:.3g}"
        return f"a rise by {most} is allowed, {share:g} % of what the network knows about the labels"

    def record(self) -> dict[str, Any]:
        """For receipts."""
        return {"on": self.on, "rows": self.rows, "kind": self.kind, "before": self.before, "after": self.after}


def utility_of(before: Trained, after: Trained, split: Split) -> list[Utility]:
    """Both networks on retained rows, and on held-out rows (validation, else test) where there are any."""
    held_out = split.validation if split.validation is not None else split.test
    sets = {"retained rows": split.kept, "held-out rows": None if held_out is None else _still_known(held_out, split)}
    return [
        one
        for name, data in sets.items()
        if data is not None and len(data)
        for one in _compared(name, before, after, data.select(evenly(len(data), CHECKED)), split)
    ]


def advice_for(before: Trained, scrub: Scrub | None = None) -> str:
    """What may help a network that came out ruined, from what is known of it and of the method.

    **Arguments:**

    - `scrub`: the method; advice is for any where it is not said.
    """
    named = set() if scrub is None else declared_by(scrub)
    read = {word for entry in named for word in (*entry.needs, *entry.reads)}
    trains = scrub is None or "recipe" in read
    tries = ["a lower lr or fewer epochs" if trains else "a smaller step"]
    if scrub is not None and any("init" in entry.needs for entry in named):
        # It begins at the start: fewer epochs than were told would leave even less of a network.
        tries = ["the epochs, lr and optimiser that the network was trained with"]
    if scrub is None or scrub.is_noisy:
        tries.append("less noise (a larger budget in nats)")
    names = {entry.name for entry in named}
    if before.can_retrain and "retrain" not in names:
        tries.append('`--method retrain` (in Python `method="retrain"`)')
    if not before.can_retrain:
        tries.append("a retraining (give init and recipe, or a trainer)")
    recipe = before.recipe if trains else None
    # The lr of Adam in a recipe of SGD trains to ruin, and whoever gives --epochs and --lr alone has SGD.
    told = (
        f" The recipe says SGD with lr {recipe.lr:g}: an lr of Adam is not one for SGD "
        '(`--recipe optimizer=adam`, in Python `sn.Recipe(optimizer="adam", ...)`).'
        if recipe is not None and recipe.optimizer == "sgd"
        else ""
    )
    return f"Try {', or '.join(tries)}.{told} {INSIST}"


def check_damage(
    before: Trained | nn.Module,
    after: Trained | nn.Module,
    split: Split,
    limit: float = MOST,
    *,
    least: int = LEAST,
    scrub: Scrub | None = None,
) -> list[Utility]:
    """Raise where a scrubbed network answers rows that stay much worse than the original did; else say how it does.

    Too few rows to tell, or none, are an error too.

    **Arguments:**

    - `before`, `after`: the original and the scrubbed network, as modules if you like.
    - `limit`: how much the error may rise, as a share: 0.05 is five points. For a loss without wrong answers, the share
      of what the network knows about the labels that may be lost. The balanced error may rise three times as much, and
      a loss beside an error ten times.
    - `least`: rows, retained and held-out together, that must be there to look at.
    - `scrub`: the method, for what an error advises.
    """
    check_positive("limit", limit, "0.05 is five points.")
    check_positive("least", least)
    before, split = as_trained(before), as_split(split)
    network = after if isinstance(after, Trained) else before.at(before.vector(after))
    found = utility_of(before, network, split)
    # NaN compares as smaller than anything; it must come out as the worst.
    worst = max(found, key=lambda one: float("inf") if one.share != one.share else one.share, default=None)
    if worst is not None and not worst.share <= limit:  # not a number counts as damage
        raise DamageError(
            f"The scrubbed network is ruined: {worst}; {worst.allowed(limit)}. Nothing was written. "
            f"{advice_for(before, scrub)}"
        )
    # Each set of rows once, though it is judged by several measures.
    rows = sum({one.on: one.rows for one in found if one.kind != "balanced error"}.values())
    if rows < least:
        raise DamageError(
            f"Utility must be measured on at least {least} rows, but there are {rows} that stay: nobody can tell "
            "whether the scrubbed network was ruined. Nothing was written. Give more retained rows or held-out ones "
            "(`Split(kept=..., validation=...)`, `--test`); --accept-damage (in Python `least`) does without."
        )
    return found


def _still_known(held_out: Data, split: Split) -> Data:
    """Held-out rows whose label keeps at least half of its training rows: a network should forget a class that goes."""
    return held_out.select(_known(held_out.labels(), split).nonzero().flatten())


def _known(y: Shaped[Tensor, "N *d"], split: Split) -> Bool[Tensor, " N"]:
    """Which of these labels keep at least half of their training rows; all of those that are no classes."""
    if split.kept is None or y.ndim != 1 or y.is_floating_point():
        return torch.ones(len(y), dtype=torch.bool)
    kept, gone = split.kept.labels(), split.forget.labels()
    # A class that mostly goes should be forgotten: its held-out rows are then no sign of damage.
    known = [label for label in y.unique().tolist() if int((kept == label).sum()) >= int((gone == label).sum())]
    return torch.isin(y, torch.tensor(known, dtype=y.dtype))


def _compared(name: str, before: Trained, after: Trained, data: Data, split: Split) -> list[Utility]:
    y = data.labels()
    loss = before.loss
    # A loss has no unit of its own: what it would be if answers had nothing to do with labels gives one.
    dealt = y[torch.randperm(len(data), generator=torch.Generator().manual_seed(0))]
    known = _known(y, split)
    first, then = (_look(network, loss, data, dealt, known) for network in (before, after))
    if _has_no_mistakes(loss):
        knows = first.dealt - first.error
        scale = knows if knows > 0 else max(abs(first.error), 1e-12)
        return [Utility(name, len(data), first.error, then.error, scale, "loss")]
    if isinstance(loss, CrossEntropy) and y.ndim > 1:
        name = f"{name}, position by position,"
    found = [Utility(name, len(data), first.error, then.error)]
    if not isinstance(loss, CrossEntropy | BinaryCrossEntropy):
        return found
    # An answer that knows how common labels are and nothing else; a network that is worse is counted in its own loss.
    scale = max(_constant_loss(loss, y) - first.loss, first.loss, 1e-12)
    found.append(Utility(name, len(data), first.loss, then.loss, scale, "loss", BORNE["loss"]))
    if known.any():
        kind = "balanced error"
        found.append(Utility(name, int(known.sum()), first.balanced, then.balanced, 1.0, kind, BORNE[kind]))
    return found


def _has_no_mistakes(loss: Loss) -> bool:
    return type(loss).mistakes is Loss.mistakes


class _Look(NamedTuple):
    """A network's means over some rows, infinite where an answer is not a number; zero where a loss has no such mean.

    `dealt` is the loss against labels that were dealt at random.
    """

    error: float = math.inf
    loss: float = math.inf
    dealt: float = math.inf
    balanced: float = math.inf


@torch.no_grad()
def _look(network: Trained, loss: Loss, data: Data, dealt: Tensor, known: Bool[Tensor, " N"]) -> _Look:
    """All means in one pass, for answering rows is what a look costs; streamed, for a text's answers are large."""
    error = plain = random = 0.0
    decisions = []
    parts = zip(network.batches(data, AT_ONCE), dealt.split(AT_ONCE), known.split(AT_ONCE), strict=True)
    for batch, others, keep in parts:
        answers = network.outputs(batch.x).double()
        if not bool(answers.isfinite().all()):
            return _Look()
        error += float(loss.mistakes(answers, batch.y).double().sum())
        if _has_no_mistakes(loss):
            random += float(loss(answers, others.to(answers.device)).double().sum())
        if isinstance(loss, CrossEntropy | BinaryCrossEntropy):
            plain += float(loss(answers, batch.y).double().sum())
            at = keep.to(answers.device)
            decisions.append([one.cpu() for one in _decisions(loss, answers[at], batch.y[at])])
    N = len(data)
    return _Look(error / N, plain / N, random / N, _balanced(loss, decisions) if known.any() else 0.0)


def _constant_loss(loss: CrossEntropy | BinaryCrossEntropy, y: Tensor) -> float:
    """The mean loss of the best answer that is the same for every row: the entropy of the labels."""
    if isinstance(loss, CrossEntropy):
        p = loss.labels_that_count(y).unique(return_counts=True)[1].double()
        return float(torch.special.entr(p / p.sum()).sum())
    p = (y.double() > 0.5).double().mean(dim=0)
    return float((torch.special.entr(p) + torch.special.entr(1 - p)).sum())


def _balanced(loss: Loss, decisions: list[list[Tensor]]) -> float:
    """The share of wrong answers, class by class and then the mean; of yes-or-no labels, yes and no of each label."""
    if not decisions:
        return 0.0
    wrong, truth = (torch.cat(parts) for parts in zip(*decisions, strict=True))
    if isinstance(loss, CrossEntropy):
        rows = truth.bincount()
        shares = [*zip((truth.bincount(wrong) / rows)[rows > 0].tolist(), rows[rows > 0].tolist(), strict=True)]
    else:
        shares = [_share(wrong, group) for group in (truth, ~truth) if bool(group.any())]
    enough = [share for share, rows in shares if rows >= OF_ONE_CLASS] or [share for share, _ in shares]
    return sum(enough) / len(enough)


def _decisions(loss: Loss, answers: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each answer is wrong, and what was right: one a row, one a position, or one for each label."""
    if not isinstance(loss, CrossEntropy):
        truth = y.reshape(answers.shape) > 0.5
        return ((answers > 0) != truth).double(), truth
    if not loss.has_positions(answers):
        return loss.mistakes(answers, y).double(), y.long()
    at = loss.positions(answers, y)
    return wrong_class(at.logits, at.y)[at.counts].double(), at.y[at.counts]


def _share(wrong: Tensor, group: Tensor) -> tuple[float, int]:
    """The mean over columns of the share of wrong answers in the group, and its rows; columns of few rows as one."""
    rows = group.sum(dim=0)
    many = rows >= OF_ONE_CLASS
    if not bool(many.any()):
        return float(wrong[group].mean()), int(rows.sum())
    return float(((wrong * group).sum(dim=0)[many] / rows[many]).mean()), int(rows.sum())


class Known(NamedTuple):
    """What a network's answers know about labels, on a few rows.

    **Arguments:**

    - `loss`: the mean loss of the rows.
    - `dealt`: the same if labels had been dealt among them at random.
    """

    loss: float
    dealt: float

    @property
    def share(self) -> float:
        """The part of the loss that knowing the labels saves; NaN where it cannot be said."""
        is_said = math.isfinite(self.loss) and math.isfinite(self.dealt) and self.loss >= 0 and self.dealt > 0
        return 1 - self.loss / self.dealt if is_said else math.nan

    @property
    def is_nothing(self) -> bool:
        """Whether answers have next to nothing to do with labels."""
        return self.share < NOTHING


@torch.no_grad()
def known_of_labels(network: Trained, data: Data) -> Known:
    """What a network knows about the labels of some rows, drawn evenly from all of them."""
    # Drawn and not spaced: where rows are sorted by class, neighbours would be dealt each other's very labels.
    drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:KNOWN_BY]
    loss = dealt = 0.0
    for batch in network.batches(data.select(drawn), KNOWN_AT_ONCE):
        loss += float(network.losses(batch.x, batch.y).double().sum())
        dealt += float(network.losses(batch.x, batch.y.flip(0)).double().sum())
    return Known(loss / len(drawn), dealt / len(drawn))
