"""Optimiser state and averaged copies in a checkpoint are named, and nothing else is."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from spotlessnet.store.beside_weights import beside_weights, limits_of_file


def checkpoint(**more: object) -> dict[str, object]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {"state_dict": model.state_dict(), "epoch": 3, "optimizer_states": [optimizer.state_dict()], **more}


@pytest.mark.parametrize("old", [False, True])
def test_what_a_training_script_saves_beside_the_weights_is_named(tmp_path: Path, old: bool) -> None:
    ema = {"state_dict_ema": nn.Linear(2, 2).state_dict(), "ema": {}, "schema": {"a": 1}, "optimal": {"x": 1}}
    torch.save(checkpoint(**ema), tmp_path / "last.ckpt", _use_new_zipfile_serialization=not old)
    assert beside_weights(tmp_path / "last.ckpt") == ["optimizer_states", "state_dict_ema"]
    (said,) = limits_of_file(tmp_path / "last.ckpt")
    assert said == (
        "The weights given to this request lie beside 'optimizer_states', 'state_dict_ema': destroy these too."
    )


def test_files_of_a_folder_are_named(tmp_path: Path) -> None:
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "model_ema.safetensors", "config.json"):
        (tmp_path / name).touch()
    assert beside_weights(tmp_path) == ["model_ema.safetensors", "optimizer.pt"]


def test_weights_alone_say_nothing(tmp_path: Path) -> None:
    # The weights of a network may have any name: those are what is changed.
    torch.save({"ema.weight": torch.ones(2)}, tmp_path / "a.pt")
    save_file({"ema.weight": torch.ones(2)}, tmp_path / "a.safetensors")
    (tmp_path / "broken.pt").write_bytes(b"PK\x03\x04 no archive")
    for name in ("a.pt", "a.safetensors", "broken.pt"):
        assert limits_of_file(tmp_path / name) == []
