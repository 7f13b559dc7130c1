"""Fold models serve one request; the next one needs others, trained on the rows that are left."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import spotlessnet as sn
from spotlessnet.precomputed import others
from spotlessnet.precomputed.effect import as_text
from spotlessnet.requests.effects import EFFECT, effects_beside
from spotlessnet.requests.folder import Private
from tests.cli.test_memories import ROWS, second, started, take_out
from tests.cli.test_what_stays import ONE, told_in
from tests.cli.workshop import BASE, RECIPE, spotless


@pytest.fixture
def served_in_any_case(monkeypatch):
    """With sixty rows fold models may take much back; these tests ask what a second request finds, not whether."""
    monkeypatch.setattr(others, "FURTHEST", 100.0)
    monkeypatch.setattr(others, "FURTHEST_HELD", 100.0)
    monkeypatch.setattr(others, "TAKEN", 100.0)


def test_fold_models_are_found_by_content_when_rows_were_taken_out(here, served_in_any_case):
    """New ones, trained on the rows that are left: rows that were forgotten before are unknown to them."""
    assert spotless("precompute", *ROWS, *RECIPE, "--rank", "0", "--folds", "2", "--out", "memory").code == 0
    asked = ("scrub", *BASE, *RECIPE, "--fold-models", "memory/fold-models.safetensors")
    assert spotless(*asked, "--out", "first").code == 0
    whole = (here / "mydata.py").read_text()
    take_out(here, "person-1", "person-5", "person-7")
    assert spotless("precompute", *second(ROWS), *RECIPE, "--rank", "0", "--folds", "2", "--out", "anew").code == 0
    (here / "forget.csv").write_text("id\nperson-8\n")
    again = second(asked, **{"memory/fold-models.safetensors": "anew/fold-models.safetensors"})
    fewer = (here / "mydata.py").read_text()
    (here / "mydata.py").write_text(whole)
    ended = spotless(*again, "--out", "second")
    assert ended.code == 3
    assert "3 of 60 rows are not among the 57 rows of" in ended.err
    (here / "mydata.py").write_text(fewer)
    ended = spotless(*again, "--out", "second")
    assert ended.code == 0, ended.err


def test_one_file_of_fold_models_serves_one_request(here, served_in_any_case):
    """Given again, they would not know what the request before did, and which of its rows must not be taught."""
    assert spotless("precompute", *ROWS, *RECIPE, "--rank", "0", "--folds", "2", "--out", "memory").code == 0
    old = "memory/fold-models.safetensors"
    asked = ("scrub", *BASE, *RECIPE, "--fold-models", old)
    assert spotless(*asked, "--out", "first").code == 0
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-8\n")
    for words in (asked, second(asked)):  # beside the old network, and beside the new one
        ended = spotless(*words, "--out", "fork")
        assert ended.code == 3
        assert "were used by a request before, and serve one only" in ended.err
        assert "Go on from the network in first, with fold models that are trained anew" in ended.err
        assert len([line for line in ended.err.splitlines() if line.startswith("error")]) == 1
        assert not (here / "fork").exists()
    assert json.loads((here / f"{old}.next").read_text())["state"] == "done"
    anew = ("precompute", *second(ROWS), *RECIPE, "--rank", "0", "--folds", "2", "--out", "anew")
    assert spotless(*anew).code == 0
    assert sn.read_fold_models(here / "anew/fold-models.safetensors").after_requests
    ended = spotless(*second(asked, **{old: "anew/fold-models.safetensors"}), "--out", "second")
    assert ended.code == 0, ended.err


@pytest.mark.slow  # two starts of torch; `test_memories.py` shows the same of statistics, by the same notes
def test_of_two_requests_at_once_from_fold_models_one_is_served(here):
    assert spotless("precompute", *ROWS, *RECIPE, "--rank", "0", "--folds", "2", "--out", "memory").code == 0
    (here / "second.csv").write_text("id\nperson-2\n")
    asked = ("scrub", *BASE, *RECIPE, "--fold-models", "memory/fold-models.safetensors")
    other = tuple("second.csv" if word == "forget.csv" else word for word in asked)
    runs = [started(*asked, "--out", "a"), started(*other, "--out", "b")]
    told = [run.communicate(timeout=240) for run in runs]
    assert sorted(run.returncode for run in runs) in ([0, 3], [0, 4]), told
    assert len([name for name in ("a", "b") if (here / name / "receipt.json").is_file()]) == 1
    [refused] = [err for (_, err), run in zip(told, runs, strict=True) if run.returncode]
    assert "at work from the fold models" in refused or "with fold models that are trained anew" in refused


def test_fold_models_that_would_take_back_an_earlier_request_are_refused_in_writing(here, monkeypatch):
    assert spotless("precompute", *ROWS, *RECIPE, "--rank", "0", "--folds", "2", "--out", "memory").code == 0
    path = here / "memory/fold-models.safetensors"
    fold_models = sn.read_fold_models(path)
    sn.write_fold_models(path, replace(fold_models, after_requests=True), replace=True)
    monkeypatch.setattr(others.Others, "moved", lambda *_: 1.1)  # further than is safe
    asked = ("scrub", *BASE, *RECIPE, "--fold-models", "memory/fold-models.safetensors", "--out", "run")
    ended = spotless(*asked)
    assert ended.code == 8
    assert "error[retrain now]: What was kept for requests no longer serves: " in ended.err
    assert "further than earlier requests are safe from" in ended.err
    assert sorted(p.name for p in (here / "run").iterdir()) == ["private", "refusal.json"]
    told = json.loads((here / "run/refusal.json").read_text())
    assert told["subject"] == []
    assert told["predicate"]["about"]["retrain_now"] is True
    assert not Path(f"{path}.next").exists()


def test_what_a_request_from_fold_models_did_holds_the_next_one(here, served_in_any_case, monkeypatch):
    """It lies in `private` alone, is found beside the network that it left, and is not known once that was purged."""
    assert spotless("precompute", *ROWS, *RECIPE, "--rank", "0", "--folds", "2", "--out", "memory").code == 0
    asked = ("scrub", *BASE, *RECIPE, "--fold-models", "memory/fold-models.safetensors")
    assert spotless(*asked, "--out", "first").code == 0
    assert told_in(here / "first")["before"] == ""
    Private(here / "first").keep_sealed(EFFECT, as_text(ONE, ""))
    take_out(here, "person-1", "person-5", "person-7")
    assert spotless("precompute", *second(ROWS), *RECIPE, "--rank", "0", "--folds", "2", "--out", "anew").code == 0
    (here / "forget.csv").write_text("id\nperson-8\n")
    watched = Mock(return_value=0.0)
    monkeypatch.setattr(others.Others, "taken_back", watched)
    again = second(asked, **{"memory/fold-models.safetensors": "anew/fold-models.safetensors"})
    ended = spotless(*again, "--out", "second")
    assert ended.code == 0, ended.err
    assert [effect.raised for effect in watched.call_args.args[1]] == [2.0]
    assert told_in(here / "second")["before"] == "../first"
    assert spotless("purge", "first", "--now").code == 0
    assert effects_beside(here / "second/scrubbed.safetensors") is None


def test_a_request_from_fold_models_leaves_none_that_know_its_rows(here):
    assert spotless("precompute", *ROWS, *RECIPE, "--rank", "0", "--folds", "2", "--out", "memory").code == 0
    asked = ("scrub", *BASE, *RECIPE, "--fold-models", "memory/fold-models.safetensors")
    assert spotless(*asked, "--out", "first").code == 0
    assert not (here / "first/fold-models.safetensors").exists()
    told = json.loads((here / "first/receipt.json").read_text())
    assert any("trained on forgotten rows: destroy it" in limit for limit in told["predicate"]["limits"])


def test_fold_models_of_another_network_are_refused(here):
    """A request by another method moved the network: they know what it forgot, and would teach it again."""
    assert spotless("precompute", *ROWS, *RECIPE, "--rank", "0", "--folds", "2", "--out", "memory").code == 0
    assert spotless("scrub", *BASE, *RECIPE, "--method", "retrain", "--accept-damage", "--out", "first").code == 0
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-8\n")
    asked = ("scrub", *BASE, *RECIPE, "--fold-models", "memory/fold-models.safetensors", "--out", "second")
    ended = spotless(*second(asked))
    assert ended.code == 3
    assert "trained beside a network with other weights" in ended.err
    assert not (here / "second").exists()


def test_fold_models_that_know_rows_which_are_gone_are_refused(here):
    assert spotless("precompute", *ROWS, *RECIPE, "--rank", "0", "--folds", "2", "--out", "memory").code == 0
    path = here / "memory/fold-models.safetensors"
    asked = ("scrub", *BASE, *RECIPE, "--fold-models", "memory/fold-models.safetensors", "--out", "run")
    take_out(here, "person-8")
    ended = spotless(*asked)
    assert ended.code == 3
    assert "trained on 60 rows, but the data have 59" in ended.err
    tensors = load_file(path)
    with safe_open(path, "pt") as opened:
        header = opened.metadata()
    save_file({n: t for n, t in tensors.items() if n != "origin"}, path, header)
    ended = spotless(*asked)
    assert ended.code == 3
    assert "must hold fold models, but does not say so" in ended.err
    assert not (here / "run").exists()
