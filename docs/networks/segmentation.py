"""A class for every pixel, outputs `[N, C, H, W]`: an image is one example."""

import torch
from torch import Tensor, nn

import spotlessnet as sn


def build() -> nn.Module:
    """The network where its training began."""
    torch.manual_seed(0)
    see, think = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(128, 48)
    return nn.Sequential(see, nn.Tanh(), nn.Flatten(), think, nn.Unflatten(1, (3, 4, 4)))


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Four patches of three kinds, in noise; the label of a pixel is the kind of its patch."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (count, 2, 2), generator=draw).repeat_interleave(2, 1).repeat_interleave(2, 2)
    return y[:, None] + 0.3 * torch.randn(count, 1, 4, 4, generator=draw), y


def main(seeds: int = 5) -> sn.Unlearned:
    """Train, forget, audit."""
    x, y = images(90, 0)
    y[:10] = (y[:10] + 1) % 3  # masks drawn wrongly, which can only be memorised
    recipe = sn.Recipe(optimizer="adam", epochs=25, lr=1e-2, batch_size=16)
    model = sn.fit(sn.Trained.of(build(), recipe=recipe), sn.Data.of((x, y))).module()  # what you have
    # glue
    return sn.unlearn(
        model, (x, y), forget=range(10), method="retrain", settings={"coupled": False}, init=build(), recipe=recipe,
        test=images(60, 1), audit=sn.Audit(seeds=seeds),
    )  # fmt: skip
    # end of glue
