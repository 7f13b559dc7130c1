"""Several trainings of `benchmarks/folded.py` at once on one GPU, each on a stream of its own; on a CPU in turn.

The batches, rates and weights are those of `FoldedCaptured.fit`. A step finds its batch and its rate by its own number
on the device, so that replaying its graph is all that Python does.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.captured import WARM
from benchmarks.folded import FoldedCaptured
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.training.batches import Order, permutation
from spotlessnet.training.fit import prepared
from spotlessnet.training.optimiser import lr_at


@dataclass(frozen=True)
class Training:
    """One training: where it begins, its rows, its seed, and whose order its batches follow."""

    begun: Trained
    data: Data
    seed: int
    order_of: Data | None = None


def batches(job: Training, recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """Of all steps: rows, how much each counts, and rates; rows that are left out count nothing."""
    size = recipe.batch_size
    order = Order.of(job.data, job.order_of, size, job.seed)
    at, share = [], []
    for epoch in range(recipe.epochs):
        shuffled = order.place[permutation(len(order.place), job.seed, epoch)]
        shuffled = torch.nn.functional.pad(shuffled, (0, order.steps * size - len(shuffled)), value=-1)
        there = (shuffled >= 0).view(-1, size)
        at.append(job.data.rows[shuffled.clamp(min=0)].view(-1, size))
        share.append(there / there.sum(dim=1, keepdim=True).clamp(min=1))
    total = recipe.epochs * order.steps
    return torch.cat(at), torch.cat(share), torch.tensor([lr_at(recipe, i, total) for i in range(total)])


class Lane(FoldedCaptured):
    """One network in training, and everything that its graph reads at addresses that stay."""

    def __init__(self, begun: Trained, whole: Data, images: Tensor | None) -> None:
        super().__init__(begun, whole)
        if images is not None:
            self.x = self.seen = images
        most, size, device = (
            self.recipe.epochs * (len(whole) // self.recipe.batch_size + 1),
            len(self.at),
            self.w.device,
        )
        self.orders = torch.zeros(most, size, dtype=torch.long, device=device)
        self.shares = torch.zeros(most, size, device=device)
        self.rates = torch.zeros(most, device=device)
        self.turn = torch.zeros(1, dtype=torch.long, device=device)
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None

    def on(self) -> Any:
        """Its stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def one(self) -> None:
        """The step whose turn it is."""
        self.lr.copy_(self.rates.index_select(0, self.turn).squeeze(0))
        self.step(*(table.index_select(0, self.turn).squeeze(0) for table in (self.orders, self.shares)))
        self.turn.add_(1)

    def take(self) -> None:
        """One step, by the graph where there is one."""
        if self.graph is None:
            self.one()
        else:
            self.graph.replay()

    def capture(self, begun: Trained) -> None:
        """The step as a graph; it moves weights, which `begin` then sets."""
        self._reset(begun)
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True  # kernels are timed for this one shape
        try:
            with self.on():
                for _ in range(WARM):
                    self.turn.zero_()
                    self.one()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                self.one()
            self.graph = graph
        except RuntimeError as error:
            print(f"steps are not captured: {error}", flush=True)
            torch.cuda.synchronize()
        finally:
            torch.backends.cudnn.benchmark = before

    def begin(self, job: Training, tables: Sequence[Tensor]) -> int:
        """Set everything to the start of a training; its steps."""
        count = len(tables[0])
        with self.on(), torch.no_grad():
            self._reset(prepared(job.begun, self.recipe))
            for mine, table in zip((self.orders, self.shares, self.rates), tables, strict=True):
                mine[:count].copy_(table)
            self.turn.zero_()
        return count

    def end(self, job: Training) -> Trained:
        """What came of it."""
        with self.on():
            w, fine = self.w.clone(), bool(self.loss.isfinite() & self.w.isfinite().all())
        if not fine:
            raise NumericsError(f"The training of seed {job.seed} diverged. Lower the learning rate.")
        return prepared(job.begun, self.recipe).at(w)


class Lanes:
    """As many trainings at once as there are lanes; whoever has ended takes the next."""

    def __init__(self, begun: Trained, whole: Data, count: int) -> None:
        first = Lane(begun, whole, None)
        self.lanes = [first, *(Lane(begun, whole, first.x) for _ in range(count - 1))]
        with torch.enable_grad():
            for lane in self.lanes if first.stream is not None else ():
                lane.capture(begun)

    def relabel(self, whole: Data) -> None:
        """Other labels for the same pictures."""
        for lane in self.lanes:
            lane.y.copy_(whole.labels())

    def fit(self, jobs: Sequence[Training]) -> list[Trained]:
        """All of them, in their order."""
        device = self.lanes[0].w.device
        tables = [[table.to(device) for table in batches(job, self.lanes[0].recipe)] for job in jobs]
        if device.type == "cuda":
            torch.cuda.synchronize()  # lanes read the tables on streams of their own
        made: list[Trained | None] = [None] * len(jobs)
        waiting = list(range(len(jobs)))
        going: dict[int, tuple[int, int]] = {}
        with torch.enable_grad():
            while waiting or going:
                for k, lane in enumerate(self.lanes):
                    if k not in going and waiting:
                        i = waiting.pop(0)
                        going[k] = i, lane.begin(jobs[i], tables[i])
                    if k not in going:
                        continue
                    i, left = going[k]
                    with lane.on():
                        lane.take()
                    going[k] = i, left - 1
                    if left == 1:
                        made[i] = lane.end(jobs[i])
                        del going[k]
        if device.type == "cuda":
            torch.cuda.synchronize()
        return [one for one in made if one is not None]
