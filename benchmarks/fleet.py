"""Several trainings at once on one GPU: each step a CUDA graph, each network on a stream of its own; on a CPU in turn.

What makes it fast: images lie on the device and are augmented once an epoch; the network runs in bfloat16, channels
last, compiled; a step reads its batch and rate from the device, so that replaying its graph is all that Python does;
while one network's small layers leave the chip half empty, another's fill it.

Batches are drawn like those of `fit`, less the last one of an epoch where it lacks rows, and rates are those of the
recipe. Images are mirrored in every other epoch, which ones first by chance, and moved by up to two pixels.
"""

import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError
from spotlessnet.core.loss import logits_of
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.training.batches import mixed, permutation
from spotlessnet.training.fit import prepared, training_mode
from spotlessnet.training.many import Executor, Finished, Task, tensors_of
from spotlessnet.training.optimiser import lr_at

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))

WARM = 3
"""Steps before a graph is captured: kernels are compiled and chosen meanwhile."""

MOVED = 2
"""Pixels that an image is moved by at most."""


def moved(x: Tensor, draw: torch.Generator | None = None, mirror: Tensor | None = None) -> Tensor:
    """Images `[N, C, H, W]`, mirrored by chance or as said and moved by up to two pixels, the border reflected."""
    n, _, height, width = x.shape
    device = x.device
    if mirror is None:
        mirror = torch.rand(n, 1, generator=draw, device=device) < 0.5
    by = torch.randint(0, 2 * MOVED + 1, (2, n, 1), generator=draw, device=device)
    row, column = torch.arange(height, device=device), torch.arange(width, device=device).expand(n, -1)
    rows = _inside(by[0] - MOVED + row, height)
    columns = _inside(by[1] - MOVED + torch.where(mirror, width - 1 - column, column), width)
    each = torch.arange(n, device=device)[:, None, None]
    # Channels last before and after: an image's pixel is then one short run of memory.
    return x.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _inside(at: Tensor, size: int) -> Tensor:
    """Places beyond the border, reflected at it."""
    at = at.abs()
    return torch.where(at >= size, 2 * size - 2 - at, at)


@dataclass(frozen=True)
class Job:
    """One training: where it begins, its rows, its seed, and how many epochs if not all."""

    begun: Trained
    data: Data
    seed: int
    epochs: int | None = None


