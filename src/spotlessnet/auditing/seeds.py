"""The one way in which an audit, a comparison and an attack scrub the networks of several trainings.

A method that draws (an order of batches, random labels) must be judged over its own chance too: with one draw for all
trainings, a lucky one would count as skill. So the method is reseeded for every training, by one rule, here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from spotlessnet.core.errors import MismatchError
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.progress import Meter, track
from spotlessnet.core.scrub import Scrub, drawn_network
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained

DRAWS_APART = 1000
"""Between the seeds of a method for one training and for the next: more than any method draws within one call."""


@dataclass(frozen=True, eq=False)
class Scrubbed:
    """What came of one training.

    **Arguments:**

    - `scrub`: the method as it was reseeded; a bound asks it for its reference.
    - `gaussian`: the distribution of the scrubbed weights, `network` one draw from it.
    - `meter`: what the method took, without the draw.
    """

    seed: int
    scrub: Scrub
    gaussian: Gaussian
    network: Trained
    meter: Meter


def scrub_seed(scrub: Scrub, network: Trained, split: Split, seed: int) -> Scrubbed:
    """Scrub the network of one training: the method's own seed moves on with `seed`, and so does its noise.

    For seed 0 the method is the very one that was given.
    """
    own = scrub.reseeded(DRAWS_APART * seed)
    with Meter(network.device) as meter:
        gaussian = own(network, split)
    # On the CPU, so that every device draws the same noise.
    drawn = gaussian.draw(torch.Generator().manual_seed(seed))
    return Scrubbed(seed, own, gaussian, drawn_network(network, gaussian, drawn, split.kept), meter)


def scrub_every_seed(
    scrub: Scrub, networks: Sequence[Trained], splits: Split | Sequence[Split], seeds: Sequence[int], label: str
) -> Iterator[Scrubbed]:
    """Scrub the network of every training, one after the other.

    **Arguments:**

    - `splits`: what to forget; one for all, or one for each network.
    - `seeds`: those of the trainings, in the order of the networks.
    - `label`: what the progress bar says.
    """
    each = [splits] * len(networks) if isinstance(splits, Split) else list(splits)
    if not len(networks) == len(each) == len(seeds):
        raise MismatchError(
            f"Every network needs one seed and one split, but got {len(networks)} networks, {len(seeds)} seeds and "
            f"{len(each)} splits."
        )
    for network, split, seed in track(list(zip(networks, each, seeds, strict=True)), label):
        yield scrub_seed(scrub, network, split, seed)
