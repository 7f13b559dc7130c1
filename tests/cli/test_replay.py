"""`spotless replay` does a request again: the same network, another one, or nobody can tell."""

import json

import pytest

from spotlessnet.core.files import sha256
from spotlessnet.store.receipts import seals
from tests.cli.workshop import BASE, QUICK, RECIPE, spotless


@pytest.fixture
def run(here):
    """A retraining, which adds no noise."""
    ended = spotless("scrub", *BASE, *RECIPE, "--method", "retrain", "--accept-damage", "--out", "run")
    assert ended.code == 0, ended.err
    return here / "run"


def rewritten(run, change):
    """A receipt that its holder changed and sealed anew."""
    path = run / "receipt.json"
    receipt = json.loads(path.read_text())
    change(receipt)
    receipt["predicate"]["integrity"] = seals(receipt, (run / "private/salt").read_bytes())
    path.write_text(json.dumps(receipt))


def test_the_same_request_gives_the_same_network(run):
    before = sorted(path.name for path in run.rglob("*"))
    ended = spotless("replay", "run")
    assert ended.code == 0, ended.err
    assert ended.out == "the same: the same request gave the same network, byte for byte\n"
    assert sorted(path.name for path in run.rglob("*")) == before
    # With a seed for experiments noise comes out again too.
    assert spotless("scrub", *BASE, *QUICK, "--seed", "3", "--out", "seeded").code == 0
    assert spotless("replay", "seeded", "--json").code == 0


def test_a_network_that_was_not_made_so_is_found(run):
    """Somebody trained on everything and wrote a receipt of a retraining: its digests fit each other."""
    forged = (run.parent / "model.safetensors").read_bytes()
    (run / "scrubbed.safetensors").write_bytes(forged)
    digest = sha256(run / "scrubbed.safetensors")
    rewritten(run, lambda receipt: receipt["subject"][0]["digest"].update(sha256=digest))
    assert spotless("verify", "run").code == 0
    ended = spotless("replay", "run")
    assert ended.code == 7
    assert ended.out.startswith("another: the same request, versions and threads gave another network")
    assert digest in ended.err
    # Under another version of a package that proves nothing.
    rewritten(run, lambda receipt: receipt["predicate"]["environment"]["packages"].update(torch="2.0"))
    ended = spotless("replay", "run")
    assert ended.code == 6
    assert "not everything is as it was: torch was 2.0, is " in ended.out


def test_what_nobody_can_do_again_ends_with_6(here, run):
    assert spotless("scrub", *BASE, *QUICK, "--out", "noisy").code == 0
    ended = spotless("replay", "noisy")
    assert ended.code == 6
    assert ended.out.startswith("cannot be told: secret noise was added, whose key was not kept")
    assert spotless("purge", "run", "--now").code == 0
    ended = spotless("replay", "run")
    assert ended.code == 6
    assert "private/request.json, which is not there any more" in ended.out


def test_inputs_must_be_those_of_the_receipt(here, run):
    forget = (here / "forget.csv").read_text()
    (here / "forget.csv").write_text("id\nperson-2\n")
    ended = spotless("replay", "run")
    assert ended.code == 7
    assert "--forget must be what the receipt was written for, but changed since" in ended.err
    (here / "forget.csv").unlink()
    assert spotless("replay", "run").code == 3
    (here / "forget.csv").write_text(forget)
    # The file of the code is the same, and what it reads is not.
    (here / "count").write_text("60")
    text = (here / "mydata.py").read_text()
    (here / "mydata.py").write_text(text.replace("some(0, 60)", "some(0, int(open('count').read()))"))
    assert spotless("scrub", *BASE, *RECIPE, "--method", "retrain", "--accept-damage", "--out", "other").code == 0
    (here / "count").write_text("59")
    ended = spotless("replay", "other")
    assert ended.code == 7
    assert "--data must give what the receipt was written for, but gives something else by now" in ended.err


def test_a_receipt_that_does_not_verify_is_not_replayed(run):
    (run / "scrubbed.safetensors").write_bytes(b"other")
    ended = spotless("replay", "run")
    assert ended.code == 7
    assert "its digest differs" in ended.err
