"""`spotless verify` looks at everything that a receipt says, and a digest is of what was read."""

import json
import os
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from spotlessnet.core.files import sha256
from spotlessnet.requests import loading, serving
from spotlessnet.store.receipts import keyed, seals
from tests.cli.test_commands import report
from tests.cli.workshop import BASE, FORGET, QUICK, furnish, spotless


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A newcomer's folder with a finished request in it, whose audit said *not forgotten*: made once for all tests."""
    folder = furnish(tmp_path_factory.mktemp("finished") / "work")
    found = report("not forgotten")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(import_module("spotlessnet.auditing.run_audit"), "audit", lambda *a, **k: found)
        assert spotless("scrub", *BASE, *QUICK, "--audit", "--out", "run").code == 1
        assert spotless("verify", "run", "--forget", "forget.csv").code == 0
    return folder


@pytest.fixture
def run(here, finished, monkeypatch) -> Path:
    """A copy of the finished request; what is asked for beside it is audited with the same words."""
    shutil.copytree(finished / "run", here / "run")  # with modes and times
    found = report("not forgotten")
    monkeypatch.setattr(import_module("spotlessnet.auditing.run_audit"), "audit", lambda *a, **k: found)
    return Path(here / "run")


def forge(run: Path, change: Callable[[dict[str, Any]], Any], *, again: bool) -> None:
    """Change a receipt and, as a forger without the salt would, make its digest anew."""
    receipt = json.loads((run / "receipt.json").read_text())
    change(receipt)
    if again:
        receipt["predicate"]["integrity"] |= seals(receipt, b"a salt of the forger's own, no use")
    (run / "receipt.json").write_text(json.dumps(receipt))


def verdict(receipt: dict[str, Any]) -> None:
    receipt["predicate"]["audit"][0]["verdict"] = "forgotten"


def counts(receipt: dict[str, Any]) -> None:
    receipt["predicate"]["request"] |= {"matched": 1, "kept": 59}


def figures(receipt: dict[str, Any]) -> None:
    receipt["predicate"]["audit"][0]["seeds"] = 800


def method(receipt: dict[str, Any]) -> None:
    receipt["predicate"]["method"] = "retrain"


@pytest.mark.parametrize("change", [verdict, counts, figures, method], ids=lambda f: f.__name__)
def test_a_forged_receipt_is_found(run, change):
    forge(run, change, again=False)
    ended = spotless("verify", "run")
    assert ended.code == 7
    assert "receipt.json was changed after it was written: its digest does not match." in ended.err
    forge(run, lambda receipt: None, again=True)
    ended = spotless("verify", "run")
    assert ended.code == 7
    assert "its seal, made with the private salt, does not match" in ended.err


@pytest.mark.parametrize(
    ("change", "code"), [(verdict, 7), (figures, 7), (counts, 0), (method, 0)], ids=lambda f: getattr(f, "__name__", "")
)
def test_without_the_private_folder_the_report_still_speaks_and_what_is_open_is_said(run, change, code):
    shutil.rmtree(run / "private")
    forge(run, change, again=True)
    ended = spotless("verify", "run")
    assert ended.code == code
    if code:
        assert "The receipt does not say what the report beside it says: verdict or figures differ." in ended.err
    else:
        assert "not checked: that nobody rewrote the receipt whole: that needs the folder `private`" in ended.out
        assert "as it was written" not in ended.out


def test_a_verdict_that_is_changed_everywhere_but_on_the_page_is_found_without_the_salt(run):
    shutil.rmtree(run / "private")
    (run / "verdict.json").write_text((run / "verdict.json").read_text().replace("not forgotten", "forgotten"))

    def everywhere(receipt: dict[str, Any]) -> None:
        verdict(receipt)
        for subject in receipt["subject"]:
            subject["digest"]["sha256"] = sha256(run / subject["name"])

    forge(run, everywhere, again=True)
    assert spotless("verify", "run").code == 7


def test_a_count_that_was_changed_is_a_digest_that_does_not_match(run):
    """The fault before: counts that do not add up were told as a file that is no receipt, with exit code 3."""
    text = (run / "receipt.json").read_text()
    (run / "receipt.json").write_text(text.replace('"matched": 3', '"matched": 2'))
    ended = spotless("verify", "run")
    assert ended.code == 7, ended.err
    assert "was changed after it was written" in ended.err


