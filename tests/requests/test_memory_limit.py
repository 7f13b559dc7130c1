"""A limit on memory reaches the operators, and the plan says what a request takes in units that people read."""

import math
import time

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import ResourceError, size_in_words
from spotlessnet.core.progress import budget
from spotlessnet.core.scrub import Scrub, Sizes, Work
from spotlessnet.requests.planning import BESIDE, COPIES, Estimate, estimate

LIMIT = 1 / 1024  # GiB


def problem() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    y = torch.arange(60) % 3
    x = torch.randn(60, 6) + 2 * nn.functional.one_hot(y, 6)
    data = sn.Data.of((x, y))
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    return sn.fit(sn.Trained.of(model), data, sn.Recipe(epochs=10, lr=0.1, batch_size=20)).module(), (x, y)


@pytest.mark.parametrize("limit", [None, LIMIT])
def test_a_request_runs_within_its_limit(limit, monkeypatch):
    seen: list[float] = []
    shift = sn.Finetune.shift

    def spy(self, trained, split, notes):
        seen.append(budget(trained.device))
        return shift(self, trained, split, notes)

    monkeypatch.setattr(sn.Finetune, "shift", spy)
    model, data = problem()
    done = sn.unlearn(model, data, forget=[1, 2], method=sn.Finetune(epochs=1), memory_limit=limit, progress=False)
    assert done.plan is not None
    if limit is None:
        assert seen[0] > LIMIT * 2**30
        return
    # What vectors as long as the weights take is taken off: they cannot be cut.
    size = sum(p.numel() for p in model.parameters()) * 4
    assert seen == [LIMIT * 2**30 - COPIES * size]
    assert done.plan.cost.available == LIMIT * 2**30


def test_what_cannot_be_cut_to_the_limit_is_refused_in_words():
    model, data = problem()
    with pytest.raises(ResourceError, match=r"need about [\d.]+ KiB, but 1\.0 KiB may be used"):
        sn.unlearn(model, data, forget=[1], method="finetune", memory_limit=2**-20, progress=False)


NTK_BY_PRODUCTS = sn.NTK(solver=sn.CG())


class Nothing(Scrub):
    """Counts nothing of its own, and is taken to read curvature."""

    def shift(self, trained, split, notes):
        return trained.weights

    def cost(self, trained, split):
        return Work(0, 0)


def test_pieces_are_planned_as_they_will_be_cut():
    model, data = problem()
    trained, split = sn.Trained.of(model), sn.rows([1, 2])(sn.Data.of(data))
    whole = estimate(trained, split, sn.Fisher())
    vectors = COPIES * trained.size * 4
    assert whole.memory > vectors + 60 * Sizes.of(trained, split).row.graph
    limit = 2 * vectors / 2**30
    assert estimate(trained, split, NTK_BY_PRODUCTS, limit=1.0).memory > 2 * vectors
    # A batch of training is not cut, and what conjugate gradients hold is vectors.
    assert estimate(trained, split, sn.Finetune(), limit=limit).memory > 2 * vectors
    assert estimate(trained, split, Nothing(), limit=limit).memory == pytest.approx(2 * vectors)
    assert whole.epoch > 0
    assert math.isnan(whole.retraining)


def test_lines_for_people():
    time, memory = Estimate(0.5, 1.0, 2.0, 24_576, 3 * 2**30, epoch=0.1).lines()
    assert memory == f"memory  about 24 KiB of 3.0 GiB available{BESIDE}"
    assert time.endswith("; one retraining takes 2 s, one epoch 0.1 s")
    words = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 20 * 2**20: "20 MiB", 2**60: "1048576 TiB", math.inf: "unknown"}
    assert {size: size_in_words(size) for size in words} == words


def test_the_clock_is_of_the_network_itself():
    """Whatever its operations are."""

    class Slow(nn.Module):
        def __init__(self, inner, seconds):
            super().__init__()
            self.inner = inner
            self.seconds = seconds

        def forward(self, x):
            time.sleep(self.seconds)
            return self.inner(x)

    class Rows(Nothing):
        def cost(self, trained, split):
            return Work.sure(64 * Sizes.of(trained, split).gradient)

    model, data = problem()
    split = sn.rows([1, 2])(sn.Data.of(data))
    # A step of 60 rows takes 0.05 s, and the method does 64; those that are looked at add as much again.
    seconds = estimate(sn.Trained.of(Slow(model, 0.05)), split, Rows()).seconds
    assert 0.05 < seconds < 0.5
