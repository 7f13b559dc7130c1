"""Retrained networks that know the forgotten rows far better than new ones are not said never to have seen them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.auditing.own_training import learnt_elsewhere
from spotlessnet.core.split import Request, Split
from spotlessnet.core.trained import Trained

ROWS = 30


def my_train(model, examples, seed):
    return model


def split_of(*, mislabelled: bool = False) -> Split:
    """Rows that a network tells apart one by one, so that it can know any of them."""
    x, y = torch.eye(2 * ROWS), torch.zeros(2 * ROWS, dtype=torch.long)
    data = sn.Data.of((x, y))
    request = Request("rows", ROWS, mislabelled=mislabelled)
    return Split(forget=data.select(range(ROWS)), kept=None, test=data.select(range(ROWS, 2 * ROWS)), request=request)


def knows(forget: float, test: float, **how) -> Trained:
    """A network that makes these shares of errors."""
    model = nn.Linear(2 * ROWS, 2, bias=False)
    wrong = torch.cat([torch.arange(ROWS) < forget * ROWS, torch.arange(ROWS) < test * ROWS])
    model.weight.data = torch.stack([~wrong, wrong]).float()
    return Trained.of(model, **(how or {"trainer": my_train}))


def test_far_better_than_new_rows_is_suspicious():
    told = learnt_elsewhere([knows(0.0, 0.3)] * 2, split_of())
    assert "error 0%, where 30% would be expected" in told
    assert "`examples` alone" in told


@pytest.mark.parametrize("network", [knows(0.3, 0.3), knows(0.0, 0.1), knows(0.5, 0.2)])
def test_as_new_rows_or_worse_or_by_chance_is_not(network):
    assert not learnt_elsewhere([network] * 2, split_of())


def test_nobody_knows_wrong_labels_that_were_never_seen():
    assert learnt_elsewhere([knows(0.1, 0.0)], split_of(mislabelled=True))
    assert not learnt_elsewhere([knows(0.9, 0.0)], split_of(mislabelled=True))


def test_only_a_training_of_the_users_own_can_read_elsewhere():
    assert not learnt_elsewhere([knows(0.0, 0.9, recipe=sn.Recipe(epochs=1))], split_of())
    assert not learnt_elsewhere([knows(0.0, 0.9)], replace(split_of(), test=None))
