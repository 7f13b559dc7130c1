"""Forget one class of digits, and see what it does to every class: `python docs/gallery/forget_a_class.py FOLDER`."""

import sys
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import spotlessnet as sn
from spotlessnet.models import MLP

FORGOTTEN = 8


def main(out: Path, epochs: int = 30) -> dict[str, list[float]]:
    """Errors by class of the original, the scrubbed and the retrained network, as numbers and as a picture."""
    digits = sn.load("digits")
    recipe = sn.Recipe(epochs=epochs, lr=0.05, batch_size=64, weight_decay=1e-2)
    fresh = sn.Trained.of(MLP(64, 10, hidden=(32,)), recipe=recipe)
    original = sn.fit(replace(fresh, init=fresh.weights), digits.train)
    split = sn.whole_class(FORGOTTEN)(digits.train, digits.test)

    scrubbed = sn.chain(sn.NTK(), sn.Finetune(epochs=3))(original, split)
    retrained = sn.Retrain()(original, split)

    networks = {"original": original, "scrubbed": original.at(scrubbed.mean), "retrained": original.at(retrained.mean)}
    errors = {name: by_class(network, digits.test) for name, network in networks.items()}
    picture(errors, out / "forget_a_class.svg")
    return errors


def by_class(network: sn.Trained, data: sn.Data) -> list[float]:
    """The share of wrong answers for each true class."""
    wrong, y = network.predict(data).argmax(1) != data.labels(), data.labels()
    return [float(wrong[y == c].double().mean()) for c in range(10)]


def picture(errors: dict[str, list[float]], path: Path) -> None:
    """Three bars for each class."""
    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    for i, (name, color) in enumerate(zip(errors, ("#888888", "#0072b2", "#e69f00"), strict=True)):
        axes.bar([c + 0.27 * (i - 1) for c in range(10)], errors[name], width=0.25, label=name, color=color)
    axes.set(xticks=range(10), xlabel="true class of test rows", ylabel="share of wrong answers", ylim=(0, 1.02))
    axes.legend(frameon=False, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    for name, shares in main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/gallery")).items():
        print(f"{name:10}", " ".join(f"{share:4.0%}" for share in shares))
