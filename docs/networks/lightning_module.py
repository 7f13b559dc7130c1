"""A `LightningModule`, trained by Lightning's `Trainer`."""

import lightning
import torch
from torch import Tensor, nn

import spotlessnet as sn
from spotlessnet.training.lightning import LightningTrainer


class Classifier(lightning.LightningModule):
    """As Lightning has it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


def build() -> nn.Module:
    """The network where its training began."""
    torch.manual_seed(0)
    return Classifier()


def main(seeds: int = 5) -> sn.Unlearned:
    """Train, forget, audit."""
    digits = sn.load("digits")
    data = digits.train.select(range(300))
    y = data.labels().clone()
    y[:12] = (y[:12] + 1) % 10  # wrong labels, which can only be memorised
    data = data.relabel(y)
    trainer = LightningTrainer(epochs=40, batch_size=32, options={"accelerator": "cpu"})
    model = trainer(build(), sn.Examples(data), 0)  # what you have: `Trainer(...).fit(...)`, or a checkpoint of it
    # glue
    trainer = LightningTrainer(epochs=40, batch_size=32, options={"accelerator": "cpu"})
    trained = sn.Trained.of(model, init=build(), trainer=trainer)
    return sn.unlearn(
        trained, data, forget=sn.rows(range(12)), method="retrain", test=digits.test, audit=sn.Audit(seeds=seeds)
    )
    # end of glue
