"""Readouts: what can be seen of forgotten rows in a network. One readout, one class, registered in `READOUTS`.

Names are looked up in the registry, so that a new file is all that a new readout takes. What else the files hold is
imported from the file itself.
"""

from typing import TYPE_CHECKING, Any

from spotlessnet.core.readout import READOUTS as READOUTS

if TYPE_CHECKING:
    # For editors and type checkers, which do not run the registry. One that is not here is exported all the same.
    from spotlessnet.readouts.activation_distance import ActivationDistance as ActivationDistance
    from spotlessnet.readouts.entropy import Confidence as Confidence
    from spotlessnet.readouts.entropy import Entropy as Entropy
    from spotlessnet.readouts.entropy_attack import EntropyAttack as EntropyAttack
    from spotlessnet.readouts.error import Error as Error
    from spotlessnet.readouts.linear_probe import LinearProbe as LinearProbe
    from spotlessnet.readouts.lira import LiRA as LiRA
    from spotlessnet.readouts.loss_attack import LossAttack as LossAttack
    from spotlessnet.readouts.margin import Margin as Margin
    from spotlessnet.readouts.mean_loss import MeanLoss as MeanLoss
    from spotlessnet.readouts.relearn_time import RelearnTime as RelearnTime
    from spotlessnet.readouts.rmia import RMIA as RMIA


def __getattr__(name: str) -> Any:
    """A readout by its name in Python."""
    return READOUTS.export(name, __name__)


def __dir__() -> list[str]:
    """Public names, for completion."""
    return sorted({*globals(), *READOUTS.exports()})
