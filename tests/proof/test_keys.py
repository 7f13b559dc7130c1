"""Keys: made once, kept from others, never overwritten, and trusted for their span."""

import json
import os
import pickle
import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

pytest.importorskip("cryptography")

from spotlessnet.core.errors import DataError, ResourceError, SettingError
from spotlessnet.proof.keys import PublicKeys, SigningKey


def test_a_key_is_made_at_the_first_start_and_stays(tmp_path):
    path = tmp_path / "key"
    first = SigningKey.at(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.at(path).id == first.id
    with pytest.raises(DataError, match="exists already"):
        SigningKey.new().write(path)
    assert SigningKey.read(path).id == first.id
    assert os.listdir(tmp_path) == ["key"]


def test_processes_that_start_at_once_end_with_one_key(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: SigningKey.at(tmp_path / "key").id, range(16)))
    assert len(set(found)) == 1


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660])
def test_a_key_that_others_may_read_or_write_is_refused(tmp_path, mode):
    SigningKey.at(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(ResourceError, match=f"its mode is {mode:o}. Run `chmod 600"):
        SigningKey.at(tmp_path / "key")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="asks openssl")
def test_the_id_is_what_openssl_gives(tmp_path):
    key = SigningKey.at(tmp_path / "key")
    (tmp_path / "key.pub").write_text(key.public.pem)
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", tmp_path / "key.pub", "-outform", "DER"], capture_output=True, check=True
    )
    digest = subprocess.run(["openssl", "dgst", "-sha256"], input=der.stdout, capture_output=True, check=True)
    assert digest.stdout.decode().split()[-1] == key.id
    made = subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519"], capture_output=True, check=True)
    (tmp_path / "made").write_bytes(made.stdout)
    (tmp_path / "made").chmod(0o600)
    assert SigningKey.read(tmp_path / "made").id != key.id


def test_a_key_shows_itself_nowhere(tmp_path):
    key = SigningKey.at(tmp_path / "key")
    assert repr(key) == f"SigningKey({key.id[:16]})"
    with pytest.raises(SettingError, match="cannot be copied or stored"):
        pickle.dumps(key)


def test_public_keys_come_from_pem_or_with_spans_from_json(tmp_path):
    old, new = SigningKey.new(), SigningKey.new()
    (tmp_path / "both.pub").write_text(old.public.pem + "a comment\n" + new.public.pem)
    assert set(PublicKeys.read(tmp_path / "both.pub")) == {old.id, new.id}
    listed = [
        {"public_key": old.public.pem, "until": "2026-01-31T12:00Z"},
        {"public_key": new.public.pem, "from": "2026-01-31T13:00+01:00", "until": None},
    ]
    (tmp_path / "spans.json").write_text(json.dumps({"keys": listed}))
    keys = PublicKeys.read(tmp_path / "spans.json")
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert (keys[old.id].begins, keys[old.id].ends) == (None, noon)
    assert (keys[new.id].begins, keys[new.id].ends) == (noon, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "is needed, but"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "cannot be read"),
        ('{"keys": 5}', 'must hold {"keys"'),
        ('{"keys": [{}]}', "must have a `public_key`"),
        ("{", "must be a JSON object"),
    ],
)
def test_what_is_no_public_key_is_refused(tmp_path, text, said):
    (tmp_path / "key.pub").write_text(text)
    with pytest.raises(DataError, match=said):
        PublicKeys.read(tmp_path / "key.pub")


def test_a_time_without_its_zone_and_a_key_of_another_kind_are_refused(tmp_path):
    listed = [{"public_key": SigningKey.new().public.pem, "until": "2026-01-31T12:00"}]
    (tmp_path / "spans.json").write_text(json.dumps({"keys": listed}))
    with pytest.raises(DataError, match="a time with its zone"):
        PublicKeys.read(tmp_path / "spans.json")
    (tmp_path / "key").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(DataError, match="must be a private key in PEM"):
        SigningKey.read(tmp_path / "key")
