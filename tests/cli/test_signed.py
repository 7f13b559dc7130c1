"""`spotless sign`, `spotless keys` and `spotless verify` of bundles and ledgers."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("sqlalchemy")

from sqlalchemy import text

from spotlessnet.cli import proving
from spotlessnet.cli.entry import WORDS
from spotlessnet.proof.connecting import engine_of, writing
from spotlessnet.proof.keys import SigningKey
from tests.cli.workshop import BASE, QUICK, furnish, spotless
from tests.docs.blocks import ROOT, blocks
from tests.proof.ledgers import filled, opened

LEDGER = ("--ledger", "sqlite:///ledger.db")
TRUST = ("--public-key", "ledger.pub")


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    """A request whose receipt was signed, between other entries of its ledger."""
    folder = furnish(tmp_path_factory.mktemp("signed") / "work")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert spotless("scrub", *BASE, *QUICK, "--out", "run").code == 0
        key = SigningKey.at(folder / "ledger.key")
        filled(opened(folder / "ledger.db"), key, 3)
        ended = spotless("sign", "run", *LEDGER, "--key", "ledger.key")
        assert ended.code == 0, ended.err
        assert ended.out == f"signed receipt.json by key {key.id[:16]}: entry 3, see receipt.bundle.json\n"
        (folder / "ledger.pub").write_text(spotless("keys", "public", "--key", "ledger.key").out)
    return folder


@pytest.fixture
def here(signed, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(signed, tmp_path / "work"))
    return tmp_path / "work"


def test_a_bundle_and_the_public_key_are_enough(here, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    for name in ("run/receipt.bundle.json", "ledger.pub"):
        shutil.copy(here / name, tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    ended = spotless("verify", "receipt.bundle.json", *TRUST)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0] == "verified receipt.bundle.json: a receipt of 'fisher', complete, and as it was signed"
    assert lines[1].startswith("verified signature: by key ")
    assert lines[2].startswith("verified ledger: entry 3 of 4 of log ")
    assert "not checked: scrubbed.safetensors: it does not lie beside the bundle" in lines
    told = json.loads(spotless("verify", "receipt.bundle.json", *TRUST, "--json").out)
    assert (told["status"], told["index"], told["size"]) == ("verified", 3, 4)
    assert spotless("verify", "receipt.bundle.json").code == 2
    (tmp_path / "elsewhere/scrubbed.safetensors").write_bytes(b"other")
    assert spotless("verify", "receipt.bundle.json", *TRUST).code == 7


def test_a_changed_bundle_ends_with_7_and_what_is_none_with_3(here):
    path = here / "run/receipt.bundle.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, "index": 2}))
    ended = spotless("verify", path, *TRUST)
    assert (ended.code, ended.out) == (7, "")
    assert "this entry is not in the log" in ended.err
    path.write_text("{}")
    assert spotless("verify", path, *TRUST).code == 3
    path.write_text("no JSON")
    assert spotless("verify", path, *TRUST).code == 3
    SigningKey.at(here / "other.key")
    (here / "other.pub").write_text(spotless("keys", "public", "--key", "other.key").out)
    path.write_text(json.dumps(held))
    ended = spotless("verify", path, "--public-key", "other.pub")
    assert ended.code == 7
    assert "no key that is trusted here" in ended.err
    assert spotless("verify", path, "--public-key", "absent.pub").code == 3


def test_a_folder_with_a_bundle_is_verified_with_its_signature(here):
    ended = spotless("verify", "run", "--forget", "forget.csv", *TRUST)
    assert ended.code == 0
    assert "not signed" not in ended.out
    assert "verified receipt.json: complete, and as it was written" in ended.out
    assert "verified ledger: entry 3 of 4" in ended.out
    assert "not checked: that whoever signed it told the truth" in ended.out
    without = spotless("verify", "run").out
    assert "receipt.bundle.json beside it is signed, which needs --public-key" in without
    shutil.rmtree(here / "run/private")
    assert "not checked: the list: that needs the folder `private`" in spotless("verify", "run", *TRUST).out
    receipt = here / "run/receipt.json"
    receipt.write_text(json.dumps(json.loads(receipt.read_text())))
    assert spotless("verify", "run").code == 0  # the same receipt, spelled otherwise
    ended = spotless("verify", "run", *TRUST)
    assert ended.code == 7
    assert "is not the receipt that was signed" in ended.err


def test_signing_again_changes_nothing_but_brings_the_bundle_up_to_date(here):
    with writing("ledger.db") as connection:
        count = "SELECT count(*) FROM ledger_entries"
        assert connection.execute(text(count)).scalar() == 4
    assert "entry 3" in spotless("sign", "run", *LEDGER, "--key", "ledger.key").out
    with engine_of("ledger.db").connect() as connection:
        assert connection.execute(text(count)).scalar() == 4


def test_what_does_not_verify_is_not_signed(here):
    (here / "run/scrubbed.safetensors").write_bytes(b"other")
    assert spotless("sign", "run", *LEDGER, "--key", "ledger.key").code == 7


def test_a_ledger_is_walked_through_and_its_head_kept(here):
    ended = spotless("verify", *LEDGER, *TRUST, "--keep-head", "head.json")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("verified ledger: 4 entries of log ")
    assert "not checked: that nothing is missing at the end: that needs --since" in ended.out
    shutil.copy(here / "ledger.db", here / "backup.db")
    filled_on(here)
    for since in ("head.json", "run/receipt.bundle.json"):
        ended = spotless("verify", *LEDGER, *TRUST, "--since", since)
        assert ended.code == 0, ended.err
        assert "the ledger begins with the log that it is of" in ended.out
    assert spotless("verify", *LEDGER, *TRUST, "--keep-head", "head.json").code == 0
    # Yesterday's backup is put back.
    ended = spotless("verify", "--ledger", "backup.db", *TRUST, "--since", "head.json")
    assert ended.code == 7
    # The keys that took over since then are gone from it too, and with them all trust in the head.
    unknown, gone = ended.out.splitlines()
    assert "no key that is trusted here" in unknown
    assert "the earlier tree head has 6 entries, the ledger 4: it was restored from an older copy" in gone
    third = ("--public-key", "third.pub")
    (here / "third.pub").write_text(spotless("keys", "public", "--key", "third.key").out)
    ended = spotless("verify", "--ledger", "backup.db", *TRUST, *third, "--since", "head.json")
    assert "the earlier tree head has 6 entries, the ledger 4: it was restored from an older copy" in ended.err
    assert json.loads(spotless("verify", "--ledger", "backup.db", *TRUST, "--json").out)["size"] == 4


def filled_on(here):
    for name in ("next.key", "third.key"):
        now = "ledger.key" if name == "next.key" else "next.key"
        ended = spotless("keys", "rotate", "--key", now, "--new", name, *LEDGER)
        assert ended.code == 0, ended.err
        assert " handed over to " in ended.out


def test_a_changed_ledger_ends_with_7_and_says_where(here):
    with engine_of("ledger.db").begin() as connection:
        connection.execute(text("UPDATE ledger_nodes SET hash = x'00' WHERE level = 1 AND place = 0"))
    ended = spotless("verify", *LEDGER, *TRUST)
    assert ended.code == 7
    assert ended.out == "changed: the stored hash of the entries 0 to 1 is wrong\n"
    assert ended.err.count("\n") == 1
    assert spotless("sign", "run", *LEDGER, "--key", "ledger.key").code == 0  # it is there already


def test_keys_are_made_once_and_shown(here):
    assert spotless("keys", "new", "--key", "own.key").code == 0
    assert spotless("keys", "new", "--key", "own.key").code == 3
    ended = spotless("keys", "public", "--key", "own.key", "--json")
    assert json.loads(ended.out)["key"] == SigningKey.read(here / "own.key").id
    assert spotless("keys", "public", "--key", "absent.key").code == 3
    assert spotless("keys", "melt", "--key", "own.key").code == 2
    assert spotless("keys", "rotate", "--key", "own.key").code == 2
    ended = spotless("keys", "rotate", "--key", "own.key", "--new", "next.key", *LEDGER)
    assert ended.code == 7
    assert "The ledger's key is " in ended.err


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ((), 2, "Give a receipt, its folder or a bundle"),
        (("run", "--since", "head.json"), 2, "or --ledger, which --since"),
        (("run", *LEDGER), 2, "give either, not both"),
        (LEDGER, 2, "needs --public-key"),
        (("run/receipt.bundle.json", "--forget", "forget.csv", *TRUST), 2, "give the folder"),
        (("--ledger", "absent.db", *TRUST), 3, "the file is not there"),
        (("--ledger", "forget.csv", *TRUST), 3, "is no ledger"),
        (("--ledger", "mysql://user:secret@host/x", *TRUST), 2, "SQLite or PostgreSQL"),
        (("--ledger", "://", *TRUST), 2, "must be such as sqlite:///ledger.db"),
        ((*LEDGER, *TRUST, "--since", "forget.csv"), 3, "must be a JSON object"),
    ],
)
def test_what_cannot_be_checked_is_refused(here, given, code, said):
    ended = spotless("verify", *given)
    assert ended.code == code, ended.err
    assert said in ended.err
    assert "secret" not in ended.err
    assert not (here / "absent.db").exists()


def test_without_the_extra_that_is_said(here, monkeypatch):
    monkeypatch.setattr(proving, "find_spec", lambda name: None)
    for command in (("verify", "run/receipt.bundle.json"), ("verify", *LEDGER), ("keys", "new", "--key", "x")):
        ended = spotless(*command)
        assert ended.code == 2
        assert "pip install 'spotlessnet[serve]'" in ended.err


def test_the_page_is_right(here, monkeypatch):
    """Its commands, in its order, and its program, in the folder of a request."""
    page = ROOT / "docs" / "signed_receipts.md"
    (here / "ledger.db").unlink()
    (here / "ledger.key").unlink()
    (here / "ledger.pub").unlink()
    for block in blocks(page):
        for line in block.text.splitlines() if block.is_command else ():
            words, _, into = line.partition(" > ")
            program, *given = shlex.split(words)
            if program == "python":
                shutil.copy(ROOT / "docs" / given[0], here)
                subprocess.run([sys.executable, *given], check=True, capture_output=True)
                continue
            ended = spotless(*given)
            assert ended.code == 0, f"{line}: {ended.err}"
            if into:
                (here / into).write_text(ended.out)
            if given[0] == "sign":
                shutil.copy("run/receipt.bundle.json", here)
        if block.language == "python":
            # After the rotation, as somebody would who goes on with the next key.
            exec(block.text.replace('"ledger.key"', '"next.key"'), {})
    listed = {int(code) for code in re.findall(r"^\| (\d) \|", page.read_text(encoding="utf-8"), re.M)}
    assert listed <= {0, 6, *WORDS}
