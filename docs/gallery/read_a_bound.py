"""How noise buys nats, and what it costs: `python docs/gallery/read_a_bound.py FOLDER`.

A bound of 0.02 nats means: whoever sees the weights, by whatever attack, is right at most 55 % of the time about
whether this is the scrubbed network or one that never saw the rows.
"""

import sys
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import spotlessnet as sn
from spotlessnet.models import MLP

SCALES = tuple(10.0**e for e in range(-2, 6))


def main(out: Path, epochs: int = 30, scales: tuple[float, ...] = SCALES) -> list[tuple[float, float, float, float]]:
    """For each noise: its factor, nats, the best attacker's accuracy, and the error on test rows."""
    digits = sn.load("digits")
    recipe = sn.Recipe(epochs=epochs, lr=0.05, batch_size=64, weight_decay=1e-2)
    fresh = sn.Trained.of(MLP(64, 10, hidden=(32,)), recipe=recipe)
    original = sn.fit(replace(fresh, init=fresh.weights), digits.train)
    split = sn.some_of_class(8, 25)(digits.train, digits.test)

    scrubbed = sn.chain(sn.NTK(), sn.Fisher(strength=1e-8, cap=10.0))(original, split)
    retrained = sn.Gaussian(sn.Retrain()(original, split).mean, scrubbed.covariance)
    curve = sn.trade_off(
        scrubbed, retrained, original, split, readouts=[sn.Error("test")], bounds=[sn.WhiteBox()], scales=list(scales)
    )
    nats, errors = curve.nats[sn.WhiteBox().name], curve.readings[sn.Error("test").name]
    points = [
        (scale, float(n), sn.best_accuracy(float(n)), float(error))
        for scale, n, error in zip(scales, nats, errors, strict=True)
    ]
    picture(points, out / "read_a_bound.svg")
    return points


def picture(points: list[tuple[float, float, float, float]], path: Path) -> None:
    """The best attacker against the error on test rows."""
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    axes.plot([100 * p[2] for p in points], [100 * p[3] for p in points], "o-", color="#0072b2")
    for _, nats, accuracy, error in points[::2]:
        label = f"{nats:.2g} nats"
        axes.annotate(label, (100 * accuracy, 100 * error), textcoords="offset points", xytext=(6, 5))
    axes.set(
        xlabel="best attacker is right at most, % (50 is guessing)", ylabel="wrong on test rows, %", xlim=(49, 106)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    print("noise      nats   best attacker   wrong on test")
    for scale, nats, accuracy, error in main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/gallery")):
        print(f"{scale:7.0e} {nats:9.3g} {accuracy:12.1%} {error:14.1%}")
