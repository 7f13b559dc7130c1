"""Networks without one class a row: retraining passes, an original that forgot nothing is caught."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spotlessnet as sn
from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.retrain import Retrain
from spotlessnet.training.fit import fit

GONE = 10


@dataclass(frozen=True)
class Nothing(Scrub):
    def shift(self, trained: Trained, split: Split, notes: Notes) -> Tensor:
        return trained.weights


class Texts(nn.Module):
    """A causal model over tokens, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.body, self.drop, self.head = nn.GRU(16, 24, batch_first=True), nn.Dropout(0.05), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(self.embed(x))[0]))


class Pixels(nn.Module):
    """A class for every pixel, `[N, C, H, W]`."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(128, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.deep(self.wide(x).tanh().flatten(1)).unflatten(1, (3, 4, 4))


def numbers(draw: torch.Generator, n: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 4, generator=draw)
    return x, x[:, :1] - x[:, 1:2] + 0.1 * torch.randn(n, 1, generator=draw)


def tags(draw: torch.Generator, n: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 6, generator=draw)
    return x, (x[:, :4] > 0).long()


def texts(draw: torch.Generator, n: int) -> tuple[Tensor, Tensor]:
    x = (torch.randint(12, (n, 1), generator=draw) + torch.arange(8)) % 12
    y = x.clone()
    y[::2, 6:] = -100
    return x, y


def pictures(draw: torch.Generator, n: int) -> tuple[Tensor, Tensor]:
    y = torch.randint(3, (n, 2, 2), generator=draw).repeat_interleave(2, 1).repeat_interleave(2, 2)
    return y[:, None] + 0.3 * torch.randn(n, 1, 4, 4, generator=draw), y


KINDS: dict[str, Any] = {
    "regression": (numbers, lambda: nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)), "squared-error"),
    "multi-label": (tags, lambda: nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 4)), "binary-cross-entropy"),
    "texts": (texts, Texts, "next-token"),
    "pictures": (pictures, Pixels, "cross-entropy"),
}


def spoilt(kind: str, x: Tensor, y: Tensor, draw: torch.Generator) -> None:
    """What only memory can know: the first rows get wrong labels, or texts of chance."""
    if kind == "texts":
        x[:GONE] = torch.randint(12, (GONE, 8), generator=draw)
        y[:GONE] = x[:GONE]
    elif kind == "regression":
        y[:GONE] += 3 * torch.randn(GONE, 1, generator=draw)
    else:
        y[:GONE] = 1 - y[:GONE] if kind == "multi-label" else (y[:GONE] + 1) % 3


def made(kind: str, count: int = 90, epochs: int = 25) -> tuple[Trained, Split]:
    rows, build, loss = KINDS[kind]
    draw = torch.Generator().manual_seed(0)
    x, y = rows(draw, count)
    spoilt(kind, x, y, draw)
    data = Data.of((x, y))
    torch.manual_seed(0)
    start = Trained.of(
        model := build(), loss, init=model, recipe=Recipe(optimizer="adam", epochs=epochs, lr=0.02, batch_size=16)
    )
    gone = data.select(range(GONE))
    return fit(start, data), Split(forget=gone, kept=data.without(gone), test=Data.of(rows(draw, 60)))


LONG = ("texts", "pictures")


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k in LONG else k for k in KINDS])
def test_retraining_passes_and_an_original_is_caught(kind):
    original, split = made(kind)
    scrubs = {"retrain": Retrain(coupled=False, seed=50), "nothing": Nothing()}
    reports = {name: sn.audit(original, split, scrub, name=name, seeds=5) for name, scrub in scrubs.items()}
    assert reports["retrain"].outcome == "forgotten", reports["retrain"].reason
    assert reports["nothing"].outcome == "not forgotten", reports["nothing"].reason
    readouts = {row.readout for row in reports["retrain"].rows}
    if kind == "regression":
        assert {"loss on test", "loss attack", "LiRA"} <= readouts
        assert not any(name.startswith(("error", "margin", "entropy", "activation")) for name in readouts)
        assert reports["retrain"].curves.confidence == {}
    else:
        assert {"error on test", "margin on forget", "entropy attack, logistic", "LiRA"} <= readouts
    assert any("Rows were compared by" in limit for limit in reports["retrain"].limits)
