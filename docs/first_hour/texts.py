"""A classifier of Hugging Face, trained by its `Trainer`; nothing is downloaded, so it is small and new."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import spotlessnet as sn
from spotlessnet.training.hugging_face import HuggingFaceTrainer

INTENTS = 3
arguments = TrainingArguments(
    "unused", num_train_epochs=12, learning_rate=5e-3, warmup_steps=10, per_device_train_batch_size=16, seed=0,
    use_cpu=True, disable_tqdm=True, report_to=[], logging_strategy="no", save_strategy="no",
)  # fmt: skip
trainer = HuggingFaceTrainer(arguments)  # what a request trains again with


def build():
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=40, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
            num_labels=INTENTS,
        )
    )  # fmt: skip


def texts(count, seed):
    """Eight tokens each; the third tells the intent."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % INTENTS
    x = torch.randint(10, 40, (count, 8), generator=draw)
    x[:, 2] = 3 + y
    return {"input_ids": x, "attention_mask": torch.ones_like(x)}, y


def examples():
    x, y = texts(120, 0)
    people = [f"person-{i // 3:02}" for i in range(120)]
    y[21:30] = (y[21:30] + 1) % INTENTS  # three of them were labelled wrong
    return x, y, people


def test():
    return texts(300, 1)


if __name__ == "__main__":
    x, y, _ = examples()
    rows = [{**{name: column[i] for name, column in x.items()}, "labels": y[i]} for i in range(len(y))]
    model = build()
    model.save_pretrained("bert-init")
    names = {"build": "texts.py:build", "trainer": "texts.py:trainer"}
    record = sn.record("bert-training", model, "texts.py:examples", **names, seed=0)
    Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[record.hugging_face()]).train()
    model.save_pretrained("bert")
