"""The battery: every readout on every network of an audit, and the bounds where a method adds noise."""

from collections.abc import Iterator, Mapping

from spotlessnet.auditing.networks import Networks
from spotlessnet.auditing.rows import Row
from spotlessnet.auditing.seeds import Scrubbed
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.bounds.black_box import BlackBox
from spotlessnet.bounds.white_box import WhiteBox
from spotlessnet.core.data import Data
from spotlessnet.core.progress import Meter
from spotlessnet.core.readout import Readout
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.activation_distance import ActivationDistance
from spotlessnet.readouts.entropy_attack import EntropyAttack
from spotlessnet.readouts.error import Error
from spotlessnet.readouts.lira import LiRA
from spotlessnet.readouts.loss_attack import LossAttack
from spotlessnet.readouts.margin import Margin
from spotlessnet.readouts.mean_loss import MeanLoss
from spotlessnet.readouts.parts import Part
from spotlessnet.readouts.relearn_time import RelearnTime
from spotlessnet.readouts.scores import Kind, kind_of
from spotlessnet.training.pairs import Trainings

EXPERIMENT = "audit"
DELIVERED = "as delivered"
RELEARN_CAP = 20
RELEARN_RATE = 0.01
"""Where training was not SGD, so that its rate says nothing about one."""


def readouts_of_seed(trainings: Trainings, split: Split, controls: Data | None, i: int) -> list[Readout]:
    """The readouts of one seed; references are the retrained partner and the held-out networks."""
    original = trainings.original[i]
    has_losses_alone = kind_of(original, split.forget) == "losses"
    readouts = readouts_of_one(original, split)
    if split.test is not None:
        readouts += [LossAttack() if has_losses_alone else EntropyAttack(), LiRA(tuple(trainings.held_out), controls)]
    if not has_losses_alone:
        readouts.append(ActivationDistance(trainings.retrained[i]))
    return [*readouts, RelearnTime(original, cap=RELEARN_CAP, lr=relearning_rate(original))]


def readouts_of_one(original: Trained, split: Split) -> list[Readout]:
    """Those that look at one network alone, as its loss allows: errors and margins, or losses where there are none."""
    there: dict[Part, bool] = {"retain": split.kept is not None, "forget": True, "test": split.test is not None}
    parts = [part for part, is_there in there.items() if is_there]
    if kind_of(original, split.forget) == "losses":
        return [MeanLoss(part) for part in parts]
    return [*(Error(part) for part in parts), MeanLoss("forget"), Margin("forget")]


def left_out(kind: Kind) -> str:
    """What a plan says of readouts that such a network does not allow; nothing where it allows all."""
    if kind != "losses":
        return ""
    return (
        "no error, margin, entropy attack or activation distance: they need classes; losses and a loss attack instead"
    )


def relearning_rate(original: Trained) -> float:
    """A tenth of the training's rate where that was one of SGD: relearning is plain SGD, however training went."""
    recipe = original.recipe
    return recipe.lr / 10 if recipe is not None and recipe.optimizer == "sgd" else RELEARN_RATE


def battery_rows(networks: Networks, split: Split, controls: Data | None, meters: Mapping[str, Meter]) -> Iterator[Row]:
    """One row per seed, readout and method, and one per seed and bound where a method adds noise."""
    trainings = networks.trainings
    by_method = {method: networks.by(method) for method in (ORIGINAL, *networks.scrubbed, RETRAINED)}
    for i, seed in enumerate(trainings.seeds):
        for readout in readouts_of_seed(trainings, split, controls, i):
            for method, group in by_method.items():
                network = group[i]
                if method == RETRAINED and isinstance(readout, ActivationDistance):
                    network = trainings.held_out[i]  # against itself it would be zero; another one shows the floor
                yield row_of(method, readout, seed, network, split, meters[method])
        for method, found in networks.scrubbed.items():
            if not found[i].gaussian.is_noiseless:
                yield from _bounds(method, found[i], trainings, i, split, meters[method])


def delivered_rows(delivered: Trained, trainings: Trainings, split: Split, controls: Data | None) -> list[Row]:
    """What the battery of the first seed says of the network that is taken away."""
    readouts = readouts_of_seed(trainings, split, controls, 0)
    return [row_of(DELIVERED, readout, 0, delivered, split, Meter()) for readout in readouts]


def row_of(method: str, readout: Readout, seed: int, network: Trained, split: Split, meter: Meter) -> Row:
    """One look as a row."""
    reading = readout(network, split)
    return Row(
        EXPERIMENT, method, readout.name, seed, float(reading.value), float(reading.low), float(reading.high),
        readout.unit, readout.ideal, meter.seconds, meter.memory, reading.censored, reading.note,
    )  # fmt: skip


def _bounds(method: str, found: Scrubbed, trainings: Trainings, i: int, split: Split, meter: Meter) -> Iterator[Row]:
    # The same reference as in `compare` and in the noise curve; `Scrub.reference_for` says what it is made from.
    reference = found.scrub.reference_for(found.gaussian, trainings.retrained[i], split)
    for bound in (WhiteBox(), BlackBox(queries=5)):
        reading = bound(found.gaussian, reference, trainings.original[i], split)
        yield Row(
            EXPERIMENT, method, bound.name, found.seed, float(reading.value), unit=bound.unit, ideal="low",
            seconds=meter.seconds, memory=meter.memory, note=reading.note,
        )  # fmt: skip
