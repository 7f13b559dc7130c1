"""The demo: a digit classifier forgets mislabelled rows, by nine methods, and the report shows which ones did."""

from dataclasses import replace
from pathlib import Path

import torch

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.run_audit import audit
from spotlessnet.core.chaining import chain
from spotlessnet.core.data import Data
from spotlessnet.core.files import write_whole
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.methods import NTK, Finetune, Fisher, GradientAscent, Newton, RandomLabels, ShortRetrain, Variational
from spotlessnet.models.mlp import MLP
from spotlessnet.operators.solvers import CG, Auto
from spotlessnet.report.exports import as_csv, as_json_lines, as_model_card, as_verdict
from spotlessnet.report.page import page
from spotlessnet.training.fit import fit

METHOD = "short retraining"
"""What `spotless scrub` does unless told otherwise."""

COUNT = 25


def problem(seed: int = 0) -> tuple[Trained, Split]:
    """A network pre-trained on half of the digits, about to be fine-tuned on the rest, of which 25 are mislabelled.

    Mislabelled rows must be memorised, so here forgetting has something to do. Ordinary rows of so simple a data
    set are answered alike by networks that never saw them, and doing nothing would pass.
    """
    digits = load("digits", core=0.5, seed=seed)
    assert digits.core is not None
    recipe = Recipe(epochs=40, lr=0.1, batch_size=128, weight_decay=1e-3)
    fresh = Trained.of(MLP(64, 10, hidden=(64,)), recipe=recipe)
    start = fit(fresh, digits.core, recipe.but(epochs=10, weight_decay=0.0), seed=seed, label="pre-training")
    train, chosen = mislabelled(digits.train, COUNT, seed)
    split = rows(chosen, mislabelled=True)(train, digits.test)
    return replace(start, init=start.weights, recipe=recipe, weight_decay=recipe.weight_decay), split


def mislabelled(train: Data, count: int, seed: int) -> tuple[Data, list[int]]:
    """The same rows with `count` labels moved to another class, and the numbers of those rows."""
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randperm(len(train), generator=generator)[:count]
    y = train.labels().clone()
    classes = int(y.max()) + 1
    moves = torch.randint(1, classes, (count,), generator=generator)
    y[positions] = (y[positions] + moves) % classes
    return train.relabel(y), train.rows[positions].tolist()


def methods() -> dict[str, Scrub]:
    """What is compared in the demo, beside the original and the retrained networks."""
    # All rows in one batch, and no more digits than the comparison shows.
    step = NTK(batch_size=1024, solver=Auto(tolerance=1e-2))
    return {
        METHOD: ShortRetrain(),
        "NTK, then 3 epochs": chain(step, Finetune(epochs=3)),
        "NTK": step,
        "Newton": Newton(solver=CG(tolerance=1e-2)),
        "fine-tune": Finetune(epochs=10),
        "negative gradient": GradientAscent(),
        "random labels": RandomLabels(epochs=3),
        "Fisher noise": Fisher(strength=1e-8),
        "variational": Variational(steps=200),
    }


def demo(out: Path, *, seeds: int = 8) -> tuple[AuditReport, Path]:
    """Run it all and write the report; the story and the page's path come back."""
    began, split = problem()
    compared = methods()
    report = audit(
        began,
        split,
        compared.pop(METHOD),
        name=METHOD,
        others=compared,
        seeds=seeds,
        title=f"Forgetting {COUNT} mislabelled digits",
        rerun_command="spotless demo",
    )
    return report, write_report(report, out)


def write_report(report: AuditReport, out: Path) -> Path:
    """The page, the rows for a spreadsheet and for a program, a section for a model card, and the verdict as JSON."""
    files = {
        "rows.csv": as_csv(report.rows),
        "rows.jsonl": as_json_lines(report.rows),
        "model-card.md": as_model_card(report),
        "verdict.json": as_verdict(report),
        "report.html": page(report),
    }
    for name, text in files.items():
        write_whole(out / name, text.encode(), replace=True, shared=True)
    return out / "report.html"
