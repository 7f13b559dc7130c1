"""Files of a recorded training: read back as written, and refused whatever strangers make of them."""

import json
import random
from pathlib import Path

import pytest
import torch

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, SpotlessError
from spotlessnet.core.recorded_rows import RecordedRows
from spotlessnet.store.checkpoints import to_bytes
from spotlessnet.store.training_record import (
    INIT,
    RECORD,
    ROWS,
    WEIGHTS,
    Source,
    TrainingRecord,
    read_record,
    read_rows,
    rows_as_bytes,
)
from tests.hostile.meanings import retensored
from tests.hostile.mutations import Mutation, damaged, reheaded, revalued

DIGESTS = dict.fromkeys((INIT, WEIGHTS, ROWS), "ab" * 32)
WHOLE = TrainingRecord(
    model=Source("../nets.py:build", "0" * 64),
    data=Source("digits"),
    trainer=None,
    augment=Source("../nets.py:flip", "1" * 64),
    loss=Source("cross-entropy"),
    recipe={"epochs": 3, "lr": 0.1, "betas": [0.9, 0.99], "patience": None, "bf16": False, "schedule": "cosine"},
    seed=7,
    id_column="id",
    digests=DIGESTS,
    packages={"torch": "2.10.0+cpu"},
)


def some_rows() -> Data:
    return Data.of((torch.randn(9, 3), torch.arange(9) % 2), columns={"id": [f"p{i}" for i in range(9)]})


def test_a_record_is_read_as_it_was_written(tmp_path):
    (tmp_path / RECORD).write_bytes(WHOLE.as_json())
    assert read_record(tmp_path) == WHOLE


@pytest.mark.parametrize("column", [None, "id"])
def test_digests_of_rows_are_read_as_they_were_written(tmp_path, column):
    data = some_rows()
    (tmp_path / ROWS).write_bytes(rows_as_bytes(RecordedRows.of(data, column)))
    found = read_rows(tmp_path)
    found.check(data, column, "--data")
    assert (found.ids is None) == (column is None)


def test_two_records_of_the_same_rows_have_nothing_in_common():
    data = some_rows()
    one, other = (RecordedRows.of(data, "id") for _ in range(2))
    assert not set(one.keys.listed) & set(other.keys.listed)
    assert one.order != other.order
    assert one.ids is not None
    assert other.ids is not None
    assert not set(one.ids.listed) & set(other.ids.listed)


def test_copies_count():
    data = Data.of((torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)))
    kept = RecordedRows.of(data, None)
    kept.check(data, None, "`data`")
    with pytest.raises(DataError, match="1 of 4 rows of the recorded training are not among those of `data`"):
        kept.check(data.select([0, 1, 2]), None, "`data`")


def attacked(path: Path, content: bytes, mutations: tuple[Mutation, ...], read, count: int) -> list[str]:
    """Damage a file many times; whatever is raised must be one line of ours."""
    draw = random.Random(0)
    said = []
    for _ in range(count):
        path.write_bytes(draw.choice(mutations)(content, draw))
        try:
            read(path.parent)
        except SpotlessError as e:
            said.append(str(e))

    assert not any("\n" in line for line in said)
    return said


def test_damaged_records_are_refused(tmp_path):
    said = attacked(tmp_path / RECORD, WHOLE.as_json(), (damaged, revalued, revalued), read_record, 600)
    assert len(said) > 300


def test_damaged_digests_are_refused(tmp_path):
    content = rows_as_bytes(RecordedRows.of(some_rows(), "id"))
    said = attacked(tmp_path / ROWS, content, (damaged, reheaded, retensored), read_rows, 600)
    assert len(said) > 100


@pytest.mark.parametrize(
    ("tensors", "text", "message"),
    [
        ({}, {}, "salt, order or keys are missing"),
        ({"keys": torch.zeros(2, 15, dtype=torch.uint8)}, {}, "its parts are not those of row digests"),
        ({"keys": torch.zeros(2, 16)}, {}, "its parts are not those of row digests"),
        ({"keys": torch.zeros(2, 16, dtype=torch.uint8), "x": torch.zeros(1, 16, dtype=torch.uint8)}, {}, "its parts"),
        (
            {"keys": torch.zeros(2, 16, dtype=torch.uint8), "ids": torch.zeros(1, 16, dtype=torch.uint8)},
            {},
            "there is not one id for each row",
        ),
        ({"keys": torch.zeros(2, 16, dtype=torch.uint8)}, {"salt": "zz"}, "salt, order or keys are missing"),
        ({"keys": torch.zeros(2, 16, dtype=torch.uint8)}, {"order": "00"}, "its parts are not those of row digests"),
        ({"keys": torch.zeros(2, 16, dtype=torch.uint8)}, {"salt": ""}, "The salt of keys must have 1 to 64 bytes"),
    ],
)
def test_digests_of_rows_must_fit_each_other(tmp_path, tensors, text, message):
    sound = {"format": "spotlessnet rows 1", "salt": "00" * 16, "order": "00" * 16}
    (tmp_path / ROWS).write_bytes(to_bytes(tensors, {**sound, **text}))
    with pytest.raises(DataError, match=message):
        read_rows(tmp_path)


def test_the_record_is_plain_text():
    told = json.loads(WHOLE.as_json())
    assert told["format"] == "spotlessnet training 1"
    assert told["model"] == {"spec": "../nets.py:build", "sha256": "0" * 64}
