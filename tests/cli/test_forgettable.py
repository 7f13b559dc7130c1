"""`spotless train --forgettable` and `spotless forget`, as a person calls them."""

import hashlib
import json
from typing import Any

import torch

from spotlessnet.cli import main
from spotlessnet.core.files import sha256
from spotlessnet.forgettable import load_forgettable
from spotlessnet.store.checkpoints import read_weights
from spotlessnet.store.receipts import keyed
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


def trained(folder, out="model"):
    assert main([*TRAIN, "--ridge", "0.1", "--epochs", "1", "--quiet", "--out", str(folder / out)]) == 0
    return folder / out / "forgettable.safetensors"


def test_no_digest_confirms_a_guess_about_a_row_and_no_name_of_a_file_is_told(tmp_path, monkeypatch):
    folder = furnished(tmp_path, monkeypatch)
    state = trained(folder)
    named = state.rename(state.parent / "without-jane.safetensors")
    asked = ("forget", "--model", "backbone.py:build", "--state", str(named), "--forget", "forget.csv", "--quiet")
    assert main([*asked, "--out", str(folder / "after")]) == 0
    text = (folder / "after/receipt.json").read_text()
    told = json.loads(text)["predicate"]["inputs"]["state"]
    salt = (folder / "after/private/salt").read_bytes()
    assert told == {"name": "state.safetensors", "commitment": keyed(salt, "file", sha256(named))}
    assert sha256(named) not in text
    assert "jane" not in text
    assert not any(hashlib.sha256(word.encode()).hexdigest() in text for word in ("person-1", "person-5", "person-7"))
    # A receipt of training digests files that still hold the rows: nobody can make them again from a guess.
    assert main([*TRAIN, "--ridge", "0.1", "--epochs", "1", "--quiet", "--out", str(folder / "again")]) == 0
    for name in ("forgettable.safetensors", "network.safetensors"):
        one, other = (json.loads((folder / out / "receipt.json").read_text())["subject"] for out in ("model", "again"))
        assert {s["name"]: s["digest"] for s in one}[name] != {s["name"]: s["digest"] for s in other}[name]


def test_verify_accepts_what_was_written_and_nothing_else(tmp_path, monkeypatch, capsys):
    folder = furnished(tmp_path, monkeypatch)
    asked = ("forget", "--model", "backbone.py:build", "--state", str(trained(folder)), "--forget", "forget.csv")
    after = folder / "after"
    assert main([*asked, "--quiet", "--out", str(after)]) == 0
    assert main(["verify", str(after), "--forget", "forget.csv"]) == 0
    (folder / "other.csv").write_text("id\nperson-1\nperson-5\nperson-8\n")
    assert main(["verify", str(after), "--forget", "other.csv"]) == 7
    for name in ("forgettable.safetensors", "network.safetensors", "receipt.json"):
        whole = (after / name).read_bytes()
        at = whole.index(b"examples_left") if name == "receipt.json" else len(whole) - 3
        (after / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert main(["verify", str(after)]) in (3, 7), name
        (after / name).write_bytes(whole)
        assert main(["verify", str(after)]) == 0
    # The state of before in the place of the new one holds the rows: it is not what the receipt speaks of.
    (after / "forgettable.safetensors").write_bytes((folder / "model/forgettable.safetensors").read_bytes())
    capsys.readouterr()
    assert main(["verify", str(after)]) == 7
    assert "is not the file that the receipt was written for" in capsys.readouterr().err


def test_lists_are_read_as_scrub_reads_them(tmp_path, monkeypatch, capsys):
    folder = furnished(tmp_path, monkeypatch)
    asked = ("forget", "--model", "backbone.py:build", "--state", str(trained(folder)), "--quiet")
    (folder / "people.csv").write_text("customer\nperson-1\nperson-5\n")  # a column of another name
    assert main([*asked, "--forget", "people.csv", "--out", str(folder / "a")]) == 0
    assert main(["verify", str(folder / "a"), "--forget", "people.csv"]) == 0
    (folder / "unknown.csv").write_text("id\nperson-1\nnobody\n")
    capsys.readouterr()
    assert main([*asked, "--forget", "unknown.csv", "--out", str(folder / "b")]) == 3
    assert "1 of 2 ids belong to no example" in capsys.readouterr().err
    assert not (folder / "b").exists()


def test_copies_of_the_rows_are_counted_and_told(tmp_path, monkeypatch, capsys):
    folder = furnished(tmp_path, monkeypatch)
    with (folder / "mydata.py").open("a") as stream:
        stream.write("def twins():\n    x, y, names = some(0, 60)\n    x[40] = x[5]\n    return x, y, names\n")
    given = [*TRAIN[:-1], "mydata.py:twins", "--ridge", "0.1", "--quiet", "--out", str(folder / "model")]
    assert main(given) == 0
    state = str(folder / "model/forgettable.safetensors")
    asked = ("forget", "--model", "backbone.py:build", "--state", state, "--forget", "forget.csv")
    assert main([*asked, "--out", str(folder / "after")]) == 0
    assert "1 rows that stay are copies" in capsys.readouterr().err
    assert json.loads((folder / "after/receipt.json").read_text())["predicate"]["request"]["copies"] == 1


AUDIT = ("audit", *(word for word in TRAIN if word != "train"), "--test", "mydata.py:test", "--forget", "forget.csv")


def test_a_forgettable_model_is_audited_as_any_method_is(tmp_path, monkeypatch, capsys):
    folder = furnished(tmp_path, monkeypatch)
    given = ("--ridge", "0.01", "--epochs", "2", "--lr", "0.05", "--seeds", "5", "--json")
    assert main([*AUDIT, *given, "--dry-run", "--out", str(folder / "none")]) == 0
    assert "10 models" in capsys.readouterr().out
    assert not (folder / "none").exists()
    code = main([*AUDIT, *given, "--out", str(folder / "audit")])
    told = json.loads(capsys.readouterr().out)
    assert code == {"forgotten": 0, "not forgotten": 1, "inconclusive": 6}[told["verdict"]]
    assert told["verdict"] != "not forgotten"
    assert {row["method"] for row in told["rows"]} == {"original", "forgettable", "retrained"}
    page = (folder / "audit/report.html").read_text()
    assert "5 of 5 seeds" in page
    assert "spotless audit --forgettable" in page
    assert "person-5" not in page


def test_what_an_audit_of_a_forgettable_model_needs_is_said_before_any_work(tmp_path, monkeypatch, capsys):
    folder = furnished(tmp_path, monkeypatch)
    out, core = ("--out", str(folder / "audit")), ("--epochs", "2", "--lr", "0.05")
    for given, words in (
        ([*AUDIT, *out], "--epochs"),
        ([*AUDIT, *core, "--method", "ntk", *out], "--method"),
        ([*AUDIT, *core, "--weights", "model.safetensors", *out], "--weights"),
        ([*AUDIT, *core, "--shadow-attack", *out], "--shadow-attack"),
        ([*AUDIT[:-2], *core, *out], "--forget"),
        ([*(word for word in AUDIT if word != "--forgettable"), "--features", "tangent", *out], "--forgettable"),
    ):
        assert main(list(given)) in (2, 3)
        assert words in capsys.readouterr().err
        assert not (folder / "audit").exists()