def test_no_subject_no_report_and_no_network_are_found(run):
    forge(run, lambda receipt: receipt.update(subject=[]), again=True)
    (run / "scrubbed.safetensors").unlink()
    ended = spotless("verify", "run")
    assert ended.code == 3
    assert ended.err.count("\n") == 1
    assert "is not a receipt: it speaks of no file." in ended.err


def test_an_audit_without_its_report_is_found(run):
    shutil.rmtree(run / "private")
    forge(run, lambda r: r.update(subject=[s for s in r["subject"] if s["name"] != "report.html"]), again=True)
    ended = spotless("verify", "run")
    assert ended.code == 7
    assert "tells of an audit without its report" in ended.err


def test_a_request_that_was_exchanged_in_the_private_folder_is_found(run):
    kept = json.loads((run / "private/request.json").read_text())
    kept["fields"]["method"] = "ntk"
    (run / "private/request.json").write_text(json.dumps(kept))
    ended = spotless("verify", "run")
    assert ended.code == 7
    assert "The request kept in `private` is not the one that the receipt was written for." in ended.err


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff\xfe", b'{"predicateType": "urn:spotlessnet:forgetting:v2"}', b"{}"]
)
def test_what_is_no_receipt_is_one_line_and_code_3(run, content):
    (run / "receipt.json").write_bytes(content)
    for command in ("verify", "inspect"):
        ended = spotless(command, "run")
        assert ended.code == 3
        assert ended.err.count("\n") == 1


def test_row_numbers_are_checked_in_any_spelling(here):
    (here / "forget.csv").write_text("row\n01\n5\n")
    assert spotless("scrub", *BASE, *QUICK, "--id-column", "row", "--out", "run").code == 0
    (here / "again.csv").write_text("row\n5\n1\n")
    assert spotless("verify", "run", "--forget", "again.csv", "--id-column", "row").code == 0


def between(monkeypatch, where: Any, name: str, act: Callable[[], Any]) -> None:
    """Do something behind the command's back as soon as a step of it is done."""
    step = getattr(where, name)

    def wrapped(*args: Any, **named: Any) -> Any:
        found = step(*args, **named)
        act()
        return found

    monkeypatch.setattr(where, name, wrapped)


def test_a_digest_is_of_what_was_read(here, monkeypatch):
    """Exchanged after it was read, an input is still named by what was read."""
    before = sha256(here / "model.safetensors")

    def exchange() -> None:
        save_file({k: v + 1 for k, v in load_file(here / "model.safetensors").items()}, here / "model.safetensors")

    with monkeypatch.context() as patch:
        between(patch, serving, "request_of", exchange)  # the step after the second look at the files
        assert spotless("scrub", *BASE, *QUICK, "--out", "run").code == 0
    receipt = json.loads((here / "run/receipt.json").read_text())["predicate"]
    salt = (here / "run/private/salt").read_bytes()
    assert receipt["inputs"]["weights"]["commitment"] == keyed(salt, "file", before)
    assert before != sha256(here / "model.safetensors")


@pytest.mark.parametrize("back", [False, True], ids=["exchanged", "and put back"])
def test_an_input_that_changes_while_it_is_read_is_refused(here, monkeypatch, back):
    def exchange() -> None:
        (here / "model.safetensors").rename(here / "old")
        save_file({k: v + 1 for k, v in load_file(here / "old").items()}, here / "model.safetensors")
        if back:
            (here / "old").replace(here / "model.safetensors")

    between(monkeypatch, loading, "_network", exchange)
    ended = spotless("scrub", *BASE, *QUICK, "--out", "run", "--quiet")
    assert ended.code == 7
    assert "--weights model.safetensors changed while it was read" in ended.err
    assert not (here / "run").exists()


def test_a_data_module_binds_its_rows_and_not_only_its_code(here):
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    (here / "mydata.py").write_text(
        "import numpy as np, torch\ndef train():\n    f = np.load('rows.npz')\n"
        "    return torch.tensor(f['x']), torch.tensor(f['y']), [f'person-{i}' for i in range(60)]\n"
    )
    told = {}
    for name, first in {"a": 0.0, "b": 0.0, "c": 1e-6}.items():
        x[0, 0] = first
        np.savez(here / "rows.npz", x=x.numpy(), y=y.numpy())
        (here / name / "private").mkdir(parents=True, mode=0o700)
        (here / name / "private/salt").write_bytes(bytes(32))
        assert spotless("scrub", *BASE, *QUICK, "--resume", "--out", name).code == 0
        told[name] = json.loads((here / name / "receipt.json").read_text())["predicate"]["inputs"]["data"]
    assert told["a"]["rows"]["count"] == 60
    assert told["a"] == told["b"]
    assert told["a"]["commitment"] == told["c"]["commitment"]
    assert told["a"]["rows"]["commitment"] != told["c"]["rows"]["commitment"]


