"""Checkpoints of Lightning: weights are read, whatever lies beside them is not run, and what to do is said."""

from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import DataError
from tests.cli.workshop import BASE, QUICK, spotless

OTHERS = tuple("lit.ckpt" if word == "model.safetensors" else word for word in BASE)


def as_lightning_writes(state: dict[str, torch.Tensor], prefix: str = "", **parameters: Any) -> dict[str, Any]:
    """The parts that `Trainer.save_checkpoint` writes, by hand."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "global_step": 12,
        "pytorch-lightning_version": "2.6.1",
        "state_dict": OrderedDict((prefix + name, value) for name, value in state.items()),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 4}, "current": {"ready": 4}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5), "dirpath": "x"}},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [{"last_epoch": 3, "_last_lr": [0.1]}],
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1, "sizes": [4, 6, 3], "name": "digits", **parameters},
    }


@pytest.mark.parametrize("prefix", ["", "model.", "network.", "net."])
def test_the_command_takes_its_weights(here, prefix):
    """Also where the `LightningModule` holds the network under a name of its own."""
    state = sn.read_weights(here / "model.safetensors")
    torch.save(as_lightning_writes(state, prefix), here / "lit.ckpt")
    torch.load(here / "lit.ckpt", weights_only=True)  # torch itself finds nothing but plain values in it
    found = sn.read_weights(here / "lit.ckpt")
    assert {name.removeprefix(prefix) for name in found} == set(state)
    ended = spotless("scrub", *OTHERS, *QUICK, "--seed", "1", "--out", "run")
    plain = spotless("scrub", *BASE, *QUICK, "--seed", "1", "--out", "plain")
    assert (ended.code, plain.code) == (0, 0), ended.err
    one, other = (sn.read_weights(here / name / "scrubbed.safetensors") for name in ("run", "plain"))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_settings_that_are_objects_are_refused_with_what_to_do(here):
    state = sn.read_weights(here / "model.safetensors")
    for odd in (Namespace(lr=0.1), Path("data"), nn.ReLU()):
        torch.save(as_lightning_writes(state, config=odd), here / "lit.ckpt")
        with pytest.raises(
            DataError, match=r"holds more than plain tensors.*code in a checkpoint is never run. Convert"
        ):
            sn.read_weights(here / "lit.ckpt")
    ended = spotless("scrub", *OTHERS, *QUICK, "--out", "run")
    assert ended.code == 3
    assert "Convert it: `safetensors.torch.save_file(model.state_dict()" in ended.err


@pytest.mark.filterwarnings("ignore")  # its own use of what is deprecated
def test_one_that_lightning_wrote(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[name-defined, misc]  # imported if it is there
        def __init__(self, width: int = 3, rate: float = 0.1) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.body = nn.Linear(2, width)

        def training_step(self, batch, index):
            return self.body(batch[0]).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    rows: Any = [(torch.randn(2), 0) for _ in range(8)]
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, default_root_dir=tmp_path)
    model = Lit()
    trainer.fit(model, torch.utils.data.DataLoader(rows, 4))
    trainer.save_checkpoint(tmp_path / "lit.ckpt")
    found = sn.read_weights(tmp_path / "lit.ckpt")
    assert all(torch.equal(value, found[name]) for name, value in model.state_dict().items())
