"""The table of methods as Markdown, made from what they declare: for README, pages and whoever asks."""

import re
from dataclasses import MISSING, fields

import torch

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.registry import Entry, markdown_table
from spotlessnet.core.scrub import METHODS, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.models.mlp import MLP

EXAMPLES = 10_000
FORGOTTEN = 100
EPOCHS = 30
WIDTH = 64
CLASSES = 10

COLUMNS = ("method", "command", "paper", "needs", "cost", "guarantee")

FIRST = ("short-retrain", "retrain", "out-of-fold-distillation", "ntk", "newton", "fisher")
"""What to try first comes first; baselines and published methods for comparison follow by name."""

BY_FLAG = {"within-budget": "--max-nats"}
"""What the command asks for by a flag of its own, not by a name."""

CAPTION = (
    f"Cost: FLOPs counted by the plan as a share of one retraining, for a network of {WIDTH}–{WIDTH}–{CLASSES} units, "
    f"{EXAMPLES:,} examples, {EPOCHS} epochs, a forget set of {FORGOTTEN}, default settings, nothing precomputed. "
    "A short retraining stops when it is as good as the original: the least is shown, and it may take a whole training."
)
"""What the column of costs was counted on."""


def ranked(first: tuple[str, ...] = FIRST) -> list[Entry[type[Scrub]]]:
    """Every registered method: those to try `first`, then the others by their names."""
    return sorted(METHODS.entries(), key=lambda entry: _rank(entry.name, first))


def table(first: tuple[str, ...] = ()) -> str:
    """Every registered method in one row, in that order."""
    entries = ranked(first)
    trained, split = reference_request()
    retraining = METHODS.find("retrain")().cost(trained, split).usual
    return markdown_table(COLUMNS, [_row(entry, trained, split, retraining) for entry in entries])


def reference_request() -> tuple[Trained, Split]:
    """The request that costs are shown for. It is only counted, never served, so its numbers are all zero."""
    model = MLP(WIDTH, CLASSES, hidden=(WIDTH,), seed=0)
    trained = Trained.of(model, init=model, recipe=Recipe(epochs=EPOCHS, lr=0.1, batch_size=128, weight_decay=1e-4))
    data = Data.of((torch.zeros(EXAMPLES, WIDTH), torch.arange(EXAMPLES) % CLASSES))
    forget = data.select(torch.arange(FORGOTTEN))
    return trained, Split(forget=forget, kept=data.without(forget), validation=data.select(torch.arange(1000)))


def _rank(name: str, first: tuple[str, ...]) -> tuple[int, str]:
    return (first.index(name), name) if name in first else (len(first), name)


def _row(entry: Entry[type[Scrub]], trained: Trained, split: Split, retraining: float) -> list[str]:
    return [
        f"`{entry.python_name}`",
        f"`{BY_FLAG.get(entry.name, entry.name)}`",
        short_paper(entry.paper),
        ", ".join(entry.needs),
        _cost(entry, trained, split, retraining),
        entry.guarantee,
    ]


def _cost(entry: Entry[type[Scrub]], trained: Trained, split: Split, retraining: float) -> str:
    # A method that goes around another costs what that one does; user weights are another network than this one.
    wraps = any(f.default is MISSING and f.default_factory is MISSING for f in fields(entry.thing))  # type: ignore[arg-type]  # every method is a dataclass
    if wraps or "user weights" in entry.needs:
        return "–"
    share = entry.thing().cost(trained, split).usual / retraining
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def short_paper(paper: str) -> str:
    """Three authors or more become one and the others.

    >>> short_paper("Foster, Schoepf and Brintrup (2024), Fast Machine Unlearning")
    'Foster et al. (2024), Fast Machine Unlearning'
    """
    return re.sub(r"^(\w+), [^(]* and \w+ \(", r"\1 et al. (", paper)
