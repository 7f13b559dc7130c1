"""Every network that an audit looks at: originals, scrubbed ones, retrained ones, and what the scrubs took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotlessnet.auditing.seeds import Scrubbed, scrub_every_seed
from spotlessnet.auditing.summary import ORIGINAL, RETRAINED
from spotlessnet.core.data import Data
from spotlessnet.core.progress import Meter
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.matched_controls import matched_controls
from spotlessnet.training.pairs import Trainings


@dataclass(frozen=True, eq=False)
class Networks:
    """The trainings, and what each method made of them, one for each seed and in their order."""

    trainings: Trainings
    scrubbed: Mapping[str, Sequence[Scrubbed]]

    @staticmethod
    def of(trainings: Trainings, split: Split, scrubs: Mapping[str, Scrub]) -> "Networks":
        """Scrub every original with every method."""
        return Networks(
            trainings,
            {
                name: list(
                    scrub_every_seed(scrub, trainings.original, split, trainings.seeds, f"scrubbing with {name}")
                )
                for name, scrub in scrubs.items()
            },
        )

    def join(self, others: "Networks") -> "Networks":
        """Both, of the same methods."""
        scrubbed = {name: [*found, *others.scrubbed[name]] for name, found in self.scrubbed.items()}
        return Networks(self.trainings.join(others.trainings), scrubbed)

    def by(self, method: str) -> list[Trained]:
        """The networks of one method, one for each seed; the original and the retrained ones have names too."""
        if method == ORIGINAL:
            return self.trainings.original
        if method == RETRAINED:
            return self.trainings.retrained
        return [one.network for one in self.scrubbed[method]]

    def meters(self) -> dict[str, Meter]:
        """The fastest call of each method: the first also pays for warming up."""
        return {
            name: min((one.meter for one in found), key=lambda meter: meter.seconds)
            for name, found in self.scrubbed.items()
        }

    def controls(self, split: Split) -> Data | None:
        """Rows that an attacker compares the forgotten ones with, or none where there is no test data."""
        return None if split.test is None else matched_controls(self.trainings.held_out, split)
