"""Adapting a backbone to core data: fine-tuning with the usual means against overfitting, as core data are few."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError, SettingError, check_not_negative, check_positive
from spotlessnet.core.loss import logits_of
from spotlessnet.core.source import Inputs

Augment = Callable[[Inputs, torch.Generator], Inputs]
"""Changes a batch at random; the generator lives on the inputs' device."""


@dataclass(frozen=True)
class Adaptation:
    """How a backbone is fine-tuned on core data.

    **Arguments:**

    - `epochs`, `batch_size`, `lr`, `weight_decay`: as usual; the rate rises over `warmup` of the steps, then falls as a
      cosine. `weight_decay` acts on matrices and kernels only.
    - `optimizer`: `"sgd"` (Nesterov momentum 0.9) or `"adamw"`.
    - `head_lr`: how many times `lr` the head learns with, as it begins at random.
    - `label_smoothing`, `mixup`: shares; `mixup` is the Beta distribution's parameter, 0 for none.
    - `cutmix`: the share of images into which a box of another image is pasted, instead of mixing them.
    - `ema`: decay of the averaged weights that are returned; 0 returns the last ones.
    - `augment`: applied to each batch while training.
    - `bfloat16`: compute in bfloat16 on a GPU, with weights in float32.
    - `graph`: record one step as a CUDA graph and replay it, which spares small batches the launching of kernels.
    """

    epochs: int = 20
    batch_size: int = 64
    lr: float = 0.01
    weight_decay: float = 1e-4
    optimizer: str = "sgd"
    warmup: float = 0.1
    head_lr: float = 1.0
    label_smoothing: float = 0.1
    mixup: float = 0.0
    cutmix: float = 0.0
    ema: float = 0.0
    augment: Augment | None = None
    bfloat16: bool = False
    graph: bool = False

    def __post_init__(self) -> None:
        check_not_negative("Adaptation.epochs", self.epochs)
        check_positive("Adaptation.batch_size", self.batch_size)
        check_positive("Adaptation.lr", self.lr)
        if self.optimizer not in ("sgd", "adamw"):
            raise SettingError(f'`Adaptation.optimizer` must be "sgd" or "adamw", but got {self.optimizer!r}.')
        if not 0 <= self.cutmix <= 1:
            raise SettingError(f"`Adaptation.cutmix` must be in [0, 1], but got {self.cutmix}.")
        if not 0 <= self.ema < 1:
            raise SettingError(f"`Adaptation.ema` must be in [0, 1), but got {self.ema}.")


class WithHead(nn.Module):
    """A backbone and a linear head on its pooled features.

    **Arguments:**

    - `pool`: makes one vector of features per example from what the backbone answers.
    """

    def __init__(self, backbone: nn.Module, pool: Callable[..., Tensor], width: int, classes: int) -> None:
        super().__init__()
        self.backbone, self.pool = backbone, pool
        self.head = nn.Linear(width, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        answer = self.pool(self.backbone(*inputs, **named), **named)
        return self.head(answer.to(self.head.weight.dtype) if not torch.is_autocast_enabled() else answer)


def call(network: nn.Module, x: Inputs) -> object:
    """The network's answer to one tensor or to named ones."""
    return network(**x) if isinstance(x, dict) else network(x)


def adapt(network: nn.Module, data: Data, how: Adaptation, *, seed: int = 0) -> nn.Module:
    """A copy of a classifier, fine-tuned on `data`; the network that was handed in stays as it is."""
    network = copy.deepcopy(network)
    device = next(network.parameters()).device
    # Batches of one size; the examples that are left over come in another epoch.
    size = min(how.batch_size, len(data))
    steps = len(data) // size * how.epochs
    if not steps:
        return network.eval()
    order = torch.Generator().manual_seed(seed)
    draw = torch.Generator(device).manual_seed(seed + 1)
    optimiser = _optimiser(network, how)
    mean = copy.deepcopy(network) if how.ema else None
    step = 0
    loss = torch.zeros((), device=device)
    replay = None
    network.train()
    for _ in range(how.epochs):
        for rows in data.rows[torch.randperm(len(data), generator=order)].split(size):
            if len(rows) < size:
                continue
            for group in optimiser.param_groups:
                group["lr"] = group["base"] * _share(step, steps, how.warmup)
            x, y, _rows = data.fetch(rows)
            x, y = _moved(x, device), y.to(device)
            if how.graph and device.type == "cuda" and isinstance(x, Tensor):
                replay = replay or Recorded(network, x, y, how, draw)
                loss = replay(x, y)
            else:
                optimiser.zero_grad(set_to_none=True)
                loss = _loss(network, x, y, how, draw)
                loss.backward()
            optimiser.step()
            step += 1
            if mean is not None:
                _average(mean, network, min(how.ema, step / (step + 10)))
        if not bool(loss.isfinite()):
            raise NumericsError(f"The loss on core data became {float(loss)}. Lower `Adaptation.lr` (now {how.lr}).")
    return (network if mean is None else mean).eval()


class Recorded:
    """The gradients of one batch as a CUDA graph: called with a batch, it leaves them in the parameters."""

    def __init__(self, network: nn.Module, x: Tensor, y: Tensor, how: Adaptation, draw: torch.Generator) -> None:
        self.x, self.y = x.clone(), y.clone()
        kept = copy.deepcopy(network.state_dict())
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):  # libraries choose their kernels and allocate before anything is recorded
                _loss(network, self.x, self.y, how, draw).backward()
        torch.cuda.current_stream().wait_stream(aside)
        self.gradients = [p.grad for p in network.parameters() if p.grad is not None]
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(draw)
        torch._foreach_zero_(self.gradients)
        with torch.cuda.graph(self.graph):
            self.loss = _loss(network, self.x, self.y, how, draw)
            self.loss.backward()
        # Warming up has moved the running statistics.
        network.load_state_dict(kept)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        torch._foreach_zero_(self.gradients)
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.loss


