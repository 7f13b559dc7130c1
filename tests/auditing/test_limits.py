"""What an audit does not say: no accusation by copies or by small moves, and no limit narrower than what was tried."""

from dataclasses import replace

import pytest
import torch
from torch import float64

from spotlessnet.auditing.beside import Beside
from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.exchanging import Channel, StandingOut, alike
from spotlessnet.auditing.planted_rows import SINGLE, could_hide
from spotlessnet.auditing.verdict import CouldHide
from spotlessnet.readouts.matched_controls import Unseen

ROWS, CONTROLS = 12, 200
LABELS = torch.arange(ROWS) % 3
QUICK = EquivalenceTest(permutations=199)


def networks(seed: int, known: float = 0.0, *, together: float = 0.0, seeds: int = 8) -> Evidence:
    """Answers of one group; forgotten rows know their label better by `known`, and stray `together`."""
    place, g = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    where = [4 * torch.rand(rows, 3, generator=place, dtype=float64) - 3 for rows in (ROWS, CONTROLS)]
    own, unseen = (at + 0.4 * torch.randn(seeds, *at.shape, generator=g, dtype=float64) for at in where)
    own = own + together * torch.randn(seeds, 1, 1, generator=g, dtype=float64)
    own[:, torch.arange(ROWS), LABELS] += known
    margins = own[:, torch.arange(ROWS), LABELS]
    errors = 0.1 + 0.01 * torch.rand(seeds, generator=g, dtype=float64)
    none = torch.empty(0, dtype=torch.long)
    beside = Unseen(unseen, LABELS, torch.zeros(CONTROLS, dtype=torch.long), none)
    return Evidence(margins, (margins < 0).double().mean(1), errors, beside, answers=own)


def outcome(candidate: Evidence, **changes: bool) -> str:
    groups = (networks(1, 6.0), candidate, networks(3), networks(4))
    return QUICK(*(replace(group, **changes) for group in groups)).outcome  # type: ignore[arg-type]  # flags


def test_rows_whose_copies_stay_accuse_nobody():
    assert outcome(networks(2, 6.0)) == "not forgotten"
    assert outcome(networks(2, 6.0), has_copies=True) == "inconclusive"
    assert outcome(networks(2), has_copies=True) == "forgotten"


@pytest.mark.parametrize(
    ("moved", "furthest", "p", "expected"),
    [
        (0.3, 0.6, 0.015, "unclear"),  # small, and not sure
        (0.3, 0.6, 0.004, "different"),  # small, but sure
        (0.6, 0.6, 0.015, "different"),  # large in the mean
        (0.1, 0.8, 0.015, "different"),  # large in one row
        (-0.6, 0.6, 0.015, "different"),  # avoided as far as it was known
    ],
)
def test_a_small_move_needs_more_proof(moved, furthest, p, expected):
    def beside(size: float, most: float, p_rows: float) -> Beside:
        return Beside(StandingOut(0.001, p_rows, size, 0.1, 0.1, 14, most), p_rows, True, "different")

    found = QUICK._unless_small(beside(4 * moved, 4 * furthest, p), beside(4.0, 6.0, 0.001), networks(1))
    assert found.state == expected


def test_how_many_could_hide_is_an_upper_limit_unless_all_were_tried():
    assert CouldHide(0, 12, 0.0, 12).at_most == 0
    assert CouldHide(3, 12, 0.0, 12).at_most == 0.25
    # Of 24 none: with 95 % confidence below 1 - .05^(1/24).
    assert CouldHide(0, 24, 0.0, 60).at_most == pytest.approx(1 - 0.05 ** (1 / 24))
    assert "at most 12 % of all 60 (95 % confidence)" in str(CouldHide(0, 24, 0.0, 60))
    assert "confidence" not in str(CouldHide(0, 12, 0.0, 12))
    assert str(CouldHide(2, 12, 0.0, 12)) == (
        "Had a single forgotten example been kept, this audit would have noticed in 10 of 12 trials. Had a tenth of "
        "them been kept together, it would have noticed in every trial."
    )
    assert str(CouldHide(2, 12, 0.25, 12)).endswith(
        "Had up to 25 % of them been kept together, it could have missed that."
    )


def test_the_stated_limit_holds_for_rows_that_were_not_tried():
    """A tenth of the rows hide, drawn at random: the limit is too low in one audit of twenty or fewer."""
    broken = 0
    for seed in range(200):
        hides = torch.rand(100, generator=torch.Generator().manual_seed(seed)) < 0.1
        found = could_hide(lambda rows, hides=hides: not bool(hides[rows].any()), 100)  # type: ignore[misc]  # bound
        assert found.tried == SINGLE
        broken += found.at_most < float(hides.double().mean())
    assert broken <= 19  # ten are expected, and three standard deviations more are chance


@pytest.mark.parametrize(("together", "expected"), [(0.0, 0.0), (4.0, 1.0)])
def test_rows_that_stray_together_are_alike(together, expected):
    one = networks(5, together=together, seeds=300)
    assert one.answers is not None
    assert one.unseen is not None
    assert alike(Channel(one.answers, one.unseen.margins), LABELS) == pytest.approx(expected, abs=0.05)


def test_rows_like_each_other_are_planted_weaker_one_by_one():
    ours, original, retrained = networks(2), networks(1, 6.0), networks(3)
    one = torch.arange(ROWS) == 0
    whole, half = (ours.with_rows_moved(original, retrained, one, share) for share in (1.0, 0.5))
    torch.testing.assert_close(half.margins[:, 0], (whole.margins[:, 0] + ours.margins[:, 0]) / 2)
    torch.testing.assert_close(half.margins[:, 1:], ours.margins[:, 1:])
