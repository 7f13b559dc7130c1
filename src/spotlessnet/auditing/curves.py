"""What the figures of an audit show: noise against error, the attack's curve, confidences, and ways of the weights."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.auditing.audit_report import Curves
from spotlessnet.auditing.networks import Networks
from spotlessnet.auditing.seeds import scrub_seed
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.bounds.per_query import per_query_by_set
from spotlessnet.bounds.trade_off import trade_off
from spotlessnet.bounds.white_box import WhiteBox
from spotlessnet.core.chaining import chain
from spotlessnet.core.data import Data
from spotlessnet.core.errors import SpotlessError
from spotlessnet.core.progress import Meter
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.fisher import Fisher
from spotlessnet.readouts.error import Error
from spotlessnet.readouts.mean_loss import MeanLoss
from spotlessnet.readouts.parts import Part
from spotlessnet.readouts.scores import kind_of, scores, scores_of
from spotlessnet.training.fit import fit, train
from spotlessnet.training.many import Executor, Finished, Task
from spotlessnet.training.pairs import Trainings, rows_seen

MANY = 256
"""Outputs of a row up to which the noise that is drawn comes from the exact Fisher diagonal."""

SCALES = tuple(10.0**e for e in range(-4, 5))
"""Multiples of a method's own noise at which error and nats are drawn."""

TradeOffs = dict[str, list[tuple[float, float, float]]]
Paths = dict[str, list[tuple[float, float]]]


def curves_of(networks: Networks, split: Split, controls: Data | None, scrub: Scrub, name: str, paths: Paths) -> Curves:
    """Everything that is drawn of the method under test, beside the original and retrained networks."""
    trainings = networks.trainings
    # The retrained ones on show are held out: the attack below is fitted to the paired ones.
    shown = {ORIGINAL: trainings.original, name: networks.by(name), RETRAINED: trainings.held_out}
    noise, leak = _noise_or_nothing(trainings, split, scrub, name)
    confidence = {n: p for n, group in shown.items() if (p := label_probabilities(group[0], split))}
    roc = {}
    if controls is not None:
        roc = {n: _roc(group, trainings.retrained, split, controls) for n, group in shown.items()}
    return Curves(trade_off=noise, roc=roc, confidence=confidence, paths=paths, leak=leak)


def label_probabilities(network: Trained, split: Split) -> list[float]:
    """What the network gives to the label of each forgotten row: a margin is the logit of just that.

    None where there are no classes, and so no probabilities.
    """
    if kind_of(network, split.forget) == "losses":
        return []
    return scores(network, split.forget).sigmoid().tolist()


def _noise_or_nothing(
    trainings: Trainings, split: Split, scrub: Scrub, name: str
) -> tuple[TradeOffs, dict[str, list[float]]]:
    """A picture must not cost a verdict whose trainings are done: a network that noise cannot be made for has none."""
    try:
        return _noise_curves(trainings, split, scrub, name)
    except (SpotlessError, RuntimeError) as error:
        warnings.warn(f"The picture of noise against error is left out: {error}", stacklevel=2)
        return {}, {}


def _noise_curves(
    trainings: Trainings, split: Split, scrub: Scrub, name: str
) -> tuple[TradeOffs, dict[str, list[float]]]:
    """The trade-off of the first seed with and without the method's step, and the nats of single queries."""
    original, retrained, seed = trainings.original[0], trainings.retrained[0], trainings.seeds[0]
    # Beyond so many outputs, an exact diagonal takes longer than all trainings together.
    outputs = original.predict(split.forget.select([0]))[0].numel()
    noise = Fisher(strength=1e-8, kind="exact" if outputs <= MANY else "monte carlo")
    if not scrub.is_noisy and len(split.retain) < noise.least_kept * (len(split.retain) + len(split.forget)):
        return {}, {}  # retraining may serve so few rows; what noise they would bear means nothing
    methods = {name: scrub} if scrub.is_noisy else {f"{name}, then noise": chain(scrub, noise), "noise alone": noise}
    part: Part = "retain" if split.test is None else "test"
    readout = MeanLoss(part) if kind_of(original, split.forget) == "losses" else Error(part)
    bound = WhiteBox()
    curves: TradeOffs = {}
    leak: dict[str, list[float]] = {}
    for label, method in methods.items():
        found = scrub_seed(method, original, split, seed)  # as in the table
        reference = found.scrub.reference_for(found.gaussian, retrained, split)
        traded = trade_off(
            found.gaussian, reference, original, split, readouts=[readout], bounds=[bound], scales=SCALES, draws=3
        )
        curves[label] = [
            (float(nats), float(reading), (reading.high - reading.low) / 2 if reading.high > reading.low else 0.0)
            for nats, reading in zip(traded.nats[bound.name], traded.readings[readout.name], strict=True)
        ]
        if not leak:
            by_set = per_query_by_set(found.gaussian, reference, original, split, count=25)
            leak = {f"{part} rows": values.tolist() for part, values in by_set.items()}
    return curves, leak


