"""`--train`: a training of the user's own, from the command to the receipt."""

import json
from typing import Any

import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core import display, progress
from spotlessnet.core.files import sha256
from tests.cli.workshop import BASE, DATA, spotless

TRAIN = """
import torch
from torch.utils.data import DataLoader

def train(model, examples, seed, epochs=10):
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(epochs):
        for x, y in DataLoader(examples, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model
"""
KNOWN = ("--init", "start.safetensors", "--train", "mytrain.py:train", "--accept-damage")


def test_retraining_by_the_command_is_calling_the_function(here):
    (here / "mytrain.py").write_text(TRAIN)
    ended = spotless("scrub", *BASE, *KNOWN, "--method", "retrain", "--seed", "1", "--out", "run")
    assert ended.code == 0, ended.err
    space: dict[str, Any] = {}
    exec(TRAIN, space)
    x, y, names = rows_of(DATA)
    gone = set((here / "forget.csv").read_text().split())
    kept = [(x[i], y[i]) for i in range(len(y)) if str(names[i]) not in gone]
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    model = space["train"](sn.load_into(model, sn.read_weights(here / "start.safetensors")), kept, 0)
    found = sn.read_weights(here / "run/scrubbed.safetensors")
    assert all(torch.equal(value, found[name]) for name, value in model.state_dict().items())
    body = json.loads((here / "run/receipt.json").read_text())["predicate"]
    assert body["inputs"]["train"]["digest"]["sha256"] == sha256(here / "mytrain.py")


def rows_of(text: str) -> Any:
    space: dict[str, Any] = {}
    exec(text, space)
    return space["train"]()


def test_it_makes_short_retraining_the_default_and_says_what_is_wrong(here):
    (here / "mytrain.py").write_text(TRAIN + "\nnumber = 3\n")
    plan = spotless("scrub", *BASE, *KNOWN, "--test", "mydata.py:test", "--audit", "--dry-run").out
    assert "method  short-retrain" in plan
    [total] = [line for line in plan.splitlines() if line.startswith("total ")]
    assert total.endswith("; in plain steps, and train may do far more")
    wrong = spotless("scrub", *BASE, "--init", "start.safetensors", "--train", "mytrain.py:number", "--dry-run")
    assert wrong.code != 0
    assert "must be a function `train(model, examples, seed)`, but is 3" in wrong.err
    both = spotless("scrub", *BASE, *KNOWN, "--epochs", "3", "--lr", "0.1", "--dry-run")
    assert both.code != 0
    assert "trained by a recipe or by a trainer, but both were given" in both.err


def test_a_long_training_of_ones_own_is_not_silent(here, monkeypatch):
    """A retraining by `--train` said nothing between the plan and the result, however long it took."""
    for module, name in ((progress, "PATIENCE"), (display, "FIRST"), (progress, "BEAT")):
        monkeypatch.setattr(module, name, 0.001)
    (here / "mytrain.py").write_text(
        TRAIN.replace("    return model", "    import time; time.sleep(0.1); return model")
    )
    ended = spotless("scrub", *BASE, *KNOWN, "--method", "retrain", "--out", "run")
    assert ended.code == 0, ended.err
    assert "training by train: at work for" in ended.err
