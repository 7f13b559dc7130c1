"""Audit: one method, one request, the default battery of readouts over paired seeds, and the story they tell."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.auditing.audit_report import AuditReport, Cost, Curves, Finding, Judgement
from spotlessnet.auditing.comparison import Context, reference_of
from spotlessnet.auditing.equivalence import DRAWS_APART, Audit, Check, attack_check
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.bounds.black_box import BlackBox
from spotlessnet.bounds.per_query import per_query_by_set
from spotlessnet.bounds.trade_off import trade_off
from spotlessnet.bounds.white_box import WhiteBox
from spotlessnet.core.data import Data
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.meter import Meter
from spotlessnet.core.progress import track
from spotlessnet.core.readout import Readout
from spotlessnet.core.scrub import Scrub, chain
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.fisher import Fisher
from spotlessnet.readouts.activation_distance import ActivationDistance
from spotlessnet.readouts.entropy_attack import EntropyAttack
from spotlessnet.readouts.error import Error
from spotlessnet.readouts.lira import LiRA
from spotlessnet.readouts.margin import Margin, margins_of
from spotlessnet.readouts.matched_controls import matched_controls
from spotlessnet.readouts.mean_loss import MeanLoss
from spotlessnet.readouts.relearn_time import RelearnTime
from spotlessnet.readouts.u_lira import u_lira
from spotlessnet.store.receipts import LIMITS, environment
from spotlessnet.training.fit import fit
from spotlessnet.training.pairs import Trainings, train_pairs

DELIVERED = "as delivered"
RELEARN_CAP = 20
SMALL = 200_000
"""Weights up to which networks of all seeds are trained as one program."""

NOT_SHOWN = (
    "The verdict is about the method with these settings on these rows, over several trainings; a single file cannot "
    "be told from chance.",
    "No attack on gradients, on intermediate layers or over many requests was tried.",
    "BatchNorm statistics and optimiser state are not touched: if training moved them, they still carry the rows.",
)


@dataclass(frozen=True, eq=False)
class Networks:
    """Every network of the audit, by method and seed, with what the scrubs took."""

    trainings: Trainings
    scrubs: Mapping[str, Scrub]
    gaussians: Mapping[str, Sequence[Gaussian]]
    scrubbed: Mapping[str, Sequence[Trained]]
    meters: Mapping[str, Meter]


def audit(
    original: Trained | Callable[[int], Trained],
    split: Split,
    scrub: Scrub,
    *,
    name: str,
    others: Mapping[str, Scrub] | None = None,
    seeds: int = 8,
    title: str = "A request to forget",
    again: str = "",
    shadow_attack: bool = False,
    delivered: Trained | None = None,
) -> AuditReport:
    """Train originals and retrained networks over paired seeds, scrub, look at all of them, and judge.

    **Arguments:**

    - `original`: a network that knows its recipe and its start, or a function of the seed that gives one to begin with.
    - `scrub`, `name`: the method that is judged; `others` are shown beside it.
    - `seeds`: pairs of trainings; 8 unless said, 5 at least for a verdict.
    - `strong`: also attack shadow networks that were scrubbed the same way (minutes).
    - `delivered`: the network that a user takes away, shown as a row of its own.
    """
    if isinstance(original, Trained) and (original.recipe is None or original.init is None):
        return _without_retraining(original, split, scrub, name=name, title=title, again=again, delivered=delivered)
    began = original if isinstance(original, Trained) else original(0)
    trainings = train_pairs(original, split, seeds=seeds, together=began.size <= SMALL)
    found = _scrub_all(trainings, split, {name: scrub, **(others or {})})
    paths, meters = _ways(trainings, split, found, name)
    rows = list(track(_rows(found, split, {**found.meters, **meters}), "looking at the networks"))
    if delivered is not None:
        rows += _delivered_rows(delivered, trainings, split)
    extra: tuple[Check, ...] = ()
    if shadow_attack:
        extra = (attack_check(u_lira(trainings.original[0], split, scrub).forgotten),)
    groups = (trainings.original, found.scrubbed[name], trainings.retrained, trainings.held_out)
    verdict = Audit()(*(Evidence.of(group, split) for group in groups), extra=extra)
    findings = tuple(Finding(c.name, c.state, c.value, c.low, c.high, c.margin, c.note) for c in verdict.checks)
    about = found.gaussians[name][0].diagnostics
    return AuditReport(
        title=title,
        method=name,
        rows=tuple(rows),
        judgement=Judgement(
            verdict.word, verdict.reason, verdict.resolution, seeds, verdict.oracle, verdict.power, findings
        ),
        request=_request(split),
        settings=_settings(scrub),
        assumed=about.get("assumed", []),
        lost=about.get("lost", []),
        curves=replace(_curves(found, split, scrub, name), paths=paths),
        costs=_costs({**found.meters, **meters}, name),
        limits=(*NOT_SHOWN, *LIMITS),
        again=again,
        made=_made(),
    )


def _scrub_all(trainings: Trainings, split: Split, scrubs: Mapping[str, Scrub]) -> Networks:
    gaussians: dict[str, list[Gaussian]] = {}
    scrubbed: dict[str, list[Trained]] = {}
    meters: dict[str, Meter] = {}
    for name, scrub in scrubs.items():
        gaussians[name], scrubbed[name] = [], []
        pairs = list(zip(trainings.seeds, trainings.original, strict=True))
        for seed, network in track(pairs, f"scrubbing with {name}"):
            with Meter(network.device) as meter:
                gaussian = scrub.reseeded(DRAWS_APART * seed)(network, split)
            gaussians[name].append(gaussian)
            scrubbed[name].append(network.at(gaussian.draw(torch.Generator().manual_seed(seed))))
            if name not in meters or meter.seconds < meters[name].seconds:
                meters[name] = meter  # the first call also pays for warming up
    return Networks(trainings, scrubs, gaussians, scrubbed, meters)


def _battery(trainings: Trainings, split: Split, others: Data | None, i: int) -> list[Readout]:
    """The readouts of one seed; references are the retrained partner and the held-out networks."""
    readouts: list[Readout] = [Error("retain"), Error("forget"), MeanLoss("forget"), Margin("forget")]
    if split.test is not None:
        readouts += [Error("test"), EntropyAttack(), LiRA(tuple(trainings.held_out), others)]
    return [
        *readouts,
        ActivationDistance(trainings.retrained[i]),
        RelearnTime(trainings.original[i], cap=RELEARN_CAP, lr=trainings.original[i].recipe.lr / 10),  # type: ignore[union-attr]  # trained by a recipe
    ]


def _rows(found: Networks, split: Split, meters: Mapping[str, Meter]) -> Iterator[Row]:
    trainings = found.trainings
    methods = {ORIGINAL: trainings.original, **found.scrubbed, RETRAINED: trainings.retrained}
    others = _others(trainings, split)
    for i, seed in enumerate(trainings.seeds):
        for readout in _battery(trainings, split, others, i):
            for method, networks in methods.items():
                network = networks[i]
                if method == RETRAINED and isinstance(readout, ActivationDistance):
                    network = trainings.held_out[i]  # against itself it would be zero; another one shows the floor
                meter = meters[method]
                yield _row(method, readout, seed, network, split, meter)
        for method, gaussians in found.gaussians.items():
            if not gaussians[i].is_noiseless:
                yield from _bounds(found, split, method, i, meters[method])


def _row(method: str, readout: Readout, seed: int, network: Trained, split: Split, meter: Meter) -> Row:
    reading = readout(network, split)
    return Row(
        "audit", method, readout.name, seed, float(reading.value), float(reading.low), float(reading.high),
        readout.unit, readout.ideal, meter.seconds, meter.memory, reading.censored, reading.note,
    )  # fmt: skip


def _bounds(found: Networks, split: Split, method: str, i: int, meter: Meter) -> Iterator[Row]:
    scrubbed = found.gaussians[method][i]
    # The same reference as in `compare` and in the curve below; `Scrub.reference_for` says what it is made from.
    scrub = found.scrubs[method].reseeded(DRAWS_APART * found.trainings.seeds[i])
    reference = scrub.reference_for(scrubbed, found.trainings.retrained[i], split)
    for bound in (WhiteBox(), BlackBox(queries=5)):
        reading = bound(scrubbed, reference, found.trainings.original[i], split)
        seed = found.trainings.seeds[i]
        yield Row("audit", method, bound.name, seed, float(reading.value), unit=bound.unit, ideal="low",
                  seconds=meter.seconds, memory=meter.memory, note=reading.note)  # fmt: skip


def _delivered_rows(delivered: Trained, trainings: Trainings, split: Split) -> list[Row]:
    meter, others = Meter(), _others(trainings, split)
    return [_row(DELIVERED, readout, 0, delivered, split, meter) for readout in _battery(trainings, split, others, 0)]


def _others(trainings: Trainings, split: Split) -> Data | None:
    """Rows that an attacker compares the forgotten ones with, or none where there is no test data."""
    return None if split.test is None else matched_controls(trainings.held_out, split)


def _curves(found: Networks, split: Split, scrub: Scrub, name: str) -> Curves:
    trainings = found.trainings
    shown = {ORIGINAL: trainings.original, name: found.scrubbed[name], RETRAINED: trainings.held_out}
    curve, leak = _noise_curves(trainings, split, scrub, name)
    confidence = {n: _label_probabilities(group[0], split) for n, group in shown.items()}
    others = _others(trainings, split)
    roc = {} if others is None else {n: _roc(group, trainings.retrained, split, others) for n, group in shown.items()}
    return Curves(trade_off=curve, roc=roc, confidence=confidence, leak=leak)


def _label_probabilities(network: Trained, split: Split) -> list[float]:
    """What the network gives to the label of each forgotten row: a margin is the logit of just that."""
    return margins_of([network], split.forget)[0].sigmoid().tolist()


def _noise_curves(
    trainings: Trainings, split: Split, scrub: Scrub, name: str
) -> tuple[dict[str, list[tuple[float, float, float]]], dict[str, list[float]]]:
    """The trade-off of the first seed with and without the method's step, and the nats of single queries."""
    context = Context(trainings.original[0], trainings.retrained[0], split, trainings.seeds[0])
    noise = Fisher(strength=1e-8)
    methods = {name: scrub} if scrub.is_noisy else {f"{name}, then noise": chain(scrub, noise), "noise alone": noise}
    readout, bound = Error("retain") if split.test is None else Error("test"), WhiteBox()
    curves: dict[str, list[tuple[float, float, float]]] = {}
    leak: dict[str, list[float]] = {}
    for label, plain in methods.items():
        method = plain.reseeded(DRAWS_APART * context.seed)  # as in the table
        gaussian = method(context.original, split)
        reference = reference_of(method, gaussian, context)
        scales = [10.0**e for e in range(-4, 5)]
        found = trade_off(
            gaussian, reference, context.original, split, readouts=[readout], bounds=[bound], scales=scales, draws=3
        )
        readings, nats = found.readings[readout.name], found.nats[bound.name]
        curves[label] = [
            (float(n), float(r), (r.high - r.low) / 2 if r.high > r.low else 0.0)
            for n, r in zip(nats, readings, strict=True)
        ]
        if not leak:
            by_set = per_query_by_set(gaussian, reference, context.original, split, count=25)
            leak = {f"{part} rows": values.tolist() for part, values in by_set.items()}
    return curves, leak


