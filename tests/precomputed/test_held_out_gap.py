"""What having seen a row does to the network and to fold models: the quotient written out, and its limits."""

import pytest
import torch
from torch import float64

from spotlessnet.precomputed.held_out_gap import LEAST, gap_ratio, lead


def test_the_lead_is_of_the_largest_over_the_second():
    answers = torch.tensor([[[3.0, 1.0, 0.0], [0.0, 2.0, 5.0]], [[1.0, 1.0, 1.0], [2.0, 1.0, 0.0]]])
    torch.testing.assert_close(lead(answers), torch.tensor([2.5, 0.5]))


def test_the_ratio_in_closed_form():
    draw = torch.Generator().manual_seed(0)
    base = torch.randn(400, generator=draw, dtype=float64)
    missed = torch.arange(3).unsqueeze(1) == torch.arange(400) % 3
    # A row that was seen has a margin larger by 5 under a fold model and by 4 under the network.
    folds = base + torch.where(missed, 0.0, 5.0)
    own, held = base + 4, base.roll(7)
    assert gap_ratio(own, held, folds, missed) == pytest.approx(0.8)
    # Twenty wrong labels, which neither kind has learnt.
    wrong = torch.arange(400) < 20
    own, folds = (torch.where(wrong, -100.0, margins) for margins in (own, folds))
    assert gap_ratio(own, held, folds, missed) == pytest.approx(0.8, abs=0.08)


def test_its_limits():
    missed = torch.tensor([[True, False], [False, True]])
    seen, held = torch.tensor([4.0, 4.0]), torch.tensor([1.0, 1.0])
    assert gap_ratio(seen, held, torch.tensor([[3.0, 4.0], [4.0, 3.0]]), missed) == 1.0
    assert gap_ratio(held, held, torch.tensor([[3.0, 4.0], [4.0, 3.0]]), missed) == LEAST
    assert gap_ratio(seen, held, torch.tensor([[4.0, 3.0], [3.0, 4.0]]), missed) == 1.0
