"""Make a trained network forget, and prove what is left.

>>> import spotlessnet as sn
>>> import torch
>>> model, x, y = torch.nn.Linear(4, 3), torch.randn(9, 4), torch.arange(9) % 3
>>> train = sn.Data.of((x, y), columns={"person": ["ann", "bob", "cy"] * 3})
>>> trained = sn.Trained.of(model, weight_decay=1e-3)
>>> split = sn.ids(["ann", "bob"], column="person")(train)
>>> scrubbed = sn.chain(sn.NTK(), sn.Fisher())(trained, split)
>>> network = trained.module(scrubbed.draw(sn.NoiseSeed.secret().generator()))

`sn.ids("forget.csv")` reads the list from a file, `sn.write_weights(path, network)` writes what is left, and
`sn.audit(trained, split, sn.NTK(), name="NTK")` measures it. Names are imported when they are first used.
"""

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_PLACES = {
    # the nouns
    "core.data": ("Data",),
    "core.gaussian": ("Gaussian",),
    "precomputed.statistics": ("Statistics",),
    "core.recipe": ("Recipe",),
    "core.chaining": ("chain",),
    "core.scrub": ("Scrub",),
    "core.trained": ("Trained",),
    "core.trainer": ("Examples", "Trainer"),
    "core.answers": ("check_damage",),
    "core.errors": ("SpotlessError",),
    # which rows must go
    "core.split": ("Split", "ids", "rows", "some_of_class", "where", "whole_class"),
    # what training minimised
    "core.loss": ("BinaryCrossEntropy", "CrossEntropy", "NextToken", "PerSample", "SquaredError"),
    # how the systems of methods are solved
    "operators.solvers": ("CG", "Auto", "Dual", "LowRank"),
    # what can be known at most, beside the bounds, which register
    "bounds.attacker": ("best_accuracy", "true_positives"),
    "bounds.trade_off": ("trade_off",),
    "methods.mixed_linear": ("epsilon_of_requests",),
    # training, and what it leaves for later requests
    "training.fit": ("fit",),
    "training.fit_many": ("fit_many",),
    "training.many": ("Executor",),
    "precomputed.fold_models": ("train_fold_models",),
    "precomputed.precompute": ("precompute",),
    # forgettable by design
    "forgettable": ("Adaptation", "ForgettableModel", "fit_forgettable", "load_forgettable", "save_forgettable"),
    # one request, from the asking to the receipt
    "requests.unlearning": ("unlearn",),
    "requests.recording": ("record",),
    "requests.recorded": ("recorded",),
    "requests.audits": ("Audit",),
    "requests.serving": ("Unlearned",),
    # evidence
    "auditing.run_audit": ("audit",),
    "auditing.bank": ("Bank",),
    "auditing.coin_flips": ("Canaries", "canaries"),
    "auditing.forgettable_models": ("audit_forgettable",),
    "auditing.comparison": ("compare",),
    "auditing.shadow_attack": ("u_lira",),
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

_REGISTRIES = {"core.scrub": "METHODS", "core.readout": "READOUTS", "core.bound": "BOUNDS"}
"""What declares itself is public under its own name, without a line here."""

_HOME = {name: place for place, names in _PLACES.items() for name in names}

if TYPE_CHECKING:
    # For editors and type checkers, which do not run registries. A registered name that is not here is public too.
    from spotlessnet.auditing.audit_report import AuditReport as AuditReport
    from spotlessnet.auditing.bank import Bank as Bank
    from spotlessnet.auditing.coin_flips import Canaries as Canaries
    from spotlessnet.auditing.coin_flips import canaries as canaries
    from spotlessnet.auditing.comparison import compare as compare
    from spotlessnet.auditing.forgettable_models import audit_forgettable as audit_forgettable
    from spotlessnet.auditing.rows import Row as Row
    from spotlessnet.auditing.run_audit import audit as audit
    from spotlessnet.auditing.shadow_attack import u_lira as u_lira
    from spotlessnet.auditing.summary import summarise as summarise
    from spotlessnet.bounds import BlackBox as BlackBox
    from spotlessnet.bounds import WhiteBox as WhiteBox
    from spotlessnet.bounds.attacker import best_accuracy as best_accuracy
    from spotlessnet.bounds.attacker import true_positives as true_positives
    from spotlessnet.bounds.trade_off import trade_off as trade_off
    from spotlessnet.core.answers import check_damage as check_damage
    from spotlessnet.core.chaining import chain as chain
    from spotlessnet.core.data import Data as Data
    from spotlessnet.core.errors import SpotlessError as SpotlessError
    from spotlessnet.core.gaussian import Gaussian as Gaussian
    from spotlessnet.core.loss import BinaryCrossEntropy as BinaryCrossEntropy
    from spotlessnet.core.loss import CrossEntropy as CrossEntropy
    from spotlessnet.core.loss import NextToken as NextToken
    from spotlessnet.core.loss import PerSample as PerSample
    from spotlessnet.core.loss import SquaredError as SquaredError
    from spotlessnet.core.recipe import Recipe as Recipe
    from spotlessnet.core.scrub import Scrub as Scrub
    from spotlessnet.core.split import Split as Split
    from spotlessnet.core.split import ids as ids
    from spotlessnet.core.split import rows as rows
    from spotlessnet.core.split import some_of_class as some_of_class
    from spotlessnet.core.split import where as where
    from spotlessnet.core.split import whole_class as whole_class
    from spotlessnet.core.trained import Trained as Trained
    from spotlessnet.core.trainer import Examples as Examples
    from spotlessnet.core.trainer import Trainer as Trainer
    from spotlessnet.datasets import load as load
    from spotlessnet.forgettable import Adaptation as Adaptation
    from spotlessnet.forgettable import ForgettableModel as ForgettableModel
    from spotlessnet.forgettable import fit_forgettable as fit_forgettable
    from spotlessnet.forgettable import load_forgettable as load_forgettable
    from spotlessnet.forgettable import save_forgettable as save_forgettable
    from spotlessnet.methods import NTK as NTK
    from spotlessnet.methods import SCRUB as SCRUB
    from spotlessnet.methods import SSD as SSD
    from spotlessnet.methods import BadTeacher as BadTeacher
    from spotlessnet.methods import Finetune as Finetune
    from spotlessnet.methods import Fisher as Fisher
    from spotlessnet.methods import GradientAscent as GradientAscent
    from spotlessnet.methods import Hiding as Hiding
    from spotlessnet.methods import L1Sparse as L1Sparse
    from spotlessnet.methods import MixedLinear as MixedLinear
    from spotlessnet.methods import NegGradPlus as NegGradPlus
    from spotlessnet.methods import Newton as Newton
    from spotlessnet.methods import OutOfFoldDistillation as OutOfFoldDistillation
    from spotlessnet.methods import RandomLabels as RandomLabels
    from spotlessnet.methods import RespondAndFinetune as RespondAndFinetune
    from spotlessnet.methods import Retrain as Retrain
    from spotlessnet.methods import SalUn as SalUn
    from spotlessnet.methods import ShortRetrain as ShortRetrain
    from spotlessnet.methods import Variational as Variational
    from spotlessnet.methods import WithinBudget as WithinBudget
    from spotlessnet.methods.mixed_linear import epsilon_of_requests as epsilon_of_requests
    from spotlessnet.operators.solvers import CG as CG
    from spotlessnet.operators.solvers import Auto as Auto
    from spotlessnet.operators.solvers import Dual as Dual
    from spotlessnet.operators.solvers import LowRank as LowRank
    from spotlessnet.precomputed.fold_model_files import read_fold_models as read_fold_models
    from spotlessnet.precomputed.fold_model_files import write_fold_models as write_fold_models
    from spotlessnet.precomputed.fold_models import train_fold_models as train_fold_models
    from spotlessnet.precomputed.precompute import precompute as precompute
    from spotlessnet.precomputed.statistics import Statistics as Statistics
    from spotlessnet.precomputed.statistics_files import read_statistics as read_statistics
    from spotlessnet.precomputed.statistics_files import write_statistics as write_statistics
    from spotlessnet.readouts import RMIA as RMIA
    from spotlessnet.readouts import ActivationDistance as ActivationDistance
    from spotlessnet.readouts import Confidence as Confidence
    from spotlessnet.readouts import Entropy as Entropy
    from spotlessnet.readouts import EntropyAttack as EntropyAttack
    from spotlessnet.readouts import Error as Error
    from spotlessnet.readouts import LiRA as LiRA
    from spotlessnet.readouts import Margin as Margin
    from spotlessnet.readouts import MeanLoss as MeanLoss
    from spotlessnet.readouts import RelearnTime as RelearnTime
    from spotlessnet.report.page import page as page
    from spotlessnet.requests.audits import Audit as Audit
    from spotlessnet.requests.recorded import recorded as recorded
    from spotlessnet.requests.recording import record as record
    from spotlessnet.requests.serving import Unlearned as Unlearned
    from spotlessnet.requests.unlearning import unlearn as unlearn
    from spotlessnet.store.checkpoints import load_into as load_into
    from spotlessnet.store.checkpoints import read_weights as read_weights
    from spotlessnet.store.checkpoints import write_weights as write_weights
    from spotlessnet.store.receipts import NoiseSeed as NoiseSeed
    from spotlessnet.training.fit import fit as fit
    from spotlessnet.training.fit_many import fit_many as fit_many
    from spotlessnet.training.many import Executor as Executor

_OLD = {
    "Memory": "Statistics",
    "NegativeGradient": "GradientAscent",
    "RespondAndPolish": "RespondAndFinetune",
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
    if name == "__all__":
        return sorted({*_HOME, *_registered(), "__version__"})
    if name in _HOME:
        found = getattr(importlib.import_module(f"spotlessnet.{_HOME[name]}"), name)
    else:
        # One registry after the other: a method need not wait until every readout is imported.
        kinds = () if name.startswith("_") else _registries()
        found = next((registered[name] for registered in kinds if name in registered), None)
        if found is None:
            raise AttributeError(f"spotlessnet has no name {name!r}.")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Public names, for completion."""
    return sorted({*globals(), *_HOME, *_registered()})


def _registered() -> dict[str, Any]:
    """Everything that declared itself, by its name in Python."""
    return {name: thing for registered in _registries() for name, thing in registered.items()}


def _registries() -> Iterator[dict[str, Any]]:
    for place, name in _REGISTRIES.items():
        yield getattr(importlib.import_module(f"spotlessnet.{place}"), name).exports()
