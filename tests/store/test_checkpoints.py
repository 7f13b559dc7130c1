"""Checkpoints are read without running code, checked before work, and written whole."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from spotlessnet.core.errors import DataError, MismatchError, NumericsError
from spotlessnet.store.checkpoints import load_into, read_metadata, read_weights, write_weights


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def same(a: nn.Module, b: nn.Module) -> bool:
    other = b.state_dict()
    return all(torch.equal(value, other[name]) for name, value in a.state_dict().items())


def test_what_was_written_comes_back(tmp_path):
    write_weights(tmp_path / "m.safetensors", network(), {"made by": "a test"})
    fresh = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert same(load_into(fresh, read_weights(tmp_path / "m.safetensors")), network())
    assert read_metadata(tmp_path / "m.safetensors") == {"made by": "a test"}


@pytest.mark.parametrize("prefix", ["model.", "module.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_of_wrappers_are_taken_off(prefix):
    tensors = {prefix + name: value for name, value in network().state_dict().items()}
    assert same(load_into(network(), tensors), network())


def test_a_prefix_that_the_network_has_is_put_on():
    wrapped = nn.ModuleDict({"model": network()})
    assert same(load_into(wrapped, network().state_dict()), wrapped)


def test_lightning_and_plain_pt_files_are_read(tmp_path):
    state = network().state_dict()
    torch.save(state, tmp_path / "plain.pt")
    torch.save({"epoch": 3, "state_dict": {f"model.{n}": v for n, v in state.items()}}, tmp_path / "lightning.ckpt")
    for name in ("plain.pt", "lightning.ckpt"):
        assert same(load_into(network(), read_weights(tmp_path / name)), network())


def test_shards_with_an_index_are_read(tmp_path):
    state = network().state_dict()
    names = list(state)
    save_file({n: state[n] for n in names[:3]}, tmp_path / "a.safetensors")
    save_file({n: state[n] for n in names[3:]}, tmp_path / "b.safetensors")
    where = {n: "a.safetensors" if n in names[:3] else "b.safetensors" for n in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert same(load_into(network(), read_weights(tmp_path)), network())


def test_an_index_that_points_outside_is_refused(tmp_path):
    index = {"weight_map": {"a": "../../etc/passwd"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="points outside its folder"):
        read_weights(tmp_path)


class Payload:
    def __init__(self, canary: str) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (self.canary, "w"))


def test_a_pickle_with_a_payload_is_refused_and_never_run(tmp_path):
    canary = tmp_path / "canary"
    torch.save({"w": torch.zeros(2), "x": Payload(str(canary))}, tmp_path / "evil.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Payload(str(canary))))
    for name in ("evil.pt", "raw.pt"):
        with pytest.raises(DataError, match="code in a checkpoint is never run"):
            read_weights(tmp_path / name)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"\xff" * 100, "header is longer than the file"),
        (b"\x02\0\0\0\0\0\0\0{}garbage", "not a readable safetensors file"),
        (b"\x08\0\0\0\0\0\0\0notjson!", "not a readable safetensors file"),
    ],
)
def test_damaged_files_give_one_clear_error(tmp_path, content, message):
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_weights(tmp_path / "m.safetensors")
    assert "\n" not in str(caught.value)


def test_names_shapes_kinds_and_finiteness_are_checked_before_any_work():
    state = network().state_dict()
    with pytest.raises(MismatchError, match=r"1 parameters missing \(first '0.bias'\), 1 unknown \(first 'zero'\)"):
        load_into(network(), {("zero" if n == "0.bias" else n): v for n, v in state.items()})
    with pytest.raises(MismatchError, match=r"'0.bias' has shape \(5,\) in the checkpoint and \(4,\)"):
        load_into(network(), {**state, "0.bias": torch.zeros(5)})
    with pytest.raises(MismatchError, match=r"'0.bias' is torch.int64 in the checkpoint"):
        load_into(network(), {**state, "0.bias": torch.zeros(4, dtype=torch.long)})
    with pytest.raises(NumericsError, match=r"'0.bias' of the checkpoint is not finite"):
        load_into(network(), {**state, "0.bias": torch.full((4,), torch.nan)})


def test_a_network_that_is_not_finite_is_never_written(tmp_path):
    broken = network()
    with torch.no_grad():
        broken[0].bias[0] = torch.inf  # type: ignore[index]  # the first layer is a Linear
    with pytest.raises(NumericsError, match="nothing was written"):
        write_weights(tmp_path / "m.safetensors", broken)
    assert not list(tmp_path.iterdir())


def test_tied_weights_are_written_once_each(tmp_path):
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    write_weights(tmp_path / "m.safetensors", tied)
    assert torch.equal(*read_weights(tmp_path / "m.safetensors").values())


def test_an_unknown_ending_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(DataError, match="There is no checkpoint at"):
        read_weights(tmp_path / "none.safetensors")
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(DataError, match=r"must end in .safetensors, .pt, .pth, .bin or .ckpt, but ends in '.onnx'"):
        read_weights(tmp_path / "m.onnx")
