"""Fold models come back from a file as they were, with what was not measured left out."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.precomputed.fold_model_files import read_fold_models, write_fold_models
from spotlessnet.precomputed.fold_models import FoldModels

KEYS = RowKeys.of(Data.of((torch.arange(5.0).unsqueeze(1), torch.zeros(5))))
WEIGHTS, PART = torch.randn(4, 7), torch.tensor([[0, 1, 0, 1, 0], [2, 2, 3, 3, 2]])


@pytest.mark.parametrize(
    "fold_models",
    [
        FoldModels(WEIGHTS, KEYS, PART, origin=WEIGHTS[0].clone()),
        FoldModels(WEIGHTS.double(), KEYS, PART, scale=1.3, origin=torch.ones(7), lack=0.0123),
        FoldModels(WEIGHTS, KEYS, PART, origin=torch.ones(7), scales=1 + torch.rand(len(WEIGHTS)), gap_ratio=0.7),
    ],
)
def test_round_trip(fold_models: FoldModels, tmp_path: Path) -> None:
    write_fold_models(tmp_path / "fold-models.safetensors", fold_models)
    found = read_fold_models(tmp_path / "fold-models.safetensors")
    for field in fields(FoldModels):
        was, now = getattr(fold_models, field.name), getattr(found, field.name)
        if isinstance(was, torch.Tensor):
            torch.testing.assert_close(now, was, rtol=0, atol=0)
        elif isinstance(was, RowKeys):
            assert (now.salt, now.listed) == (was.salt, was.listed)
        else:
            assert now == was, field.name


def test_a_lack_that_cannot_be_is_refused(tmp_path: Path) -> None:
    write_fold_models(
        tmp_path / "fold-models.safetensors", FoldModels(WEIGHTS, KEYS, PART, origin=WEIGHTS[0].clone(), lack=-0.5)
    )
    with pytest.raises(DataError, match=r"fold-models\.safetensors are damaged: rows and parts do not belong together"):
        read_fold_models(tmp_path / "fold-models.safetensors")


@pytest.mark.parametrize("told", [{"scales": -torch.ones(len(WEIGHTS))}, {"gap_ratio": -0.1}])
def test_scales_that_cannot_be_are_refused(tmp_path: Path, told: dict[str, Any]) -> None:
    path = tmp_path / "fold-models.safetensors"
    write_fold_models(path, FoldModels(WEIGHTS, KEYS, PART, origin=WEIGHTS[0].clone(), **told))
    with pytest.raises(DataError, match="rows and parts do not belong together"):
        read_fold_models(path)


def test_keys_that_do_not_belong_to_the_parts_are_refused(tmp_path: Path) -> None:
    fewer = RowKeys(KEYS.salt, KEYS.digests[:4])
    write_fold_models(
        tmp_path / "fold-models.safetensors",
        replace(FoldModels(WEIGHTS, KEYS, PART, origin=WEIGHTS[0].clone()), keys=fewer),
    )
    with pytest.raises(DataError, match="rows and parts do not belong together"):
        read_fold_models(tmp_path / "fold-models.safetensors")


@pytest.mark.parametrize("name", ["weights", "origin", "scale", "lack"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, name: str, value: float) -> None:
    """A network has no distance from a NaN origin, so it passed for the network that they were trained beside."""
    path = tmp_path / "fold-models.safetensors"
    write_fold_models(path, FoldModels(WEIGHTS, KEYS, PART, origin=WEIGHTS[0].clone(), lack=0.1))
    tensors = load_file(path)
    tensors[name] = tensors[name].clone().fill_(value)
    with safe_open(path, "pt") as opened:
        header = opened.metadata()
    save_file(tensors, path, header)
    with pytest.raises(DataError, match=r"are damaged: not all of their numbers are finite\. Train them anew"):
        read_fold_models(path)


def test_tutors_that_knew_rows_by_their_number_are_refused(tmp_path: Path) -> None:
    old = {"weights": WEIGHTS, "rows": torch.arange(5), "part": PART, "scale": torch.ones(1)}
    save_file(old, tmp_path / "old.safetensors", {"format": "spotlessnet fold models 2"})
    with pytest.raises(
        DataError, match=r"of an earlier format .* which may have served requests .* Destroy it, and train them anew"
    ):
        read_fold_models(tmp_path / "old.safetensors")