def _loss(network: nn.Module, x: Inputs, y: Tensor, how: Adaptation, draw: torch.Generator) -> Tensor:
    if how.augment is not None:
        x = how.augment(x, draw)
    device = y.device
    target: Tensor = y
    if how.mixup or how.cutmix:
        if isinstance(x, dict):
            raise SettingError("Mixing needs one tensor of inputs, but these are named. Set mixup and cutmix to 0.")
        x, target = _mixed(x, y, _classes(network), how, draw)
    on_gpu = device.type == "cuda" and how.bfloat16
    with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
        out = logits_of(call(network, x))
    return cross_entropy(out.float(), target, label_smoothing=how.label_smoothing)


def _mixed(x: Tensor, y: Tensor, classes: int, how: Adaptation, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Examples mixed with their neighbours, which are random partners, as the batch is in random order.

    Everything is decided by tensors, never by Python numbers, so that a CUDA graph replays it with new draws.
    """
    n, device = len(y), y.device
    share = torch.ones(n, device=device)
    if how.mixup:
        # A Beta(a, a) draw as a ratio of two Gamma draws.
        pair = torch._standard_gamma(torch.full((2,), how.mixup, device=device), generator=draw)
        share = (pair[0] / pair.sum().clamp(min=1e-12)).expand(n)
    pasted = torch.zeros(n, *[1] * (x.ndim - 1), dtype=torch.bool, device=device)
    if how.cutmix:
        chosen = torch.rand(n, generator=draw, device=device) < how.cutmix
        side = torch.rand(n, generator=draw, device=device).sqrt() / 2  # half the side: areas are uniform in (0, 1)
        boxes = []
        for length in x.shape[-2:]:
            centre = torch.rand(n, generator=draw, device=device)
            place = (torch.arange(length, device=device) + 0.5) / length
            boxes.append((place - centre[:, None]).abs() < side[:, None])
        pasted = (boxes[0][:, None, :, None] & boxes[1][:, None, None, :]) & chosen[:, None, None, None]
        share = torch.where(chosen, 1 - pasted.float().mean(dim=(1, 2, 3)), share)
        blend = torch.where(chosen, torch.ones_like(share), share)
    else:
        blend = share
    wide = blend.view(n, *[1] * (x.ndim - 1)).to(x)
    other = x.roll(1, 0)
    mixed = torch.where(pasted, other, x * wide + other * (1 - wide))
    hot = (y[:, None] == torch.arange(classes, device=device)).float()
    return mixed, hot * share[:, None] + hot.roll(1, 0) * (1 - share[:, None])


def _classes(network: nn.Module) -> int:
    return [m for m in network.modules() if isinstance(m, nn.Linear)][-1].out_features


def _optimiser(network: nn.Module, how: Adaptation) -> torch.optim.Optimizer:
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, p in network.named_parameters():
        if p.requires_grad:
            lr = how.lr * (how.head_lr if name.startswith("head.") else 1)
            groups.setdefault((lr, how.weight_decay if p.ndim > 1 else 0.0), []).append(p)
    listed = [
        {"params": ps, "lr": lr, "base": lr, "weight_decay": weight_decay} for (lr, weight_decay), ps in groups.items()
    ]
    fused = next(network.parameters()).is_cuda
    if how.optimizer == "sgd":
        return torch.optim.SGD(listed, lr=how.lr, momentum=0.9, nesterov=True, fused=fused)
    return torch.optim.AdamW(listed, lr=how.lr, fused=fused)


def _share(step: int, steps: int, warmup: float) -> float:
    rise = max(1.0, warmup * steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1.0, steps - rise)))


@torch.no_grad()
def _average(mean: nn.Module, network: nn.Module, weight_decay: float) -> None:
    torch._foreach_lerp_(list(mean.parameters()), list(network.parameters()), 1 - weight_decay)
    if list(mean.buffers()):
        torch._foreach_copy_(list(mean.buffers()), list(network.buffers()))


def _moved(x: Inputs, device: torch.device) -> Inputs:
    return {n: v.to(device) for n, v in x.items()} if isinstance(x, dict) else x.to(device)
