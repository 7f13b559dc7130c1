"""`Bound`: how much an attacker can still learn, in nats, from the whole Gaussian."""

from abc import ABC, abstractmethod
from typing import ClassVar

from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.readout import Reading
from spotlessnet.core.registry import Registry
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


class Bound(ABC):
    r"""An upper limit in nats on what a reading of the scrubbed network tells about $D_f$.

    Compares the scrubbed Gaussian with the reference: the same noise recipe around the retrained weights. To add one,
    write one file in `spotlessnet/bounds/` with one frozen dataclass whose fields are its settings, and register it in
    `BOUNDS`.
    """

    unit: ClassVar[str] = "nats"

    @property
    def name(self) -> str:
        """What the column is called."""
        return type(self).__name__

    @abstractmethod
    def __call__(self, scrubbed: Gaussian, reference: Gaussian, trained: Trained, split: Split) -> Reading:
        """`KL(scrubbed ‖ reference)` as seen through one kind of access."""


BOUNDS: Registry[type[Bound]] = Registry("bound", "spotlessnet.bounds")
"""Every bound. Registering one enters it into lists, exports, tables and contract tests."""
