"""The same tensors and text are the same bytes, in every process."""

import subprocess
import sys

import torch
from safetensors.torch import load, save

from spotlessnet.store.checkpoints import to_bytes

TEXT = {name: name * 3 for name in ("format", "count", "weight_decay", "ridge", "first", "outside", "wear")}
ALONE = f"""
import hashlib, torch
from spotlessnet.store.checkpoints import to_bytes
print(hashlib.sha256(to_bytes({{"b": torch.ones(3), "a": torch.zeros(2).long()}}, {TEXT!r})).hexdigest())
"""


def test_processes_agree_on_the_bytes():
    # The library orders the text by a hash that differs from map to map, so a few tries suffice to see it.
    tensors = {"b": torch.ones(3), "a": torch.zeros(2).long()}
    assert len({save(tensors, TEXT) for _ in range(20)}) > 1
    assert len({to_bytes(tensors, TEXT) for _ in range(20)}) == 1
    assert to_bytes(tensors, TEXT) == to_bytes(tensors, dict(reversed(TEXT.items())))
    told = {subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True).stdout for _ in range(2)}
    assert len(told) == 1
    assert len(told.pop().strip()) == 64


def test_what_was_put_in_comes_out(tmp_path):
    from safetensors import safe_open

    tensors = {"weight": torch.randn(3, 2), "n": torch.tensor(3), "half": torch.ones(5, dtype=torch.bfloat16)}
    content = to_bytes(tensors, TEXT | {"ü": "ö"})
    assert all(torch.equal(value, tensors[name]) for name, value in load(content).items())
    (tmp_path / "a.safetensors").write_bytes(content)
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.metadata() == TEXT | {"ü": "ö"}
    assert int.from_bytes(content[:8], "little") % 8 == 0
