"""The gradient over data against `torch.func.grad`."""

from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, SettingError
from spotlessnet.core.trained import Trained
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.sums import fill_over, sum_over
from tests.reference import NETWORKS, problem, random_weights, summed_loss


@given(name=st.sampled_from(sorted(NETWORKS)), seed=st.integers(0, 999), batch=st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_is_the_weighted_sum_of_gradients_plus_the_pull_to_the_start(name, seed, batch):
    trained, data = problem(name, seed)
    s = random_weights(len(data), seed)
    truth = torch.func.grad(lambda w: summed_loss(trained, data, w, s))(trained.weights)
    found = gradient(trained, data, sample_weights=s, ridge=0.7, batch_size=batch)
    torch.testing.assert_close(found, truth + 0.7 * (trained.weights - trained.anchor))


def test_count_times_decay_as_ridge_gives_count_times_the_gradient_of_the_risk():
    trained, data = problem("mlp", 0)
    truth = torch.func.grad(lambda w: trained.risk(data, w))(trained.weights)
    torch.testing.assert_close(gradient(trained, data, ridge=len(data) * trained.known_weight_decay), len(data) * truth)


def test_many_small_batches_in_float32_lose_nothing():
    torch.manual_seed(0)
    data = Data.of((torch.randn(3000, 4), torch.randint(3, (3000,))))
    trained = Trained.of(nn.Linear(4, 3))
    apart, together = gradient(trained, data, batch_size=3), gradient(trained, data, batch_size=3000)
    torch.testing.assert_close(apart, together, rtol=1e-5, atol=1e-5)


def test_weights_of_zero_are_never_read():
    class Watched(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
        read: ClassVar[list[int]] = []

        def __len__(self) -> int:
            return 5

        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            self.read.append(i)
            return torch.ones(2) * i, 0

    gradient(Trained.of(nn.Linear(2, 2)), Data.of(Watched()), sample_weights=torch.tensor([0.0, 1.0, 0.0, 2.0, 0.0]))
    assert Watched.read == [1, 3]


def test_no_row_at_all_leaves_the_ridge():
    trained, data = problem("linear", 0)
    none = gradient(trained, data, sample_weights=torch.zeros(len(data), dtype=float64), ridge=2.0)
    torch.testing.assert_close(none, 2.0 * (trained.weights - trained.anchor))


def test_the_network_is_left_alone():
    trained, data = problem("residual", 0)
    before = {k: v.clone() for k, v in trained.model.state_dict().items()}
    gradient(trained, data)
    assert all(torch.equal(v, before[k]) for k, v in trained.model.state_dict().items())
    assert all(p.grad is None for p in trained.model.parameters())


def test_wrong_sample_weights_are_named():
    trained, data = problem("linear", 0)
    with pytest.raises(MismatchError, match=r"one number per row, shape \(5,\), but have shape \(3,\)"):
        gradient(trained, data, sample_weights=torch.ones(3, dtype=float64))


def test_batches_must_hold_a_row():
    trained, data = problem("linear", 0)
    with pytest.raises(SettingError, match="`batch_size` must be positive, but got 0"):
        gradient(trained, data, batch_size=0)


def test_a_sum_over_nothing_has_no_shape():
    trained, data = problem("linear", 0)
    with pytest.raises(DataError, match="no row to sum over"):
        sum_over(trained, data.select([]), lambda one, s: s.sum())
    with pytest.raises(DataError, match="no row to answer about"):
        fill_over(trained, data.select([]), lambda one, where: one.y)
