"""Canaries on digits: sixty rows with random labels, a coin for each, and no retraining for the audit.

`python docs/gallery/canaries.py 60` repeats it over sixty trainings and says how often each network was caught.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import spotlessnet as sn
from spotlessnet.core.intervals import clopper_pearson
from spotlessnet.core.split import joined


def main(repeats: int = 1, first: int = 1000) -> dict[str, int]:
    """How often each network remembers, over trainings with data, canaries and coins of their own."""
    x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
    x, y = x.float() / 16, y.long()
    caught = {"original": 0, "fine-tuned": 0, "retrained": 0}

    for seed in range(first, first + repeats):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        data = sn.Data.of((x[order[:600]], y[order[:600]]))
        canaries = sn.canaries((x[order[600:660]], y[order[600:660]]), classes=10, seed=seed)

        torch.manual_seed(seed)
        start = sn.Trained.of(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
        recipe = sn.Recipe(epochs=30, lr=0.1, batch_size=32, momentum=0.9)
        original = sn.fit(start, joined(data, canaries.included), recipe, seed=seed)
        networks = {
            "original": original,
            "fine-tuned": sn.fit(original, data, sn.Recipe(epochs=3, lr=0.01, batch_size=32), seed=seed),
            "retrained": sn.fit(start, data, recipe, seed=seed + 1),
        }
        for name, network in networks.items():
            found = canaries.audit(network)
            caught[name] += found.remembers
            if repeats == 1:
                print(f"{name:11s} {found}")

    if repeats > 1:
        for name, count in caught.items():
            share = clopper_pearson(count, repeats)
            print(f"{name:11s} remembers in {count} of {repeats} trainings [{share.low:.1%}, {share.high:.1%}]")
    return caught


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
