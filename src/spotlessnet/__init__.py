"""Make a trained network forget, and prove what is left.

>>> import spotlessnet as sn
>>> import torch
>>> model, x, y = torch.nn.Linear(4, 3), torch.randn(9, 4), torch.arange(9) % 3
>>> train = sn.Data.of((x, y), columns={"person": ["ann", "bob", "cy"] * 3})
>>> trained = sn.Trained.of(model, weight_decay=1e-3)
>>> split = sn.ids(["ann", "bob"], column="person")(train)
>>> scrubbed = sn.WithinBudget(sn.chain(sn.NTK(), sn.Fisher()), max_nats=1)(trained, split)
>>> network = trained.module(scrubbed.draw(sn.NoiseSeed.secret().generator()))

`sn.ids("forget.csv")` reads the list from a file, `sn.write_weights(path, network)` writes what is left, and
`sn.audit(trained, split, sn.NTK(), name="NTK")` measures it. Names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    # the nouns
    "core.data": ("Data",),
    "core.gaussian": ("Gaussian",),
    "precomputed.statistics": ("Statistics",),
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
    "methods": (
        "NTK",
        "BadTeacher",
        "Finetune",
        "Fisher",
        "Hiding",
        "MixedLinear",
        "NegGradPlus",
        "GradientAscent",
        "Newton",
        "RandomLabels",
        "RespondAndPolish",
        "Retrain",
        "SalUn",
        "SSD",
        "ShortRetrain",
        "L1Sparse",
        "SCRUB",
        "OutOfFoldDistillation",
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
    "precomputed.fold_models": ("train_fold_models",),
    "precomputed.precompute": ("precompute",),
    # forgettable by design
    "forgettable": ("Adaptation", "ForgettableModel", "fit_forgettable", "load_forgettable", "save_forgettable"),
    # evidence
    "auditing.run_audit": ("audit",),
    "auditing.comparison": ("compare",),
    "auditing.summary": ("summarise",),
    "auditing.rows": ("Row",),
    "auditing.audit_report": ("AuditReport",),
    "report.page": ("page",),
    # files
    "datasets": ("load",),
    "store.checkpoints": ("load_into", "read_weights", "write_weights"),
    "precomputed.statistics_files": ("read_statistics", "write_statistics"),
    "store.receipts": ("NoiseSeed",),
    "precomputed.fold_model_files": ("read_fold_models", "write_fold_models"),
}
"""Where each public name lives. They are looked up late, so that importing the package costs little beyond torch."""

_HOME = {name: place for place, names in _PLACES.items() for name in names}

if TYPE_CHECKING:
    from spotlessnet.auditing.audit_report import AuditReport
    from spotlessnet.auditing.comparison import compare
    from spotlessnet.auditing.rows import Row
    from spotlessnet.auditing.run_audit import audit
    from spotlessnet.auditing.summary import summarise
    from spotlessnet.bounds import BlackBox, WhiteBox, best_accuracy, trade_off, true_positives
    from spotlessnet.core.cohorts import ids, rows, some_of_class, where, whole_class
    from spotlessnet.core.damage import check_damage
    from spotlessnet.core.data import Data
    from spotlessnet.core.errors import SpotlessError
    from spotlessnet.core.gaussian import Gaussian
    from spotlessnet.core.loss import BinaryCrossEntropy, CrossEntropy, PerSample, SquaredError
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
    from spotlessnet.methods import (
        NTK,
        SCRUB,
        SSD,
        BadTeacher,
        Finetune,
        Fisher,
        GradientAscent,
        Hiding,
        L1Sparse,
        MixedLinear,
        NegGradPlus,
        Newton,
        OutOfFoldDistillation,
        RandomLabels,
        RespondAndPolish,
        Retrain,
        SalUn,
        ShortRetrain,
        Variational,
        WithinBudget,
    )
    from spotlessnet.precomputed.fold_model_files import read_fold_models, write_fold_models
    from spotlessnet.precomputed.fold_models import train_fold_models
    from spotlessnet.precomputed.precompute import precompute
    from spotlessnet.precomputed.statistics import Statistics
    from spotlessnet.precomputed.statistics_files import read_statistics, write_statistics
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
    from spotlessnet.store.checkpoints import load_into, read_weights, write_weights
    from spotlessnet.store.receipts import NoiseSeed
    from spotlessnet.training.fit import fit
    from spotlessnet.training.fit_many import fit_many

__all__ = [
    "NTK",
    "RMIA",
    "SCRUB",
    "SSD",
    "ActivationDistance",
    "Adaptation",
    "AuditReport",
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
    "GradientAscent",
    "Hiding",
    "L1Sparse",
    "LiRA",
    "Margin",
    "MeanLoss",
    "MixedLinear",
    "NegGradPlus",
    "Newton",
    "NoiseSeed",
    "OutOfFoldDistillation",
    "PerSample",
    "RandomLabels",
    "Recipe",
    "RelearnTime",
    "RespondAndPolish",
    "Retrain",
    "Row",
    "SalUn",
    "Scrub",
    "ShortRetrain",
    "Split",
    "SpotlessError",
    "SquaredError",
    "Statistics",
    "Trained",
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
    "precompute",
    "read_fold_models",
    "read_statistics",
    "read_weights",
    "rows",
    "save_forgettable",
    "some_of_class",
    "summarise",
    "trade_off",
    "train_fold_models",
    "true_positives",
    "u_lira",
    "where",
    "whole_class",
    "write_fold_models",
    "write_statistics",
    "write_weights",
]


_OLD = {
    "Memory": "Statistics",
    "NegativeGradient": "GradientAscent",
    "Saliency": "SalUn",
    "SelectiveDampening": "SSD",
    "SparseFinetune": "L1Sparse",
    "Story": "AuditReport",
    "Student": "SCRUB",
    "Unlabel": "OutOfFoldDistillation",
    "read_memory": "read_statistics",
    "read_tutors": "read_fold_models",
    "remember": "precompute",
    "train_tutors": "train_fold_models",
    "write_memory": "write_statistics",
    "write_tutors": "write_fold_models",
}
"""What names of version 0.1 are called now."""


def __getattr__(name: str) -> Any:
    """A public name, imported from its home."""
    if name in _OLD:
        deprecated = importlib.import_module("spotlessnet.core.deprecated")
        deprecated.warn_old(f"`spotlessnet.{name}`", f"`spotlessnet.{_OLD[name]}`", level=2)
        return __getattr__(_OLD[name])
    if name not in _HOME:
        raise AttributeError(f"spotlessnet has no name {name!r}.")
    found = getattr(importlib.import_module(f"spotlessnet.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Public names, for completion."""
    return sorted({*globals(), *__all__})