def _roc(
    group: Sequence[Trained], references: Sequence[Trained], split: Split, controls: Data
) -> tuple[list[float], list[float]]:
    """The per-example attack over all seeds: scores in units of the retrained networks' own spread, row by row."""

    def scores(rows: Data) -> Float[Tensor, " M"]:
        seen, outside = scores_of(group, rows), scores_of(references, rows)
        # The spread within rows, pooled: a handful of networks knows no single row's variance.
        spread = outside.var(dim=0).mean().sqrt().clamp(min=1e-6)
        return ((seen - outside.mean(dim=0)) / spread).flatten()

    members, unseen = scores(split.forget), scores(controls)
    thresholds = unseen.sort(descending=True).values
    # No rate is drawn that rests on fewer than ten controls.
    thresholds = thresholds[9 :: max(1, len(thresholds) // 100)]
    fpr = [float((unseen >= t).double().mean()) for t in thresholds]
    tpr = [float((members >= t).double().mean()) for t in thresholds]
    return [*fpr, 1.0], [*tpr, 1.0]


@dataclass(frozen=True, eq=False)
class Watched(Task):
    """A training whose weights are looked at after each epoch, with what it took."""

    def run(self, data: Data) -> Finished:
        """The way of the weights, seconds and MiB."""
        [start], [seed] = self.begun, self.seeds
        way = [start.weights]
        with Meter(start.device) as meter:
            if start.trainer is None:
                fit(start, self.rows(data), seed=seed, order_of=data, watch=_remembering(way))
            else:  # a trainer of the user's own lets nobody watch; its way is drawn from end to end
                way.append(train(start, self.rows(data), seed=seed).weights)
        took = torch.tensor([meter.seconds, meter.memory], dtype=torch.float64)
        return {"way": torch.stack(way).cpu(), "took": took}


def watched_training(
    networks: Networks, split: Split, name: str, executor: Executor | None = None
) -> tuple[Paths, dict[str, Meter]]:
    """Train one pair on its own, watched: the ways of the weights, and what one training costs."""
    trainings = networks.trainings
    start = trainings.original[0].begin("An audit")
    data = split.first_trained_on
    tasks = [Watched((start,), trainings.seeds[:1], rows[None]) for rows in rows_seen(split)]
    ways: dict[str, list[Tensor]] = {}
    meters: dict[str, Meter] = {}
    made = (executor or Executor()).run(tasks, data, "training one pair, watched")
    for method, found in zip((ORIGINAL, RETRAINED), made, strict=True):
        ways[method] = list(found["way"])
        meters[method] = Meter(start.device)
        meters[method].seconds, meters[method].memory = found["took"].tolist()
    ways[name] = [ways[ORIGINAL][-1], networks.scrubbed[name][0].gaussian.mean.cpu()]
    return _in_a_plane(ways), meters


def _in_a_plane(ways: dict[str, list[Tensor]]) -> Paths:
    """All ways, seen in the plane of the two directions in which they spread most."""
    points = torch.cat([torch.stack(way) for way in ways.values()]).double()
    centred = points - points.mean(dim=0)
    plane = torch.linalg.svd(centred, full_matrices=False)[2][:2]
    flat = (centred @ plane.T).split([len(way) for way in ways.values()])
    return {m: [(float(x), float(y)) for x, y in f] for m, f in zip(ways, flat, strict=True)}


def _remembering(way: list[Tensor]) -> Callable[[int, Trained], None]:
    def watch(epoch: int, network: Trained) -> None:
        way.append(network.weights)

    return watch
