"""A later request may not take back what an earlier one did: rows that stay stand in for rows that are gone."""

import pytest
import torch
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.datasets import load
from spotlessnet.methods import NTK, Newton
from spotlessnet.precomputed import step as steps
from spotlessnet.precomputed.after_request import after_request
from spotlessnet.precomputed.others import Others
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.training.fit import fit
from tests.precomputed.test_step import problem

ROWS, ASKED, DECAY = 300, 8, 1e-3


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    batches = list(load("digits").train.batches())
    x, y = (torch.cat([getattr(b, name) for b in batches])[:ROWS] for name in ("x", "y"))
    return x.flatten(1), y


def taken_back(seed: int) -> tuple[int, int, int]:
    """Of rows with wrong labels, asked for one by one: how many lose over half of what their request did, of how many;
    and how many requests were served. Weak decay, so that steps are long."""
    x, y = digits()
    torch.manual_seed(seed)
    y = y.clone()
    y[:ASKED] = (y[:ASKED] + 1 + torch.randint(0, 9, (ASKED,))) % 10
    data, model = Data.of((x, y)), nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
    recipe = Recipe(epochs=150, lr=0.1, weight_decay=DECAY, batch_size=50)
    now = fit(Trained.of(model, init=model, recipe=recipe), data, seed=seed)
    statistics, first = precompute(now, data, rank=40, diagonal=None), now.losses(x[:ASKED], y[:ASKED]).detach()
    after: list[float] = []
    lost = pairs = 0
    for k in range(ASKED):
        rest, forget = data.select(range(k + 1, ROWS)), data.select([k])
        found = NTK(statistics=statistics)(now, Split(forget=forget, kept=rest))
        if found.diagnostics["retrain_now"]:
            break
        statistics = after_request(statistics, now, forget, found.mean, retain=rest)
        now = now.at(found.mean)
        losses = now.losses(x[:ASKED], y[:ASKED]).detach()
        for j, own in enumerate(after):
            gain = own - float(first[j])
            pairs += gain > 0.05
            lost += gain > 0.05 and (own - float(losses[j])) / gain > 0.5
        after.append(float(losses[k]))
    return lost, pairs, len(after)


def test_a_later_request_takes_nothing_back(monkeypatch):
    lost, _, served = taken_back(0)
    assert lost == 0
    assert served > 1
    monkeypatch.setattr(steps, "FURTHEST", 1e9)
    assert taken_back(0)[0] >= 5


@pytest.mark.parametrize("method", [NTK, lambda **own: NTK(damping=1e-4, **own), Newton])
def test_without_retained_rows_there_is_no_second_request(method):
    trained, data = problem(3)
    statistics = precompute(trained, data, rank=trained.size, diagonal=None)
    assert method(statistics=statistics)(trained, Split(forget=data.select([0]))).diagnostics["retrain_now"] is False
    rest = data.select(range(1, 40))
    later = after_request(statistics, trained, data.select([0]), trained.weights, retain=rest)
    for kept, refused in ((None, True), (data.select(range(2, 40)), False)):
        split = Split(forget=data.select([1])) if kept is None else Split(forget=data.select([1]), kept=kept)
        told = method(statistics=later)(trained, split).diagnostics
        assert told["retrain_now"] is refused
    assert told["others_moved"] <= 1


def test_movement_is_that_of_all_but_the_furthest_few():
    trained, data = problem(4)
    step = torch.randn_like(trained.weights)
    x = torch.cat([b.x for b in data.batches()])  # type: ignore[misc]  # one tensor
    y = x @ trained.weights.reshape(2, 5).T
    expected = (x @ step.reshape(2, 5).T).norm(dim=1).quantile(0.95) / y.std(dim=0, correction=0).mean()
    assert Others.of(trained, data).moved(step) == pytest.approx(float(expected))
