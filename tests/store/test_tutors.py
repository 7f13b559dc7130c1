"""Tutors come back from a file as they were, with what was not measured left out."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from spotlessnet.core.errors import DataError
from spotlessnet.store.tutors import read_tutors, write_tutors
from spotlessnet.training.tutors import Tutors

WEIGHTS, ROWS, PART = torch.randn(4, 7), torch.arange(5) * 2, torch.tensor([[0, 1, 0, 1, 0], [2, 2, 3, 3, 2]])


@pytest.mark.parametrize(
    "tutors",
    [Tutors(WEIGHTS, ROWS, PART), Tutors(WEIGHTS.double(), ROWS, PART, scale=1.3, origin=torch.ones(7), lack=0.0123)],
)
def test_round_trip(tutors: Tutors, tmp_path: Path) -> None:
    write_tutors(tmp_path / "tutors.safetensors", tutors)
    found = read_tutors(tmp_path / "tutors.safetensors")
    for field in fields(Tutors):
        was, now = getattr(tutors, field.name), getattr(found, field.name)
        if isinstance(was, torch.Tensor):
            torch.testing.assert_close(now, was, rtol=0, atol=0)
        else:
            assert now == was, field.name


def test_a_lack_that_cannot_be_is_refused(tmp_path: Path) -> None:
    write_tutors(tmp_path / "tutors.safetensors", Tutors(WEIGHTS, ROWS, PART, lack=-0.5))
    with pytest.raises(DataError, match=r"tutors\.safetensors are damaged: rows and parts do not belong together"):
        read_tutors(tmp_path / "tutors.safetensors")
