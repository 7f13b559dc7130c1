"""Forget digits from a network of your own training loop, and judge it: `python docs/gallery/own_training.py`."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import spotlessnet as sn
from spotlessnet.requests.audits import Audit


def build() -> nn.Module:
    """BatchNorm that moves while training, and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def train(model: nn.Module, examples: sn.Examples, seed: int, epochs: int = 20) -> nn.Module:
    """Your own loop: nothing of it is from the package. `epochs` lets a short retraining ask for fewer."""
    torch.manual_seed(seed)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for x, y in DataLoader(examples, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def main(rows: int = 400, seeds: int = 5) -> sn.AuditReport:
    """The report on forgetting twenty wrong labels by a short retraining with `train`."""
    digits = sn.load("digits")
    data = digits.train.select(range(rows))
    y = data.labels().clone()
    y[:20] = (y[:20] + 1) % 10  # wrong labels, which can only be memorised
    data = data.relabel(y)
    model = train(build(), sn.Examples(data), seed=0)  # what you have

    done = sn.unlearn(
        sn.Trained.of(model, init=build(), trainer=train), data, forget=data.rows[:20].tolist(), test=digits.test,
        mislabelled=True, audit=Audit(seeds=seeds), progress=False,
    )  # fmt: skip
    assert done.report is not None  # it was asked for
    return done.report


if __name__ == "__main__":
    report = main()
    print(f"{report.method}: {report.outcome}, {report.reason}")
