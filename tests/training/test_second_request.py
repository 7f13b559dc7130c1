"""A second request stays coupled to the original training: the rows of the first keep their places in the order."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, float64, nn

import spotlessnet as sn
from spotlessnet.auditing.comparison import original_of, retrained_of
from spotlessnet.training.pairs import train_pairs

ROWS, BATCH, EPOCHS, RATE = 60, 8, 4, 0.3


@pytest.fixture
def told() -> tuple[sn.Trained, sn.Data, sn.Split, sn.Split]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 5, generator=g, dtype=float64)
    data = sn.Data.of((x, (x[:, 0] > 0).long()))
    torch.manual_seed(0)
    model = nn.Linear(5, 2).double()
    recipe = sn.Recipe(epochs=EPOCHS, lr=RATE, weight_decay=0.0, batch_size=BATCH)
    first = sn.Split(forget=data.select(range(5)), kept=data.select(range(5, ROWS)))
    return sn.Trained.of(model, init=model, recipe=recipe), data, first, first.next_request(data.select(range(5, 10)))


def by_hand(trained: sn.Trained, data: sn.Data, rows: Tensor, seed: int = 0) -> Tensor:
    """Coupled retraining as the documentation of `fit` tells it, with the order of all rows."""
    return sn.fit(trained, data.select(rows), seed=seed, order_of=data).weights


def test_retraining_for_a_second_request_follows_the_original(told):
    start, data, _, second = told
    original = sn.fit(start, data, seed=0)
    want = by_hand(start, data, torch.arange(10, ROWS))
    found = sn.Retrain()(original, second).mean
    torch.testing.assert_close(found, want, rtol=0, atol=0)


def test_coupled_retraining_stays_closer_than_another_shuffle():
    """The distance was 5.7 where coupled retraining has 3.3: no closer than another shuffle."""
    data = sn.load("digits").train.select(range(600))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    recipe = sn.Recipe(epochs=15, lr=0.1, weight_decay=1e-4, batch_size=32)
    original = sn.fit(sn.Trained.of(model, init=model, recipe=recipe), data, seed=0)
    first = sn.Split(forget=data.select(range(5)), kept=data.select(range(5, 600)))
    second = first.next_request(data.select(range(5, 10)))
    coupled, other = (sn.Retrain(coupled=c, seed=0 if c else 1)(original, second).mean for c in (True, False))
    near, far = ((mean - original.weights).norm() for mean in (coupled, other))
    assert near < 0.8 * far


def test_everything_that_trains_anew_for_a_second_request_shares_that_order(told):
    start, data, _, second = told
    whole, kept = torch.arange(5, ROWS), torch.arange(10, ROWS)
    wanted = [by_hand(start, data, rows, seed=3) for rows in (whole, kept)]
    found = [made(start, second, 3).weights for made in (original_of, retrained_of)]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    for together in (False, True):
        pairs = train_pairs(start, second, seeds=1, first=3, together=together)
        found = [pairs.original[0].weights, pairs.retrained[0].weights]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def test_the_first_request_alone_has_the_order_of_all_rows(told):
    _, data, first, second = told
    assert torch.equal(first.first_trained_on.rows, data.rows)
    assert torch.equal(second.first_trained_on.rows, data.rows)
    assert torch.equal(replace(second, gone=None).first_trained_on.rows, second.whole.rows)
