"""How close networks lie to originals: by hand, whatever order units have, and with p-values that hold."""

import math

import pytest
import torch
from scipy import stats
from torch import Tensor, float64, nn

from spotlessnet.auditing.descent import LEAST, Place, closeness, kinship, near_originals
from spotlessnet.core.trained import Trained


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=float64)


def test_closeness_by_hand():
    originals = Place(
        [torch.tensor([0.0, 0.0]), torch.tensor([6.0, 8.0])], torch.tensor([[[1.0, 0.0]], [[3.0, 4.0]]], dtype=float64)
    )
    group = Place(
        [torch.tensor([3.0, 4.0]), torch.tensor([6.0, 8.0])], torch.tensor([[[4.0, 2.0]], [[2.0, 7.0]]], dtype=float64)
    )
    found = closeness(group, originals)
    # In the mean originals answer (2, 2), so they are (-1, -2) and (1, 2) beside it, and the others (2, 0) and (0, 5).
    expected = [[-math.log(5 + LEAST), 1 / math.sqrt(5)], [-math.log(LEAST), 2 / math.sqrt(5)]]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=float64))
    assert closeness(Place(group.weights, None), originals).shape == (2, 1)
    # Closer to its own than to the other: as far from both; at its own, 10 from the other.
    expected = [[0.0, -2 / math.sqrt(5)], [-math.log(LEAST / 10), 4 / math.sqrt(5)]]
    torch.testing.assert_close(kinship(group, originals), torch.tensor(expected, dtype=float64))


def test_classes_that_networks_rule_out_say_nothing_of_where_they_lie():
    """Their logits are minus infinity, as those of tokens that only fill a vocabulary up."""
    weights = [torch.zeros(2), torch.ones(2), 3 * torch.ones(2)]
    answers = drawn(0, 3, 4, 2)
    found = closeness(Place(weights[2:], answers[2:]), Place(weights[:2], answers[:2]))
    out = torch.full((3, 4, 1), -torch.inf, dtype=float64)
    masked = torch.cat([answers, out], dim=2)
    again = closeness(Place(weights[2:], masked[2:]), Place(weights[:2], masked[:2]))
    torch.testing.assert_close(again, found)
    masked[2, 0, 0] = torch.inf  # of one network alone
    assert closeness(Place(weights[2:], masked[2:]), Place(weights[:2], masked[:2])).isfinite().all()


def test_units_in_another_order_are_known_by_their_answers():
    """The weights then lie as far as another network's."""
    x = drawn(0, 50, 4).float()
    networks = []
    for seed in range(6):
        torch.manual_seed(seed)
        networks.append(Trained.of(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))))

    def place(some: list[Trained]) -> Place:
        return Place([one.weights for one in some], torch.stack([one.outputs(x).double() for one in some]))

    def permuted(network: Trained) -> Trained:
        order = torch.randperm(16, generator=torch.Generator().manual_seed(1))
        first, bias, last, end = network.unflatten(network.weights).values()
        return network.at(torch.cat([part.flatten() for part in (first[order], bias[order], last[:, order], end)]))

    originals = place(networks[:3])
    others = closeness(place(networks[3:]), originals)
    moved = closeness(place([permuted(one) for one in networks[:3]]), originals)
    assert float(moved[:, 0].mean() - others[:, 0].mean()) < 3 * float(others[:, 0].std()) + 0.2
    assert float(moved[:, 1].min()) > 0.999 > float(others[:, 1].max())


@pytest.mark.parametrize("number", [0, 1])
def test_p_values_hold_and_networks_close_by_are_noticed(number):
    found, known = [], []
    for s in range(100):
        others, tuned = drawn(4 * s, 8, 2), drawn(4 * s + 1, 8, 2)
        tuned[:, number] += 10
        honest = near_originals([tuned, tuned], drawn(4 * s + 2, 8, 2), others, permutations=199, seed=s)
        found.append(honest.p)
        close = drawn(4 * s + 3, 8, 2)
        close[:, number] += 5
        known.append(near_originals([tuned], close, others, permutations=199, seed=s).p)
        assert min(honest.noticed) > 8
    assert stats.kstest(found, "uniform").pvalue > 0.001
    assert max(known) <= 0.01


def test_what_is_noticed_is_the_t_of_networks_like_the_tuned_ones():
    tuned, others = drawn(0, 8, 1) + 2.0, drawn(1, 8, 1)
    t = stats.ttest_ind(tuned[:, 0].numpy(), others[:, 0].numpy()).statistic
    assert near_originals([tuned], drawn(2, 8, 1), others, permutations=9).noticed == pytest.approx((float(t),))


def test_places_are_selected_and_joined():
    place = Place([drawn(0, 3), drawn(1, 3)], drawn(2, 2, 4, 5))
    again = place.select(torch.tensor([1])).join(place.select(torch.tensor([0])))
    assert [*again.weights] == [place.weights[1], place.weights[0]]
    assert again.answers is not None
    torch.testing.assert_close(again.answers, drawn(2, 2, 4, 5)[[1, 0]])
    assert place.join(Place([drawn(3, 3)], None)).answers is None
