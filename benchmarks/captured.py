"""Many trainings of one kind of network on rows of one source, each step a CUDA graph; on a CPU the same steps.

Rates, batches and penalties are those of `fit` by the same recipe; kernels may be others, so bytes are not. Small
networks otherwise wait for Python: an All-CNN in batches of 128 takes longer to launch than to compute.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, NumericsError, SettingError
from spotlessnet.core.loss import logits_of
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.training.batches import Order, augmented, mixed, repeatable
from spotlessnet.training.fit import prepared, training_mode
from spotlessnet.training.many import Executor, Finished, Task, tensors_of
from spotlessnet.training.optimiser import lr_at

WARM = 4
"""Steps before a graph is captured: kernels are chosen meanwhile."""

FURTHEST = 0.1
"""A captured step that differs by more from one that is not is wrong, and not rounding."""


class Captured:
    """Trains networks like `begun`, again and again, on rows of `whole`.

    Batches that lack rows are filled up with rows that count nothing where BatchNorm stands still; where it moves, such
    a batch is a step without a graph, for every row would enter its statistics.
    """

    def __init__(self, begun: Trained, whole: Data) -> None:
        recipe = begun.recipe
        if recipe is None or recipe.optimizer != "sgd" or recipe.max_grad_norm or recipe.decay_on != "all":
            raise SettingError("Captured steps are those of SGD with a decay on all weights. Use `fit`.")
        if not torch.equal(whole.rows, torch.arange(len(whole))):
            raise MismatchError("Captured training needs all rows of a source in their order.")
        self.begun = prepared(begun, recipe)
        self.recipe = recipe
        self.network = training_mode(copy.deepcopy(begun.model), recipe)
        self.w, self.g, self.v, self.anchor = (torch.zeros_like(begun.weights) for _ in range(4))
        parameters = dict(self.network.named_parameters())
        slopes = begun.unflatten(self.g)
        for name, value in begun.unflatten(self.w).items():
            parameters[name].data, parameters[name].grad = value, slopes[name]
        everything = begun.fetch(whole, whole.rows)
        assert isinstance(everything.x, Tensor)  # pictures
        self.x, self.y = everything.x, everything.y
        self.seen = self.x
        device = begun.device
        self.at = torch.zeros(recipe.batch_size, dtype=torch.long, device=device)
        self.share = torch.zeros(recipe.batch_size, device=device)
        self.lr = torch.zeros((), device=device)
        self.loss = torch.zeros((), device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.tried = False

    def step(self, at: Tensor, share: Tensor) -> None:
        """One update with these rows, whose losses count so much each."""
        self.g.zero_()
        x, y = self.seen[at], self.y[at]
        x = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
        kind = self.begun.device.type
        # A cache of cast weights would be filled while capturing and never renewed.
        with torch.autocast(kind, torch.bfloat16, enabled=self.recipe.bf16, cache_enabled=False):
            answers = logits_of(self.network(x))
        loss = (self.begun.loss(answers.to(self.w.dtype), y) * share).sum()
        loss.backward()
        with torch.no_grad():
            if self.recipe.weight_decay:
                self.g.add_(self.w - self.anchor, alpha=self.recipe.weight_decay)
            self.v.mul_(self.recipe.momentum).add_(self.g)
            self.w.addcmul_(self.v, self.lr, value=-1)
            self.loss.add_(loss.detach())

    def capture(self, begun: Trained) -> None:
        """The step as a graph, if that can be done and does the same; it moves the weights."""
        self.tried = True
        self._reset(begun)
        size = len(self.at)
        self.at.copy_(torch.arange(size) % len(self.y))
        self.share.fill_(1 / size)
        self.lr.fill_(1e-3)
        # Kernels are timed for this one shape; a search for every odd batch would take longer than it saves.
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        try:
            self._capture()
            off = self._off(begun)
        except RuntimeError as error:
            print(f"steps are not captured: {error}", flush=True)
            torch.cuda.synchronize()
            return
        finally:
            torch.backends.cudnn.benchmark = before
        print(f"steps are captured; one differs from a step without a graph by {off:.2g} of its length", flush=True)
        if not off < FURTHEST:
            self.graph = None

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self.step(self.at, self.share)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(self.at, self.share)
        self.graph = graph

    def _off(self, begun: Trained) -> float:
        """How far a step by the graph is from one without, as a share of its length."""
        assert self.graph is not None
        moved = []
        for take in (self.graph.replay, lambda: self.step(self.at, self.share)):
            self._reset(begun)
            take()
            moved.append(self.w - begun.weights)
        return float((moved[0] - moved[1]).norm() / moved[1].norm())

    def fit(self, begun: Trained, data: Data, *, seed: int, order_of: Data | None = None) -> Trained:
        """As `fit(begun, data, seed=seed, order_of=order_of)`, but for rounding and the draws of augmentation."""
        recipe = self.recipe
        order = Order.of(data, order_of, recipe.batch_size, seed)
        with torch.enable_grad():
            if self.begun.device.type == "cuda" and not self.tried:
                self._refresh(seed, 0)
                self.capture(begun)
            self._reset(begun)
            total = recipe.epochs * order.steps
            for epoch in range(recipe.epochs):
                self._refresh(seed, epoch)
                at, share, counts = self._filled(order, data, epoch)
                for i, count in enumerate(counts):
                    self.lr.fill_(lr_at(recipe, epoch * order.steps + i, total))
                    self._take(at[i], share[i], count)
        if not bool(self.loss.isfinite() & self.w.isfinite().all()):
            raise NumericsError("A captured training diverged. Lower the learning rate.")
        buffers = None if recipe.freeze_statistics else buffers_of(self.network)
        return prepared(begun, recipe).at(self.w.clone(), buffers)

    def _take(self, at: Tensor, share: Tensor, count: int) -> None:
        if not count:
            return
        if count < len(at) and not self.recipe.freeze_statistics:
            self.step(at[:count], share[:count])
        elif self.graph is None:
            self.step(at, share)
        else:
            self.at.copy_(at)
            self.share.copy_(share)
            self.graph.replay()

    def _reset(self, begun: Trained) -> None:
        with torch.no_grad():
            self.w.copy_(begun.weights)
            self.anchor.copy_(prepared(begun, self.recipe).anchor)
            self.v.zero_()
            self.loss.zero_()
            for name, value in buffers_of(begun.model).items():
                self.network.get_buffer(name).copy_(value)

    def _refresh(self, seed: int, epoch: int) -> None:
        """All rows augmented anew: one draw for an epoch, at an address that stays, for the graph reads there."""
        if self.recipe.augment is None:
            return
        with torch.no_grad(), repeatable(self.begun.device, mixed(seed, epoch, "noise")):
            made = augmented(self.recipe.augment, self.x, seed, epoch)
        assert isinstance(made, Tensor)
        if self.seen is self.x:
            self.seen = made.clone(memory_format=torch.preserve_format)
        else:
            self.seen.copy_(made)

    def _filled(self, order: Order, data: Data, epoch: int) -> tuple[Tensor, Tensor, list[int]]:
        """Rows of every batch of an epoch, how much each counts, and how many there are."""
        batches = order.epoch(epoch)
        counts = [len(batch) for batch in batches]
        at = torch.zeros(len(batches), order.batch_size, dtype=torch.long)
        share = torch.zeros(len(batches), order.batch_size)
        for i, batch in enumerate(batches):
            at[i, : counts[i]] = data.rows[batch]
            share[i, : counts[i]] = 1 / max(1, counts[i])
        device = self.begun.device
        return at.to(device), share.to(device), counts


@dataclass(frozen=True)
class CapturedExecutor(Executor):
    """Fold models trained by captured steps; see `train_fold_models(executor=...)`."""

    captured: Captured | None = None

    def run(self, tasks: Sequence[Task], data: Data, label: str) -> list[Finished]:
        assert self.captured is not None
        return [tensors_of(self.captured.fit(task.begun[0], task.rows(data), seed=task.seeds[0])) for task in tasks]
