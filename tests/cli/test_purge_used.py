"""`spotless purge` destroys statistics and fold models that served a request: the row that it forgot is in them."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spotlessnet.precomputed.statistics_files import read_statistics
from spotlessnet.store.checkpoints import load_into, read_weights
from tests.cli.test_memories import ROWS, STATISTICS, second, take_out
from tests.cli.workshop import BASE, DATA, NETS, RECIPE, spotless

FOLDS = "memory/fold-models.safetensors"
ROW = 5


def network(path) -> nn.Module:
    space: dict[str, Any] = {}
    exec(NETS, space)
    return load_into(space["build"](), read_weights(path))


def read_back(here, x: Tensor, y: Tensor) -> Tensor:
    """The inputs of the row that is not among these, from statistics that hold it: as from its gradient."""
    model = network(here / "model.safetensors").double()
    nn.functional.cross_entropy(model(x.double()), y, reduction="sum").backward()
    kept = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    left = read_statistics(here / STATISTICS).gradient.double() - kept
    weight, bias = left[:24].reshape(6, 4), left[24:30]
    surest = int(bias.abs().argmax())
    return weight[surest] / bias[surest]


def test_what_lies_beside_fold_models_goes_with_them(here):
    """It was left, the receipt said nothing of it, and `purge` with its folder said *purged*: the row came back."""
    (here / "forget.csv").write_text(f"id\nperson-{ROW}\n")
    assert spotless("precompute", *ROWS, *RECIPE, "--folds", "2", "--out", "memory").code == 0
    asked = ("scrub", *BASE, *RECIPE, "--fold-models", FOLDS, "--accept-damage", "--out", "run")
    ended = spotless(*asked)
    assert ended.code == 0, ended.err
    space: dict[str, Any] = {}
    exec(DATA, space)
    x, y, _ = space["train"]()
    stay = [i for i in range(len(x)) if i != ROW]
    guess = read_back(here, x[stay], y[stay])
    assert float((guess - x[ROW]).norm() / x[ROW].norm()) < 1e-3
    limits = json.loads((here / "run/receipt.json").read_text())["predicate"]["limits"]
    assert any("statistics of that network too" in limit for limit in limits)
    ended = spotless("purge", "memory", "--now")
    assert ended.code == 0
    assert "beside it: statistics.safetensors, fold-models.safetensors" in ended.out
    assert [p.name for p in (here / "memory").iterdir()] == ["purged.json"]
    assert spotless("verify", "run").code == 0
    assert spotless("purge", "memory", "--now").out.startswith("purged before")


@pytest.mark.parametrize("early", [False, True])
def test_statistics_of_a_request_go_once_the_next_was_served(here, early):
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    assert spotless("purge", "memory", "--now").code == 0
    assert (here / STATISTICS).is_file()  # they have served nobody
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS)
    assert spotless(*asked, "--out", "first").code == 0
    if early:
        assert spotless("purge", "first", "--now").code == 0
    assert (here / "first/statistics.safetensors").is_file()
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-2\n")
    assert spotless(*second(asked), "--out", "second").code == 0
    ended = spotless("purge", "first", "memory", "--now")
    assert ended.code == 0
    assert ended.out.count("statistics.safetensors.next") == 2
    assert not (here / "first/statistics.safetensors").exists()
    assert not (here / STATISTICS).exists()
    assert (here / "second/statistics.safetensors").is_file()
    assert spotless("verify", "first").code == 0
    assert spotless("verify", "second").code == 0
