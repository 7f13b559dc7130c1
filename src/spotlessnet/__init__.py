"""Make a trained network forget, and prove what is left.

>>> import spotlessnet as sn
>>> import torch
>>> model, x, y = torch.nn.Linear(4, 3), torch.randn(9, 4), torch.arange(9) % 3
>>> train = sn.Data.of((x, y), columns={"person": ["ann", "bob", "cy"] * 3})
>>> trained = sn.Trained.of(model, decay=1e-3)
>>> split = sn.ids(["ann", "bob"], column="person")(train)
>>> scrubbed = sn.WithinBudget(sn.chain(sn.NTK(), sn.Fisher()), max_nats=1)(trained, split)
>>> network = trained.module(scrubbed.draw(sn.NoiseSeed.secret().generator()))

`sn.ids("forget.csv")` reads the list from a file, `sn.write_weights(path, network)` writes what is left, and
`sn.audit(trained, split, sn.NTK(), name="NTK")` measures it. Names are imported when they are first used.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    # the nouns
    "core.data": ("Data",),
    "core.gaussian": ("Gaussian",),
    "core.memory": ("Memory",),
    "core.recipe": ("Recipe",),
    "core.scrub": ("Scrub", "chain"),
    "core.split": ("Split",),
    "core.trained": ("Trained",),
    "core.damage": ("check_damage",),
    "core.errors": ("SpotlessError",),
    # which rows must go
    "core.cohorts": ("ids", "rows", "some_of_class", "where", "whole_class"),
    # what training minimised
    "core.loss": ("BinaryCrossEntropy", "CrossEntropy", "PerSample", "SquaredError"),
    # ways to forget
    "scrubs": (
        "NTK",
        "BadTeacher",
        "Finetune",
        "Fisher",
        "Hiding",
        "MixedLinear",
        "NegGradPlus",
        "NegativeGradient",
        "Newton",
        "RandomLabels",
        "RespondAndPolish",
        "Retrain",
        "Saliency",
        "SelectiveDampening",
        "ShortRetrain",
        "SparseFinetune",
        "Student",
        "Unlabel",
        "Variational",
        "WithinBudget",
    ),
    # what can be seen
    "readouts": (
        "RMIA",
        "ActivationDistance",
        "Confidence",
        "Entropy",
        "EntropyAttack",
        "Error",
        "LiRA",
        "Margin",
        "MeanLoss",
        "RelearnTime",
        "u_lira",
    ),
    # what can be known at most
    "bounds": ("BlackBox", "WhiteBox", "best_accuracy", "trade_off", "true_positives"),
    # training, and what it leaves for later requests
    "training.fit": ("fit",),
    "training.fit_many": ("fit_many",),
    "training.tutors": ("train_tutors",),
    "operators.remember": ("remember",),
    # forgettable by design
    "forgettable": ("Adaptation", "ForgettableModel", "fit_forgettable", "load_forgettable", "save_forgettable"),
    # evidence
    "audit": ("audit",),
    "compare": ("compare", "summarise"),
    "report.page": ("page",),
    "report.rows": ("Row",),
    "report.story": ("Story",),
    # files
    "datasets": ("load",),
    "store.checkpoints": ("load_into", "read_weights", "write_weights"),
    "store.memories": ("read_memory", "write_memory"),
    "store.receipts": ("NoiseSeed",),
    "store.tutors": ("read_tutors", "write_tutors"),
}
"""Where each public name lives. They are looked up late, so that importing the package costs little beyond torch."""

_HOME = {name: place for place, names in _PLACES.items() for name in names}

if TYPE_CHECKING:
    from spotlessnet.audit import audit
    from spotlessnet.bounds import BlackBox, WhiteBox, best_accuracy, trade_off, true_positives
    from spotlessnet.compare import compare, summarise
    from spotlessnet.core.cohorts import ids, rows, some_of_class, where, whole_class
    from spotlessnet.core.damage import check_damage
    from spotlessnet.core.data import Data
    from spotlessnet.core.errors import SpotlessError
    from spotlessnet.core.gaussian import Gaussian
    from spotlessnet.core.loss import BinaryCrossEntropy, CrossEntropy, PerSample, SquaredError
    from spotlessnet.core.memory import Memory
    from spotlessnet.core.recipe import Recipe
    from spotlessnet.core.scrub import Scrub, chain
    from spotlessnet.core.split import Split
    from spotlessnet.core.trained import Trained
    from spotlessnet.datasets import load
    from spotlessnet.forgettable import (
        Adaptation,
        ForgettableModel,
        fit_forgettable,
        load_forgettable,
        save_forgettable,
    )
    from spotlessnet.operators.remember import remember
    from spotlessnet.readouts import (
        RMIA,
        ActivationDistance,
        Confidence,
        Entropy,
        EntropyAttack,
        Error,
        LiRA,
        Margin,
        MeanLoss,
        RelearnTime,
        u_lira,
    )
    from spotlessnet.report.page import page
    from spotlessnet.report.rows import Row
    from spotlessnet.report.story import Story
    from spotlessnet.scrubs import (
        NTK,
        BadTeacher,
        Finetune,
        Fisher,
        Hiding,
        MixedLinear,
        NegativeGradient,
        NegGradPlus,
        Newton,
        RandomLabels,
        RespondAndPolish,
        Retrain,
        Saliency,
        SelectiveDampening,
        ShortRetrain,
        SparseFinetune,
        Student,
        Unlabel,
        Variational,
        WithinBudget,
    )
    from spotlessnet.store.checkpoints import load_into, read_weights, write_weights
    from spotlessnet.store.memories import read_memory, write_memory
    from spotlessnet.store.receipts import NoiseSeed
    from spotlessnet.store.tutors import read_tutors, write_tutors
    from spotlessnet.training.fit import fit
    from spotlessnet.training.fit_many import fit_many
    from spotlessnet.training.tutors import train_tutors

__all__ = [
    "NTK",
    "RMIA",
    "ActivationDistance",
    "Adaptation",
    "BadTeacher",
    "BinaryCrossEntropy",
    "BlackBox",
    "Confidence",
    "CrossEntropy",
    "Data",
    "Entropy",
    "EntropyAttack",
    "Error",
    "Finetune",
    "Fisher",
    "ForgettableModel",
    "Gaussian",
    "Hiding",
    "LiRA",
    "Margin",
    "MeanLoss",
    "Memory",
    "MixedLinear",
    "NegGradPlus",
    "NegativeGradient",
    "Newton",
    "NoiseSeed",
    "PerSample",
    "RandomLabels",
    "Recipe",
    "RelearnTime",
    "RespondAndPolish",
    "Retrain",
    "Row",
    "Saliency",
    "Scrub",
    "SelectiveDampening",
    "ShortRetrain",
    "SparseFinetune",
    "Split",
    "SpotlessError",
    "SquaredError",
    "Story",
    "Student",
    "Trained",
    "Unlabel",
    "Variational",
    "WhiteBox",
    "WithinBudget",
    "__version__",
    "audit",
    "best_accuracy",
    "chain",
    "check_damage",
    "compare",
    "fit",
    "fit_forgettable",
    "fit_many",
    "ids",
    "load",
    "load_forgettable",
    "load_into",
    "page",
    "read_memory",
    "read_tutors",
    "read_weights",
    "remember",
    "rows",
    "save_forgettable",
    "some_of_class",
    "summarise",
    "trade_off",
    "train_tutors",
    "true_positives",
    "u_lira",
    "where",
    "whole_class",
    "write_memory",
    "write_tutors",
    "write_weights",
]


def __getattr__(name: str) -> Any:
    """A public name, imported from its home."""
    if name not in _HOME:
        raise AttributeError(f"spotlessnet has no name {name!r}.")
    found = getattr(importlib.import_module(f"spotlessnet.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Public names, for completion."""
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package. Importing a module binds its name here; where a function has that name too, the function wins."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
