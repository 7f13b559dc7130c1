"""Pre-trained weights: what is loaded, what is left alone, and what is refused; real weights where they are at hand."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError
from spotlessnet.core.trained import Trained
from spotlessnet.models import MLP, AllCNN, ResNet, load_pretrained, replace_head
from spotlessnet.models.pretrained import RESNET_NAMES

SHARED = Path(os.environ.get("SPOTLESS_SHARED", Path(__file__).resolve().parents[3] / "shared"))


def test_all_but_the_head_is_loaded_and_the_model_stays(tmp_path: Path):
    old, new = MLP(4, 100, hidden=(3,), seed=1), MLP(4, 5, hidden=(3,), seed=2)
    before = {name: value.clone() for name, value in new.state_dict().items()}
    save_file(old.state_dict(), tmp_path / "old.safetensors")
    made = load_pretrained(new, tmp_path / "old.safetensors")
    assert isinstance(made, MLP)
    assert torch.equal(made.features[0].weight, old.features[0].weight)  # type: ignore[arg-type]  # a Linear
    assert torch.equal(made.head.weight, new.head.weight)
    assert all(torch.equal(value, before[name]) for name, value in new.state_dict().items())


def test_keeping_the_head_gives_the_same_network():
    old = MLP(4, 5, hidden=(3,), seed=1)
    made = load_pretrained(MLP(4, 5, hidden=(3,), seed=2), old.state_dict(), keep_head=True)
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(made(x), old(x))


def test_names_are_mapped():
    old = ResNet(7, width=0.05, seed=1)
    short = {new: old_name for old_name, new in RESNET_NAMES.items()}
    saved = {}
    for name, value in old.state_dict().items():
        for long, brief in short.items():
            name = name.replace(long, brief)
        saved[name] = value
    assert "layers.2.sc.0.weight" in saved
    made = load_pretrained(ResNet(7, width=0.05, seed=2), saved, keep_head=True, rename=RESNET_NAMES)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(made.eval()(x), old.eval()(x))


def test_other_shapes_are_refused_by_name():
    with pytest.raises(MismatchError, match=r"'features.0.weight' must have shape \(3, 4\).* hold \(8, 4\)"):
        load_pretrained(MLP(4, 5, hidden=(3,)), MLP(4, 5, hidden=(8,)).state_dict())


def test_another_head_is_refused_when_it_must_be_kept():
    with pytest.raises(MismatchError, match=r"'head.weight' must have shape \(5, 3\).*Build the network"):
        load_pretrained(MLP(4, 5, hidden=(3,)), MLP(4, 6, hidden=(3,)).state_dict(), keep_head=True)


def test_other_names_are_refused():
    with pytest.raises(MismatchError, match=r"lack 'features.0.weight' \(2 names\) and hold '0.weight' \(2 names\)"):
        load_pretrained(MLP(4, 5, hidden=(3,)), nn.Sequential(nn.Linear(4, 3)).state_dict())
    with pytest.raises(MismatchError, match=r"lack nothing and hold 'extra'"):
        load_pretrained(MLP(4, 5), {**MLP(4, 5).state_dict(), "extra": torch.zeros(1)})


def test_a_head_that_is_not_there_is_refused():
    with pytest.raises(MismatchError, match=r"no layer 'classifier' to leave out"):
        load_pretrained(MLP(4, 5), {}, head="classifier")


def test_missing_and_broken_files_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="there is none at"):
        load_pretrained(MLP(4, 5), tmp_path / "no.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(DataError, match=r"must be a safetensors file.*Fetch it again"):
        load_pretrained(MLP(4, 5), tmp_path / "broken.safetensors")


def test_replacing_the_head_keeps_the_rest():
    old = MLP(4, 100, hidden=(3,)).double()
    new = replace_head(old, 5, seed=3)
    assert isinstance(new, MLP)
    assert new.head.weight.shape == (5, 3)
    assert new.head.weight.dtype == torch.float64
    assert old.head.weight.shape == (100, 3)
    again = replace_head(old, 5, seed=3)
    assert isinstance(again, MLP)
    assert torch.equal(new.head.weight, again.head.weight)
    with pytest.raises(MismatchError, match=r"'features' is Sequential. Linear layers here: features.0, head"):
        replace_head(old, 5, head="features")


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "weights").is_dir(), reason="real weights are not at hand")
@pytest.mark.parametrize(
    ("model", "file", "rename", "accuracy"),
    [
        (AllCNN(100), "allcnn-cifar100.safetensors", {}, 0.92),
        (ResNet(100, width=0.4), "resnet18w04-cifar100.safetensors", RESNET_NAMES, 0.91),
    ],
    ids=["All-CNN", "ResNet-18"],
)
def test_real_weights_answer_as_they_did_when_they_were_saved(model, file, rename, accuracy):
    spec = importlib.util.spec_from_file_location("packed", SHARED / "tools" / "data.py")
    assert spec is not None
    assert spec.loader is not None
    packed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(packed)
    found = packed.load("cifar100")
    x = torch.tensor(found["x_train"]).permute(0, 3, 1, 2).float() / 255
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.247, 0.243, 0.261])
    x = (x - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1000]
    trained = Trained.of(load_pretrained(model, SHARED / "weights" / file, keep_head=True, rename=rename))
    data = Data.of((x[rows], torch.tensor(found["y_train"])[rows].long()))
    right = (trained.predict(data).argmax(1) == data.labels()).float().mean().item()
    # Somewhat above two standard errors of a share of 1000 rows.
    assert right == pytest.approx(accuracy, abs=0.02)
