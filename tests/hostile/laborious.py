"""Small files that ask for more work, or more memory, than any machine has, and large ones that are honest.

`python -m tests.hostile.laborious` reads each in a fork and prints a JSON line of how it ended. In a process of its
own: with types checked at run time each step would take a hundred times as long.
"""

import json
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from tests.hostile.attacks import Attack, header, torch_saved, weights
from tests.hostile.costly import packed
from tests.hostile.forked import imported, run

START = b"\x80\x02"
TREE = b"K\x01" + b"2\x86" * 31
"""A pair of the same pair of the same pair ...: made in thirty steps, and looked at in two thousand million."""

LONG = b"(" + b"K\x01" * 300_000 + b"tq\x01"
"""A tuple of many numbers, to be named again by two letters."""

PICKLES = {
    "a key of pairs of pairs": START + b"}" + TREE + b"K\x01s.",
    "keys of pairs of pairs": START + b"}(" + TREE + b"K\x01u.",
    "a dictionary of pairs of pairs": START + b"(" + TREE + b"K\x01d.",
    "a set of pairs of pairs": b"\x80\x04\x8f(" + TREE + b"\x90.",
    "a frozen set of pairs of pairs": b"\x80\x04(" + TREE + b"\x91.",
    "one long key again and again": START + b"}" + LONG + b"K\x01s" + b"h\x01K\x01s" * 30_000 + b".",
    "one long text again and again": START
    + b"}"
    + 2 * (b"X" + struct.pack("<I", 2**20) + b"a" * 2**20 + b"q\x01K\x01s")
    + b"h\x01K\x01s" * 200_000
    + b".",
    "one long number again and again": START
    + b"}\x8b"
    + struct.pack("<i", 2**20)
    + b"\x01" * 2**20
    + b"q\x01K\x01s"
    + b"h\x01K\x01s" * 30_000
    + b".",
    "long calls again and again": START + b"ctorch\nSize\nq\x02" + LONG + b"0" + b"h\x02h\x01R0" * 30_000 + b"}.",
    "new things again and again": START + b"ctorch\nSize\nq\x02" + LONG + b"0" + b"h\x02h\x01\x810" * 30_000 + b"}.",
    "long storages again and again": START + LONG + b"0" + b"h\x01Q0" * 30_000 + b"}.",
    "nothing again and again": START + b"N0" * 3_000_000 + b"}.",
    "a name again and again": START + b"ctorch\nSize\n0" * 1_000_000 + b"}.",
    "three gigabytes in fifteen bytes": b"\x80\x05\x96" + struct.pack("<Q", 3 * 2**30) + b"abc.",
}


def many(count: int) -> bytes:
    """A header of so many tensors without a number."""
    entries = (b'"%x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(count))
    return header(b"{" + b",".join(entries) + b"}")


HEADERS: dict[str, Callable[[], bytes]] = {
    "230,000 tensors": lambda: save({f"n{i}": torch.zeros(1) for i in range(230_000)}),
    "280,000 empty tensors": lambda: many(280_000),
    "100,000 empty tensors": lambda: many(100_000),
    "lists in a header": lambda: header(b'{"__metadata__":[' + b"[]," * 5_000_000 + b"[]]}"),
    "objects in a header": lambda: header(b'{"__metadata__":[' + b"{}," * 5_000_000 + b"{}]}"),
}

LABORIOUS = [
    *(Attack(name, weights("a.pt", packed(content)), 3, "holds more than plain") for name, content in PICKLES.items()),
    *(Attack(f"{name}, old", weights("a.pt", content), 3, "holds more than") for name, content in PICKLES.items()),
    *(
        Attack(name, weights("a.safetensors", content), 3, "its header names more than 65536 tensors")
        for name, content in HEADERS.items()
    ),
    Attack("30,000 tensors", weights("a.pt", lambda: torch_saved(_named(30_000))), 0, ""),
    Attack("8,000 weights with the state of Adam", weights("a.ckpt", lambda: torch_saved(_resumable(8_000))), 0, ""),
    Attack("a vocabulary", weights("a.pt", lambda: torch_saved(_with_words(256_000))), 0, ""),
    Attack("65,536 tensors", weights("a.safetensors", lambda: save(_named(2**16))), 0, ""),
]


def _named(count: int) -> dict[str, torch.Tensor]:
    return {f"layers.{i}.weight": torch.zeros(1) for i in range(count)}


def _resumable(count: int) -> dict[str, Any]:
    """As Lightning saves a training that can go on: each weight, its two moments and its number of steps."""
    moments = {i: {name: torch.zeros(1) for name in ("step", "exp_avg", "exp_avg_sq")} for i in range(count)}
    optimiser = {"state": moments, "param_groups": [{"lr": 0.1, "params": list(range(count))}]}
    return {"epoch": 1, "state_dict": _named(count), "optimizer_states": [optimiser]}


def _with_words(count: int) -> dict[str, Any]:
    words = {f"word{i}": i for i in range(count)}
    return {"state_dict": _named(10), "vocabulary": words, "merges": {(f"a{i}", f"b{i}"): i for i in range(count)}}


def main() -> int:
    imported()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        baseline = run(["list"], place / "err").peak
        for attack in LABORIOUS:
            _, file = attack.make(place)
            ended = run(["inspect", str(place / file)], place / "err")
            told = asdict(ended) | {"name": attack.name, "above": ended.peak - baseline}
            told["as_wanted"] = ended.code == attack.code and ended.is_told and attack.says in ended.err
            print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
