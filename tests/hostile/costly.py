"""Inputs that never end, that become huge, or that are of a kind nobody thought of; each for a process of its own."""

import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tests.hostile.attacks import (
    Attack,
    archive,
    arrays,
    cased,
    header,
    npy,
    one,
    tensors,
    torch_saved,
    weights,
    zipped,
)

Make = Callable[[Path], tuple[str, ...]]


def pipe(flag: str, name: str, suffix: str = "") -> Make:
    def make(folder: Path) -> tuple[str, ...]:
        os.mkfifo(folder / name)
        # A method that asks no fold models is refused before they are looked at.
        more = ("--method", "out-of-fold-distillation") if flag == "--fold-models" else ()
        return flag, name + suffix, *more

    return make


def noted(folder: Path) -> tuple[str, ...]:
    (folder / "a.safetensors").write_bytes(b"a")
    os.mkfifo(folder / "a.safetensors.next")
    return "--statistics", "a.safetensors"


def device(flag: str, name: str, to: str = "/dev/zero") -> Make:
    def make(folder: Path) -> tuple[str, ...]:
        (folder / name).symlink_to(to)
        return flag, name

    return make


def bound(flag: str, name: str) -> Make:
    def make(folder: Path) -> tuple[str, ...]:
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(name)
        return flag, name

    return make


def saved(change: Callable[[torch.Tensor], Any], legacy: bool = False) -> Make:
    """The newcomer's weights as a `.pt` with another kind of tensor for one bias."""

    def make(folder: Path) -> tuple[str, ...]:
        state: dict[str, Any] = load_file(folder / "model.safetensors")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state["0.bias"] = change(state["0.bias"])
            torch.save(state, folder / "a.pt", _use_new_zipfile_serialization=not legacy)
        return "--weights", "a.pt"

    return make


def in_itself() -> bytes:
    content: dict[str, Any] = {}
    content["state_dict"] = content
    return torch_saved(content)


def packed(description: bytes, storage: bytes | None = None, compress: bool = False) -> bytes:
    """An archive like those of torch.save, with any pickle in it."""
    data = {} if storage is None else {"archive/data/0": storage}
    return zipped({"archive/data.pkl": description, "archive/byteorder": b"little", **data}, compress)


def claiming(count: int, sides: tuple[int, ...] | None = None) -> bytes:
    """The description of a state dict with one tensor whose storage claims to hold `count` numbers."""
    shape = b"".join(b"I%d\n" % side for side in sides or (count,))
    stride = b"I1\n" * len(sides or (count,))
    storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuI%d\ntQ" % count
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"I0\n(" + shape + b"t(" + stride + b"t\x89}tR"
    return b"\x80\x02}X\x06\0\0\x000.bias" + tensor + b"s."


def twice(name: str) -> bytes:
    """An archive with two members of one name: two readers may see two things in it."""
    return zipped({name: b"a", name[:-1] + "Y": b"b"}).replace(name[:-1].encode() + b"Y", name.encode())


def misnamed() -> bytes:
    """An archive whose list says that a name is UTF-8, which it is not."""
    content = bytearray(zipped({"\u00fc.npy": b"a"}))
    at = content.rindex("\u00fc".encode())
    content[at : at + 2] = b"\xdf\xff"
    return bytes(content)


def sparse_file(folder: Path) -> tuple[str, ...]:
    """A file of sixty gigabytes that takes four kilobytes on the disk."""
    size = 60 * 2**30
    header = b'{"0.bias":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}' % (size // 4, size)
    with (folder / "a.safetensors").open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + size)
    return "--weights", "a.safetensors"


def own_code(text: str, flag: str = "--data", name: str = "train") -> Make:
    def make(folder: Path) -> tuple[str, ...]:
        (folder / "theirs.py").write_text(text)
        return flag, f"theirs.py:{name}"

    return make


DEEP = b"\x80\x02})" + b"\x85" * 2_000_000 + b"K\x01s."
"""A dictionary with a key nested two million deep: its hash goes as deep, on the stack of the interpreter."""

RAISES_LATE = """
import torch
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, i):
        if i > 30:
            raise KeyError(f"no such image\\nof row {i}")
        return torch.zeros(4), 0
def train():
    from spotlessnet import Data
    return Data.of(Rows(), columns={"id": [f"person-{i}" for i in range(60)]})
"""

BREAKS_LATE = """
from torch import nn
calls = 0
class Net(nn.Sequential):
    def forward(self, x):
        global calls
        calls += 1
        if calls > 3:
            raise ArithmeticError("tired")
        return super().forward(x)
def build():
    return Net(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
"""


