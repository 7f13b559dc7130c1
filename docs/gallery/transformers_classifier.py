"""Forget a person from a Hugging Face classifier: `python docs/gallery/transformers_classifier.py`.

A tiny random BERT on random tokens: nothing is downloaded, and nothing is learnt that would be of use. What it shows is
that a `transformers` model goes in as it is: rows are dictionaries, labels are called `labels`, answers have `.logits`.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification

import spotlessnet as sn

CONFIG = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=12, num_labels=3, attn_implementation="eager",
)  # fmt: skip


def texts(count: int = 60, length: int = 10) -> tuple[list[dict[str, torch.Tensor]], list[str]]:
    """Rows as a tokeniser would give them, and whose they are."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 50, (count, length), generator=draw)
    labels = torch.randint(0, 3, (count,), generator=draw)
    mask = torch.ones(length, dtype=torch.long)
    rows = [{"input_ids": t, "attention_mask": mask, "labels": y} for t, y in zip(tokens, labels, strict=True)]
    return rows, [f"person-{i % 12}" for i in range(count)]


def main(epochs: int = 10) -> tuple[float, float, BertForSequenceClassification]:
    """The loss on the person's rows before and after, and the module to take away."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(CONFIG)
    rows, people = texts()
    data = sn.Data.of(rows, label="labels", columns={"person": people})

    recipe = sn.Recipe(epochs=epochs, lr=0.05, batch_size=20, weight_decay=1e-2)
    trained = sn.fit(sn.Trained.of(model, recipe=recipe), data)
    split = sn.where("person", "person-3")(data)
    # By products over batches: transformers looks into attention masks, so row by row it would be slow.
    scrubbed = sn.chain(sn.NTK(solver=sn.CG()), sn.Finetune(epochs=2))(trained, split)

    loss = sn.MeanLoss("forget")
    network = trained.at(scrubbed.mean)
    return float(loss(trained, split)), float(loss(network, split)), network.module()  # type: ignore[return-value]  # the same class as went in


if __name__ == "__main__":
    before, after, network = main()
    print(f"loss on the person's rows: {before:.3f} before, {after:.3f} after")
    print(f"take away: {type(network).__name__}; save it with network.save_pretrained(...)")
