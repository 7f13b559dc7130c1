"""MiniLM on Banking77 by Hugging Face's `Trainer`: 50 texts are to be forgotten, and one whole intent.

    python benchmarks/forgettable_text_finetune.py --data folder --packed text.pt --half
    python benchmarks/real_text.py --packed text.pt --device cuda --stop 330 --out results/real_networks/text.jsonl
    python benchmarks/real_text.py --packed text.pt --tiny         # a few rows on a CPU, to see that all of it runs

The first command packs texts, as tokens, and MiniLM's weights into one file; `--half` rounds its matrices to half
precision, from which training starts. The network is
`BertForSequenceClassification`, as `from_pretrained` would make it, and `transformers.Trainer` trains it with AdamW, a
warm-up, dropout and bfloat16, through `HuggingFaceTrainer`. The rate is chosen on a tenth of the training texts, held
out at seed 900.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spotlessnet as sn
from spotlessnet.training.hugging_face import HuggingFaceTrainer

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, device_of
from benchmarks.real import Case, Report, about, flags_of, options_of, run

TOKENS = 32
"""At most so many of a text; five in a hundred are longer."""

RATES = (5e-4, 1e-3, 2e-3)
FORGOTTEN = 50


def check_installed() -> None:
    """`Trainer` needs accelerate, and says so only when it is made."""
    # Text needs no torchvision, and one that was built for another torch would break the import.
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
    for name in ("transformers", "accelerate"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            sys.exit(f"`transformers.Trainer` needs the package {name}, which is not here ({error}). Install it first.")


def network(packed: dict[str, Any], classes: int, *, tiny: bool) -> nn.Module:
    """MiniLM with a new last layer; of a tiny run, its first layer alone."""
    from transformers import BertConfig, BertForSequenceClassification

    told = ("id2label", "label2id", "architectures")
    given = {name: value for name, value in json.loads(packed["config"]).items() if name not in told}
    if tiny:
        given["num_hidden_layers"] = 1
    torch.manual_seed(0)
    made = BertForSequenceClassification(BertConfig(**given, num_labels=classes))
    missing, extra = made.bert.load_state_dict(packed["weights"], strict=False)
    assert all("position_ids" in name for name in missing), missing
    assert tiny or not extra, extra
    return made


def texts(codes: Tensor, y: Tensor) -> sn.Data:
    """Named inputs, as networks of transformers take them."""
    codes = codes[:, :TOKENS].long()
    return sn.Data.of(({"input_ids": codes.clamp(min=0), "attention_mask": (codes >= 0).long()}, y.long()))


def trimmed(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch without the columns that pad every row."""
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    width = int(batch["attention_mask"].sum(dim=1).max())
    return {name: value if name == "labels" else value[:, :width] for name, value in batch.items()}


def trainer(tiny: bool, device: torch.device, lr: float, epochs: int | None = None) -> HuggingFaceTrainer:
    """How the network is trained."""
    from transformers import TrainingArguments

    arguments = TrainingArguments(
        "unused", num_train_epochs=epochs or (2 if tiny else 5), per_device_train_batch_size=16 if tiny else 512,
        learning_rate=lr, weight_decay=0.01, warmup_steps=2 if tiny else 10, lr_scheduler_type="linear",
        bf16=device.type == "cuda", use_cpu=device.type == "cpu", disable_tqdm=True, report_to=[],
        logging_strategy="no", save_strategy="no", remove_unused_columns=False,
    )  # fmt: skip
    return HuggingFaceTrainer(arguments, {"data_collator": trimmed})


def methods(tiny: bool) -> dict[str, sn.Scrub]:
    """A `Trainer` says nothing of the package's own loop, so what goes on training is told its epochs."""
    return {
        "fine-tuning, 1 epoch": sn.Finetune(epochs=1),
        "respond and fine-tune, 1 epoch": sn.RespondAndFinetune(epochs=1, coreset=20 if tiny else 200),
    }


def flags() -> Flags:
    return flags_of(__doc__)


def main() -> None:
    """Train, forget, audit."""
    check_installed()
    options = options_of(flags())
    device = device_of(options)
    packed = torch.load(options.packed, weights_only=True)
    if options.tiny:
        # Five intents of a few texts each.
        for part in ("train", "test"):
            few = (packed[f"y_{part}"] < 5).nonzero().squeeze(1)[::8]
            packed[part], packed[f"y_{part}"] = packed[part][few], packed[f"y_{part}"][few]
    train, test = (texts(packed[part], packed[f"y_{part}"]) for part in ("train", "test"))
    classes = int(packed["y_train"].max()) + 1
    intent = int(packed["y_train"][0])  # that of the first text
    some = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[: 10 if options.tiny else FORGOTTEN]

    def start(lr: float) -> sn.Trained:
        begun = network(packed, classes, tiny=options.tiny).to(device)
        return sn.Trained.of(begun, init=begun, trainer=trainer(options.tiny, device, lr, options.epochs))

    splits = {
        f"{len(some)} texts": sn.rows(some.tolist())(train, test),
        "one intent": sn.whole_class(intent)(train, test),
    }
    how = trainer(options.tiny, device, 1.0, options.epochs).arguments
    facts = about(
        "real_text", device, network="MiniLM-L6", data="banking77", rows=len(train),
        forgotten={name: len(split.forget) for name, split in splits.items()},
        training={
            "by": "transformers.Trainer", "epochs": how.num_train_epochs, "batch_size": how.per_device_train_batch_size,
            "lr": "chosen", "weight_decay": how.weight_decay, "warmup_steps": how.warmup_steps,
            "schedule": str(how.lr_scheduler_type), "bf16": how.bf16, "optim": str(how.optim),
        },
    )  # fmt: skip
    asked = options.cases or list(splits)
    cases = [Case(name, splits[name], methods(options.tiny)) for name in asked]
    rates = RATES[1:3] if options.tiny else RATES
    run(
        start, (options.lr,) if options.lr else rates, cases, Report(options.out, facts, options.stop),
        options.seeds, judge_now=not options.judge_later, whole=not options.part,
    )  # fmt: skip


if __name__ == "__main__":
    main()
