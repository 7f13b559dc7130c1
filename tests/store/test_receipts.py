"""Receipts name no person, verify what lies beside them, and never publish the protecting seed."""

import json
from typing import Any

import pytest
import torch

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.core.files import sha256
from spotlessnet.store.receipts import (
    NoiseSeed,
    commit_to,
    plain,
    read_receipt,
    seals,
    statement,
    verify,
    write_receipt,
)

SALT = bytes(32)
HEX = "0" * 64


def receipt(tmp_path, noise: NoiseSeed):
    (tmp_path / "scrubbed.safetensors").write_bytes(b"after")
    return statement(
        subjects={"scrubbed.safetensors": sha256(tmp_path / "scrubbed.safetensors")},
        inputs={"weights": {"digest": {"sha256": HEX}}, "data": {"rows": {"count": 5, "commitment": HEX}}},
        request={
            "identity": HEX,
            "cohort": {"commitment": commit_to(["alice", "bob"], b"salt")},
            "matched": 2,
            "missing": 0,
            "duplicates": 0,
            "kept": 3,
            "copies": 0,
        },
        method="NTK",
        settings={"damping": 0.1},
        noise=noise.record(),
        diagnostics={"scale": float("inf")},
        private={"destroy_after": "2030-01-01T00:00:00+00:00"},
        salt=SALT,
    )


def resealed(changed: dict[str, Any], salt: bytes) -> dict[str, Any]:
    """What someone with this salt could pass off as a receipt."""
    changed["predicate"]["integrity"] = seals(changed, salt)
    return changed


def test_a_receipt_comes_back_and_verifies(tmp_path):
    written = receipt(tmp_path, NoiseSeed.secret())
    write_receipt(tmp_path / "receipt.json", written)
    assert read_receipt(tmp_path / "receipt.json") == json.loads(json.dumps(written))
    for salt in (None, SALT):
        assert verify(tmp_path / "receipt.json", salt) == ["scrubbed.safetensors"]


def test_a_changed_receipt_is_noticed_and_a_rewritten_one_with_the_salt(tmp_path):
    written = receipt(tmp_path, NoiseSeed.secret())
    written["predicate"]["request"].update(matched=1, kept=4)
    write_receipt(tmp_path / "receipt.json", written)
    with pytest.raises(
        IntegrityError, match=r"receipt.json was changed after it was written: its digest does not match"
    ):
        verify(tmp_path / "receipt.json")
    write_receipt(tmp_path / "receipt.json", resealed(written, b"another salt"), replace=True)
    assert verify(tmp_path / "receipt.json")
    with pytest.raises(IntegrityError, match="its seal, made with the private salt, does not match"):
        verify(tmp_path / "receipt.json", SALT)


def put(receipt: Any, place: str, value: object) -> None:
    *way, last = place.split(".")
    for name in way:
        receipt = receipt[int(name) if name.isdigit() else name]
    receipt[last] = value


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("subject", [], "it speaks of no file"),
        ("subject", "scrubbed", "it speaks of no file"),
        ("subject", [{"name": "../x.safetensors", "digest": {"sha256": HEX}}], "no plain name"),
        ("subject", [{"name": "a", "digest": {"sha256": HEX}}], "it speaks of no network"),
        ("subject.0.digest", {"md5": HEX}, "no SHA-256 of 'scrubbed.safetensors'"),
        ("predicate", [], "it has no content"),
        ("predicate.request", None, "its 'request' must be an object"),
        ("predicate.request.matched", -1, "its count 'matched' must be a whole number"),
        ("predicate.request.kept", 4, "2 rows forgotten and 4 kept are not the 5 it read"),
        ("predicate.request.copies", 4, "more copies were kept than rows"),
        ("predicate.request.identity", "x", "it commits to no request"),
        ("predicate.inputs.weights", {}, "it binds nothing about its input 'weights'"),
        ("predicate.inputs.data", 3, "it binds nothing about its input 'data'"),
        ("predicate.audit", [{"verdict": "splendid"}], "its audit must begin with a verdict"),
        ("predicate.audit", [3], "its audit must begin with a verdict"),
        ("predicate.limits", [3], "its 'limits' must be sentences"),
        ("predicate.method", "", "by which method"),
        ("predicate.integrity", {}, "no digest and seal of its own"),
        ("predicate.began", "2999-01-01T00:00:00+00:00", "did not begin before it ended"),
        ("predicate.ended", "yesterday", "did not begin before it ended"),
        ("predicate.private", {}, "when the private material is to be destroyed"),
    ],
)
def test_a_malformed_receipt_is_refused_in_one_line(tmp_path, place, value, said):
    written = json.loads(json.dumps(receipt(tmp_path, NoiseSeed.secret())))
    put(written, place, value)
    if isinstance(written["predicate"], dict) and place != "predicate.integrity":
        resealed(written, SALT)
    write_receipt(tmp_path / "receipt.json", written)
    with pytest.raises(DataError, match="is not a receipt: .*" + said) as raised:
        verify(tmp_path / "receipt.json", SALT)
    assert "\n" not in str(raised.value)