def picture(content: bytes) -> Make:
    """A folder of identities whose pictures are all the same."""

    def make(folder: Path) -> tuple[str, ...]:
        (folder / "people/ann").mkdir(parents=True)
        for name in ("0.png", "1.png"):
            (folder / "people/ann" / name).write_bytes(content)
        return "--data", "people"

    return make


CUT_SHORT = bytes.fromhex("89504e470d0a1a0a0000000949484452000000080000000808020000004b6d29dc000000d3494441")
"""A picture whose header says that it is shorter than headers are."""

ENDLESS = [
    *(
        Attack(f"a pipe as {flag} {name}", pipe(flag, name), 3, "must be a plain file, but is a named pipe")
        for flag, name in (
            ("--weights", "a.safetensors"),
            ("--weights", "a.pt"),
            ("--init", "a.safetensors"),
            ("--reference", "a.pt"),
            ("--statistics", "a.safetensors"),
            ("--fold-models", "a.safetensors"),
            ("--forget", "a.csv"),
            ("--data", "a.npz"),
            ("--case", "a.toml"),
        )
    ),
    Attack("a pipe as --model", pipe("--model", "a.py", ":build"), 3, "but is a named pipe"),
    *(
        Attack(f"a device as {flag}", device(flag, name), 3, "must be a plain file, but is a device")
        for flag, name in (("--weights", "a.safetensors"), ("--forget", "a.txt"), ("--data", "a.npz"), ("--case", "a"))
    ),
    Attack("a socket as --weights", bound("--weights", "a.pt"), 3, "Give a plain file"),
    Attack("a pipe as a note beside --statistics", noted, 3, "must say which request used the statistics"),
    Attack("links in a circle", device("--forget", "a.csv", "a.csv"), 3, "There is no file a.csv"),
    Attack("a checkpoint in itself", weights("a.pt", in_itself), 3, "holds no tensor"),
]

HUGE = [
    Attack(
        "an empty tensor of endless sides",
        weights("a.safetensors", lambda: header(one([0, 0], shape=(0, 2**62, 2**62)))),
        3,
        "has a shape that cannot be",
    ),
    Attack(
        "an empty tensor of endless sides in a .pt",
        weights("a.pt", lambda: packed(claiming(0, sides=(0, 2**62, 2**62)), b"")),
        3,
        "a shape that cannot be",
    ),
    Attack(
        "a shape of 200,000 sides",
        weights("a.safetensors", lambda: header(one([0, 8], shape=(2**62,) * 200_000), bytes(8))),
        3,
        "has a shape that cannot be",
    ),
    Attack("one large label", arrays(y_train=np.array([0, 1, 2, 0, 1, 2, 0, 1, 3 * 10**8])), 3, "has the label 300000"),
    Attack("a label beyond 2⁶³", arrays(y_train=np.full(9, 2**63, np.uint64)), 3, "has the label 9223372036854775808"),
    Attack("strides of zero", saved(lambda t: t[:1].expand(60000, 60000)), 3, "the same numbers again and again"),
    Attack("strides of zero, old", saved(lambda t: t[:1].expand(60000, 60000), True), 3, "numbers again and again"),
    Attack("overlapping windows", saved(lambda t: t.as_strided((3, 4), (1, 1))), 3, "numbers again and again"),
    Attack("a storage that lies", weights("a.pt", lambda: packed(claiming(10**9), bytes(24))), 3, "claims 100"),
    Attack(
        "a compressed storage",
        weights("a.pt", lambda: packed(claiming(5 * 10**7), bytes(2 * 10**8), True)),
        3,
        "would unpack to",
    ),
    Attack("a key nested deep", weights("a.pt", lambda: packed(DEEP)), 3, "nested deeper"),
    Attack("a key nested deep, old", weights("a.pt", DEEP), 3, "nested deeper"),
    Attack("a hole of sixty gigabytes", sparse_file, 3, "hardly any of them are on the disk"),
    Attack("a name of 20,000 parts", cased(b"a" + b".a" * 20_000 + b" = 1"), 3, "more than 32 dots"),
    Attack("a table of 20,000 parts", cased(b"[a" + b".a" * 20_000 + b"]"), 3, "more than 32 dots"),
    Attack(
        "a bomb",
        archive(zipped({"x_train.npy": npy("(1000, 250000)") + bytes(10**9)}, compress=True)),
        3,
        "more than 100 times as much",
    ),
    Attack("two of one name", archive(twice("x_train.npy")), 3, "two members of one name"),
]

