"""Trainers of other frameworks: a retraining by the adapter is the training that a script would do, to the bit."""

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.core.trainer import Examples, epochs_of
from spotlessnet.methods.fisher import Fisher
from spotlessnet.methods.retrain import Retrain
from spotlessnet.methods.short_retrain import ShortRetrain
from spotlessnet.training import lightning as adapter
from spotlessnet.training.hugging_face import HuggingFaceTrainer
from spotlessnet.training.lightning import LightningTrainer


def split_of(data: Data) -> Split:
    gone = data.select(range(6))
    return Split(forget=gone, kept=data.without(gone))


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for (name, a), (_, b) in zip(one.state_dict().items(), other.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


class Linear(nn.Module):
    """A classifier in the shape of transformers: named inputs, and the loss beside the logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(5, 3)

    def forward(self, values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.drop(values))
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


def _with_trainer():
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    try:
        transformers.Trainer  # noqa: B018  # loaded late, and with it whatever else is installed
    except (ImportError, RuntimeError) as error:  # such as a torchvision built for another torch
        pytest.skip(f"transformers.Trainer cannot be imported: {error}")
    return transformers


def test_hugging_face(tmp_path: Path, capsys):
    transformers = _with_trainer()
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 3
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=10, learning_rate=0.05, per_device_train_batch_size=8, use_cpu=True,
        disable_tqdm=True, report_to=[], logging_strategy="no",
    )  # fmt: skip
    trainer = HuggingFaceTrainer(arguments)
    network = Trained.of(Linear(), init=Linear(), trainer=trainer)
    split = split_of(Data.of(({"values": x}, y)))
    found = Retrain(seed=4)(network, split)
    assert capsys.readouterr().out == ""  # an audit would print dozens of such lines among its results

    arguments.seed, arguments.data_seed, arguments.save_strategy = 4, 4, "no"
    want = Linear().train()
    rows = [{"values": x[i], "labels": y[i]} for i in range(6, 40)]
    torch.manual_seed(4)
    transformers.Trainer(model=want, args=arguments, train_dataset=rows).train()
    assert_same(network.at(found.mean).module(), want)
    assert not torch.equal(found.mean, network.weights)
    assert epochs_of(trainer) == 10
    short = ShortRetrain(error_tolerance=1.0)(network, split)
    assert short.diagnostics["epochs"] == 2  # a fifth
    assert not list(tmp_path.iterdir())  # no checkpoint of any audited network


def test_a_network_that_was_trained_in_mixed_precision_is_trained_again_in_it(tmp_path: Path):
    """What accelerate leaves on a module is taken off; by half, the next training would lack it."""
    transformers = _with_trainer()
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 3
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=3, learning_rate=0.05, bf16=True, use_cpu=True, disable_tqdm=True,
        report_to=[], logging_strategy="no",
    )  # fmt: skip
    trainer = HuggingFaceTrainer(arguments)
    split = split_of(Data.of(({"values": x}, y)))
    done = trainer(Linear().train(), Examples(split.whole), 0)
    means = [Retrain(seed=4)(Trained.of(m, init=Linear(), trainer=trainer), split).mean for m in (done, Linear())]
    assert torch.equal(*means)
    plain = HuggingFaceTrainer(replace(arguments, bf16=False))
    assert not torch.equal(Retrain(seed=4)(Trained.of(Linear(), init=Linear(), trainer=plain), split).mean, means[0])
    assert Fisher()(Trained.of(done), split).mean.isfinite().all()


def test_hugging_face_refuses_what_it_cannot_use():
    with pytest.raises(SettingError, match=r"needs `transformers.TrainingArguments`, but got dict"):
        HuggingFaceTrainer({"epochs": 3})

    with pytest.raises(SettingError, match="must not hold 'optimizers': they move the weights of the one network"):
        HuggingFaceTrainer(SimpleNamespace(num_train_epochs=3, max_steps=-1), {"optimizers": ("sgd", None)})


def test_the_best_of_a_training_is_what_a_script_with_hugging_face_would_end_with(tmp_path: Path):
    transformers = _with_trainer()
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    rows = [{"values": x[i], "labels": torch.tensor(i % 3)} for i in range(40)]
    other = [{**row, "labels": (row["labels"] + 1) % 3} for row in rows]  # on which it soon gets worse

    def arguments() -> Any:
        return transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=20, learning_rate=0.05, per_device_train_batch_size=8, seed=4,
            data_seed=4, use_cpu=True, disable_tqdm=True, report_to=[], logging_strategy="no", eval_strategy="epoch",
            save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="eval_loss",
        )  # fmt: skip

    def options() -> dict[str, Any]:
        return {"eval_dataset": other, "callbacks": [transformers.EarlyStoppingCallback(2)]}

    trainer, want = HuggingFaceTrainer(arguments(), options()), Linear().train()
    torch.manual_seed(4)
    transformers.Trainer(model=want, args=arguments(), train_dataset=rows, **options()).train()
    wrote = sorted(tmp_path.rglob("*"))
    for _ in range(2):
        torch.manual_seed(4)
        found = trainer(Linear().train(), Examples(Data.of(({"values": x}, torch.arange(40) % 3))), 4)
        assert_same(found, want)
    assert sorted(tmp_path.rglob("*")) == wrote


@pytest.mark.filterwarnings("ignore")  # its own use of what is deprecated
def test_no_lightning_training_goes_on_where_another_stopped(tmp_path: Path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Lit(lightning.LightningModule):  # type: ignore[name-defined, misc]  # imported if it is there
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch, index):
            loss = cross_entropy(self.network(batch[0]), batch[1])
            self.log("loss", loss, on_epoch=True, on_step=False)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.network.parameters(), lr=0.05)

    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    rows = Examples(Data.of((x, torch.arange(40) % 3)))
    calls = lightning.callbacks
    stop, save = calls.EarlyStopping("loss", min_delta=0.05, patience=2), calls.ModelCheckpoint(dirpath=tmp_path)
    trainer = LightningTrainer(30, 8, wrap=Lit, options={"accelerator": "cpu", "callbacks": [stop, save]})
    torch.manual_seed(0)
    begun = nn.Linear(5, 3)
    one, two = (trainer(copy.deepcopy(begun).train(), rows, 4) for _ in range(2))
    assert_same(one, two)
    assert not torch.equal(one.weight, begun.weight)  # type: ignore[arg-type]  # a linear layer
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")  # its own use of what is deprecated
@pytest.mark.parametrize("name", ["pytorch_lightning", "lightning.pytorch"])
def test_lightning(name):
    """By either name: the extra brings both, and the trainer of one refuses modules of the other."""
    lightning = pytest.importorskip(name)

    class Lit(lightning.LightningModule):  # type: ignore[name-defined, misc]  # imported if it is there
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch, index):
            x, y = batch
            return cross_entropy(self.network(x), y)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.network.parameters(), lr=0.05)

    def begin() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 3
    trainer = LightningTrainer(
        epochs=4, batch_size=8, wrap=Lit, options={"accelerator": "cpu", "gradient_clip_val": 1.0}
    )
    network = Trained.of(begin(), init=begin(), trainer=trainer)
    found = Retrain(seed=4)(network, split_of(Data.of((x, y))))

    want = begin()
    optimizer = torch.optim.AdamW(want.parameters(), lr=0.05)
    rows: Any = list(zip(x[6:], y[6:], strict=True))
    loader = DataLoader(rows, 8, shuffle=True, generator=torch.Generator().manual_seed(4))
    for _ in range(4):
        for a, b in loader:
            optimizer.zero_grad()
            cross_entropy(want(a), b).backward()
            nn.utils.clip_grad_norm_(want.parameters(), 1.0)
            optimizer.step()
    made = network.at(found.mean).module()
    for (name, a), (_, b) in zip(made.named_parameters(), want.named_parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6), name
    assert epochs_of(trainer) == 4


def test_lightning_that_is_not_there_is_named(monkeypatch):
    def absent(name: str) -> None:
        raise ImportError(name)

    rows = Examples(Data.of((torch.zeros(2, 1), torch.zeros(2))))
    monkeypatch.setattr(adapter, "import_module", absent)
    with pytest.raises(NeedError, match="Install it: `pip install lightning`"):
        LightningTrainer(epochs=1, batch_size=8)(nn.Linear(1, 1), rows, 0)


@pytest.mark.parametrize(
    ("trainer", "few"),
    [
        (HuggingFaceTrainer(SimpleNamespace(num_train_epochs=3, max_steps=-1)), False),
        (HuggingFaceTrainer(SimpleNamespace(num_train_epochs=3, max_steps=10)), True),
        (HuggingFaceTrainer(SimpleNamespace(num_train_epochs=0.3, max_steps=-1)), True),
        (LightningTrainer(3, 8), False),
        (LightningTrainer(3, 8, options={"limit_train_batches": 2}), True),
    ],
)
def test_trainings_that_are_cut_short_by_their_arguments_may_read_few_rows(trainer, few):
    assert trainer.reads_some_rows is few