class Lane:
    """One network in training and everything that its graph reads at addresses that stay."""

    def __init__(self, begun: Trained, recipe: Recipe, images: Tensor, labels: Tensor, *, compiled: bool) -> None:
        self.begun, self.recipe, self.images, self.labels = begun, recipe, images, labels
        device = begun.device
        self.cuda = device.type == "cuda"
        self.network = training_mode(copy.deepcopy(begun.model), recipe)
        self.call: Any = torch.compile(self.network, dynamic=False) if compiled else self.network
        self.w, self.g, self.v, self.anchor = (torch.zeros_like(begun.weights) for _ in range(4))
        parameters, slopes = dict(self.network.named_parameters()), begun.unflatten(self.g)
        for name, value in begun.unflatten(self.w).items():
            parameters[name].data, parameters[name].grad = value, slopes[name]
        self.seen = images.clone(memory_format=torch.preserve_format)
        most = recipe.epochs * (len(labels) // recipe.batch_size + 1)
        self.order = torch.zeros(most, recipe.batch_size, dtype=torch.long, device=device)
        self.rates = torch.zeros(most, device=device)
        self.turn = torch.zeros(1, dtype=torch.long, device=device)
        self.loss = torch.zeros((), device=device)
        self.stream = torch.cuda.Stream() if self.cuda else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.loss_of = prepared(begun, recipe).loss

    def on(self) -> Any:
        """Its stream, so that lanes run side by side."""
        return torch.cuda.stream(self.stream) if self.cuda else nullcontext()

    def step(self) -> None:
        """One update with the batch and the rate whose turn it is."""
        self.g.zero_()
        at = self.order.index_select(0, self.turn).flatten()
        n, c, h, w = self.images.shape
        # Rows of memory are copied whole: each holds an image, channels last.
        flat = self.seen.permute(0, 2, 3, 1).reshape(n, -1).index_select(0, at)
        x, y = flat.view(-1, h, w, c).permute(0, 3, 1, 2), self.labels[at]
        # A cache of cast weights would be filled while capturing and never renewed.
        with torch.autocast(self.w.device.type, torch.bfloat16, enabled=self.recipe.bf16, cache_enabled=False):
            answers = logits_of(self.call(x))
        loss = self.loss_of(answers.to(self.w.dtype), y).mean()
        loss.backward()
        with torch.no_grad():
            if self.recipe.weight_decay:
                self.g.add_(self.w - self.anchor, alpha=self.recipe.weight_decay)
            self.v.mul_(self.recipe.momentum).add_(self.g)
            self.w.addcmul_(self.v, self.rates.index_select(0, self.turn), value=-1)
            self.loss.add_(loss.detach())
            self.turn.add_(1)

    def capture(self) -> None:
        """The step as a graph; a few are taken first, which moves weights that `begin` then sets."""
        self.order.copy_(torch.arange(self.order.numel()).view_as(self.order) % len(self.labels))
        with _fastest(), torch.enable_grad():
            with self.on():
                for _ in range(WARM):
                    self.turn.zero_()
                    self.step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                self.step()
        self.graph = graph

    def begin(self, job: Job) -> tuple[int, int]:
        """Set everything to the start of a training, all its batches and rates too; epochs, and steps of each."""
        device, size = self.w.device, self.recipe.batch_size
        with torch.no_grad():
            self.w.copy_(job.begun.weights)
            toward_zero = self.recipe.decay_toward == "zero"
            self.anchor.copy_(torch.zeros_like(self.w) if toward_zero else prepared(job.begun, self.recipe).anchor)
            self.v.zero_()
            self.loss.zero_()
            self.turn.zero_()
            for name, value in buffers_of(job.begun.model).items():
                self.network.get_buffer(name).copy_(value)
        draw = torch.Generator(device).manual_seed(mixed(job.seed, 0, "mirror"))
        self.mirror = torch.rand(len(self.labels), 1, generator=draw, device=device) < 0.5
        recipe = self.recipe if job.epochs is None else self.recipe.but(epochs=job.epochs)
        steps = max(1, len(job.data) // size)
        many = job.data.rows.repeat(-(-size // len(job.data)))  # fewer rows than a batch holds come several times
        order = [many[permutation(len(many), job.seed, e)][: steps * size] for e in range(recipe.epochs)]
        total = recipe.epochs * steps
        self.order[:total].copy_(torch.cat(order).view(total, size))
        self.rates[:total].copy_(torch.tensor([lr_at(recipe, i, total) for i in range(total)]))
        return recipe.epochs, steps

    def refresh(self, job: Job, epoch: int) -> None:
        """Images of an epoch."""
        if self.recipe.augment is not None:
            draw = torch.Generator(self.w.device).manual_seed(mixed(job.seed, epoch, "augment"))
            self.seen.copy_(moved(self.images, draw, self.mirror ^ bool(epoch % 2)))

    def take(self) -> None:
        """One step, by the graph where there is one."""
        if self.graph is None:
            self.step()
        else:
            self.graph.replay()

    def finished(self, job: Job) -> Trained:
        """What came of it."""
        if not bool(self.loss.isfinite() & self.w.isfinite().all()):
            raise NumericsError(f"The training of seed {job.seed} diverged. Lower the learning rate.")
        buffers = None if self.recipe.freeze_statistics else buffers_of(self.network)
        return prepared(job.begun, self.recipe).at(self.w.clone(), buffers)


class Fleet:
    """Trains networks like `begun` on rows of `whole`, several at once."""

    def __init__(self, begun: Trained, whole: Data, *, at_once: int = 2, compiled: bool | None = None) -> None:
        recipe = begun.recipe
        assert recipe is not None, "a fleet needs a recipe"
        assert recipe.optimizer == "sgd", "and SGD"
        assert torch.equal(whole.rows, torch.arange(len(whole))), "and all rows of a source in their order"
        everything = begun.fetch(whole, whole.rows)
        assert isinstance(everything.x, Tensor)  # pictures
        cuda = begun.device.type == "cuda"
        images = everything.x.to(torch.bfloat16 if cuda and recipe.bf16 else everything.x.dtype)
        images = images.contiguous(memory_format=torch.channels_last)
        compiled = cuda if compiled is None else compiled
        self.recipe = recipe
        self.lanes = [Lane(begun, recipe, images, everything.y, compiled=compiled) for _ in range(at_once)]
        if cuda:
            for lane in self.lanes:
                self._capture(lane)

    def _capture(self, lane: Lane) -> None:
        """With what the compiler makes of the network or, where it fails, without."""
        try:
            lane.capture()
        except Exception as error:  # whatever a compiler says: the same steps are there without it
            print(f"not compiled: {type(error).__name__}: {str(error)[:500]}", flush=True)
            torch.cuda.synchronize()
            lane.call = lane.network
            lane.capture()

    def fit(self, jobs: Sequence[Job]) -> list[Trained]:
        """All of them, as many at once as there are lanes; those side by side take equally many epochs."""
        made: list[Trained] = []
        for start in range(0, len(jobs), len(self.lanes)):
            some = list(jobs[start : start + len(self.lanes)])
            try:
                made += self._together(some)
            except NumericsError as error:
                if not any(lane.call is not lane.network for lane in self.lanes):
                    raise
                print(f"once more without the compiler: {error}", flush=True)
                for lane in self.lanes:
                    lane.call = lane.network
                    lane.capture()
                made += self._together(some)
        return made

    def _together(self, jobs: list[Job]) -> list[Trained]:
        pairs = list(zip(self.lanes, jobs, strict=False))
        shape = [lane.begin(job) for lane, job in pairs]
        self._wait()
        with torch.enable_grad():
            for epoch in range(max(epochs for epochs, _ in shape)):
                going = [(lane, job, steps) for (lane, job), (epochs, steps) in zip(pairs, shape, strict=True)
                         if epoch < epochs]  # fmt: skip
                for lane, job, _ in going:
                    with lane.on():
                        lane.refresh(job, epoch)
                for i in range(max(steps for _, _, steps in going)):
                    for lane, _, steps in going:
                        if i < steps:
                            with lane.on():
                                lane.take()
        self._wait()
        return [lane.finished(job) for lane, job in pairs]

    def _wait(self) -> None:
        if self.lanes[0].cuda:
            torch.cuda.synchronize()


@contextmanager
def _fastest() -> Iterator[None]:
    """Kernels are timed for this one shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@dataclass(frozen=True)
class FleetExecutor(Executor):
    """Fold models trained by a fleet; see `train_fold_models(executor=...)`."""

    fleet: Fleet | None = None

    def run(self, tasks: Sequence[Task], data: Data, label: str) -> list[Finished]:
        assert self.fleet is not None
        jobs = [Job(task.begun[0], task.rows(data), task.seeds[0]) for task in tasks]
        return [tensors_of(one) for one in self.fleet.fit(jobs)]


class ResNet9(nn.Module):
    """EasyDUB's: six convolutions and a 5×5 one with stride two, two residual pairs among them, all with BatchNorm.

    **Arguments:**

    - `width`: 64 for ResNet-9 itself.
    - `small`: for pictures of eight pixels: the stride and the pooling are left out.
    """

    def __init__(self, classes: int = 10, *, channels: int = 3, width: int = 64, small: bool = False) -> None:
        super().__init__()
        a, b, c = width, 2 * width, 4 * width
        self.layers = nn.Sequential(
            _block(channels, a), _block(a, b, kernel=5, stride=1 if small else 2), _Residual(b),
            _block(b, c), nn.Identity() if small else nn.MaxPool2d(2), _Residual(c), _block(c, b, padding=0),
        )  # fmt: skip
        self.head = nn.Linear(b, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, a fifth of what the head says: the largest of many entries makes large ones at first."""
        x = self.layers(x.contiguous(memory_format=torch.channels_last))
        # Not `amax`: compiled on a GPU its gradient was NaN, probably for comparing rounded with unrounded entries.
        return self.head(nn.functional.max_pool2d(x, x.shape[-2:]).flatten(1)) / 5


class Whitened(nn.Module):
    """ResNet-9 behind patches of 2×2 pixels whose entries are uncorrelated and equally large: a layer not trained.

    **Arguments:**

    - `images`: some, from which correlations are known.
    """

    FAINT = 1e-2
    """Added to eigenvalues: what hardly varies is noise."""

    def __init__(self, images: Tensor, *, width: int = 64, small: bool = False) -> None:
        super().__init__()
        channels = images.shape[1]
        patches = nn.functional.unfold(images.float().cpu(), 2).transpose(1, 2).reshape(-1, 4 * channels).double()
        values, vectors = torch.linalg.eigh(patches.T.cov())
        # The largest first; divided so that each filter's answers vary by one.
        filters = (vectors / (values + self.FAINT).sqrt()).T.flip(0).float().view(-1, channels, 2, 2)
        self.filters: Tensor
        self.register_buffer("filters", torch.cat([filters, -filters]))
        self.body = ResNet9(10, channels=8 * channels, width=width, small=small)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = nn.functional.conv2d(x, self.filters.to(x.dtype), padding=0 if x.shape[-1] > 8 else 1)
        return self.body(nn.functional.relu(x))


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_block(width, width), _block(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def _block(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, padding: int | None = None) -> nn.Sequential:
    around = kernel // 2 if padding is None else padding
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, around, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