def test_nothing_stands_beside_the_seal(tmp_path):
    """The fault before: a seal does not cover its own place, and a note there passed."""
    written = json.loads(json.dumps(receipt(tmp_path, NoiseSeed.secret())))
    write_receipt(tmp_path / "receipt.json", written)
    verify(tmp_path / "receipt.json", SALT)
    written["predicate"]["integrity"]["note"] = "vouched for by the authority"
    write_receipt(tmp_path / "receipt.json", written, replace=True)
    with pytest.raises(DataError, match="beside its digest and seal stands what neither covers"):
        verify(tmp_path / "receipt.json", SALT)


def test_a_changed_output_is_noticed(tmp_path):
    write_receipt(tmp_path / "receipt.json", receipt(tmp_path, NoiseSeed.secret()))
    (tmp_path / "scrubbed.safetensors").write_bytes(b"other")
    with pytest.raises(IntegrityError, match="its digest differs"):
        verify(tmp_path / "receipt.json")
    (tmp_path / "scrubbed.safetensors").unlink()
    with pytest.raises(IntegrityError, match="is not beside it"):
        verify(tmp_path / "receipt.json")


def test_no_id_and_no_secret_seed_stand_in_the_receipt(tmp_path):
    noise = NoiseSeed.secret()
    text = json.dumps(receipt(tmp_path, noise))
    assert "alice" not in text
    assert str(noise.value) not in text
    assert "commitment" in text


def test_a_seed_for_experiments_is_labelled_so():
    assert NoiseSeed.for_experiments(7).record() == {"kind": "published, for experiments only", "seed": 7}
    one, two = (NoiseSeed.for_experiments(7).generator() for _ in range(2))
    assert isinstance(one, torch.Generator)
    assert isinstance(two, torch.Generator)
    assert torch.equal(torch.rand(3, generator=one), torch.rand(3, generator=two))


def test_two_secret_seeds_differ():
    assert NoiseSeed.secret().value != NoiseSeed.secret().value


def test_the_commitment_depends_on_the_ids_and_the_salt_alone():
    assert commit_to(["a", "b"], b"s") == commit_to(["b", "a"], b"s")
    assert commit_to(["a", "b"], b"s") != commit_to(["a"], b"s")
    assert commit_to(["a", "b"], b"s") != commit_to(["a", "b"], b"t")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a\nb"], ["a", "b"]),
        (["a,b"], ["a", "b"]),
        (['a", "b'], ["a", "b"]),
        (["a", "b\nc"], ["a\nb", "c"]),
        ([], [""]),
        (["\\n"], ["\n"]),
        (["\ud800"], ["\\ud800"]),
    ],
)
def test_no_two_sets_of_ids_share_a_commitment(one, other):
    assert commit_to(one, b"s") != commit_to(other, b"s")


def test_ids_are_committed_to_as_they_are_compared():
    import numpy as np

    spellings: list[list[object]] = [[1, 2], ["2", "1"], [np.int64(1), torch.tensor(2)], [" 1", "2\t", "2"]]
    assert len({commit_to(names, b"s") for names in spellings}) == 1


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"predicateType": "other"}', "[" * 5000, "NaN", '{"a": 1, "a": 2}']
)
def test_what_is_not_a_receipt_is_refused(tmp_path, content):
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(DataError, match="is not a receipt"):
        read_receipt(tmp_path / "r.json")


def test_plain_values_are_valid_json():
    value = {"a": torch.ones(2), "b": float("nan"), "c": (1, None), "d": torch.zeros(100)}
    assert json.loads(json.dumps(plain(value), allow_nan=False))["d"] == "tensor of shape (100,)"
