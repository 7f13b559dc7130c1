"""The root of a cohort's own curvature: what is taken out of statistics, against dense products."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed import step as recalling
from spotlessnet.precomputed.step import own_root
from tests.precomputed.test_step import dense


def classifier(seed: int, rows: int) -> tuple[Trained, Data]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return Trained.of(model), Data.of((torch.randn(rows, 4, dtype=float64), torch.randint(3, (rows,))))


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 20))
@settings(max_examples=25, deadline=None)
def test_the_cohorts_root_squares_to_its_curvature(seed, rows):
    trained, data = classifier(seed, rows)
    root, dropped = own_root(trained, data, most=trained.size)
    assert root.shape[1] <= min(trained.size, 2 * rows)
    torch.testing.assert_close(root @ root.T, dense(trained, data), rtol=1e-9, atol=1e-9)
    assert dropped < 1e-9


def test_a_cut_root_keeps_the_strongest_directions_and_says_what_it_lost():
    trained, data = classifier(0, 12)
    H = dense(trained, data)
    values, vectors = torch.linalg.eigh(H)
    root, dropped = own_root(trained, data, most=3)
    torch.testing.assert_close(root @ root.T, (vectors[:, -3:] * values[-3:]) @ vectors[:, -3:].T)
    assert dropped == pytest.approx(float(values[:-3].sum() / values.sum()))
    bar = float(values[-5])
    assert own_root(trained, data, most=99, beneath=1.0001 * bar)[0].shape[1] == 4
    assert own_root(trained, data, most=99, beneath=1e9)[0].shape[1] == 1


def test_some_rows_of_a_large_cohort_stand_for_all(monkeypatch):
    monkeypatch.setattr(recalling, "SEEN", 3 * 5)  # five rows of three outputs
    trained, data = classifier(0, 20)
    drawn = torch.randperm(20, generator=torch.Generator().manual_seed(7))[:5].sort().values
    root, _ = own_root(trained, data, most=trained.size, seed=7)
    torch.testing.assert_close(root @ root.T, 20 / 5 * dense(trained, data.select(drawn)))