def _roc(
    group: Sequence[Trained], references: Sequence[Trained], split: Split, others: Data
) -> tuple[list[float], list[float]]:
    """The per-example attack over all seeds: margins in units of the retrained networks' own spread, row by row."""

    def scores(rows: Data) -> Float[Tensor, " M"]:
        seen, outside = margins_of(group, rows), margins_of(references, rows)
        # The spread within rows, pooled: a handful of networks knows no single row's variance.
        spread = outside.var(dim=0).mean().sqrt().clamp(min=1e-6)
        return ((seen - outside.mean(dim=0)) / spread).flatten()

    members, unseen = scores(split.forget), scores(others)
    thresholds = unseen.sort(descending=True).values
    # No rate is drawn that rests on fewer than ten strangers.
    thresholds = thresholds[9 :: max(1, len(thresholds) // 100)]
    fpr = [float((unseen >= t).double().mean()) for t in thresholds]
    tpr = [float((members >= t).double().mean()) for t in thresholds]
    return [*fpr, 1.0], [*tpr, 1.0]


def _ways(
    trainings: Trainings, split: Split, found: Networks, name: str
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, Meter]]:
    """Train one pair on its own, watched: the ways of the weights, and what one training costs."""
    first, seed = trainings.original[0], trainings.seeds[0]
    start = first.at(first.anchor)
    ways: dict[str, list[Tensor]] = {}
    meters: dict[str, Meter] = {}
    for method, data in ((ORIGINAL, split.whole), (RETRAINED, split.retain)):
        way = [start.weights]
        with Meter(first.device) as meters[method]:
            fit(start, data, first.recipe, seed=seed, order_of=split.first_trained_on, watch=_remembering(way))
        ways[method] = way
    ways[name] = [ways[ORIGINAL][-1], found.gaussians[name][0].mean]
    points = torch.cat([torch.stack(way) for way in ways.values()]).double()
    centred = points - points.mean(dim=0)
    plane = torch.linalg.svd(centred, full_matrices=False)[2][:2]
    flat = (centred @ plane.T).split([len(way) for way in ways.values()])
    return {m: [(float(x), float(y)) for x, y in f] for m, f in zip(ways, flat, strict=True)}, meters


def _remembering(way: list[Tensor]) -> Callable[[int, Trained], None]:
    def watch(epoch: int, network: Trained) -> None:
        way.append(network.weights)

    return watch


def _costs(meters: Mapping[str, Meter], name: str) -> list[Cost]:
    shown = [name, *(m for m in meters if m not in (name, ORIGINAL, RETRAINED)), ORIGINAL, RETRAINED]
    notes = {ORIGINAL: "one training", RETRAINED: "one retraining without the rows"}
    return [Cost(m, meters[m].seconds, meters[m].memory, notes.get(m, "")) for m in shown]


def _without_retraining(
    original: Trained,
    split: Split,
    scrub: Scrub,
    *,
    name: str,
    title: str,
    again: str,
    delivered: Trained | None,
) -> AuditReport:
    """What can be said when nobody knows how to retrain: one network before and after, and no verdict."""
    with Meter(original.device) as meter:
        gaussian = scrub(original, split)
    after = delivered or original.at(gaussian.draw(torch.Generator().manual_seed(0)))
    readouts: list[Readout] = [Error("forget"), MeanLoss("forget"), Margin("forget")]
    if split.kept is not None:
        readouts.append(Error("retain"))
    if split.test is not None:
        readouts.append(Error("test"))
    networks = {ORIGINAL: original, name: after}
    rows = [_row(m, readout, 0, network, split, meter) for m, network in networks.items() for readout in readouts]
    missing = (
        "The start of training or its recipe is not known, so no network could be retrained and nothing is judged."
    )
    return AuditReport(
        title=title,
        method=name,
        rows=tuple(rows),
        request=_request(split),
        settings=_settings(scrub),
        assumed=gaussian.diagnostics.get("assumed", []),
        lost=gaussian.diagnostics.get("lost", []),
        curves=Curves(confidence={m: _label_probabilities(network, split) for m, network in networks.items()}),
        limits=(missing, *NOT_SHOWN, *LIMITS),
        again=again,
        made=_made(),
    )


def _request(split: Split) -> dict[str, object]:
    asked = split.request
    found: dict[str, object] = {"asked for": asked.text, "rows to forget": len(split.forget)}
    if split.kept is not None:
        found["rows kept"] = len(split.kept)
    if asked.copies is not None:
        found["identical copies among the rows kept"] = asked.copies
    return found | {"ids missing": asked.missing, "duplicates": asked.duplicates}


def _settings(scrub: Scrub) -> dict[str, str]:
    return {"settings": repr(scrub)}


def _made() -> dict[str, object]:
    where = environment()
    return {
        **where["packages"],
        "python": where["python"],
        "machine": f"{where['machine']}, {where['threads']} threads",
        "date": datetime.now(UTC).date().isoformat(),
    }
