"""Numbers from before the redesign, by the names of version 0.1: every method on digits gives what it gave."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import spotlessnet as sn

NUMBERS = Path(__file__).with_name("numbers_before_redesign.json")

METHODS = {
    "NTK": lambda: sn.NTK(),
    "NTK primal": lambda: sn.NTK(solution="primal", damping=0.1),  # type: ignore[call-arg]  # as before
    "NTK low rank": lambda: sn.NTK(solution="low rank", rank=50, damping=0.1),  # type: ignore[call-arg]  # as before
    "Newton": lambda: sn.Newton(damping=0.1),
    "Fisher": lambda: sn.Fisher(strength=1e-6),
    "Variational": lambda: sn.Variational(steps=20, lr=0.05, batch_size=64),
    "Finetune": lambda: sn.Finetune(epochs=2, lr=0.05, batch_size=32),
    "NegativeGradient": lambda: sn.GradientAscent(epochs=1, lr=0.01),
    "RandomLabels": lambda: sn.RandomLabels(epochs=1),
    "Hiding": lambda: sn.Hiding(),
    "Retrain": lambda: sn.Retrain(),
    "ShortRetrain": lambda: sn.ShortRetrain(epoch_fraction=0.5, batch_scale=0.5, lr_scale=1.5, error_tolerance=0.01),
    "RespondAndPolish": lambda: sn.RespondAndFinetune(lr_scale=2.0, epoch_fraction=0.2),
    "Saliency": lambda: sn.SalUn(epochs=1, share=0.5),
    "SelectiveDampening": lambda: sn.SSD(),
    "SparseFinetune": lambda: sn.L1Sparse(epochs=1),
    "Student": lambda: sn.SCRUB(epochs=2),
    "BadTeacher": lambda: sn.BadTeacher(epochs=1),
    "NegGradPlus": lambda: sn.NegGradPlus(epochs=1),
    "Unlabel": lambda: sn.OutOfFoldDistillation(
        epochs=2, forget_weight=0.3, label_boost=0.5, lr_scale=0.3, examples_per_epoch=100
    ),
    "chain": lambda: sn.chain(sn.NTK(), sn.Finetune(epochs=1)),
    "WithinBudget": lambda: sn.WithinBudget(sn.chain(sn.NTK(), sn.Fisher()), max_nats=100),
}


def digits():
    """A small network trained on part of digits."""
    torch.manual_seed(0)
    pair = sn.load("digits")
    some = torch.arange(0, 600)
    x, y = (torch.cat(column).double() if i == 0 else torch.cat(column) for i, column in enumerate(_columns(pair)))
    train, held = sn.Data.of((x[some], y[some])), sn.Data.of((x[600:900], y[600:900]))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)).double()
    recipe = sn.Recipe(epochs=20, lr=0.1, batch_size=64, weight_decay=1e-3)
    start = sn.Trained.of(model, recipe=recipe, init=model)
    return sn.fit(start, train, seed=0), train, held


def _columns(pair):
    batches = [(b.x, b.y) for b in pair.train.batches(256)]
    return zip(*batches, strict=True)


def numbers() -> dict[str, list[float]]:
    trained, train, held = digits()
    split = sn.rows(list(range(0, 200, 10)))(train, held, validation=held)
    whole = sn.whole_class(3)(train, held, validation=held)
    ruler = torch.linspace(-1, 1, trained.size, dtype=torch.float64)
    found = {"original": [float(trained.weights @ ruler), float(trained.weights.norm())]}
    for name, method in METHODS.items():
        gaussian = method()(trained, whole if name == "Hiding" else split)
        draw = gaussian.draw(torch.Generator().manual_seed(1))
        found[name] = [float(gaussian.mean @ ruler), float(gaussian.mean.norm()), float(draw @ ruler)]
    audited = sn.compare(
        trained,
        split,
        scrubs={"NTK": sn.NTK()},
        readouts=[sn.Error("forget"), sn.Margin("forget"), sn.MeanLoss("retain")],
    )
    found["compare"] = [row.value for row in audited]
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_method_gives_what_it_gave_before_the_redesign():
    before = json.loads(NUMBERS.read_text())
    now = numbers()
    assert now.keys() == before.keys()
    for name, values in before.items():
        assert now[name] == pytest.approx(values, rel=1e-6, abs=1e-9), name


if __name__ == "__main__":  # written once, at the last commit before the redesign
    warnings.simplefilter("ignore")
    NUMBERS.write_text(json.dumps(numbers(), indent=1) + "\n")
