"""Every refusal comes before the work: no network is trained or scrubbed, and nothing is written."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import spotlessnet as sn
from spotlessnet.core import progress
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.scrub import Scrub
from tests.cli.workshop import BASE, QUICK, RECIPE, spotless

READING = "reading and checking"
AUDIT = ("--audit", "--seeds", "5", "--test", "mydata.py:test")


@pytest.fixture
def worked(monkeypatch):
    """What was done: labels of all loops (each training is one), and methods that ran."""
    seen: list[str] = []
    usual, call = progress._shown, Scrub.__call__

    @contextmanager
    def watched(label, total):
        seen.append(label)
        with usual(label, total) as running:
            yield running

    def ran(self, *given):
        seen.append(type(self).__name__)
        return call(self, *given)

    monkeypatch.setattr(progress, "_shown", watched)
    monkeypatch.setattr(Scrub, "__call__", ran)
    return seen


def changed(folder: Path, name: str, value: float) -> None:
    """The checkpoint with one number changed, under another name."""
    tensors = load_file(folder / "model.safetensors")
    next(iter(tensors.values())).view(-1)[0] = value
    save_file(tensors, folder / name)


def instead(flag: str, value: str) -> tuple[str, ...]:
    """The usual case with another value."""
    words = list(BASE)
    words[words.index(flag) + 1] = value
    return tuple(words)


REFUSED = {
    "a method that nobody knows": (2, ("scrub", *BASE, "--method", "ntkk")),
    "a setting that nobody knows": (2, ("scrub", *BASE, *QUICK, "--set", "strenght=1")),
    "a value out of range": (2, ("scrub", *BASE, "--method", "finetune", "--set", "epochs=-1")),
    "a rank for a solver without one": (2, ("scrub", *BASE, "--method", "ntk", "--set", "rank=5")),
    "an old keyword and a new one": (2, ("scrub", *BASE, "--method", "ntk", "--set", "solver=best")),
    "retraining without a start": (2, ("scrub", *BASE, "--method", "retrain")),
    "a short retraining without a recipe": (2, ("scrub", *BASE, "--method", "short-retrain", *RECIPE[:2])),
    "hiding what is no class": (None, ("scrub", *BASE, "--method", "hiding")),
    "fold models that are missing": (2, ("scrub", *BASE, *RECIPE, "--method", "out-of-fold-distillation")),
    "classes that are missing": (
        2,
        ("scrub", *instead("--data", "odd.py:numbers"), "--loss", "squared-error", "--method", "salun"),
    ),
    "an id that matches nobody": (3, ("scrub", *instead("--forget", "nobody.csv"), *QUICK)),
    "an empty list": (3, ("scrub", *instead("--forget", "empty.csv"), *QUICK)),
    "everybody": (3, ("scrub", *instead("--forget", "all.csv"), *QUICK)),
    "a list that is missing": (3, ("scrub", *instead("--forget", "missing.csv"), *QUICK)),
    "a checkpoint that is missing": (3, ("scrub", *instead("--weights", "missing.safetensors"), *QUICK)),
    "weights of another network": (3, ("scrub", *instead("--weights", "other.safetensors"), *QUICK)),
    "weights that are not finite": (5, ("scrub", *instead("--weights", "nan.safetensors"), *QUICK)),
    "an init that is not finite": (3, ("scrub", *BASE, "--init", "nan.safetensors", "--epochs", "5", "--lr", "0.1")),
    "labels beyond the classes": (3, ("scrub", *instead("--data", "odd.py:labels"), *QUICK)),
    "inputs that are not finite": (3, ("scrub", *instead("--data", "odd.py:inputs"), *QUICK)),
    "inputs that do not fit": (3, ("scrub", *instead("--data", "odd.py:narrow"), *QUICK)),
    "a column that nobody has": (3, ("scrub", *BASE, *QUICK, "--id-column", "person", "--forget", "people.json")),
    "memory that does not suffice": (4, ("scrub", *BASE, *QUICK, "--memory-limit", "1e-9")),
    "a folder that is not empty": (3, ("scrub", *BASE, *QUICK, "--out", "full")),
    "an audit of four pairs": (2, ("scrub", *BASE, *QUICK, "--audit", "--seeds", "4")),
    "trainings kept for no audit": (2, ("scrub", *BASE, *QUICK, "--keep-trainings", "kept")),
    "statistics that are missing": (3, ("scrub", *BASE, "--statistics", "missing.safetensors", "--method", "ntk")),
    "a checkpoint for statistics": (3, ("scrub", *BASE, "--statistics", "model.safetensors", "--method", "ntk")),
    "a scrub with an audit and no such id": (3, ("scrub", *instead("--forget", "nobody.csv"), *RECIPE, *AUDIT)),
    "an audit of a method that nobody knows": (2, ("audit", *BASE, *RECIPE, "--method", "ntkk")),
    "an audit with test rows that do not fit": (3, ("audit", *BASE, *RECIPE, *QUICK, "--test", "odd.py:narrow")),
    "an audit with features of another model": (2, ("audit", *BASE, *RECIPE, *QUICK, "--features", "pooled")),
    "a comparison without a start": (2, ("compare", *BASE, "--methods", "fisher")),
    "a comparison with an unknown method": (2, ("compare", *BASE, *RECIPE, "--methods", "fisher,ntkk")),
    "fold models without a recipe": (2, ("precompute", *BASE[:6], "--folds", "2")),
    "a diagonal that nobody knows": (2, ("precompute", *BASE[:6], "--diagonal", "exactly")),
}


def furnish_odd(folder: Path) -> None:
    (folder / "nobody.csv").write_text("id\nnobody\n")
    (folder / "empty.csv").write_text("id\n")
    (folder / "all.csv").write_text("id\n" + "\n".join(f"person-{i}" for i in range(60)) + "\n")
    (folder / "people.json").write_text('[{"name": "person-1"}]')
    (folder / "odd.py").write_text(
        "import mydata\n"
        "def labels():\n    x, y, names = mydata.train()\n    return x, y + 7, names\n"
        "def inputs():\n    x, y, names = mydata.train()\n    x[3] = float('nan')\n    return x, y, names\n"
        "def numbers():\n    x, y, names = mydata.train()\n    return x, x[:, :3], names\n"
        "def narrow():\n    x, y, names = mydata.train()\n    return x[:, :2], y, names\n"
    )
    save_file({"0.weight": torch.zeros(2, 2)}, folder / "other.safetensors")
    changed(folder, "nan.safetensors", float("nan"))
    (folder / "full").mkdir()
    (folder / "full" / "file").touch()


@pytest.mark.parametrize(("code", "asked"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_comes_before_the_work(here, worked, code, asked):
    furnish_odd(here)
    before = sorted(here.rglob("*"))
    out = () if "--out" in asked else ("--out", "run")
    ended = spotless(*asked, *out)
    assert ended.code in ((2, 3) if code is None else (code,)), ended.err
    assert ended.err.splitlines()[-1].startswith("error["), ended.err
    assert {*worked} <= {READING}, worked
    assert sorted(path for path in here.rglob("*") if "__pycache__" not in path.parts) == before


@pytest.mark.parametrize(
    "given",
    [
        {"forget": []},
        {"forget": [99]},
        {"forget": range(60)},
        {"forget": [1], "method": "retrain"},
        {"forget": [1], "method": "ntk", "settings": {"rank": 5}},
        {"forget": [1], "method": "finetune", "memory_limit": 1e-9},
        {"forget": [1], "audit": True, "method": "out-of-fold-distillation"},
        {"forget": [1], "loss": "no such loss"},
        {"forget": ["person-1"]},
    ],
    ids=str,
)
def test_so_does_one_in_python(worked, given):
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    with pytest.raises(SpotlessError):
        sn.unlearn(torch.nn.Linear(4, 3), (x, y), **given)
    assert {*worked} <= {READING}, worked


def test_the_spy_sees_work(here, worked):
    assert spotless("scrub", *BASE, *RECIPE, "--method", "retrain", "--accept-damage", "--out", "run").code == 0
    assert "Retrain" in worked
    assert "retraining" in worked
