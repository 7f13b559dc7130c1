"""The command and the call are one request: the same network, built once, served by the same function."""

import hashlib
import os
from dataclasses import fields
from pathlib import Path

import pytest

import spotlessnet as sn
from spotlessnet.core.errors import (
    IntegrityError,
)
from spotlessnet.core.scrub import Scrub
from spotlessnet.requests.case import Case
from spotlessnet.requests.methods import FALLBACK
from spotlessnet.requests.serving import serve
from spotlessnet.requests.verifying import verify_request
from tests.cli.workshop import BASE, spotless
from tests.requests.small import FORGET, RECIPE, problem


def built(monkeypatch: pytest.MonkeyPatch, kind: type[Scrub]) -> list[Scrub]:
    """Every construction of a method from now on."""
    made: list[Scrub] = []
    check = getattr(kind, "__post_init__", lambda self: None)

    def counted(self: Scrub) -> None:
        made.append(self)
        check(self)

    monkeypatch.setattr(kind, "__post_init__", counted, raising=False)
    return made


@pytest.mark.usefixtures("here")
def test_the_command_builds_its_method_once(monkeypatch):
    made = built(monkeypatch, sn.NTK)
    ended = spotless("scrub", *BASE, "--method", "ntk", "--out", "run")
    assert ended.code == 0, ended.err
    assert len(made) == 1


@pytest.mark.usefixtures("here")
def test_the_command_builds_a_method_with_statistics_once(monkeypatch):
    base = [word for word in BASE if word not in ("--forget", "forget.csv")]
    assert spotless("precompute", *base, "--rank", "5", "--out", "kept").code == 0
    made = built(monkeypatch, sn.NTK)
    ended = spotless("scrub", *BASE, "--method", "ntk", "--statistics", "kept/statistics.safetensors", "--out", "run")
    assert ended.code == 0, ended.err
    assert len(made) == 1


def test_the_call_builds_its_method_once(monkeypatch):
    model, start, x, y = problem()
    made = built(monkeypatch, sn.ShortRetrain)
    sn.unlearn(model, (x, y), forget=FORGET, init=start, recipe=RECIPE)
    assert len(made) == 1
    own, made = sn.NTK(), built(monkeypatch, sn.NTK)
    done = sn.unlearn(model, (x, y), forget=FORGET, method=own)
    assert made == []
    assert done.plan is not None
    assert done.plan.scrub is own


def test_the_command_and_the_call_give_the_same_network(here):
    ended = spotless("scrub", *BASE, "--method", "ntk", "--out", "run")
    assert ended.code == 0, ended.err
    from tests.cli import workshop

    space: dict[str, object] = {}
    exec(workshop.NETS + workshop.DATA, space)
    model = sn.load_into(space["build"](), sn.read_weights("model.safetensors"))  # type: ignore[operator]
    x, y, names = space["train"]()  # type: ignore[operator]
    done = sn.unlearn(model, (x, y), ids=names, forget="forget.csv", method="ntk", test=space["test"]()[:2])  # type: ignore[operator]
    by_file = hashlib.sha256((here / "run/scrubbed.safetensors").read_bytes()).hexdigest()
    assert done.receipt["subject"][0]["digest"]["sha256"] == by_file


@pytest.mark.usefixtures("here")
def test_text_and_files_serve_as_they_do_on_the_command_line():
    done = sn.unlearn("nets.py:build", "mydata.py:train", weights="model.safetensors", forget="forget.csv")
    assert done.plan is not None
    assert done.plan.method == FALLBACK
    assert done.receipt["predicate"]["request"]["matched"] == 3


def test_every_field_of_a_case_can_be_said():
    """What a flag can say, the call can say too, by the same name or by an object that holds it."""
    import inspect

    names = set(inspect.signature(sn.unlearn).parameters)
    held = {"recipe": {"epochs", "lr", "momentum", "batch_size", "schedule", "patience"}}
    held |= {"ids": {"id_column"}, "trainer": {"train"}, "model": {"training", "accept_changes"}}  # `sn.recorded`
    covered = names | {one for holder in names & set(held) for one in held[holder]}
    assert {f.name for f in fields(Case)} - covered == {"allow_missing"}


def test_requests_need_no_command(tmp_path):
    """Neither typer nor the command's own modules are imported by a request; rich only draws bars."""
    import subprocess
    import sys

    code = (
        "import sys, torch, spotlessnet as sn\n"
        "y = torch.arange(90) % 3\n"
        "x = torch.nn.functional.one_hot(y, 4).float()\n"
        "done = sn.unlearn(torch.nn.Linear(4, 3), (x, y), forget=[1], method='ntk', accept_damage=True)\n"
        "print([name for name in sys.modules if name in ('typer', 'click', 'rich', 'spotlessnet.cli')])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(sn.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"


def test_serving_is_what_both_call(monkeypatch):
    model, _, x, y = problem()
    served: list[Case] = []

    def note(case: Case, **how: object) -> object:
        served.append(case)
        return serve(case)

    monkeypatch.setattr("spotlessnet.requests.unlearning.serve", note)
    sn.unlearn(model, (x, y), forget=FORGET, method="ntk")
    assert len(served) == 1


def test_what_was_written_is_verified_without_the_command(tmp_path):
    model, _, x, y = problem()
    sn.unlearn(model, (x, y), forget=FORGET, method="ntk", out=tmp_path / "run")
    (tmp_path / "rows.txt").write_text("3\n14\n15\n")
    found = verify_request(tmp_path / "run", tmp_path / "rows.txt", "row")
    assert found.is_sealed
    assert found.files == ("scrubbed.safetensors", "rows.txt")
    (tmp_path / "rows.txt").write_text("3\n14\n")
    with pytest.raises(IntegrityError, match="is not the list that the receipt was written for"):
        verify_request(tmp_path / "run", tmp_path / "rows.txt", "row")
