"""Several yes-or-no labels for each image: is the digit even, large, a prime, one with a loop?"""

import torch
from torch import Tensor, nn

import spotlessnet as sn


def build() -> nn.Module:
    """The network where its training began."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def tags(digit: Tensor) -> Tensor:
    """Even, large, a prime, with a loop."""
    kinds = ([0, 2, 4, 6, 8], [5, 6, 7, 8, 9], [2, 3, 5, 7], [0, 6, 8, 9])
    return torch.stack([torch.isin(digit, torch.tensor(kind)) for kind in kinds], dim=1).float()


def main(seeds: int = 5) -> sn.Unlearned:
    """Train, forget, audit."""
    digits = sn.load("digits")
    (x, digit, _), (unseen, other, _) = (part.fetch(part.rows[:250]) for part in (digits.train, digits.test))
    y = tags(digit)
    y[:12] = 1 - y[:12]  # wrong labels, which can only be memorised
    data, test = (x, y), (unseen, tags(other))
    recipe = sn.Recipe(optimizer="adam", epochs=40, lr=5e-3, batch_size=32)
    start = sn.Trained.of(build(), "binary-cross-entropy", recipe=recipe)
    model = sn.fit(start, sn.Data.of(data)).module()  # what you have
    # glue
    return sn.unlearn(
        model, data, forget=range(12), method="retrain", settings={"coupled": False}, loss="binary-cross-entropy",
        init=build(), recipe=recipe, test=test, audit=sn.Audit(seeds=seeds),
    )  # fmt: skip
    # end of glue
