"""Tutors come back from a file as they were, with what was not measured left out."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.store.tutors import read_tutors, write_tutors
from spotlessnet.training.tutors import Tutors

KEYS = RowKeys.of(Data.of((torch.arange(5.0).unsqueeze(1), torch.zeros(5))))
WEIGHTS, PART = torch.randn(4, 7), torch.tensor([[0, 1, 0, 1, 0], [2, 2, 3, 3, 2]])


@pytest.mark.parametrize(
    "tutors",
    [Tutors(WEIGHTS, KEYS, PART), Tutors(WEIGHTS.double(), KEYS, PART, scale=1.3, origin=torch.ones(7), lack=0.0123)],
)
def test_round_trip(tutors: Tutors, tmp_path: Path) -> None:
    write_tutors(tmp_path / "tutors.safetensors", tutors)
    found = read_tutors(tmp_path / "tutors.safetensors")
    for field in fields(Tutors):
        was, now = getattr(tutors, field.name), getattr(found, field.name)
        if isinstance(was, torch.Tensor):
            torch.testing.assert_close(now, was, rtol=0, atol=0)
        elif isinstance(was, RowKeys):
            assert (now.salt, now.listed) == (was.salt, was.listed)
        else:
            assert now == was, field.name


def test_a_lack_that_cannot_be_is_refused(tmp_path: Path) -> None:
    write_tutors(tmp_path / "tutors.safetensors", Tutors(WEIGHTS, KEYS, PART, lack=-0.5))
    with pytest.raises(DataError, match=r"tutors\.safetensors are damaged: rows and parts do not belong together"):
        read_tutors(tmp_path / "tutors.safetensors")


def test_keys_that_do_not_belong_to_the_parts_are_refused(tmp_path: Path) -> None:
    fewer = RowKeys(KEYS.salt, KEYS.digests[:4])
    write_tutors(tmp_path / "tutors.safetensors", replace(Tutors(WEIGHTS, KEYS, PART), keys=fewer))
    with pytest.raises(DataError, match="rows and parts do not belong together"):
        read_tutors(tmp_path / "tutors.safetensors")


def test_tutors_that_knew_rows_by_their_number_are_refused(tmp_path: Path) -> None:
    old = {"weights": WEIGHTS, "rows": torch.arange(5), "part": PART, "scale": torch.ones(1)}
    save_file(old, tmp_path / "old.safetensors", {"format": "spotlessnet tutors 2"})
    with pytest.raises(
        DataError, match=r"of an earlier format .* which knew rows by where they stand. Train them anew"
    ):
        read_tutors(tmp_path / "old.safetensors")
