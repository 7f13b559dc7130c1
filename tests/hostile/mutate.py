"""Thousands of damaged files through the command, in a process of their own.

Run as `python -m tests.hostile.mutate SEED COUNT`.

Prints one JSON line for each run that did not end as documented, and a last one with the count of each exit code.
"""

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from tests.cli.workshop import furnish, spotless
from tests.hostile.attacks import torch_saved

CODES = {0, 2, 3, 4, 5}
"""How a damaged file may end: it may still be a valid one, and nothing else but these may happen."""

LIMIT = 5.0
INTERESTING = (b"\0", b"\xff", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"..", b"/", b"[", b"{", b'"', b"\n", b"nan", b"-1")

CASE = b"""# a newcomer's case
model = "nets.py:build"
weights = "model.safetensors"
data = "mydata.py:train"
forget = "forget.csv"
id_column = "id"
method = "fisher"
seed = 1
decay = 0.001
epochs = 5
rate = 0.05

[set]
strength = 1e-8
cap = 0.03
"""


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The same bytes after one to four accidents."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(found) + 1) if draw.random() < 0.5 else draw.randrange(min(len(found), 200) + 1)
        length = draw.choice((1, 2, 4, 8, 64))
        kind = draw.choice((0, 0, 0, 0, 1, 1, 2, 2, 3, 4, 5))
        if kind == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            found[at : at + length] = draw.randbytes(length)
        elif kind == 2:
            found[at:at] = draw.choice(INTERESTING)
        elif kind == 3:
            del found[at : at + length]
        elif kind == 4:
            del found[at:]
        else:
            found[at:at] = found[at : at + length] * draw.randint(1, 3)
        if not found:
            break
    return bytes(found)


def targets(folder: Path) -> Iterator[tuple[str, bytes, tuple[str, ...]]]:
    """What is damaged: the file's name, its sound content, and the flags that name it."""
    state = load_file(folder / "model.safetensors")
    usual = {"--weights": "model.safetensors", "--data": "mydata.py:train", "--forget": "forget.csv"}
    ids = np.array([f"person-{i}" for i in range(20)])
    x, y = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32), np.arange(20) % 3
    np.savez(folder / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y, id_train=ids)
    listed = (folder / "forget.csv").read_bytes()
    sound = [
        ("hurt.safetensors", (folder / "model.safetensors").read_bytes(), "--weights"),
        ("hurt.pt", torch_saved({"state_dict": state, "epoch": 3}), "--weights"),
        ("hurt.csv", listed, "--forget"),
        ("hurt.json", json.dumps(["person-1", "person-5"]).encode(), "--forget"),
        ("hurt.npz", (folder / "own.npz").read_bytes(), "--data"),
    ]
    rest = ("--model", "nets.py:build", "--method", "fisher", "--seed", "1")
    for name, content, flag in sound:
        yield name, content, (*(word for pair in {**usual, flag: name}.items() for word in pair), *rest)
    yield "hurt.toml", CASE, ("--case", "hurt.toml")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name not in ("run", "__pycache__"))


def main(seed: int, count: int) -> int:
    """Run them all; the exit code tells whether any went wrong."""
    torch.set_num_threads(1)
    draw, codes, wrong = random.Random(seed), Counter[int](), 0
    with tempfile.TemporaryDirectory() as place:
        folder = furnish(Path(place))
        os.chdir(folder)
        chosen = list(targets(folder))
        for name, content, flags in chosen:
            Path(name).write_bytes(content)
            sound = spotless("scrub", *flags, "--quiet", "--out", "run")
            assert sound.code == 0, (name, sound.err)
            shutil.rmtree("run")
        before = names(folder)
        inputs = {p: p.read_bytes() for p in folder.iterdir() if p.is_file() and not p.name.startswith("hurt")}
        for number in range(count):
            name, content, flags = chosen[number % len(chosen)]
            hurt = damaged(content, draw)
            Path(name).write_bytes(hurt)
            began = time.perf_counter()
            ended = spotless("scrub", *flags, "--quiet", "--out", "run")
            seconds = time.perf_counter() - began
            Path(name).write_bytes(content)
            whole = ended.code == 0 or (ended.err.count("\n") == 1 and ended.err.startswith("error["))
            touched = names(folder) != before or any(p.read_bytes() != old for p, old in inputs.items())
            codes[ended.code] += 1
            if ended.code not in CODES or not whole or seconds > LIMIT or touched or Path("canary").exists():
                wrong += 1
                told = {"number": number, "file": name, "code": ended.code, "err": ended.err[:400], "seconds": seconds}
                print(json.dumps({**told, "touched": touched, "hurt": hurt[:2000].hex()}))
            shutil.rmtree("run", ignore_errors=True)
        print(json.dumps({"codes": codes}))
        os.chdir("/")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
