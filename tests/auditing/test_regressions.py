"""Forgotten rows of a regression are compared with controls by a score that chance moves alike."""

import pytest
import torch
from scipy import stats
from torch import Tensor, float64, nn

import spotlessnet as sn
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.exchanging import standing_out
from spotlessnet.core.split import Split
from spotlessnet.readouts.matched_controls import Unseen

T, V, D = 12, 190, 10


def groups(seed: int, strays: float) -> tuple[Evidence, Evidence]:
    """Eight linear networks and sixteen that never saw the rows, whose labels are wrong; the eight may be of another
    training.

    All answers go astray alike, those to the forgotten rows and those to rows that nobody trained on.
    """
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=float64)

    x, w = normal(T + V, D), normal(D) / D**0.5
    mean = x @ w
    y = mean + 0.7 * normal(T + V)
    y[:T] = -3 * mean[:T].sign()
    labels = torch.stack([y[T:].roll(k) for k in range(4)], dim=1)
    found = []
    for count, moved in ((8, strays * normal(D)), (16, torch.zeros(D, dtype=float64))):
        f = (w + moved + 0.05 * normal(count, D)) @ x.T
        margins, controls = -0.5 * (f[:, :T] - y[:T]).square(), -0.5 * (f[:, T:, None] - labels).square()
        nothing = torch.zeros(count, dtype=float64)
        found.append(Evidence(margins, nothing, nothing, Unseen(controls, None), True, half_squares=True))
    return found[0], found[1]


@pytest.mark.parametrize("strays", [0.0, 0.2])
def test_wrong_labels_do_not_stand_out_for_another_training(strays):
    found = []
    for seed in range(80):
        ours, theirs = groups(seed, strays)
        assert ours.channels is not None
        assert theirs.channels is not None
        found.append(standing_out(ours.channels, theirs.channels, ours.labels, permutations=199, seed=seed).p_rows)
    for level in (0.02, 0.05, 0.1):
        assert stats.binomtest(sum(p <= level for p in found), 80, level, alternative="greater").pvalue > 0.01


def test_the_distance_from_the_label_is_compared_where_the_loss_is_half_its_square():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    data = sn.Data.of((x, x.sum(dim=1, keepdim=True)))
    split = Split(forget=data.select(range(5)), kept=None, test=data.select(range(5, 60)))

    def distances(loss) -> Tensor:
        (channel,) = Evidence.of([sn.Trained.of(nn.Linear(3, 1), loss)], split).channels or []
        return channel.rows.squeeze(2)

    torch.manual_seed(0)
    told = distances("squared-error")
    torch.manual_seed(0)
    gap = (nn.Linear(3, 1)(x[:5]) - x[:5].sum(dim=1, keepdim=True)).T.abs().double()
    assert torch.allclose(told, -2 * (gap / 2).asinh(), atol=1e-6)
    torch.manual_seed(0)
    # Of a loss of the user's own nobody knows that it is a square.
    own = distances(lambda f, y: (f - y).square().flatten(1).sum(dim=1) / 2)
    assert torch.allclose(own, -2 * (gap.square() / 4).asinh(), atol=1e-6)
