"""Ten requests, one after another, from a memory: `python docs/gallery/many_requests.py FOLDER`.

A memory is written at the end of training. A request takes its step from it and from the rows that must go; then the
retained rows write it anew. The model is linear with squared loss, where serving from a memory is exact: only what
training had not reached is left.
"""

import sys
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import spotlessnet as sn
from spotlessnet.core.scrub import Notes
from spotlessnet.models import Logistic
from spotlessnet.precomputed.after_request import after_request
from spotlessnet.precomputed.step import step_from_statistics
from spotlessnet.training.mixed import CentredTargets

DECAY = 1e-2


def main(out: Path, requests: int = 10, rows: int = 10, epochs: int = 300) -> list[tuple[float, float]]:
    """After each request: distance of the weights to retrained ones, if nothing is done and from the memory."""
    digits = sn.load("digits")
    recipe = sn.Recipe(epochs=epochs, lr=0.02, batch_size=len(digits.train), weight_decay=DECAY)
    fresh = sn.Trained.of(Logistic(64, 10).double(), CentredTargets(), recipe=recipe)
    original = sn.fit(replace(fresh, init=fresh.weights), digits.train)
    memory = sn.precompute(original, digits.train, rank=original.size, diagonal=None)

    found, network, kept = [], original, digits.train
    for i in range(requests):
        forget = digits.train.select(range(i * rows, (i + 1) * rows))
        step = step_from_statistics(memory, network, forget, DECAY, Notes()).step
        after = network.at(network.weights + step)
        kept = kept.without(forget)
        memory = after_request(memory, network, forget, after.weights, retain=kept)
        network = after
        retrained = sn.fit(original.at(original.anchor), kept, recipe)
        gaps = (original.weights - retrained.weights, network.weights - retrained.weights)
        found.append((float(gaps[0].norm()), float(gaps[1].norm())))
    picture(found, out / "many_requests.svg")
    return found


def picture(found: list[tuple[float, float]], path: Path) -> None:
    """Both distances, request by request."""
    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    colors = {"nothing done": "#888888", "from memory": "#0072b2"}
    for (label, color), gaps in zip(colors.items(), zip(*found, strict=True), strict=True):
        axes.plot(range(1, len(found) + 1), gaps, "o-", label=label, color=color)
    axes.set(xlabel="request", ylabel="distance to retrained weights", ylim=(0, None))
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    for i, (nothing, memory) in enumerate(main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/gallery")), start=1):
        print(f"request {i:2}: distance {memory:.4f} from memory, {nothing:.4f} if nothing were done")
