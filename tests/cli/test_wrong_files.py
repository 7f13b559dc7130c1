"""Files that fit and are not the right ones: initial and trained weights swapped, weights that were never trained."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.answers import DOUBT
from spotlessnet.core.errors import DataError
from tests.cli.workshop import BASE, RECIPE, spotless
from tests.requests.small import RECIPE as SMALL
from tests.requests.small import problem

SWAPPED = ("--weights", "start.safetensors", "--init", "model.safetensors")


def test_swapped_weights_and_init_are_refused(here):
    """A retraining from the trained network came out best of all, with a receipt that it had never seen the rows."""
    ended = spotless("scrub", *BASE, *RECIPE, *SWAPPED, "--out", "run")
    assert ended.code == 3
    last = ended.err.strip().splitlines()[-1]
    assert "--init model.safetensors, but that answers the training rows better than --weights start.safetens" in last
    assert "were the two swapped?" in last
    assert not Path("run").exists()
    assert spotless("scrub", *BASE, *RECIPE, *SWAPPED, "--accept-damage", "--dry-run").code == 0


def test_they_are_refused_in_python_too_with_a_loss_of_numbers():
    model, start, x, y = problem()
    with pytest.raises(DataError, match=r"begun at `init`, but that answers .* better than the network itself does"):
        sn.unlearn(start, (x, y), forget=[1, 2], init=model, recipe=SMALL)
    z = x @ torch.ones(4, 1)
    line, zero = nn.Linear(4, 1), nn.Linear(4, 1)
    nn.init.ones_(line.weight)
    for spread in (line.bias, zero.weight, zero.bias):
        nn.init.zeros_(spread)
    known: dict[str, Any] = {
        "loss": "squared-error",
        "recipe": SMALL,
        "forget": [1, 2],
        "method": "retrain",
        "accept_damage": False,
    }
    with pytest.raises(DataError, match="were the two swapped"):
        sn.unlearn(zero, (x, z), init=line, **known)


def test_a_network_that_knows_nothing_of_its_rows_is_doubted(here):
    line = f"doubt   {DOUBT}"
    assert line in spotless("scrub", *BASE, "--weights", "start.safetensors", "--dry-run").out.splitlines()
    assert "doubt" not in spotless("scrub", *BASE, "--dry-run").out


def test_row_numbers_that_no_row_has_are_left_out_on_request(here):
    """`--allow-missing` was not heard with row numbers, and the error said to give it."""
    Path("gone.txt").write_text("1\n5\n5000\n")
    asked = (*BASE, "--forget", "gone.txt", "--id-column", "row", "--method", "ntk")
    refused = spotless("scrub", *asked, "--out", "run")
    assert refused.code == 3
    assert "in Python `sn.rows(..., allow_missing=True)`" in refused.err
    ended = spotless("scrub", *asked, "--allow-missing", "--json", "--out", "run")
    assert ended.code == 0
    request = json.loads(ended.out)["receipt"]["predicate"]["request"]
    assert (request["matched"], request["missing"]) == (2, 1)
    assert spotless("verify", "run", "--forget", "gone.txt").code == 0
    Path("nobody.txt").write_text("5000\n")
    nobody = spotless("scrub", *asked, "--forget", "nobody.txt", "--allow-missing", "--dry-run").err
    assert "so there is nothing to forget" in nobody


def test_data_without_ids_are_told_where_to_put_them(here):
    """Who gives row numbers and forgets the flag was told of a Python call alone."""
    Path("plain.py").write_text("from mydata import some\ndef train():\n    return some(0, 60)[:2]\n")
    Path("gone.csv").write_text("row\n1\n5\n")
    ended = spotless("scrub", *BASE, "--data", "plain.py:train", "--forget", "gone.csv", "--out", "run")
    assert ended.code == 3
    assert "or the third value of the function that --data names. Row numbers need none: `--id-column row`" in ended.err


def test_a_list_that_does_not_count_is_told(here):
    """Of two lists the first was dropped without a word, and its rows stayed."""
    Path("more.csv").write_text("id\nperson-9\n")
    asked = ("scrub", *BASE, "--forget", "more.csv", "--dry-run")
    told = "warning: --forget takes one value, but 2 were given: the last one counts."
    assert told in spotless(*asked).err.splitlines()
    assert "warning" not in spotless("scrub", *BASE, "--dry-run").err


def test_a_comparison_does_not_swallow_a_method(here):
    """`--method finetune` was not heard, and six other methods were compared."""
    ended = spotless("compare", *BASE, *RECIPE, "--method", "finetune", "--out", "compared")
    assert ended.code == 2
    assert "A comparison takes no --method. Name what to compare by --methods" in ended.err
    Path("case.toml").write_text('method = "finetune"\n')
    case = ("--case", "case.toml", "--methods", "fisher", "--dry-run")
    assert spotless("compare", *BASE, *RECIPE, *case).code == 0


def test_a_retraining_of_too_few_epochs_is_not_told_to_take_fewer(here):
    few = ("--init", "start.safetensors", "--epochs", "1", "--lr", "0.0001")
    ended = spotless("scrub", *BASE, *few, "--out", "run")
    assert ended.code == 9
    assert "Try the epochs, lr and optimiser that the network was trained with" in ended.err
    assert "fewer epochs" not in ended.err


def test_a_reader_of_a_table_who_leaves_is_no_failure():
    """`spotless list | head` ended with 1, which means *not forgotten*."""
    command = f"{sys.executable} -m spotlessnet list | true; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert ended.stdout == "0\n"
    assert "Traceback" not in ended.stderr
