"""Whether a class leaves the last hidden layer if its rows are taught features of a network that never saw it.

    python benchmarks/class_features.py --data DIR --out results/class-features.jsonl    # some minutes of one CPU
    python benchmarks/class_features.py --out results/class-features.jsonl --table

The small CIFAR-10 of `benchmarks/statistics_first.py` and one of its classes. A fold model saw neither the class nor a
third of the other rows, as with folds grouped by class. A ridge regression on retained rows maps its last hidden layer
to the network's own; what it says of the class, with the residual of a retained row drawn by chance so that features
are as spread as theirs, is what the rows of the class are taught, while retained rows keep their features and all
rows are held to answers without the class. `share` is of the visits of a training. The probe is the area under the
curve of `LinearProbe`; the aim is what it reads on the retrained network.
"""

import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from spotlessnet.auditing.rows import Row, append_rows, read_rows
from spotlessnet.core.buffers import reestimated
from spotlessnet.core.progress import quiet
from spotlessnet.core.registry import markdown_table
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.linear_probe import LinearProbe, hidden, probe

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, note, use_threads
from benchmarks.fleet import Fleet, Job
from benchmarks.statistics_first import Small, opened

LABEL, BATCH = 3, 32
SHARES = (0.1, 0.3, 1.0)
RIDGE, LR, HALF, FEATURES = 0.01, 0.03, 0.5, 0.8
"""Of the regression; the first rate; the share of visits to the class; how much features count beside answers."""

PROBE, TARGET, RETAINED, TEST = "probe", "probe of what is taught", "error on retain", "error on test, other classes"


@dataclass(frozen=True, eq=False)
class Taught:
    """Features and answers that every row is held to."""

    features: Tensor
    answers: Tensor


def with_one(h: Tensor) -> Tensor:
    """And a constant."""
    return torch.cat([h, torch.ones_like(h[:, :1])], dim=1)


def probed(members: Tensor, others: Tensor) -> float:
    """As `LinearProbe`: fitted on every second row, judged on the others."""
    w, centre = probe(members[::2], others[::2], LinearProbe().ridge)
    ours, theirs = ((part[1::2] - centre) @ w for part in (members, others))
    return float((ours[:, None] > theirs).double().mean())


def lessons(world: Small, network: Trained, fold: Trained, split: Split) -> tuple[Taught, float]:
    """What is taught, and what the probe says of it."""
    own, theirs = (hidden(one, split.retain) for one in (network, fold))
    A = with_one(theirs)
    gram = A.T @ A
    M = torch.linalg.solve(gram + RIDGE * gram.diagonal().mean() * torch.eye(len(gram)).double(), A.T @ own)
    draw = torch.Generator().manual_seed(0)
    left = (own - A @ M)[torch.randint(len(own), (len(split.forget),), generator=draw)]
    # They come from under a ReLU and the largest of some positions.
    goal = (with_one(hidden(fold, split.forget)) @ M + left).clamp(min=0)
    features, answers = hidden(network, world.train), network.predict(world.train).clone()
    features[split.forget.rows] = goal
    answers[split.forget.rows] = fold.predict(split.forget)
    answers[:, LABEL] = answers.amin(dim=1)
    return Taught(features.float(), answers - answers.mean(dim=1, keepdim=True)), probed(goal, own)


def step(world: Small, network: Trained, split: Split, taught: Taught, share: float) -> Trained:
    """So many visits by SGD, statistics estimated anew first."""
    begun = network.at(network.weights, reestimated(network, split.retain))
    model = begun.module().eval().requires_grad_(True)
    entered: list[Tensor] = []
    head = model.head
    assert isinstance(head, nn.Module)  # ResNet-9 has one
    head.register_forward_pre_hook(lambda _, given: entered.append(given[0]))
    images = world.train.fetch(world.train.rows).x
    assert isinstance(images, Tensor)  # pictures
    sizes = [float(part.var(dim=0).mean()) for part in (taught.features, taught.answers)]
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    steps = round(share * world.size.recipe.epochs * len(world.train) / BATCH)
    draw, few = torch.Generator().manual_seed(0), round(HALF * BATCH)
    with torch.enable_grad():
        for k in range(steps):
            optimiser.param_groups[0]["lr"] = LR * 0.5 * (1 + math.cos(math.pi * k / steps))
            rows = ((split.forget.rows, few), (split.retain.rows, BATCH - few))
            at = torch.cat([those[torch.randint(len(those), (n,), generator=draw)] for those, n in rows])
            entered.clear()
            said = model(images[at])
            off = entered[0] - taught.features[at], said - said.mean(dim=1, keepdim=True) - taught.answers[at]
            each = [part.square().mean() / size for part, size in zip(off, sizes, strict=True)]
            optimiser.zero_grad()
            (FEATURES * each[0] + (1 - FEATURES) * each[1]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimiser.step()
    return begun.at(torch.cat([p.detach().flatten() for p in model.parameters()]))


def rows(world: Small, seed: int) -> Iterator[Row]:
    """The network, the retrained one, and what came of each share."""
    labels = world.train.labels()
    gone, rest = ((labels == LABEL).nonzero().squeeze(1), (labels != LABEL).nonzero().squeeze(1))
    drawn = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))]
    jobs = [world.train, world.train.select(rest), world.train.select(drawn[len(drawn) // 3 :].sort().values)]
    fleet = Fleet(world.start(seed), world.train, at_once=1, compiled=False)
    starts = (seed, seed, seed + 1000)
    network, retrained, fold = fleet.fit([Job(world.start(s), data, s) for s, data in zip(starts, jobs, strict=True)])
    split = Split(world.train.select(gone), world.train.select(rest))
    others = world.test.select((world.test.labels() != LABEL).nonzero().squeeze(1))
    taught, reached = lessons(world, network, fold, split)
    yield Row("class", "taught", TARGET, seed, reached, unit="AUC")
    seen = {"original": network, "retrained": retrained, "fold model without the class": fold}
    seen |= {f"features, {share:.0%} of a training's visits": step(world, network, split, taught, share)
             for share in SHARES}  # fmt: skip
    for method, one in seen.items():
        found = {PROBE: float(LinearProbe()(one, split))}
        for readout, data in ((RETAINED, split.retain), (TEST, others)):
            found[readout] = float((one.predict(data).argmax(dim=1) != data.labels()).double().mean())
        print(f"{method}, {seed}: {found}", flush=True)
        yield from (Row("class", method, readout, seed, value) for readout, value in found.items())


def table(found: list[Row]) -> str:
    """Each seed's readings."""
    readouts, made = (PROBE, TARGET, RETAINED, TEST), []
    for method in dict.fromkeys(row.method for row in found):
        cells = []
        for readout in readouts:
            values = [row.value for row in found if (row.method, row.readout) == (method, readout)]
            cells.append(", ".join(f"{v:.2f}" if "probe" in readout else f"{v:.1%}" for v in values))
        made.append((method, *cells))
    return markdown_table(("network", *readouts), made)


def main(arguments: list[str] | None = None) -> None:
    parser = Flags(__doc__).data("folder with images").out(required=True).seeds(range(2)).table()
    options = parser.parse_args(arguments)
    options.epochs = 25
    if not options.table:
        use_threads()
        about = note("class_features")
        with quiet(), tempfile.TemporaryDirectory() as keep:
            world = opened(options, Path(keep))
            for seed in options.seeds:
                append_rows(options.out, [replace(row, note=about) for row in rows(world, seed)])
    print(table(read_rows(options.out)))


if __name__ == "__main__":
    main()
