"""Several scrubs as one: each starts where the one before it ended."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.errors import SettingError
from spotlessnet.core.gaussian import Covariance
from spotlessnet.core.scrub import Notes, Scrub, Work
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained


@dataclass(frozen=True)
class Chain(Scrub):
    """Several scrubs, each starting where the one before it ended; made by `chain`."""

    links: tuple[Scrub, ...]

    def __post_init__(self) -> None:
        if not self.links:
            raise SettingError("`chain` needs at least one scrub, but got none.")
        _check_no_budget(self.links)
        for link in self.links[:-1]:
            if link.is_noisy:
                raise SettingError(
                    f"Only the last scrub of a chain may add noise, but {type(link).__name__} comes earlier and does. "
                    "Set its noise to zero, or move it to the end."
                )

    @property
    def is_certified(self) -> bool:
        return self.links[-1].is_certified

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        for link in self.links:
            notes.buffers = None  # those of an earlier link do not go with weights that moved since
            trained = trained.at(link.shift(trained, split, notes), notes.buffers)
        return trained.weights

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        return self.links[-1].spread(trained, split, notes)

    def reference_spread(self, retrained: Trained, split: Split, notes: Notes) -> Covariance:
        return self.links[-1].reference_spread(retrained, split, notes)

    def cost(self, trained: Trained, split: Split) -> Work:
        return sum((link.cost(trained, split) for link in self.links), Work(0, 0))

    def foreseen(self, trained: Trained, split: Split) -> Work:
        return sum((link.foreseen(trained, split) for link in self.links), Work(0, 0))

    def check_needs(self, trained: Trained, split: Split) -> None:
        for link in self.links:
            link.check_needs(trained, split)

    @property
    def is_noisy(self) -> bool:
        return self.links[-1].is_noisy

    def reseeded(self, by: int) -> Scrub:
        return Chain(tuple(link.reseeded(by) for link in self.links))


def chain(*links: Scrub) -> Scrub:
    """Compose scrubs: `chain(NTK(), Finetune(epochs=3), Fisher())`. Only the last may add noise.

    A budget goes around the whole: `WithinBudget(chain(NTK(), Fisher()), max_nats=1)`. Inside a chain it would count
    what its own link left and not what the others did, so it is refused there.
    """
    return Chain(links)


def _check_no_budget(links: tuple[Scrub, ...]) -> None:
    """Raise where a link promises nats or errors that the other links would change unseen."""
    for link in links:
        if not link.budget:
            continue
        # Its own noise goes last, for only the last link may add any.
        inside = getattr(link, "scrub", link)
        names = [type(one).__name__ for one in (*(other for other in links if other is not link), inside)]
        whole = ", ".join(f"{name}()" for name in names)
        raise SettingError(
            f"A budget must stand around the whole chain, but {type(link).__name__}({type(inside).__name__}(), "
            f"{link.budget}) stands inside one, where what the other links leave behind would not be counted. Write "
            f"{type(link).__name__}(chain({whole}), {link.budget})."
        )