STRANGE = [
    *(
        Attack(f"{name} tensors", saved(change), 3, "that networks here are not made of")
        for name, change in {
            "float8": lambda t: t.to(torch.float8_e4m3fn),
            "sparse": lambda t: t.to_sparse(),
            "compressed": lambda t: t[None].to_sparse_csr(),
            "meta": lambda t: t.to("meta"),
            "nested": lambda t: torch.nested.nested_tensor([t]),
            "quantised": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
            "jagged": lambda t: torch.nested.nested_tensor([t], layout=torch.jagged),
            "unsigned": lambda t: t.view(torch.uint16)[:6],
        }.items()
    ),
    Attack("complex tensors", saved(lambda t: t.to(torch.complex64)), 3, "is torch.complex64 in the checkpoint"),
    Attack(
        "float8 in safetensors",
        tensors(lambda s: s.update({"0.bias": s["0.bias"].to(torch.float8_e4m3fn)})),
        3,
        "has the number format 'F8_E4M3', but must have one of F64, F32",
    ),
    Attack(
        "names that are numbers", weights("a.pt", torch_saved({3: torch.zeros(2)})), 3, "must name its tensors by text"
    ),
    Attack("names that are no text", weights("a.pt", torch_saved({"\ud800": torch.zeros(2)})), 3, "by text"),
    Attack(
        "offsets that are true",
        weights(
            "a.safetensors", header({"0.bias": {"dtype": "U8", "shape": [0], "data_offsets": [True, True]}}, b"\0")
        ),
        3,
        "a shape or offsets that cannot be",
    ),
    Attack(
        "a member whose name is no text", archive(misnamed()), 3, "must be an .npz archive, but is cut short, damaged"
    ),
    Attack("a picture cut short", picture(CUT_SHORT), 3, "must be a whole JPEG, PNG or WebP image"),
    Attack("longdouble inputs", arrays(x_train=np.zeros((9, 4), np.longdouble)), 3, "which torch does not have"),
    Attack("longdouble labels", arrays(y_train=np.zeros(9, np.longdouble)), 3, "which torch does not have"),
    Attack("signs that no text has", arrays(id_train=np.full(9, 0x7FFFFFFF, "<u4").view("<U1")), 3, "that no text has"),
    Attack("half of a sign", arrays(id_train=np.full(9, 0xD800, "<u4").view("<U1")), 3, "that no text has"),
    Attack("other byte order", arrays(id_train=np.full(9, 0x7FFFFFFF, ">u4").view(">U1")), 3, "that no text has"),
    Attack("structures", arrays(extra=np.zeros(9, [("a", "<f4"), ("b", "<U3")])), 3, "holds no numbers"),
    Attack("entries of no size", arrays(extra=np.zeros(9, "V0")), 3, "holds no numbers"),
    Attack(
        "a decay of 400 digits",
        cased(b"weight_decay = " + b"9" * 400),
        3,
        "'weight_decay' of the case file case.toml must be a",
    ),
    Attack("a decay in 9000 hexadecimals", cased(b"weight_decay = 0x" + b"f" * 9000), 3, "a value too long to show"),
    Attack("a seed in 9000 hexadecimals", cased(b"seed = 0x" + b"f" * 9000), 2, "a value too long to show"),
    Attack("epochs of 400 digits", cased(b"lr = 1.0\nepochs = " + b"9" * 400), 2, "--epochs must be a whole number"),
    Attack("no epochs", cased(b"lr = 1.0\nepochs = 0"), 2, "`epochs` must be positive, but got 0"),
    Attack(
        "a batch of 400 digits", cased(b"batch_size = " + b"9" * 400), 2, "--batch-size must be a whole number below"
    ),
    Attack("a setting of 400 digits", lambda folder: ("--set", "seed=" + "9" * 400), 2, "must be a number below 2⁶³"),
    Attack("a data set that raises late", own_code(RAISES_LATE), 3, "theirs.py, line 8, in __getitem__: KeyError"),
    Attack(
        "a network that raises late",
        own_code(BREAKS_LATE, "--model", "build"),
        3,
        "theirs.py, line 9, in forward: ArithmeticError: tired",
    ),
]

COSTLY = {
    f"{kind}: {attack.name}": attack
    for kind, attacks in (("endless", ENDLESS), ("huge", HUGE), ("strange", STRANGE))
    for attack in attacks
}
