"""Receipts name no person, verify what lies beside them, and never publish the protecting seed."""

import json

import pytest
import torch

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.store.receipts import NoiseSeed, commit_to, plain, read_receipt, statement, verify, write_receipt


def receipt(tmp_path, noise: NoiseSeed):
    output, before = tmp_path / "scrubbed.safetensors", tmp_path / "model.safetensors"
    output.write_bytes(b"after")
    before.write_bytes(b"before")
    return statement(
        subjects=[output],
        inputs={"weights": before},
        request={"count": 2, "commitment": commit_to(["alice", "bob"], b"salt")},
        method="NTK",
        settings={"damping": 0.1},
        noise=noise.record(),
        about={"scale": float("inf")},
    )


def test_a_receipt_comes_back_and_verifies(tmp_path):
    written = receipt(tmp_path, NoiseSeed.secret())
    write_receipt(tmp_path / "receipt.json", written)
    assert read_receipt(tmp_path / "receipt.json") == json.loads(json.dumps(written))
    assert verify(tmp_path / "receipt.json") == ["scrubbed.safetensors"]


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


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"predicateType": "other"}', "[" * 5000])
def test_what_is_not_a_receipt_is_refused(tmp_path, content):
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(DataError, match="is not a receipt"):
        read_receipt(tmp_path / "r.json")


def test_plain_values_are_valid_json():
    value = {"a": torch.ones(2), "b": float("nan"), "c": (1, None), "d": torch.zeros(100)}
    assert json.loads(json.dumps(plain(value), allow_nan=False))["d"] == "tensor of shape (100,)"
