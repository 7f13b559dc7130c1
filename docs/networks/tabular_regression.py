"""A regression of scikit-learn's diabetes table: one number a patient, squared error."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

import spotlessnet as sn


def build() -> nn.Module:
    """The network where its training began."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))


def main(seeds: int = 8) -> sn.Unlearned:
    """Train, forget, audit."""
    table, target = load_diabetes(return_X_y=True)
    x = torch.tensor(table / table.std(0), dtype=torch.float32)
    y = torch.tensor((target - target.mean()) / target.std(), dtype=torch.float32).unsqueeze(1)
    y[:12] = -3 * y[:12].sign()  # a dozen patients entered wrongly
    data, test = (x[:250], y[:250]), (x[250:], y[250:])
    recipe = sn.Recipe(epochs=60, lr=0.02, momentum=0.9, batch_size=32)
    model = sn.fit(sn.Trained.of(build(), "squared-error", recipe=recipe), sn.Data.of(data)).module()  # what you have
    # glue
    return sn.unlearn(
        model, data, forget=range(12), method="retrain", settings={"coupled": False}, loss="squared-error",
        init=build(), recipe=recipe, test=test, audit=sn.Audit(seeds=seeds),
    )  # fmt: skip
    # end of glue
