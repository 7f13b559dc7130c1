"""How long a training takes, and how well it answers: steps compiled or not, one network or several at once.

    python benchmarks/fleet_speed.py --data DIR --out results/fleet-speed.jsonl --stop 90
    python benchmarks/fleet_speed.py --data DIR --network resnet-18 --out results/fleet-speed.jsonl
    python benchmarks/fleet_speed.py --data DIR --out results/fleet-speed.jsonl --timed --recipes 28:0.4 --at-once 4
    python benchmarks/fleet_speed.py --tiny --out speed.jsonl

Floor, by count (ResNet-9, one image there and back): see `counted`; bytes are what BatchNorm and activations move.
Seconds of a recipe are those of all its networks side by side, divided by how many there are; its error is given for
each test image as it is, for the mean of the answers to it and to its mirror image, and for those to both moved by a
pixel as well. `--network resnet-9-whitened`: ResNet-9 behind a layer that is not trained, the eigenvectors of patches
of 2×2 pixels, each divided by the root of its eigenvalue, and their negatives.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from spotlessnet.auditing.rows import Row, append_rows
from spotlessnet.core.data import Data
from spotlessnet.core.progress import quiet
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.datasets import load
from spotlessnet.experiments.setting import on_device
from spotlessnet.models.resnet import ResNet
from spotlessnet.operators.precision import matmul

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, accelerator, cifar10, device_of, note
from benchmarks.fleet import Fleet, Job, ResNet9, Whitened, moved
from benchmarks.klom import full

SEEDS = 800
"""The first seed of all that is tried here."""

TIMED = ("plain:1", "compiled:1", "compiled:2", "compiled:3", "plain:2")
"""How steps are taken, and how many networks at once."""


def begun(options: argparse.Namespace, recipe: Recipe, seed: int, device: torch.device, some: torch.Tensor) -> Trained:
    """Before training; `some` of the images say what a whitening layer is."""
    torch.manual_seed(seed)
    small, channels = bool(options.tiny), int(some.shape[1])
    model: nn.Module = ResNet(10, channels=channels, width=0.1 if small else 1.0, seed=seed)
    if options.network == "resnet-9":
        model = ResNet9(10, channels=channels, width=4 if small else 64, small=small)
    elif options.network == "resnet-9-whitened":
        model = Whitened(some, width=4 if small else 64, small=small)
    network = Trained.of(model.to(device), recipe=recipe)
    return replace(network, init=network.weights, init_buffers=buffers_of(network.model))


def counted(network: Trained, data: Data) -> float:
    """Operations of one image there and back."""
    x = network.fetch(data, data.rows[:1]).x
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.outputs(x)
    return 3.0 * counter.get_total_flops()


def errors(network: Trained, test: Data) -> dict[str, float]:
    """Shares of test images that are answered wrongly, as they are and with their mirror images."""
    rows = test.fetch(test.rows)
    assert isinstance(rows.x, torch.Tensor)  # pictures
    alone = network.predict(test, 2048).softmax(dim=1).cpu()
    ways = [rows.x.flip(3), *(shifted(x, by) for x in (rows.x, rows.x.flip(3)) for by in (-1, 1))]
    said = [network.predict(Data.of((x, rows.y)), 2048).softmax(dim=1).cpu() for x in ways]
    both = alone + said[0]
    readouts = {"error on test": alone, "error on test, mirror images asked too": both}
    readouts["error on test, mirrored and moved images asked too"] = both + torch.stack(said[1:]).sum(dim=0) / 2
    labels = rows.y.cpu()
    return {name: float((p.argmax(dim=1) != labels).double().mean()) for name, p in readouts.items()}


def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Images moved by a pixel along both axes, the border reflected."""
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect")
    return padded[:, :, 1 + by : 1 + by + x.shape[2], 1 + by : 1 + by + x.shape[3]]


