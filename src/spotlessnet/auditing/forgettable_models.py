"""The audit of a forgettable model: the same readouts and the same verdict as for any method.

Seeds are those of the features: of the core training and of the sketches. The linear problem has no chance in it.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import nn

from spotlessnet.auditing.audit_report import AuditReport, Cost, Curves
from spotlessnet.auditing.battery import row_of
from spotlessnet.auditing.curves import label_probabilities
from spotlessnet.auditing.judging import judge_networks
from spotlessnet.auditing.run_audit import environment_of, request_of
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, check_positive
from spotlessnet.core.progress import Meter, track
from spotlessnet.core.readout import Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.forgettable.model import ForgettableModel
from spotlessnet.readouts.error import Error
from spotlessnet.readouts.margin import Margin
from spotlessnet.readouts.mean_loss import MeanLoss
from spotlessnet.store.receipts import LIMITS
from spotlessnet.training.pairs import Trainings

NAME = "forgettable"
NOT_SHOWN = (
    "The backbone's pre-training data and the core data are not covered: they stay.",
    "Copies of the examples under other ids stay too, unless those ids were given.",
)


def audit_forgettable(
    make: Callable[[int], ForgettableModel],
    *,
    core: Data | Any,
    user: Data | Any,
    forget: Iterable[Hashable],
    test: Data | Any = None,
    seeds: int = 8,
    title: str = "A request to forget",
    rerun_command: str = "",
) -> AuditReport:
    """Fit models over seeds, take the examples out, solve anew without them, look at all of them, and judge.

    **Arguments:**

    - `make`: a function of the seed that fits a model on `core` and `user`; the seed must matter, for it is what chance
      is measured by: `lambda seed: sn.fit_forgettable(..., seed=seed)` with an `adaptation`.
    - `forget`: ids, as the models know them.
    - `seeds`: as many models again are solved without the examples alone; 5 at least for a verdict.
    """
    check_positive("seeds", seeds)
    core, user, wanted = Data.of(core), Data.of(user), list(forget)
    trainings, scrubbed, meters, about = _models(make, core, user, wanted, seeds)
    gone = torch.zeros(len(user), dtype=torch.bool)
    gone[about["places"]] = True
    split = Split(
        user.select(gone.nonzero().squeeze(1)),
        user.select((~gone).nonzero().squeeze(1)),
        test=None if test is None else Data.of(test),
    )
    readouts: list[Readout] = [Error("retain"), Error("forget"), MeanLoss("forget"), Margin("forget")]
    readouts += [] if split.test is None else [Error("test")]
    groups = {ORIGINAL: trainings.original, NAME: scrubbed, RETRAINED: trainings.retrained}
    rows = [
        row_of(method, readout, seed, network, split, meters[method])
        for method, networks in groups.items()
        for seed, network in enumerate(networks)
        for readout in readouts
    ]
    notes = {ORIGINAL: "one fit, features included", RETRAINED: "solving anew without the examples, features included"}
    return AuditReport(
        title=title,
        method=NAME,
        rows=tuple(rows),
        # Each was solved anew here as well, and a certificate says how far it lies from that.
        verdict=judge_networks(scrubbed, trainings, split, never_saw=True),
        request=request_of(split),
        settings={
            "weights equal to solving anew, bit for bit": f"{about['equal']} of {seeds} seeds",
            "largest certified distance, as a share of the weights": f"{about['bound']:.2g}",
        },
        curves=Curves(confidence={name: label_probabilities(group[0], split) for name, group in groups.items()}),
        costs=[Cost(m, meters[m].seconds, meters[m].memory, notes.get(m, "")) for m in groups],
        limits=(*NOT_SHOWN, *LIMITS),
        rerun_command=rerun_command,
        made=environment_of(),
        header={"network": f"forgettable model, {trainings.original[0].size:,} weights"},
    )


def _models(
    make: Callable[[int], ForgettableModel], core: Data, user: Data, forget: list[Hashable], seeds: int
) -> tuple[Trainings, list[Trained], dict[str, Meter], dict[str, Any]]:
    original, scrubbed, retrained, held_out = [], [], [], []
    meters: dict[str, Meter] = {}
    equal = 0
    bound = 0.0
    places = torch.zeros(0, dtype=torch.long)
    for seed in track(range(2 * seeds), "fitting"):
        with Meter() as fitting:
            model = make(seed)
        places = model.examples.find(forget)
        if bool((model.examples.weights > 1).any()):
            raise NeedError("Models with class weights cannot be solved anew for an audit. Fit without them.")
        stay = torch.ones(len(user), dtype=torch.bool)
        stay[places] = False
        with Meter() as solving:
            without = model.solved_anew(user.select(stay.nonzero().squeeze(1)), core=core)
        if seed >= seeds:
            held_out.append(network_of(without))
            continue
        original.append(network_of(model))
        with Meter() as forgetting:
            request = model.forget(forget)
        scrubbed.append(network_of(model))
        retrained.append(network_of(without))
        equal += int(torch.equal(model.weights, without.weights))
        bound = max(bound, request.certificate.relative)
        meters = {ORIGINAL: fitting, NAME: forgetting, RETRAINED: solving}
    trainings = Trainings(original, retrained, held_out, tuple(range(seeds)))
    return trainings, scrubbed, meters, {"equal": equal, "bound": bound, "places": places}


def network_of(model: ForgettableModel) -> Trained:
    """The present network as readouts look at it: its last layer takes part, the frozen features do not."""
    network = model.module()
    for name in ("weight", "bias"):
        value = getattr(network, name)
        delattr(network, name)
        network.register_parameter(name, nn.Parameter(value))
    return Trained.of(network)
