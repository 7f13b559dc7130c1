"""One rule by which a method is reseeded for every training, whoever scrubs: audit, verdict, comparison, attack."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

import spotlessnet as sn
from spotlessnet.auditing.judging import judge_networks
from spotlessnet.auditing.seeds import DRAWS_APART, scrub_every_seed, scrub_seed
from spotlessnet.core.chaining import chain
from spotlessnet.core.errors import MismatchError
from spotlessnet.core.gaussian import Covariance, Diagonal
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.training.pairs import train_pairs


@dataclass(frozen=True)
class Spy(Scrub):
    """Moves nothing, adds noise, and writes down the seed that it was called with."""

    called: ClassVar[list[int]] = []

    seed: int = 7

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        self.called.append(self.seed)
        return trained.weights

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        return Diagonal(torch.full_like(trained.weights, 1e-6))

    @property
    def is_noisy(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def nothing_was_called():
    Spy.called.clear()


@pytest.fixture(scope="module")
def problem() -> tuple[Trained, Split]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=draw)
    y = (x[:, 0] > 0).long()
    torch.manual_seed(0)
    trained = Trained.of(nn.Linear(3, 2), recipe=sn.Recipe(epochs=2, lr=0.1, batch_size=8))
    return replace(trained, init=trained.weights), sn.rows(range(4))((x[:30], y[:30]), (x[30:], y[30:]))


def audited(trained: Trained, split: Split) -> None:
    sn.audit(trained, split, Spy(), name="spy", seeds=3)


def judged(trained: Trained, split: Split) -> None:
    pairs = train_pairs(trained, split, seeds=3)
    found = scrub_every_seed(Spy(), pairs.original, split, pairs.seeds, "scrubbing")
    judge_networks([one.network for one in found], pairs, split)


def compared(trained: Trained, split: Split) -> None:
    sn.compare(trained, split, scrubs={"spy": Spy()}, readouts=[sn.Error("forget")], seeds=range(3))


def attacked(trained: Trained, split: Split) -> None:
    sn.u_lira(trained, split, Spy(), shadows=8)


def chained(trained: Trained, split: Split) -> None:
    method = chain(Spy(seed=7))
    sn.compare(trained, split, scrubs={"spy": method}, readouts=[sn.Error("forget")], seeds=range(3))


@pytest.mark.parametrize("scrubs", [audited, judged, compared, attacked, chained])
def test_every_loop_draws_anew_for_every_training_by_the_same_rule(scrubs: Callable[..., None], problem):
    scrubs(*problem)
    trainings = 8 if scrubs is attacked else 3
    # The audit also draws its noise curve, from the first training: that one is called twice.
    assert sorted(set(Spy.called)) == [7 + DRAWS_APART * seed for seed in range(trainings)]
    assert Spy.called[:trainings] == [7 + DRAWS_APART * seed for seed in range(trainings)]


def test_audit_and_comparison_draw_the_same_networks(problem):
    trained, split = problem
    rows = sn.compare(trained, split, scrubs={"spy": Spy()}, readouts=[sn.MeanLoss("forget")], seeds=range(2))
    compared = [row.value for row in rows if row.method == "spy"]
    originals = train_pairs(trained, split, seeds=2, together=False)
    found = scrub_every_seed(Spy(), originals.original, split, originals.seeds, "scrubbing")
    assert compared == pytest.approx([float(sn.MeanLoss("forget")(one.network, split)) for one in found], rel=1e-6)


def test_the_first_training_gets_the_method_as_it_was_given_and_every_other_noise_of_its_own(problem):
    trained, split = problem
    first, second = (scrub_seed(Spy(), trained, split, seed) for seed in (0, 1))
    assert first.scrub == Spy()
    assert torch.equal(first.network.weights, first.gaussian.draw(torch.Generator().manual_seed(0)))
    assert not torch.equal(first.network.weights, second.network.weights)


def test_a_network_without_a_seed_or_a_split_is_named(problem):
    trained, split = problem
    with pytest.raises(MismatchError, match="got 1 networks, 2 seeds and 1 splits"):
        list(scrub_every_seed(Spy(), [trained], split, [0, 1], "scrubbing"))
