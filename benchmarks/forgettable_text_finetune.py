"""Ordinary fine-tuning of MiniLM on Banking77: what a forgettable model of the same texts is compared with.

    python benchmarks/forgettable_text_finetune.py --data folder --packed packed.pt
    python benchmarks/forgettable_text_finetune.py --packed packed.pt --device cuda --seeds 3 --out rows.jsonl

The first command packs texts, as tokens, and MiniLM's weights into one file: of the word vectors only those of words
that occur, which changes no answer and makes the file half as large. The second needs torch and transformers alone, so
that it runs where nothing else is installed. The rate is chosen on 1,000 training texts held out at seed 100.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

RATES = (5e-5, 1e-4, 2e-4, 4e-4)
CHOOSING = 100
"""The seed of the choice; none of the seeds that are reported."""
WORDS = "embeddings.word_embeddings.weight"


def pack(folder: Path, out: Path, *, half: bool = False) -> None:
    """Tokens, labels and weights as plain tensors, numbered anew by the words that occur."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks.forgettable_text import gallery

    example = gallery()
    encoder, tokenizer = example.encoder()
    parts = {part: example.read(folder / f"banking77.{part}.csv") for part in ("train", "test")}
    names = sorted(set(parts["train"][1]))
    codes = {part: [found.ids for found in tokenizer.encode_batch(texts)] for part, (texts, _) in parts.items()}
    used = sorted({0, *(i for rows in codes.values() for row in rows for i in row)})
    place = {word: i for i, word in enumerate(used)}
    state = {name: value.clone() for name, value in encoder.state_dict().items()}
    state[WORDS] = state[WORDS][used].clone()
    if half:
        state = {name: value.half() if value.ndim == 2 else value for name, value in state.items()}
    found: dict[str, Any] = {"weights": state, "config": {**encoder.config.to_dict(), "vocab_size": len(used)}}
    for part, rows in codes.items():
        width = max(map(len, rows))
        padded = [[place[i] for i in row] + [-1] * (width - len(row)) for row in rows]
        found[part] = torch.tensor(padded, dtype=torch.int16)
        found[f"y_{part}"] = torch.tensor([names.index(label) for label in parts[part][1]])
    found["config"] = json.dumps(found["config"], default=str)
    torch.save(found, out)


class Classifier(nn.Module):
    """MiniLM, the mean over tokens, and a linear layer."""

    def __init__(self, packed: dict[str, Any], classes: int) -> None:
        super().__init__()
        # Text needs no torchvision, and one that was built for another torch would break the import.
        sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
        from transformers import BertConfig, BertModel

        self.encoder = BertModel(BertConfig(**json.loads(packed["config"])))
        missing, extra = self.encoder.load_state_dict(packed["weights"], strict=False)
        assert not extra, extra
        assert all("position_ids" in name or "pooler" in name for name in missing), missing
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(self.encoder.config.hidden_size, classes))

    def forward(self, codes: Tensor) -> Tensor:
        """Logits of tokens, padded with -1."""
        mask = (codes >= 0).long()
        hidden = self.encoder(input_ids=codes.clamp(min=0), attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(hidden)
        logits: Tensor = self.head((hidden * weights).sum(dim=1) / weights.sum(dim=1))
        return logits


def shortened(codes: Tensor) -> Tensor:
    """Without the columns that pad every row."""
    return codes[:, : int((codes >= 0).sum(dim=1).max())]


def tuned(
    packed: dict[str, Any], codes: Tensor, y: Tensor, *, rate: float, epochs: int, seed: int, batch: int = 32
) -> Classifier:
    """AdamW with a tenth of the steps to warm up, then a straight line to zero."""
    torch.manual_seed(seed)
    network = Classifier(packed, int(packed["y_train"].max()) + 1).to(codes.device).train()
    groups = [
        {"params": network.encoder.parameters(), "lr": rate},
        {"params": network.head.parameters(), "lr": 10 * rate},
    ]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.01)
    steps = epochs * -(-len(y) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda at: min((at + 1) / max(1, steps // 10), max(0.0, (steps - at) / steps))
    )
    draw = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=draw).split(batch):
            here = rows.to(codes.device)
            optimiser.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(network(shortened(codes[here])), y[here]).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    return network.eval()


@torch.no_grad()
def accuracy(network: Classifier, codes: Tensor, y: Tensor) -> float:
    """In percent."""
    hits = [network(shortened(c)).argmax(dim=1) == t for c, t in zip(codes.split(256), y.split(256), strict=True)]
    return 100 * float(torch.cat(hits).double().mean())


def flags() -> argparse.ArgumentParser:
    # No `benchmarks.common`: it imports the package, which need not be installed where this trains.
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with the Banking77 files: pack, and train nothing")
    parser.add_argument("--packed", type=Path, required=True, help="the file that packing writes")
    parser.add_argument("--half", action="store_true", help="pack weights in half precision: half the size, rounded")
    parser.add_argument("--out", type=Path, help="the file for the rows")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds, from 0")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rows", type=int, default=0, help="so many training texts only, to try the script")
    return parser


def say(out: Path | None, **row: Any) -> None:
    line = json.dumps({"data": "banking77", **row})
    print(line, flush=True)
    if out is not None:
        with out.open("a") as stream:
            stream.write(line + "\n")


def main() -> None:
    args = flags().parse_args()
    if args.data is not None:
        pack(args.data, args.packed, half=args.half)
        return
    packed = torch.load(args.packed, weights_only=True)
    names = ("train", "y_train", "test", "y_test")
    codes, y, test, wanted = (packed[name].to(args.device).long() for name in names)
    if args.rows:
        codes, y, test, wanted = codes[: args.rows], y[: args.rows], test[: args.rows], wanted[: args.rows]
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    mixed = torch.randperm(len(y), generator=torch.Generator().manual_seed(CHOOSING)).to(args.device)
    held, rest = mixed[: len(y) // 10], mixed[len(y) // 10 :]
    scores = {}
    for rate in RATES:
        network = tuned(packed, codes[rest], y[rest], rate=rate, epochs=args.epochs, seed=CHOOSING)
        scores[rate] = accuracy(network, codes[held], y[held])
        say(args.out, what="choosing", seed=CHOOSING, epochs=args.epochs, lr=rate, held_out=scores[rate], where=where)
    rate = max(scores, key=lambda one: scores[one])
    for seed in range(args.seeds):
        began = time.perf_counter()
        network = tuned(packed, codes, y, rate=rate, epochs=args.epochs, seed=seed)
        score, seconds = accuracy(network, test, wanted), time.perf_counter() - began
        name = f"fine-tuned MiniLM, {args.epochs} epochs of AdamW, seed {seed}"
        say(
            args.out, what="fine-tuning", model=name, seed=seed, epochs=args.epochs, lr=rate, seconds=seconds,
            accuracy=score, where=where, command=f"python benchmarks/{Path(__file__).name} {' '.join(sys.argv[1:])}",
        )  # fmt: skip


if __name__ == "__main__":
    main()
