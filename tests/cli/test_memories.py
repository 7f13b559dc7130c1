"""Requests from a memory or from fold models, one after another, as the guide has them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import spotlessnet as sn
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.precomputed import step
from spotlessnet.precomputed.effect import Effect, as_text
from spotlessnet.requests.effects import EFFECT
from spotlessnet.requests.folder import Private
from tests.cli.workshop import BASE, DATA, RECIPE, spotless
from tests.docs.blocks import ROOT

ROWS = ("--model", "nets.py:build", "--weights", "model.safetensors", "--data", "mydata.py:train")
STATISTICS = "memory/statistics.safetensors"


def take_out(here: Path, *people: str) -> None:
    """What the guide asks for: the rows of earlier requests leave the data, so that all others move up."""
    text = (here / "mydata.py").read_text()
    (here / "mydata.py").write_text(
        f"{text}\nwhole_{len(text)} = train\ndef train():\n    x, y, people = whole_{len(text)}()\n"
        f"    stay = [i for i, name in enumerate(people) if name not in {people!r}]\n"
        "    return x[stay], y[stay], [people[i] for i in stay]\n"
    )


def rows_of(here: Path) -> sn.Data:
    space: dict[str, Any] = {}
    exec((here / "mydata.py").read_text(), space)
    x, y, people = space["train"]()
    return sn.Data.of((x, y), columns={"id": people})


def receipt(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "receipt.json").read_text())["predicate"]


def second(asked: tuple[str, ...], **changed: str) -> list[str]:
    swap = {"model.safetensors": "first/scrubbed.safetensors", STATISTICS: "first/statistics.safetensors", **changed}
    return [swap.get(word, word) for word in asked]


@pytest.mark.parametrize("method", ["ntk", "fisher", "ntk+fisher"])
def test_the_guide_works_as_written_twice_in_a_row(here, method):
    """Rows are taken out of the data in between, and the right ones are found all the same."""
    assert "Remove the examples of earlier requests **from your data** first" in re.sub(
        r"\s+", " ", (ROOT / "docs/forget_a_person.md").read_text()
    )
    ended = spotless("precompute", *ROWS, "--rank", "20", "--out", "memory")
    assert ended.code == 0, ended.err
    assert ended.out == f"{STATISTICS}\n"
    asked = ("scrub", *BASE, "--method", method, "--statistics", STATISTICS)
    ended = spotless(*asked, "--out", "first")
    assert ended.code == 0, ended.err
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-2\nperson-30\n")
    ended = spotless(*second(asked), "--out", "second")
    assert ended.code == 0, ended.err
    assert "2 rows matched" in ended.err
    before, after = (sn.read_statistics(here / name / "statistics.safetensors") for name in ("first", "second"))
    assert (before.count, after.count) == (57, 55)
    split = sn.ids(["person-2", "person-30"])(rows_of(here))
    gone = split.forget
    assert (len(before.keys.without(gone)), before.keys.without(gone).count_unknown(split.retain)) == (
        len(split.retain),
        0,
    )
    assert (len(after.keys), after.keys.count_unknown(split.retain)) == (len(split.retain), 0)
    assert after.keys.salt != before.keys.salt
    changed = [load_file(here / name / "scrubbed.safetensors") for name in ("first", "second")]
    assert any(not torch.equal(changed[0][name], changed[1][name]) for name in changed[0])
    assert receipt(here / "second")["request"]["matched"] == 2
    limits = receipt(here / "first")["limits"]
    assert any("given to this request know the forgotten rows: destroy both" in limit for limit in limits)
    # All retained rows were there, so the memory is the one that they would write.
    net = here / "second/scrubbed.safetensors"
    space: dict[str, Any] = {}
    exec((here / "nets.py").read_text(), space)
    trained = sn.Trained.of(sn.load_into(space["build"](), sn.read_weights(net)))
    afresh = sn.precompute(trained, split.retain, rank=20, salt=after.keys.salt)
    for name in ("gradient", "basis", "values", "diagonal"):
        torch.testing.assert_close(getattr(after, name), getattr(afresh, name), rtol=1e-4, atol=1e-5)


def test_a_request_moves_the_network_as_one_on_the_untouched_data_would(here):
    """The fault before: rows went by their number, so whoever took rows out forgot nobody, with exit code 0."""
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS)
    assert spotless(*asked, "--out", "first").code == 0
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-8\n")
    assert spotless(*second(asked), "--out", "second").code == 0
    first = {n: t.double() for n, t in sn.read_weights(here / "first/scrubbed.safetensors").items()}
    last = {n: t.double() for n, t in sn.read_weights(here / "second/scrubbed.safetensors").items()}
    space: dict[str, Any] = {}
    exec((here / "nets.py").read_text(), space)
    x, y = (t[8:9] for t in rows_before()[:2])
    losses = []
    for weights in (first, last):
        model = space["build"]().double()
        model.load_state_dict(weights)
        losses.append(float(torch.nn.functional.cross_entropy(model(x.double()), y).detach()))
    assert losses[1] > losses[0]


def rows_before() -> tuple[torch.Tensor, torch.Tensor]:
    space: dict[str, Any] = {}
    exec(DATA, space)
    x, y, _ = space["train"]()
    return x, y


@pytest.mark.parametrize("kept", ["statistics", "fold models"])
def test_other_data_are_refused_and_nothing_is_written(here, kept):
    assert spotless("precompute", *ROWS, *RECIPE, "--rank", "5", "--folds", "2", "--out", "memory").code == 0
    method = (
        ("--method", "ntk", "--statistics", STATISTICS)
        if kept == "statistics"
        else ("--fold-models", "memory/fold-models.safetensors")
    )
    asked = ("scrub", *BASE, *RECIPE, *method)
    whole = (here / "mydata.py").read_text()
    changes = {
        "one label": "    y[3] = (y[3] + 1) % 3\n",
        "one input": "    x[9, 2] += 1e-3\n",
        "one row twice": "    x, y, p = torch.cat([x, x[:1]]), torch.cat([y, y[:1]]), [*p, 'new']\n",
    }
    for i, change in enumerate(changes.values()):
        (here / "mydata.py").write_text(
            f"{whole}\nwhole = train\ndef train():\n    x, y, p = whole()\n{change}    return x, y, p\n"
        )
        ended = spotless(*asked, "--out", f"x{i}")
        assert ended.code == 3
        assert re.search(rf"error\[bad input\]: 1 of 6[01] rows are not among the 60 rows of the {kept}", ended.err)
        assert not (here / f"x{i}").exists()


def test_rows_forgotten_before_must_be_out_of_the_data(here):
    """Left in, they would count as kept, and a polish would teach them again."""
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS)
    assert spotless(*asked, "--out", "first").code == 0
    for people in ("person-2", "person-1"):
        (here / "forget.csv").write_text(f"id\n{people}\n")
        ended = spotless(*second(asked), "--out", "second")
        assert ended.code == 3
        assert "3 of 60 rows are not among the 57 rows of the statistics: they were forgotten before" in ended.err
        assert not (here / "second").exists()


def test_where_retained_rows_are_missing_no_statistics_are_left(here):
    """Made of the old ones, they would spell the rows of the request."""
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    take_out(here, *(f"person-{i}" for i in range(20, 60)))
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS)
    assert "at least 30 rows, but there are 17 that stay" in spotless(*asked, "--out", "first").err
    ended = spotless(*asked, "--accept-damage", "--out", "first")
    assert ended.code == 0, ended.err
    told = "No statistics were written for the next request: that takes 57 retained rows, but 17 were at hand."
    assert told in re.sub(r"\s+", " ", ended.err)
    assert any(told in limit for limit in receipt(here / "first")["limits"])
    assert not (here / "first/statistics.safetensors").exists()
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-2\n")
    swapped = ["first/scrubbed.safetensors" if word == "model.safetensors" else word for word in asked]
    ended = spotless(*swapped, "--out", "run")  # the statistics of the network before it
    assert ended.code == 3


def test_a_network_that_lost_a_quarter_of_its_rows_is_refused_in_writing(here):
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    (here / "forget.csv").write_text("id\n" + "".join(f"person-{i}\n" for i in range(16)))
    for method in ("ntk", "newton"):
        asked = ("scrub", *BASE, "--method", method, "--statistics", STATISTICS, "--out", method)
        ended = spotless(*asked)
        assert ended.code == 8
        assert "error[retrain now]: What was kept for requests no longer serves: " in ended.err
        assert "27% of the rows that the network was trained on are gone" in ended.err
        assert sorted(p.name for p in (here / method).iterdir()) == ["private", "refusal.json"]
        told = json.loads((here / method / "refusal.json").read_text())
        assert told["subject"] == []
        assert told["predicate"]["about"]["retrain_now"] is True
        assert told["predicate"]["limits"][0].startswith("Refused: nothing was forgotten, and no network was written.")
        assert not (here / f"{STATISTICS}.next").exists()
        assert spotless(*asked, "--resume").code == 8


def test_a_request_that_could_bring_back_what_its_rows_nearly_copy_is_refused_in_writing(here, monkeypatch):
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS)
    monkeypatch.setattr(step, "labels_back", lambda *_: torch.ones(1, 2, dtype=torch.bool))
    monkeypatch.setattr(step, "asked_for", lambda *_: -0.1)
    assert spotless(*asked, "--out", "first").code == 0  # there was nothing to bring back
    Private(here / "first").keep_sealed(EFFECT, as_text(Effect(3, 2.0, 3.0, "2999-01-01T00:00:00+00:00"), ""))
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-2\n")
    ended = spotless(*second(asked), "--out", "second")
    assert ended.code == 8
    assert "what such a row nearly copies could come back" in ended.err
    assert sorted(p.name for p in (here / "second").iterdir()) == ["private", "refusal.json"]
    told = (here / "second/refusal.json").read_text()
    assert "what such a row nearly copies could come back" in told
    assert "others_moved" not in told


def test_memories_of_earlier_formats_are_refused(here):
    old = {"weights": torch.zeros(51), "gradient": torch.zeros(51), "gone": torch.arange(2)}
    save_file(old, here / "old.safetensors", {"format": "spotlessnet memory 2", "count": "60"})
    ended = spotless("scrub", *BASE, "--method", "ntk", "--statistics", "old.safetensors", "--out", "run")
    assert ended.code == 3
    assert "say 'spotlessnet memory 2'. Statistics of earlier formats held what their requests had removed" in ended.err


def test_a_published_seed_gives_the_same_memory_again_and_no_seed_another_salt(here):
    for out, seed in (("a", ("--seed", "3")), ("b", ("--seed", "3")), ("c", ()), ("d", ())):
        assert spotless("precompute", *ROWS, "--rank", "4", *seed, "--out", out).code == 0
    salts = [sn.read_statistics(here / out / "statistics.safetensors").keys.salt for out in "abcd"]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 3


def test_one_memory_serves_one_request(here):
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS)
    assert spotless(*asked, "--out", "first").code == 0
    (here / "forget.csv").write_text("id\nperson-2\n")
    ended = spotless(*asked, "--out", "fork")
    assert ended.code == 3
    assert "were used by a request before, and serve one only" in ended.err
    assert "Go on from the network and the statistics in first." in ended.err
    assert not (here / "fork").exists()
    (here / "forget.csv").write_text("id\nperson-1\nperson-5\nperson-7\n")
    assert json.loads(spotless(*asked, "--out", "first", "--resume", "--json").out)["status"] == "already done"
    # A memory that is written anew is another one.
    assert spotless("precompute", *ROWS, "--rank", "19", "--out", "memory", "--resume").code == 0
    assert spotless(*asked, "--out", "anew").code == 0


def test_half_of_an_unfinished_request_is_no_memory(here):
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS)
    assert spotless(*asked, "--out", "first").code == 0
    (here / "first/receipt.json").unlink()
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-2\n")
    ended = spotless(*second(asked), "--out", "second")
    assert ended.code == 3
    assert "belong to a request that did not finish, for there is no receipt beside" in ended.err


def started(*arguments: str, pause: str = "") -> subprocess.Popen[str]:
    """The command in a process of its own, which stops before the function named `pause` is called."""
    held = "import os, sys, time\nfrom spotlessnet.requests import lineage, serving\n"
    if pause:
        owner, name = pause.split(".")
        held += (
            f"kept = {owner}.{name}\ndef late(*a, **k):\n    os.write(1, b'here\\n')\n    time.sleep(60)\n"
            f"{owner}.{name} = late\n"
        )
    code = f"{held}from spotlessnet.cli import main\nsys.exit(main({list(arguments)!r}))\n"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_of_two_requests_at_once_one_is_served(here):
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    (here / "second.csv").write_text("id\nperson-2\n")
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS)
    other = tuple("second.csv" if word == "forget.csv" else word for word in asked)
    runs = [started(*asked, "--out", "a"), started(*other, "--out", "b")]
    told = [run.communicate(timeout=120) for run in runs]
    codes = sorted(run.returncode for run in runs)
    assert codes in ([0, 3], [0, 4]), told
    served = [name for name in ("a", "b") if (here / name / "receipt.json").is_file()]
    assert len(served) == 1
    [refused] = [err for (_, err), run in zip(told, runs, strict=True) if run.returncode]
    sent_on = f"Go on from the network and the statistics in {served[0]}"
    assert "at work from the statistics" in refused or sent_on in refused
    assert not (here / ("b" if served == ["a"] else "a")).exists()
    note = json.loads((here / f"{STATISTICS}.next").read_text())
    assert (note["folder"], note["state"]) == (f"../{served[0]}", "done")


@pytest.mark.parametrize(
    ("moment", "is_served"),
    [
        # Each starts torch anew: the last moment at which nothing was served stands for all in the quick tests.
        pytest.param("serving.write_weights", False, marks=pytest.mark.slow),
        pytest.param("serving.write_statistics", False, marks=pytest.mark.slow),
        ("serving.write_receipt", False),
        ("lineage.Lineage", True),  # see below: between the receipt and the note
    ],
)
def test_a_killed_request_neither_blocks_nor_forks(here, moment, is_served):
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS)
    if is_served:
        # As if killed when the receipt had been written and the note not yet completed.
        assert spotless(*asked, "--out", "killed").code == 0
        note = here / f"{STATISTICS}.next"
        note.write_text(note.read_text().replace('"done"', '"at work"'))
    else:
        run = started(*asked, "--out", "killed", pause=moment)
        assert run.stdout is not None
        assert run.stdout.readline() == "here\n"
        (here / "second.csv").write_text("id\nperson-2\n")
        busy = spotless(*("second.csv" if w == "forget.csv" else w for w in asked), "--out", "meanwhile")
        assert busy.code == 4
        assert "Another request is at work from the statistics" in busy.err
        assert not (here / "meanwhile").exists()  # it left its `private` before
        run.send_signal(signal.SIGKILL)
        run.communicate(timeout=60)
        time.sleep(0.1)
        assert sn.read_statistics(here / STATISTICS).count == 60  # the memory is as it was
    (here / "second.csv").write_text("id\nperson-2\n")
    other = tuple("second.csv" if word == "forget.csv" else word for word in asked)
    after = spotless(*other, "--out", "other")
    if is_served:
        assert after.code == 3
        assert "Go on from the network and the statistics in killed." in after.err
        return
    # Nothing was served, so another request may have the memory; then the killed one must not come back.
    assert after.code == 0, after.err
    back = spotless(*asked, "--out", "killed", "--resume")
    assert back.code == 3
    assert "Go on from the network and the statistics in other." in back.err


def test_a_killed_request_can_be_resumed(here):
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS, "--out", "run")
    run = started(*asked, pause="serving.write_receipt")
    assert run.stdout is not None
    assert run.stdout.readline() == "here\n"
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=60)
    ended = spotless(*asked, "--resume")
    assert ended.code == 0, ended.err
    assert sn.read_statistics(here / "run/statistics.safetensors").count == 57
    assert json.loads((here / f"{STATISTICS}.next").read_text())["state"] == "done"


@pytest.mark.parametrize("note", ["{}", '{"folder": "x", "state": {}, "statistics": 5}'])
def test_a_note_that_cannot_be_read_is_not_passed_over(here, note):
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    (here / f"{STATISTICS}.next").write_text(note)
    ended = spotless("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS, "--out", "run")
    assert ended.code == 3
    assert "must say which request used the statistics, but cannot be read" in ended.err


def test_of_copies_without_ids_as_many_go_as_are_named():
    x, y = torch.ones(3, 2), torch.zeros(3, dtype=torch.long)
    twice = sn.Data.of((x, y))
    keys = RowKeys.of(twice)
    assert len(keys.without(twice.select([0]))) == 2
    assert keys.count_unknown(sn.Data.of((torch.ones(4, 2), torch.zeros(4, dtype=torch.long)))) == 1
    left = keys.without(twice.select([0, 2]))
    assert len(left) == 1
    assert left.count_unknown(twice.select([1])) == 0
