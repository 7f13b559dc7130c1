"""`spotless train --forgettable` and `spotless forget`, as a person calls them."""

import json
from typing import Any

import torch

from spotlessnet.cli import main
from spotlessnet.forgettable import load_forgettable
from spotlessnet.store.checkpoints import read_weights
from tests.cli.workshop import furnish

BACKBONE = """
import torch
from torch import nn
def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 10))
"""
CORE = """
from mydata import some
def core():
    return some(7, 30)
"""


def furnished(tmp_path, monkeypatch):
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backbone.py").write_text(BACKBONE)
    (tmp_path / "public.py").write_text(CORE)
    return tmp_path


TRAIN = (
    "train",
    "--forgettable",
    "--model",
    "backbone.py:build",
    "--core",
    "public.py:core",
    "--data",
    "mydata.py:train",
)


def test_train_then_forget_leaves_no_trace(tmp_path, monkeypatch, capsys):
    folder = furnished(tmp_path, monkeypatch)
    for features in ("pooled", "tangent"):
        out, after = folder / f"{features}-model", folder / f"{features}-after"
        given = ("--features", features, "--ridge", "0.1", "--epochs", "2", "--out", str(out))
        assert main([*TRAIN, *given]) == 0, capsys.readouterr().err
        state = str(out / "forgettable.safetensors")
        asked = ("forget", "--model", "backbone.py:build", "--state", state, "--forget", "forget.csv", "--json")
        capsys.readouterr()
        assert main([*asked, "--out", str(after)]) == 0, capsys.readouterr().err
        told = json.loads(capsys.readouterr().out)
        about = told["receipt"]["predicate"]["about"]
        assert (about["examples"], about["examples_left"]) == (3, 57)
        assert about["distance_bound_relative"] < 1e-14
        assert "person-5" not in (after / "receipt.json").read_text()
        assert b'"person-5"' not in (after / "forgettable.safetensors").read_bytes()
        space: dict[str, Any] = {}
        exec(BACKBONE, space)
        old, new = (load_forgettable(place / "forgettable.safetensors", space["build"]()) for place in (out, after))
        old.forget(["person-1", "person-5", "person-7"])
        assert torch.equal(old.moments.gram, new.moments.gram)
        assert torch.equal(old.weights, new.weights)
        assert torch.equal(read_weights(after / "network.safetensors")["weight"], new.module().state_dict()["weight"])
        assert main(["verify", str(after / "receipt.json")]) == 0
    assert main([*asked, "--out", str(after)]) == 3
    assert "nothing is ever overwritten" in capsys.readouterr().err


def test_errors_say_what_to_do(tmp_path, monkeypatch, capsys):
    folder = furnished(tmp_path, monkeypatch)
    assert main([*(word for word in TRAIN if word != "--forgettable"), "--out", str(folder / "a")]) == 2
    assert "Give --forgettable" in capsys.readouterr().err
    asked = ("forget", "--model", "backbone.py:build", "--forget", "forget.csv", "--out", str(folder / "b"))
    assert main([*asked, "--state", "nowhere.safetensors"]) == 3
    assert "There is no file nowhere.safetensors" in capsys.readouterr().err
    assert main([*asked, "--state", "model.safetensors"]) == 3
    assert "not a forgettable model" in capsys.readouterr().err
