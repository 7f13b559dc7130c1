"""Rows that a request forgot are refused in the data of every later one, in whatever form they come back."""

import copy
import io
import json
import pickle
import shutil

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import DataError, SpotlessError
from spotlessnet.requests.folder import Private
from spotlessnet.store.checkpoints import forgotten_by, is_following
from tests.cli.test_memories import second, take_out
from tests.cli.workshop import BASE, QUICK, RECIPE, spotless
from tests.requests.small import FORGET, problem

REFUSED = "must no longer hold what an earlier request forgot"
ASKED = ("scrub", *BASE, *RECIPE, "--method", "retrain", "--accept-damage")


def as_told(here, form):
    """The same rows, as another loader gives them; the network takes whatever comes."""
    data, nets = here / "mydata.py", here / "nets.py"
    data.write_text(
        f"{data.read_text()}\nas_it_was = train\ndef train():\n    x, y, people = as_it_was()\n    return {form}\n"
    )
    nets.write_text(
        f"{nets.read_text()}\nclass Any(nn.Sequential):\n    def forward(self, x):\n"
        "        return super().forward(x.float().flatten(1))\n"
        "def build():\n    return Any(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))\n"
    )


@pytest.mark.parametrize(
    "form", ["x.double(), y, people", "x[:, None].numpy(), y.int(), people", "x.half(), y, people"]
)
def test_the_command_knows_them_in_another_format(here, form):
    """The fault before: the same rows as 64-bit numbers were others, and were learnt again."""
    assert spotless(*ASKED, "--out", "first").code == 0
    as_told(here, form)
    (here / "forget.csv").write_text("id\nperson-8\n")
    ended = spotless(*second(ASKED), "--out", "second")
    assert ended.code == 3
    assert REFUSED in ended.err
    assert "3 rows of the request that wrote first/scrubbed.safetensors" in ended.err
    take_out(here, "person-1", "person-5", "person-7")
    ended = spotless(*second(ASKED), "--out", "second")
    assert ended.code == 0, ended.err


def test_a_third_request_knows_those_of_the_first(here):
    """The fault before: only the request that wrote the weights was asked, and the first one's rows came back."""
    assert spotless(*ASKED, "--out", "first").code == 0
    whole = (here / "mydata.py").read_text()
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-8\n")
    assert spotless(*second(ASKED), "--out", "second").code == 0
    (here / "mydata.py").write_text(whole)
    take_out(here, "person-8")
    (here / "forget.csv").write_text("id\nperson-9\n")
    third = tuple("second/scrubbed.safetensors" if word == "model.safetensors" else word for word in ASKED)
    ended = spotless(*third, "--out", "third")
    assert ended.code == 3
    assert "3 rows of the request in" in ended.err
    # Each lies with its own request alone, so that it goes when that is purged.
    assert spotless("purge", "first", "--now").code == 0
    assert spotless(*third, "--out", "third").code == 0


@pytest.mark.parametrize("before", ["/dev", "../" * 3000, "..", "", ".", "x" * 5000, "\u2028", "../second"])
def test_a_pointer_to_earlier_rows_that_leads_nowhere_ends(here, before):
    assert spotless("scrub", *BASE, *QUICK, "--out", "first").code == 0
    private = Private(here / "first")
    told = json.loads(private.sealed("rows.json", 2**20))
    private.keep_sealed("rows.json", json.dumps({**told, "before": before}))
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-8\n")
    assert spotless(*second(("scrub", *BASE, *QUICK)), "--accept-damage", "--out", "next").code == 0


@pytest.mark.parametrize("gone", [("salt", "rows.json"), ("salt",), ()])
def test_notes_that_were_removed_are_missed(here, gone):
    """The fault before: without salt and digests together nothing was known, and nothing said so."""
    assert spotless("scrub", *BASE, *QUICK, "--out", "first").code == 0
    for name in gone:
        (here / "first/private" / name).unlink()
    if not gone:
        shutil.rmtree(here / "first/private")
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-8\n")
    asked = second(("scrub", *BASE, *QUICK))
    ended = spotless(*asked, "--out", "second")
    assert ended.code == 7
    assert "the salt is gone and no purge is noted" in ended.err
    assert not (here / "second").exists()
    # In a folder of its own the network has no notes that could be missed.
    shutil.copy(here / "first/scrubbed.safetensors", here / "model.safetensors")
    assert spotless("scrub", *BASE, *QUICK, "--out", "second").code == 0


def ask(model, x, y, forget):
    return sn.unlearn(model, (x, y), forget=forget, method="fisher", settings={"strength": 1e-8}, progress=False)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: x.double().numpy().copy(), lambda x: x.half()])
@pytest.mark.parametrize("carried", [lambda m: m, copy.deepcopy, copy.copy, lambda m: sn.Trained.of(m)])
def test_a_call_knows_them_too(form, carried):
    """The fault before: `sn.unlearn(result.model, same data)` learnt again what the call before had forgotten."""
    model, _, x, y = problem()
    done = ask(model, x, y, FORGET)
    later = carried(done.model)
    if form(x).dtype == torch.float32:
        with pytest.raises(DataError, match=f"{REFUSED}, but 3 rows of a request that led to this network"):
            ask(later, form(x), y, [0])
    else:  # refused for the same reason, whether or not the network takes the format
        with pytest.raises(SpotlessError):
            ask(later, form(x), y, [0])
    stay = [i for i in range(len(y)) if i not in FORGET]
    second_done = ask(later, x[stay], y[stay], [0])
    # Those of both are known to the third.
    whole = [i for i in range(len(y)) if i != stay[0]]
    with pytest.raises(DataError, match=REFUSED):
        ask(second_done.model, x[whole], y[whole], [1])
    assert ask(model, x, y, [0]).model is not None  # the network from before knows them rightly
    assert ask(done.model, x, y, [*FORGET, 0]).model is not None  # and they may be asked for again


def test_no_file_of_the_network_says_which_rows_went():
    model, _, x, y = problem()
    done = ask(model, x, y, FORGET)
    gone = forgotten_by(done.model)
    assert len(gone) == 1
    saved = io.BytesIO()
    torch.save(done.model, saved)
    for told in (saved.getvalue(), pickle.dumps(done.model), repr(vars(done.model)).encode()):
        assert gone[0].salt not in told
        assert not any(one in told for one in gone[0].digests["float32"])
    again = pickle.loads(pickle.dumps(done.model))
    assert is_following(again)
    assert forgotten_by(again) == ()
    assert isinstance(again, nn.Module)
