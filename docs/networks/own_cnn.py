"""A CNN of your own loop: Adam, augmentation, BatchNorm statistics that move, dropout."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import spotlessnet as sn


def build() -> nn.Module:
    """The network where its training began."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def train(model: nn.Module, examples: sn.Examples, seed: int, epochs: int = 30) -> nn.Module:
    """The loop as it was: only its arguments follow the contract."""
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=0.01)
    for _ in range(epochs):
        for x, y in DataLoader(examples, batch_size=32, shuffle=True):
            x = x.roll(int(torch.randint(-1, 2, ())), dims=3)  # augmentation: a pixel to the left or right
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def main(seeds: int = 5) -> sn.Unlearned:
    """Train, forget, audit."""
    digits = sn.load("digits")
    data = digits.train.select(range(300))
    y = data.labels().clone()
    y[:12] = (y[:12] + 1) % 10  # wrong labels, which can only be memorised
    data = data.relabel(y)
    model = train(build(), sn.Examples(data), seed=0)
    # glue
    trained = sn.Trained.of(model, init=build(), trainer=train)
    return sn.unlearn(
        trained, data, forget=sn.rows(range(12)), method="retrain", test=digits.test, audit=sn.Audit(seeds=seeds)
    )
    # end of glue
