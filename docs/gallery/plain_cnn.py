"""Forget some images from a plain convolutional network: `python docs/gallery/plain_cnn.py`."""

from dataclasses import replace

import torch
from torch import nn

import spotlessnet as sn


def build() -> nn.Module:
    """Two convolutions and a linear head, nothing special."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def main(rows: int = 400, epochs: int = 15) -> dict[str, tuple[float, float]]:
    """For each network: activation distance to the retrained one on the forgotten rows, and the error on test rows."""
    digits = sn.load("digits")
    data = digits.train.select(range(rows))
    wrong = list(range(20))
    y = data.labels().clone()
    y[wrong] = (y[wrong] + 1) % 10  # labels that can only be learnt by heart
    split = sn.rows(data.rows[wrong].tolist(), mislabelled=True)(data.relabel(y), digits.test)

    recipe = sn.Recipe(epochs=epochs, lr=0.05, batch_size=32, weight_decay=1e-2)
    fresh = sn.Trained.of(build(), recipe=recipe)
    original = sn.fit(replace(fresh, init=fresh.weights), split.whole)
    retrained = original.at(sn.Retrain()(original, split).mean)
    scrubbed = original.at(sn.chain(sn.NTK(), sn.Finetune(epochs=3))(original, split).mean)

    distance, error = sn.ActivationDistance(retrained), sn.Error("test")
    networks = {"original": original, "scrubbed": scrubbed, "retrained": retrained}
    return {name: (float(distance(n, split)), float(error(n, split))) for name, n in networks.items()}


if __name__ == "__main__":
    for name, (distance, error) in main().items():
        print(f"{name:10} distance to retrained {distance:.3f}, wrong on test rows {error:.1%}")
