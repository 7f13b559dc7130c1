"""A digit classifier from which people can leave: exact, at once, as often as asked.

python docs/gallery/forgettable_digits.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import spotlessnet as sn


def main(people: int = 50) -> dict[str, float]:
    """Fit, let three people leave, correct a label, and compare with a model that never met the three."""
    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    core, user, test = slice(0, 400), slice(400, 1400), slice(1400, None)
    owner = [f"person {i % people}" for i in range(1000)]

    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 24, 1),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, stride=2),
        nn.ReLU(),
    )
    model = sn.fit_forgettable(
        backbone,
        core=(x[core], y[core]),
        user=sn.Data.of((x[user], y[user]), columns={"person": owner}),
        id_column="person",
        features="tangent",
        layers=["2"],
        adaptation=sn.Adaptation(epochs=20, lr=0.05, batch_size=32),
    )
    error = float((model.predict(x[test]).argmax(dim=1) != y[test]).double().mean())

    leaving = ["person 3", "person 8", "person 21"]
    request = model.forget(leaving)

    # The same problem from its examples, without the three.
    stay = [i for i in range(1000) if owner[i] not in leaving]
    never = model.solved_anew((x[user][stay], y[user][stay]), core=(x[core], y[core]))
    return {
        "test error": error,
        "examples forgotten": request.examples,
        "milliseconds": 1000 * request.seconds,
        "moved": request.moved,
        "certified distance to solving anew": request.certificate.bound,
        "largest difference to solving anew": float((model.weights - never.weights).abs().max()),
    }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:40} {value:.4g}")
