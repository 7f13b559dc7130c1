"""LoRA adapters of PEFT on a frozen network: only they are trained, changed and saved (`result.save_pretrained`)."""

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import spotlessnet as sn


def build() -> nn.Module:
    """The network where its training began."""
    torch.manual_seed(0)
    base = BertForSequenceClassification(
        BertConfig(
            vocab_size=40,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=3,
        )
    )
    return get_peft_model(base, LoraConfig(r=8, target_modules=["query", "value", "dense"], task_type="SEQ_CLS"))


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
    recipe = sn.Recipe(optimizer="adamw", epochs=30, lr=5e-3, schedule="cosine", batch_size=8)
    model = sn.fit(sn.Trained.of(build(), recipe=recipe), sn.Data.of((x, y))).module()  # what you have
    # glue
    return sn.unlearn(
        model, (x, y), forget=range(9), init=build(), recipe=recipe, test=rows(60, 1), audit=sn.Audit(seeds=seeds)
    )
    # end of glue
