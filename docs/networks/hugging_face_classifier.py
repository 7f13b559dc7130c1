"""A text classifier of Hugging Face, trained by its `Trainer` with AdamW and warm-up."""

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import spotlessnet as sn
from spotlessnet.training.hugging_face import HuggingFaceTrainer


def build() -> nn.Module:
    """The network where its training began."""
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=40,
            hidden_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=48,
            num_labels=3,
        )
    )


def rows(count: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Texts of eight tokens; one token in ten tells the intent."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    x = torch.randint(10, 40, (count, 8), generator=draw)
    x[:, 2] = 3 + y
    return {"input_ids": x, "attention_mask": torch.ones_like(x)}, y


def main(seeds: int = 5) -> sn.Unlearned:
    """Train, forget, audit."""
    x, y = rows(90, 0)
    y[:9] = (y[:9] + 1) % 3  # wrong labels, which can only be memorised
    arguments = TrainingArguments(
        "unused", num_train_epochs=20, learning_rate=5e-3, warmup_steps=10, per_device_train_batch_size=16,
        use_cpu=True, disable_tqdm=True, report_to=[], logging_strategy="no", save_strategy="no",
    )  # fmt: skip
    trainer = HuggingFaceTrainer(arguments)
    model = trainer(build(), sn.Examples(sn.Data.of((x, y))), 0)  # what you have: `Trainer(...).train()`
    # glue
    trained = sn.Trained.of(model, init=build(), trainer=HuggingFaceTrainer(arguments))
    return sn.unlearn(trained, (x, y), forget=range(9), test=rows(60, 1), audit=sn.Audit(seeds=seeds))
    # end of glue
