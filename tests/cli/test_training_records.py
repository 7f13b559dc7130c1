"""`--training run/`: a request needs nothing else, and is refused where rows or code have changed."""

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

import spotlessnet as sn
from spotlessnet.store.training_record import INIT, RECORD, ROWS, WEIGHTS, read_record, read_rows
from tests.cli.training_folder import FORGET, SCRIPT, furnish
from tests.cli.workshop import spotless

ASK = ("scrub", "--training", "run", "--forget", "forget.csv")


@cache
def template(how: str) -> Path:
    return furnish(Path(mkdtemp()), how)


@pytest.fixture(params=["function", "recipe"])
def either(request, tmp_path, monkeypatch):
    shutil.copytree(template(request.param), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copytree(template("function"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_training_again_from_the_record_is_the_recorded_network(either):
    run = sn.recorded("run")
    again = run.retrain().module().state_dict()
    assert same(again, sn.read_weights(either / "run" / WEIGHTS))
    assert not same(again, sn.read_weights(either / "run" / INIT))
    assert same(run.trained.module().state_dict(), sn.read_weights(either / "run" / WEIGHTS))


def test_a_request_needs_nothing_else(either):
    planned = spotless(*ASK, "--dry-run")
    assert planned.code == 0, planned.err
    assert "method  short-retrain" in planned.out
    assert not (either / "after").exists()
    ended = spotless(*ASK, "--method", "retrain", "--out", "after", "--accept-damage")
    assert ended.code == 0, ended.err
    run = sn.recorded("run")
    split = sn.ids(list(FORGET), column="id")(run.data)
    want = sn.Retrain(seed=3)(run.trained, split)
    weights = run.trained.at(want.mean, want.buffers).module().state_dict()
    assert same(weights, sn.read_weights(either / "after/scrubbed.safetensors"))
    assert spotless("verify", "after", "--forget", "forget.csv").code == 0


def test_other_commands_take_it_too(folder):
    audited = spotless("audit", *ASK[1:], "--seeds", "5", "--out", "audited", "--quiet")
    assert audited.code in (0, 1, 6), audited.err
    assert (
        "spotless audit --forget FORGET --training training --out OUT" in (folder / "audited/report.html").read_text()
    )
    kept = spotless("precompute", "--training", "run", "--out", "kept", "--quiet", "--rank", "5")
    assert kept.code == 0, kept.err
    looked = spotless("inspect", "run")
    assert looked.code == 0, looked.err
    assert "training" in looked.out
    assert "train.py:train" in looked.out


def test_from_python(folder):
    done = sn.unlearn(sn.recorded("run"), forget="forget.csv", method="retrain", accept_damage=True, out="after")
    assert spotless("verify", "after").code == 0
    assert done.receipt["predicate"]["request"]["matched"] == 3
    memory = sn.unlearn(sn.recorded("after", data=without()), forget=[0, 1], accept_damage=True)
    assert memory.receipt["predicate"]["request"]["kept"] == 85


def without(gone: tuple[str, ...] = FORGET) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    space = {"__name__": "train"}
    exec(SCRIPT, space)
    x, y, names = space["rows"]()  # type: ignore[operator]
    keep = [i for i, name in enumerate(names) if name not in gone]
    return x[keep], y[keep], [names[i] for i in keep]


def refused(*more: str) -> str:
    """Refused before any work, in a dry run and otherwise, with one line."""
    dry, ended = spotless(*ASK, *more, "--dry-run"), spotless(*ASK, *more, "--out", "after")
    assert dry.code == ended.code == 3, (dry, ended)
    assert dry.err == ended.err
    assert ended.err.count("\n") == 1
    assert not Path("after").exists()
    return ended.err


def test_code_that_changed_is_refused_unless_that_is_accepted(folder):
    text = (folder / "train.py").read_text()
    (folder / "train.py").write_text(text + "\n# a remark\n")
    said = refused()
    assert "train.py has changed (--train)" in said
    assert "train.py has changed (--model)" in said
    assert "--data" not in said.split("Bring back")[0]
    (folder / "other.py").write_text(text)
    named = spotless(*ASK, "--train", "other.py:train", "--model", "other.py:build", "--dry-run")
    assert named.code == 0, named.err
    ended = spotless(*ASK, "--accept-changes", "--accept-damage", "--out", "after")
    assert ended.code == 0, ended.err
    limits = json.loads((folder / "after/receipt.json").read_text())["predicate"]["limits"]
    assert any("Code has changed since the training was recorded" in limit for limit in limits)
    # What was accepted is not asked again; what the data still hold is another matter.
    later = spotless("scrub", "--training", "after", "--forget", "forget.csv", "--dry-run")
    assert "other code" not in later.err
    assert "3 rows of the request that wrote after/scrubbed.safetensors are still there" in later.err


def test_packages_that_changed_are_refused(folder):
    path = folder / "run" / RECORD
    told = json.loads(path.read_text())
    assert {"torch", "numpy", "spotlessnet", "python"} <= told["packages"].keys()
    patch = torch.__version__.split(".")
    told["packages"] |= {"torch": f"{patch[0]}.{patch[1]}.99+gpu", "python": "2.7"}
    path.write_text(json.dumps(told))
    assert spotless(*ASK, "--dry-run").code == 0
    path.write_text(json.dumps({**told, "packages": {"torch": "1.13.0", "nosuchpackage": "1.0"}}))
    said = refused()
    assert "torch was 1.13.0 and is 2." in said
    assert "nosuchpackage 1.0 is not installed" in said


CHANGES = {
    "x[0] += 1": "1 of 90 rows of --data are not among the 90 rows of the recorded training",
    "y[3] = (y[3] + 1) % 3": "1 of 90 rows of --data are not among",
    "x, y = x[1:], y[1:]; names = names[1:]": "1 of 90 rows of the recorded training are not among those of --data",
    "x, y = x.flip(0), y.flip(0); names = names[::-1]": "in another order",
    "names[1], names[2] = names[2], names[1]": "2 of 90 rows of --data have another id in 'id'",
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_changed_are_refused_whatever_is_accepted(folder, change):
    lines = (
        f"from train import rows as old\ndef rows():\n    x, y, names = old()\n    {change}\n    return x, y, names\n"
    )
    (folder / "mydata.py").write_text(lines)
    assert CHANGES[change] in refused("--data", "mydata.py:rows", "--accept-changes")


def test_rows_without_their_ids_are_refused(folder):
    (folder / "mydata.py").write_text("from train import rows as old\ndef rows():\n    return old()[:2]\n")
    assert "have no column 'id'" in refused("--data", "mydata.py:rows")


def test_files_that_changed_are_noticed(folder):
    for name in (INIT, WEIGHTS, ROWS):
        path = folder / "run" / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        ended = spotless(*ASK, "--dry-run")
        assert ended.code == 7, ended.err
        assert f"{name} is not the file that the training was recorded with" in ended.err
        path.unlink()
        gone = spotless(*ASK, "--dry-run")
        assert gone.code == 3
        assert f"lack {name}" in gone.err
        path.write_bytes(content)


def test_nothing_of_the_rows_stands_in_the_record(folder):
    x, _, _ = without(())
    for path in (folder / "run").iterdir():
        content = path.read_bytes()
        assert b"person-" not in content
        assert x[4].numpy().tobytes() not in content
        assert path.stat().st_mode & 0o077 == 0
    assert {p.name for p in (folder / "run").iterdir()} == {RECORD, INIT, WEIGHTS, ROWS}


def test_the_next_record_knows_nothing_of_what_went(folder):
    ended = spotless(*ASK, "--accept-damage", "--out", "after")
    assert ended.code == 0, ended.err
    old, new = read_rows(folder / "run"), read_rows(folder / "after")
    assert (len(old.keys), len(new.keys)) == (90, 87)
    assert old.keys.salt != new.keys.salt
    # Under the new salt, none of the rows that went can be found again.
    run = sn.recorded("run")
    gone = run.data.select([1, 5, 7])
    assert new.keys.count_unknown(gone) == 3
    assert new.keys.count_unknown(run.data.without(gone)) == 0
    record = read_record(folder / "after")
    assert (record.requests, record.weights, record.seed) == (1, "scrubbed.safetensors", 3)
    limits = json.loads((folder / "after/receipt.json").read_text())["predicate"]["limits"]
    assert any("keyed digests of the forgotten rows: destroy them, with `spotless purge`" in limit for limit in limits)
    # The same rows again are a mistake, and so is the old record; what is left is served from the new one.
    (folder / "next.csv").write_text("id\nperson-2\n")
    again = spotless("scrub", "--training", "after", "--forget", "next.csv", "--dry-run")
    assert again.code == 3
    assert "must no longer hold what an earlier request forgot, but 3 rows of the request that wrote" in again.err
    Path("after/private").rename("private")
    again = spotless("scrub", "--training", "after", "--forget", "next.csv", "--dry-run")
    assert "3 of 90 rows of --data are not among the 87 rows of the recorded training" in again.err
    assert "without those that requests have forgotten since" in again.err
    Path("private").rename("after/private")
    (folder / "left.py").write_text(
        "from train import rows as old\ndef rows():\n    x, y, names = old()\n"
        f"    keep = [i for i, name in enumerate(names) if name not in {FORGET!r}]\n"
        "    return x[keep], y[keep], [names[i] for i in keep]\n"
    )
    used = spotless("scrub", "--training", "run", "--forget", "next.csv", "--accept-damage", "--out", "second")
    assert used.code == 3
    assert "training records run/training.json were used by a request before" in used.err
    assert "serves       no request: it has served one" in spotless("inspect", "run").out
    assert "serves       the next request" in spotless("inspect", "after/training.json").out
    assert "Go on from the network and the training records in after" in used.err
    words = ("scrub", "--training", "after", "--data", "left.py:rows", "--forget", "next.csv", "--accept-damage")
    served = spotless(*words, "--out", "second")
    assert served.code == 0, served.err
    assert len(read_rows(folder / "second").keys) == 86
    assert spotless("verify", "second").code == 0
    assert spotless("verify", "after").code == 0
    # The fault before: a record that a request wrote was never destroyed, and each row could be found again in it.
    shutil.copytree("after", "late")
    (folder / "late" / f"{RECORD}.next").unlink()
    purged = spotless("purge", "after", "--now")
    names = [ROWS, "scrubbed.safetensors", INIT, RECORD, f"{RECORD}.next"]
    assert purged.out.endswith(f"; beside it: {', '.join(names)}\n")
    assert {p.name for p in (folder / "after").iterdir()} == {"purged.json", "receipt.json"}
    checked = spotless("verify", "after")
    assert checked.code == 0, checked.err
    assert "rows.safetensors, training.json: destroyed with `private`" in checked.out
    assert spotless("verify", "second").code == 0
    assert spotless("purge", "after").out == "purged before after\n"
    # One that serves the next request stays; it goes by a second purge once that was served.
    assert spotless("purge", "late", "--now").code == 0
    assert read_record(folder / "late").requests == 1
    assert spotless("verify", "late").code == 0
    shutil.rmtree("second")
    assert spotless("scrub", "--training", "late", *words[3:], "--out", "second").code == 0
    assert spotless("purge", "late").out == f"purged late: {', '.join(names)}\n"
    assert {p.name for p in (folder / "late").iterdir()} == {"purged.json", "receipt.json"}
    assert {"salt", RECORD} < set(json.loads((folder / "late/purged.json").read_text())["files"])
    assert spotless("verify", "late").code == 0
    (folder / "late/receipt.json").write_text((folder / "late/receipt.json").read_text() + " ")
    assert spotless("verify", "late").code == 7


def test_a_record_that_served_can_be_purged_and_no_other(folder):
    early = spotless("purge", "--now", "run")
    assert early.code == 3
    assert "have served no request, and the next one needs them. Nothing was destroyed" in early.err
    assert spotless(*ASK, "--accept-damage", "--out", "after").code == 0
    dry = spotless(*ASK, "--dry-run")
    assert dry.code == 3
    assert "were used by a request before" in dry.err
    (folder / "run/mine.txt").write_text("kept")
    ended = spotless("purge", "run")
    assert ended.code == 0, ended.err
    names = (ROWS, WEIGHTS, INIT, RECORD, f"{RECORD}.next")
    assert ended.out == f"purged run: {', '.join(names)}\n"
    assert {p.name for p in (folder / "run").iterdir()} == {"purged.json", "mine.txt"}
    assert "purged before" in spotless("purge", "run").out
    assert spotless("verify", "after", "--forget", "forget.csv").code == 0


def test_a_case_file_may_name_it(folder):
    (folder / "case.toml").write_text('training = "run"\nforget = "forget.csv"\n')
    ended = spotless("scrub", "--case", "case.toml", "--dry-run")
    assert ended.code == 0, ended.err


def test_a_finished_request_is_given_back(folder):
    words = (*ASK, "--accept-damage", "--out", "after")
    assert spotless(*words).code == 0
    again = spotless(*words, "--resume")
    assert again.code == 0, again.err
    assert "served before" in again.err


def test_the_record_may_move_with_its_sources(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "elsewhere/deep", ignore=shutil.ignore_patterns("elsewhere"))
    ended = spotless("scrub", "--training", "elsewhere/deep/run", "--forget", "forget.csv", "--dry-run")
    assert ended.code == 0, ended.err
    (tmp_path / "elsewhere/deep/train.py").unlink()
    lost = spotless("scrub", "--training", "elsewhere/deep/run", "--forget", "forget.csv", "--dry-run")
    assert lost.code == 3
    assert "train.py is no longer there" in lost.err


@pytest.mark.parametrize("part", ["trainer", "data", "model"])
def test_code_in_the_folder_of_a_record_is_never_run(folder, part):
    (folder / "run/evil.py").write_text("raise SystemExit('ran')\ndef train(model, examples, seed): ...\n")
    path = folder / "run" / RECORD
    told = json.loads(path.read_text())
    told[part] = {"spec": "evil.py:train", "sha256": "0" * 64}
    path.write_text(json.dumps(told))
    ended = spotless(*ASK, "--accept-changes", "--dry-run")
    assert ended.code == 3
    assert "lies in the folder of the training records, which hold no code. It was not imported" in ended.err


ODD = {
    "no format": lambda t: t.pop("format"),
    "another format": lambda t: t.update(format="spotlessnet training 9"),
    "a part that is missing": lambda t: t.pop("seed"),
    "a part that nobody knows": lambda t: t.update(extra=1),
    "truth as seed": lambda t: t.update(seed=True),
    "code without a digest": lambda t: t["trainer"].update(sha256=None),
    "weights elsewhere": lambda t: t.update(weights="../model.safetensors"),
    "weights that are the start": lambda t: t.update(weights=INIT),
    "a digest of another file": lambda t: t["digests"].update({"other.safetensors": "0" * 64}),
    "a recipe that cannot be": lambda t: t.update(trainer=None, recipe={"epochs": -1, "lr": 0.1}),
    "a recipe of other words": lambda t: t.update(trainer=None, recipe={"epochz": 1, "lr": 0.1}),
    "packages without end": lambda t: t.update(packages={f"p{i}": "1" for i in range(5000)}),
    "control characters": lambda t: t["trainer"].update(spec="a\x1b[31m.py:train"),
    "a device that is none": lambda t: t.update(device="abacus"),
}


@pytest.mark.parametrize("name", ODD)
def test_damaged_records_end_in_one_line(folder, name):
    path = folder / "run" / RECORD
    told = json.loads(path.read_text())
    ODD[name](told)
    path.write_text(json.dumps(told))
    assert "The training record run/training.json is damaged" in refused()


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 9000, b'{"a": 1, "a": 2}', b"0" * 2**21])
def test_what_is_no_record_ends_in_one_line(folder, content):
    (folder / "run" / RECORD).write_bytes(content)
    assert "training record run/training.json" in refused()


def test_a_folder_without_a_record_is_refused(folder):
    (folder / "run" / RECORD).unlink()
    assert "There are no training records at run. Give the folder that `sn.record` wrote" in refused()
