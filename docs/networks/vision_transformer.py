"""A vision transformer of Hugging Face, described by a recipe: AdamW, cosine schedule, warm-up."""

import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

import spotlessnet as sn


def build() -> nn.Module:
    """The network where its training began."""
    torch.manual_seed(0)
    return ViTForImageClassification(
        ViTConfig(
            image_size=8, patch_size=4, num_channels=1, hidden_size=24, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=48, num_labels=10,
        )
    )  # fmt: skip


def main(seeds: int = 5) -> sn.Unlearned:
    """Train, forget, audit."""
    digits = sn.load("digits")
    some = digits.train.select(range(200))
    x, y, _ = some.fetch(some.rows)
    unseen, labels, _ = digits.test.fetch(digits.test.rows[:150])
    y = y.clone()
    y[:12] = (y[:12] + 1) % 10  # wrong labels, which can only be memorised
    data, test = ({"pixel_values": x}, y), ({"pixel_values": unseen}, labels)
    recipe = sn.Recipe(optimizer="adamw", epochs=25, lr=5e-3, schedule="cosine", warmup_ratio=0.1, batch_size=32)
    model = sn.fit(sn.Trained.of(build(), recipe=recipe), sn.Data.of(data)).module()  # what you have
    # glue
    return sn.unlearn(
        model, data, forget=range(12), init=build(), recipe=recipe, test=test, audit=sn.Audit(seeds=seeds)
    )
    # end of glue
