"""What a later request from fold models may take back: shared by all later ones, seen on stand-ins of either kind."""

import pytest
import torch
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained
from spotlessnet.methods.out_of_fold.drift import SURE, _taken_back
from spotlessnet.precomputed.effect import NOISE, Effect
from spotlessnet.precomputed.others import Others

CLASSES = 3
RIGHT, WRONG = 0.2, 3.0
"""Losses below and above that of a guess among three classes."""


def stand_ins() -> tuple[Others, Others, torch.Tensor]:
    torch.manual_seed(0)
    trained = Trained.of(nn.Linear(4, CLASSES).double())
    rows = Data.of((torch.randn(40, 4, dtype=torch.float64), torch.arange(40) % CLASSES))
    step = 0.1 * torch.randn_like(trained.weights)
    return Others.with_own_labels(trained, rows), Others.of(trained, rows), step


def test_the_kth_later_request_may_take_back_a_kth_part():
    own, _, step = stand_ins()
    effect = Effect(5, 1.0, RIGHT)
    once = own.taken_back(step, [effect], quantile=SURE)
    assert once > 0
    for k in (1, 2, 7):
        later = [Effect(5, 1e9, RIGHT)] * (k - 1)  # did so much that nothing of it can be taken back by half
        assert _taken_back(own, step, [effect, *later]) == pytest.approx(k * once)
    assert _taken_back(own, step, []) == 0


def test_rows_left_with_less_than_a_guess_are_seen_on_labels_of_others_too():
    own, others, _ = stand_ins()
    x, y = next((b.x, b.y) for b in own.rows.batches(40))
    w = own.trained.weights.clone().requires_grad_()
    # Away from their own labels, so toward those of others.
    (step,) = torch.autograd.grad(nn.functional.cross_entropy(own.trained.outputs(x, w), y), w)
    for loss, kinds in ((RIGHT, (own,)), (WRONG, (own, others))):
        effect = Effect(5, 1.0, loss)
        assert _taken_back(own, step, [effect]) == max(each.taken_back(step, [effect], quantile=SURE) for each in kinds)
    wrong = Effect(5, 1.0, WRONG)
    assert others.taken_back(step, [wrong]) > own.taken_back(step, [wrong])  # so that the test can tell


def test_a_request_is_held_to_its_mean_and_where_that_hides_it_to_the_rows_that_carry_it():
    torch.manual_seed(0)
    trained = Trained.of(nn.Linear(31, 2, bias=False).double())
    rows = Data.of((torch.eye(31, dtype=torch.float64), torch.zeros(31, dtype=torch.long)))
    x, y = torch.eye(31, dtype=torch.float64), rows.labels()
    for moved in (1, 20):
        weights = trained.weights.reshape(2, 31).clone()
        weights[:, :moved] += torch.tensor([[-1.0], [1.0]])
        after = trained.at(weights.flatten())
        rise = (after.losses(x, y) - trained.losses(x, y)).detach()
        found = Effect.of_all(trained, after, rows)
        assert found is not None
        if float(rise.mean()) <= NOISE:
            assert found == Effect.of(trained, after, rows)
            assert moved == 1
        else:
            assert found.size == 31
            assert found.raised == pytest.approx(float(rise.mean()))
            assert found.loss == pytest.approx(float(after.losses(x, y).mean()))
            assert moved == 20
    assert Effect.of_all(trained, trained, rows) is None
