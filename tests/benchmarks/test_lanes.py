"""Several trainings at once: each as if it were alone."""

import pytest
import torch
from benchmarks.folded import FoldedCaptured
from benchmarks.lanes import Lanes, Training

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.models.all_cnn import AllCNN


@pytest.mark.parametrize("count", [1, 3])
def test_each_training_is_as_if_alone(count: int) -> None:
    recipe = Recipe(epochs=3, lr=0.05, batch_size=8, weight_decay=0.01, schedule="cosine")
    draw = torch.Generator().manual_seed(0)
    rows = Data.of((torch.randn(30, 3, 8, 8, generator=draw), torch.randint(0, 4, (30,), generator=draw)))
    networks = [AllCNN(4, filters=(6, 9), seed=s).eval() for s in (0, 1)]
    starts = [Trained.of(network, init=network, recipe=recipe) for network in networks]
    part = rows.select(range(4, 30))
    jobs = [
        Training(starts[0], rows, 3),
        Training(starts[1], part, 4, order_of=rows),
        Training(starts[0], part, 5),
        Training(starts[1], rows.select(range(7)), 6),
    ]
    found = Lanes(starts[0], rows, count).fit(jobs)
    alone = FoldedCaptured(starts[0], rows)
    for job, one in zip(jobs, found, strict=True):
        expected = alone.fit(job.begun, job.data, seed=job.seed, order_of=job.order_of)
        torch.testing.assert_close(one.weights, expected.weights, rtol=1e-4, atol=1e-6)
        assert float((one.weights - job.begun.weights).norm()) > 1e-2