def tried(options: argparse.Namespace, train: Data, test: Data, device: torch.device) -> Iterator[Row]:
    """Seconds of an epoch, then errors of whole trainings, as long as there is time."""
    end = time.perf_counter() + options.stop
    recipe = full(2, device.type == "cuda").recipe
    recipe = recipe.but(batch_size=64 if options.tiny else 512, label_smoothing=0.1, augment=moved)
    x = train.fetch(train.rows[:5000]).x
    assert isinstance(x, torch.Tensor)  # pictures
    start = begun(options, recipe, SEEDS, device, x)
    about = f"{note('fleet_speed')}; {accelerator(device)}"
    yield Row(options.network, "one image", "FLOPs", 0, counted(start, train), unit="FLOPs", note=about)
    for how, count in (each.split(":") for each in options.timed):
        compiled, at_once = how == "compiled", int(count)
        if (compiled and options.tiny) or time.perf_counter() > end - 20:
            continue
        began = time.perf_counter()
        fleet = Fleet(start, train, at_once=at_once, compiled=compiled)
        ready = time.perf_counter() - began
        jobs = [Job(start, train, SEEDS + i) for i in range(at_once)]
        fleet.fit(jobs)
        began = time.perf_counter()
        fleet.fit(jobs)
        took = (time.perf_counter() - began) / recipe.epochs / at_once
        name = f"{how}, {at_once} at once"
        yield Row(options.network, name, "an epoch", 0, took, unit="seconds", note=about)
        yield Row(options.network, name, "until ready", 0, ready, unit="seconds", note=about)
        del fleet
    for epochs, lr in options.recipes:
        if time.perf_counter() > end:
            break
        told = recipe.but(epochs=int(epochs), lr=lr)
        fleet = Fleet(replace(start, recipe=told), train, at_once=options.at_once, compiled=not options.tiny)
        if options.ready is not None:
            options.ready.touch()
        while options.after is not None and not options.after.exists() and time.perf_counter() < end:
            time.sleep(0.2)
        for first in range(SEEDS, SEEDS + options.seeds, options.at_once):
            if time.perf_counter() > end:
                break
            some = range(first, min(first + options.at_once, SEEDS + options.seeds))
            jobs = [Job(begun(options, told, seed, device, x), train, seed) for seed in some]
            began = time.perf_counter()
            made = fleet.fit(jobs)
            took = (time.perf_counter() - began) / len(jobs)
            for seed, network in zip(some, made, strict=True):
                name = f"{int(epochs)} epochs, rate {lr:g}, {len(jobs)} at once"
                for readout, error in errors(network, test).items():
                    yield Row(options.network, name, readout, seed, error, seconds=took, unit="share", note=about)


def main(arguments: list[str] | None = None) -> None:
    parser = Flags(__doc__).data("folder with images").out(required=True).device()
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--network", choices=("resnet-9", "resnet-9-whitened", "resnet-18"), default="resnet-9")
    parser.add_argument("--recipes", nargs="+", default=[(12, 0.4), (16, 0.4)], metavar="EPOCHS:RATE",
                        type=lambda text: tuple(float(v) for v in text.split(":")))  # fmt: skip
    parser.add_argument("--timed", nargs="*", default=TIMED, metavar="plain|compiled:AT_ONCE")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=2, help="networks side by side, of the recipes")
    parser.add_argument("--ready", type=Path, help="a file that is there once steps are compiled")
    parser.add_argument("--after", type=Path, help="begin with the recipes when this file is there")
    parser.add_argument("--stop", type=float, default=inf)
    options = parser.parse_args(arguments)
    device = device_of(options)
    with quiet(), matmul("tf32"):
        if options.tiny:
            pair = load("digits")
            train, test = (Data.of(tuple(part.fetch(part.rows[:300])[:2])) for part in (pair.train, pair.test))
        else:
            train, test = (on_device(data, device) for data in cifar10(options.data))
        for row in tried(options, train, test, device):
            append_rows(options.out, [row])
            print(f"{row.method}, {row.readout}, {row.seed}: {row.value:.4g} ({row.seconds:.2f} s)", flush=True)


if __name__ == "__main__":
    main()
