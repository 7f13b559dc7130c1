"""A request is a later one by the weights that it is given, whatever the files beside it say."""

import copy
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import spotlessnet as sn
from spotlessnet.precomputed import others
from spotlessnet.requests import serving
from spotlessnet.requests.folder import follows_request
from spotlessnet.store.checkpoints import read_metadata
from tests.cli.test_memories import ROWS, second, take_out
from tests.cli.workshop import BASE, QUICK, RECIPE, spotless

SCRUBBED = "first/scrubbed.safetensors"


@pytest.fixture
def served(here):
    """After a first request, its rows taken out of the data, with a list for the second."""
    assert spotless("scrub", *BASE, *QUICK, "--out", "first").code == 0
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-8\n")
    return here


def precomputed(weights, *more):
    words = tuple(weights if word == SCRUBBED else word for word in second(ROWS))
    assert spotless("precompute", *words, *more, "--out", "anew").code == 0


@pytest.mark.parametrize(
    ("kind", "more", "asked"),
    [
        ("fold-models", (*RECIPE, "--rank", "0", "--folds", "2"), RECIPE),
        ("statistics", ("--rank", "20"), ("--method", "ntk")),
    ],
)
def test_what_was_precomputed_on_a_copy_does_not_make_it_a_first_request(served, monkeypatch, kind, more, asked):
    """Of 26 effects 14 were so undone."""
    save_file(load_file(served / SCRUBBED), served / "copy.safetensors")  # saved anew, by somebody else's code
    assert not follows_request(served / "copy.safetensors")
    precomputed("copy.safetensors", *more)
    assert read_metadata(served / f"anew/{kind}.safetensors")["after_requests"] == "0"
    for name in ("moved", "taken_back"):
        monkeypatch.setattr(others.Others, name, lambda *_: 1.1)  # further than is safe
    words = ("scrub", *second(BASE), f"--{kind}", f"anew/{kind}.safetensors", *asked, "--out", "second")
    ended = spotless(*words)
    assert ended.code == 8
    assert "further than earlier requests are safe from" in ended.err


def test_a_copy_under_another_name_is_known_again(served):
    """By one word in the file, which says nothing else."""
    assert read_metadata(served / SCRUBBED) == {"format": "pt", "after_requests": "1"}
    (served / "live").mkdir()
    shutil.copy(served / SCRUBBED, served / "live/model.safetensors")
    for place in ("live", "live/model.safetensors"):
        assert follows_request(served / place)
    precomputed("live/model.safetensors", "--rank", "0")
    assert sn.read_statistics(served / "anew/statistics.safetensors").after_requests
    assert not follows_request(served / "model.safetensors")
    assert not follows_request(served / "start.safetensors")


def test_the_module_of_a_result_says_it_wherever_it_is_written(served):
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    done = sn.unlearn(nn.Sequential(nn.Linear(4, 3)), (x, y), forget=[3], method="fisher", accept_damage=True)
    sn.write_weights(served / "mine.safetensors", copy.deepcopy(done.model))
    assert follows_request(served / "mine.safetensors")


def test_beside_its_receipt_a_file_of_an_earlier_version_is_known_by_its_digest(here, monkeypatch):
    monkeypatch.setattr(serving, "following", lambda model, gone: model)
    assert spotless("scrub", *BASE, *QUICK, "--out", "first").code == 0
    assert follows_request(here / SCRUBBED)
    (here / SCRUBBED).rename(here / "first/model.safetensors")
    assert follows_request(here / "first/model.safetensors")
    shutil.copy(here / "start.safetensors", here / "first/start.safetensors")
    assert not follows_request(here / "first/start.safetensors")
    # A file of that name that no request wrote says nothing.
    (here / "first/receipt.json").write_text(json.dumps({"paid": 3}))
    assert not follows_request(here / "first/model.safetensors")