def test_folders_of_weights_have_digests(here):
    (here / "sharded").mkdir()
    tensors = load_file(here / "model.safetensors")
    names = sorted(tensors)
    save_file({n: tensors[n] for n in names[:2]}, here / "sharded/a.safetensors")
    save_file({n: tensors[n] for n in names[2:]}, here / "sharded/b.safetensors")
    places = {n: "ab"[i >= 2] + ".safetensors" for i, n in enumerate(names)}
    (here / "sharded/model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    swapped = [{"model.safetensors": "sharded"}.get(word, word) for word in BASE]
    told = []
    for out in "ab":
        (here / out / "private").mkdir(parents=True, mode=0o700)
        (here / out / "private/salt").write_bytes(bytes(32))
        assert spotless("scrub", *swapped, *QUICK, "--resume", "--out", out).code == 0
        told.append(json.loads((here / out / "receipt.json").read_text())["predicate"]["inputs"]["weights"])
        save_file({n: tensors[n] + 1e-6 for n in names[2:]}, here / "sharded/b.safetensors")
    assert [set(one) for one in told] == [{"name", "commitment"}] * 2
    assert told[0]["name"] == "weights"
    assert told[0]["commitment"] != told[1]["commitment"]


def test_no_path_no_name_and_no_command_betrays_who_asked(here, monkeypatch):
    home = here / "home-of-otto"
    home.mkdir()
    for name in ("nets.py", "mydata.py", "model.safetensors", "start.safetensors"):
        shutil.move(here / name, home / name)
    shutil.move(here / "forget.csv", home / "sam@mail.org.csv")
    shutil.copy(home / "model.safetensors", home / "without-sam@mail.org.safetensors")
    asked = [
        *("--model", home / "nets.py:build", "--weights", home / "model.safetensors"),
        *("--data", f"{home}/mydata.py:train", "--test", f"{home}/mydata.py:test"),
        *("--forget", home / "sam@mail.org.csv", "--reference", home / "without-sam@mail.org.safetensors"),
        *("--method", "fisher", "--max-nats", "50", "--out", here / "for-sam@mail.org"),
    ]
    spotless("scrub", *asked, "--audit")
    files = [p for p in (here / "for-sam@mail.org").iterdir() if p.is_file()]
    assert {"report.html", "receipt.json", "rows.csv", "model-card.md"} <= {p.name for p in files}
    for path in files:
        text = path.read_bytes().decode(errors="replace")
        assert not any(word in text for word in ("home-of-otto", "sam@mail.org", str(here), *FORGET)), path.name
    page = (here / "for-sam@mail.org/report.html").read_text()
    assert "spotless audit --model model.py:build --weights weights.safetensors --data data.py:train" in page
    assert "--forget FORGET" in page


@pytest.mark.parametrize("copies", [0, 1, 3])
def test_identical_copies_among_the_kept_are_counted_and_told(here, copies):
    text = (here / "mydata.py").read_text()
    more = f"    x[20:20 + {copies}] = x[1]\n    y[20:20 + {copies}] = 2\n" if copies else ""
    text = text.replace("    return x, y, [f", more + "    return x, y, [f")
    (here / "mydata.py").write_text(text)
    plan = spotless("scrub", *BASE, *QUICK, "--dry-run").out
    ended = spotless("scrub", *BASE, *QUICK, "--audit", "--out", "run")
    receipt = json.loads((here / "run/receipt.json").read_text())["predicate"]
    assert receipt["request"]["copies"] == copies
    assert ("the very inputs of a forgotten row" in plan) == bool(copies)
    assert ("the very inputs of a forgotten row" in ended.err) == bool(copies)
    assert any("the very inputs of a forgotten row" in limit for limit in receipt["limits"]) == bool(copies)
    page = (here / "run/report.html").read_text()
    assert f"<dt>identical copies among the rows kept</dt><dd>{copies}</dd>" in page


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def hole(path: Path) -> None:
    os.truncate(path, 2 << 30)


def half(path: Path) -> None:
    os.truncate(path, 60 << 20)


@pytest.mark.parametrize("spoil", [pipe, hole, half], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("name", "code"), [("request.json", 7), ("destroy-after", 3), ("salt", 3)])
def test_pipes_and_gigabytes_in_the_private_folder_are_refused_at_once(run, monkeypatch, spoil, name, code):
    def bounded(path: Path, *args: Any, **named: Any) -> NoReturn:
        raise AssertionError(f"{path} is read without a limit")

    spoil(run / "private" / name)
    for reader in ("read_bytes", "read_text"):
        monkeypatch.setattr(Path, reader, bounded)
    ended = spotless("verify", "run")
    assert ended.code == (7 if (name, spoil) == ("salt", pipe) else code), ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("name", ["fold-models.safetensors", "statistics.safetensors", "refusal.json"])
def test_a_planted_file_under_a_name_of_this_tool_is_found(run, name):
    for content in (b"x", b"{}"):
        (run / name).write_bytes(content)
        ended = spotless("verify", "run")
        assert ended.code == 7
        assert name in ended.err


def refusal_of(run: Path) -> None:
    """A refusal as a forger writes it, without the salt."""
    receipt = json.loads((run / "receipt.json").read_text())
    receipt["subject"] = []
    receipt["predicate"] |= {"audit": []}
    receipt["predicate"]["about"]["refused"] = "it was not"
    receipt["predicate"]["integrity"] |= seals(receipt, b"a salt of the forger's own, no use")
    (run / "refusal.json").write_text(json.dumps(receipt))


def test_a_refusal_beside_a_receipt_is_named_and_must_bear_its_seal(run):
    refusal_of(run)
    assert "refusal.json" in spotless("verify", "run").err
    assert spotless("verify", "run").code == 7
    shutil.rmtree(run / "private")
    ended = spotless("verify", "run")
    assert ended.code == 0
    assert "files of which the receipt does not speak: refusal.json" in ended.out


def test_who_says_purged_must_have_purged(run, here):
    shutil.copytree(run, here / "kept")
    assert spotless("purge", "run", "--now").code == 0
    assert spotless("verify", "run").code == 0
    honest = (run / "purged.json").read_text()
    told = json.loads(honest)
    lies: list[Any] = [{}, [], {**told, "receipt": "0" * 64}, {**told, "receipt": "none"}, {**told, "purged": "yes"}]
    texts = [*map(json.dumps, lies), honest.replace("{", '{"receipt": "x",', 1), "[" * 100_000, "", "\0"]
    for text in texts:
        (run / "purged.json").write_text(text)
        for command in ("verify", "purge"):
            ended = spotless(command, "run")
            assert ended.code == 7, text[:60]
            assert ended.err.count("\n") == 1
            assert "purged.json" in ended.err
    (run / "purged.json").unlink()
    pipe_at = run / "purged.json"
    os.mkfifo(pipe_at)
    # A pipe tells of no purge, so what a purge destroys is missing; and nobody waits for it to be written to.
    ended = spotless("verify", "run")
    assert ended.code == 7
    assert "report.html, which the receipt speaks of, is not beside it" in ended.err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("{", '{"verdict": "forgotten",', "a name stands twice"),
        ("{", '{"outcome": "forgotten",', "its outcome must be its verdict"),
        ("{", '{"more": NaN,', "NaN is not JSON"),
    ],
)
def test_a_verdict_that_can_be_read_in_two_ways_is_found(run, old, new, says):
    """Bound by its digest as it is, whoever wrote it: the salt is the forger's own."""
    path = run / "verdict.json"
    path.write_text(path.read_text().replace(old, new, 1))
    shutil.rmtree(run / "private")

    def rebind(receipt: dict[str, Any]) -> None:
        for subject in receipt["subject"]:
            subject["digest"]["sha256"] = sha256(run / subject["name"])

    forge(run, rebind, again=True)
    ended = spotless("verify", "run")
    assert ended.code == 7
    assert says in ended.err


def test_a_kept_request_with_a_name_twice_is_found(run):
    path = run / "private/request.json"
    path.write_text(path.read_text().replace("{", '{"fields": {},', 1))
    assert spotless("verify", "run").code == 7


def test_a_name_of_a_file_writes_no_lines(run):
    (run / "x\nverified the list\x1b[2J").write_text("planted")
    told = spotless("verify", "run")
    assert "\nverified the list" not in told.out + told.err
    assert "\x1b" not in told.out + told.err


def test_files_of_figures_have_a_name_that_nobody_can_guess(run, here):
    """Their digests outlast them in the receipt: two audits with the same figures must not share one."""
    assert spotless("scrub", *BASE, *QUICK, "--audit", "--out", "again").code == 1
    for name in ("rows.csv", "rows.jsonl"):
        assert sha256(run / name) != sha256(here / "again" / name)
