"""Files made to do harm, or merely broken: what each is, how it is named to the command, and how it must end."""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file


@dataclass(frozen=True)
class Attack:
    """One hostile input: `make` writes it and gives the flags that name it."""

    name: str
    make: Callable[[Path], tuple[str, ...]]
    code: int
    says: str


class Evil:
    """Unpickling this runs code: it writes the canary."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("__import__('pathlib').Path('canary').touch()",)


def weights(name: str, content: bytes | Callable[[], bytes]) -> Callable[[Path], tuple[str, ...]]:
    def make(folder: Path) -> tuple[str, ...]:
        (folder / name).write_bytes(content() if callable(content) else content)
        return "--weights", name

    return make


def tensors(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], tuple[str, ...]]:
    def make(folder: Path) -> tuple[str, ...]:
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "changed.safetensors")
        return "--weights", "changed.safetensors"

    return make


def header(content: Any, body: bytes = b"") -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + body


def one(offsets: list[int], dtype: str = "F32", shape: tuple[int, ...] = (2,)) -> dict[str, Any]:
    return {"0.weight": {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}}


def torch_saved(thing: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(thing, stream)
    return stream.getvalue()


def zipped(entries: dict[str, bytes], compress: bool = False) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


def shards(index: bytes | None) -> Callable[[Path], tuple[str, ...]]:
    def make(folder: Path) -> tuple[str, ...]:
        (folder / "shards").mkdir()
        if index is not None:
            (folder / "shards/model.safetensors.index.json").write_bytes(index)
        return "--weights", "shards"

    return make


def listed(name: str, content: bytes) -> Callable[[Path], tuple[str, ...]]:
    def make(folder: Path) -> tuple[str, ...]:
        (folder / name).write_bytes(content)
        return "--forget", name

    return make


def cased(content: bytes) -> Callable[[Path], tuple[str, ...]]:
    def make(folder: Path) -> tuple[str, ...]:
        (folder / "case.toml").write_bytes(content)
        return "--case", "case.toml"

    return make


def arrays(**named: Any) -> Callable[[Path], tuple[str, ...]]:
    x, y = np.zeros((9, 4), np.float32), np.arange(9) % 3
    usual = {
        "x_train": x,
        "y_train": y,
        "x_test": x,
        "y_test": y,
        "id_train": np.array([f"person-{i}" for i in range(9)]),
    }

    def make(folder: Path) -> tuple[str, ...]:
        kept = {name: value for name, value in {**usual, **named}.items() if value is not None}
        np.savez(folder / "own.npz", **kept)
        return "--data", "own.npz"

    return make


def archive(content: bytes) -> Callable[[Path], tuple[str, ...]]:
    def make(folder: Path) -> tuple[str, ...]:
        (folder / "own.npz").write_bytes(content)
        return "--data", "own.npz"

    return make


def npy(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def a_folder(folder: Path) -> tuple[str, ...]:
    (folder / "list.csv").mkdir()
    return "--forget", "list.csv"


def everybody(folder: Path) -> tuple[str, ...]:
    (folder / "all.txt").write_text("\n".join(f"person-{i}" for i in range(60)))
    return "--forget", "all.txt"


HUGE = 2**63
CHECKPOINTS = [
    Attack("empty", weights("a.safetensors", b""), 3, "is empty"),
    Attack("three bytes", weights("a.safetensors", b"abc"), 3, "not a readable safetensors"),
    Attack("header beyond all", weights("a.safetensors", struct.pack("<Q", HUGE) + b"{}"), 3, "longer than the file"),
    Attack("header of 100 MB and one", weights("a.safetensors", struct.pack("<Q", 10**8 + 1)), 3, "longer than"),
    Attack("header is no JSON", weights("a.safetensors", header(b"{nope}")), 3, "not a readable"),
    Attack("header is a list", weights("a.safetensors", header([1, 2])), 3, "not a readable"),
    Attack("header nested deep", weights("a.safetensors", header(b'{"a":' * 20000)), 3, "not a readable"),
    Attack("header without end", weights("a.safetensors", header(b'{"a"')), 3, "not a readable"),
    Attack(
        "offsets beyond", weights("a.safetensors", header(one([0, 800], shape=(200,)), b"\0" * 8)), 3, "not a readable"
    ),
    Attack("offsets negative", weights("a.safetensors", header(one([-8, 0]), b"\0" * 8)), 3, "not a readable"),
    Attack("offsets backwards", weights("a.safetensors", header(one([8, 0]), b"\0" * 8)), 3, "not a readable"),
    Attack("a hole", weights("a.safetensors", header(one([8, 16]), b"\0" * 16)), 3, "not a readable"),
    Attack(
        "overlapping",
        weights("a.safetensors", header({**one([0, 8]), "b": one([4, 12])["0.weight"]}, b"\0" * 12)),
        3,
        "not a readable",
    ),
    Attack(
        "unknown number format", weights("a.safetensors", header(one([0, 8], "F31"), b"\0" * 8)), 3, "not a readable"
    ),
    Attack("shape overflows", weights("a.safetensors", header(one([0, 8], shape=(2**40, 2**40)))), 3, "not a readable"),
    Attack(
        "Git LFS pointer", weights("a.safetensors", b"version https://git-lfs.github.com/spec/v1\n"), 3, "git lfs pull"
    ),
    Attack("a web page", weights("a.safetensors", b"<!doctype html><html>404</html>"), 3, "longer than the file"),
    Attack("a zip", weights("a.safetensors", zipped({"x": b"y"})), 3, "longer than the file"),
    Attack(
        "names with escapes",
        tensors(lambda s: s.update({"\x1b[31mred\nline": torch.zeros(1)})),
        3,
        "1 unknown",
    ),
    Attack("names that climb", tensors(lambda s: s.update({"../../etc/passwd": torch.zeros(1)})), 3, "1 unknown"),
    Attack("a name missing", tensors(lambda s: s.pop("0.bias")), 3, "1 parameters missing (first '0.bias')"),
    Attack(
        "all names wrong",
        tensors(lambda s: [s.pop(name) for name in list(s)[1:]] and s.update({"z": s.pop(next(iter(s)))})),
        3,
        "does not fit",
    ),
    Attack("wrong shape", tensors(lambda s: s.update({"0.bias": torch.zeros(7)})), 3, "has shape (7,)"),
    Attack("whole numbers", tensors(lambda s: s.update({"0.bias": torch.zeros(6).long()})), 3, "is torch.int64"),
    Attack("not a number", tensors(lambda s: s["0.bias"].fill_(float("nan"))), 5, "is not finite"),
    Attack("infinite", tensors(lambda s: s["0.bias"].fill_(float("inf"))), 5, "is not finite"),
    Attack("unknown ending", weights("a.xyz", b"abc"), 3, "but ends in '.xyz'"),
    Attack("no such file", lambda folder: ("--weights", "no.safetensors"), 3, "There is no file"),
]

PICKLES = [
    Attack("code in a pickle", weights("a.pt", lambda: torch_saved(Evil())), 3, "code in a checkpoint is never run"),
    Attack("code among tensors", weights("a.pt", lambda: torch_saved({"0.bias": Evil()})), 3, "never run"),
    Attack("code in a .ckpt", weights("a.ckpt", lambda: torch_saved({"state_dict": Evil()})), 3, "never run"),
    Attack("code in a plain pickle", weights("a.pth", lambda: pickle.dumps(Evil())), 3, "never run"),
    Attack("code in protocol 0", weights("a.bin", b"cos\nsystem\n(S'touch canary'\ntR."), 3, "never run"),
    Attack("a pickle cut short", weights("a.pt", lambda: torch_saved({"a": torch.zeros(99)})[:200]), 3, "never run"),
    Attack("text named .pt", weights("a.pt", b"hello"), 3, "or is damaged"),
    Attack(
        "a list", weights("a.pt", lambda: torch_saved([torch.zeros(2)])), 3, "must hold a state dict, but holds list"
    ),
    Attack("no tensor", weights("a.pt", lambda: torch_saved({"epoch": 3})), 3, "holds no tensor"),
    Attack("an archive that climbs", weights("a.pt", zipped({"../canary": b"x"})), 3, "or is damaged"),
    Attack(
        "shards outside",
        shards(json.dumps({"weight_map": {"a": "../model.safetensors"}}).encode()),
        3,
        "points outside",
    ),
    Attack("shards missing", shards(json.dumps({"weight_map": {"a": "no.safetensors"}}).encode()), 3, "is missing"),
    Attack("shards without sense", shards(b"[]"), 3, "not a readable index"),
    Attack("shards nested deep", shards(b"[" * 50000), 3, "not a readable index"),
    Attack("an empty folder", shards(None), 3, "holds neither model.safetensors nor an index"),
]

LISTS = [
    Attack("an empty list", listed("a.csv", b""), 3, "names no id"),
    Attack("blank lines", listed("a.txt", b"\n\n# nobody\n"), 3, "names no id"),
    Attack("no such column", listed("a.csv", b"name,age\nann,3\n"), 3, "has the columns name, age, but none is 'id'"),
    Attack("not UTF-8", listed("a.csv", b"id\n\xff\xfe\n"), 3, "must be UTF-8 text, but byte 3 is not"),
    Attack("zero bytes", listed("a.csv", b"id\n\0\0\n"), 3, "missing"),
    Attack("a field of a megabyte", listed("a.csv", b"id\n" + b"x" * 2**20), 3, "not a readable csv"),
    Attack("JSON nested deep", listed("a.json", b"[" * 10**5), 3, "not valid JSON"),
    Attack("JSON without a list", listed("a.json", b'{"who": 3}'), 3, "must hold a JSON list of ids"),
    Attack("ids that are broken numbers", listed("a.json", b"[1.5]"), 3, "must name ids as text or whole numbers"),
    Attack("ids that are true", listed("a.json", b"[true]"), 3, "must name ids as text or whole numbers"),
    Attack("a broken line", listed("a.jsonl", b'"a"\n{'), 3, "Line 2 of the forget list"),
    Attack("a number of 5000 digits", listed("a.json", b"[" + b"9" * 5000 + b"]"), 3, "not valid JSON"),
    Attack("a spreadsheet", listed("a.xlsx", b"PK\x03\x04"), 3, "must end in .csv, .json, .jsonl or .txt"),
    Attack("strangers only", listed("a.txt", b"nobody\n\x1b[31mred\n"), 3, "0 matched, 2 missing"),
    Attack("a folder as list", a_folder, 3, "must be a plain file, but is a folder"),
    Attack("everybody", everybody, 3, "must leave training rows"),
]

CASES = [
    Attack("no TOML", cased(b"model = = 1"), 3, "is not valid TOML"),
    Attack("not UTF-8", cased(b'model = "\xff"'), 3, "is not valid TOML"),
    Attack("nested deep", cased(b"x = " + b"[" * 6 * 10**4), 3, "is not valid TOML"),
    Attack("an unknown field", cased(b'modell = "x"'), 3, "Did you mean 'model'?"),
    Attack("a date as a number", cased(b"max_nats = 1979-05-27"), 3, "must be a number"),
    Attack("not a number of nats", cased(b"max_nats = nan"), 2, "`max-nats` must be positive, but got nan"),
    Attack("an endless rate", cased(b"lr = inf"), 2, "`lr` must be positive, but got inf"),
    Attack("a path with a zero byte", cased(b'init = "a\\u0000b"'), 3, "must be a path"),
    Attack("a seed beyond all", cased(b"seed = 99999999999999999999"), 2, "`seed` must be a whole number from 0"),
    Attack("too long", cased(b"#" * (2**20 + 1)), 3, "is longer than"),
]

ARCHIVES = [
    Attack("objects in arrays", arrays(extra=np.array([Evil()], dtype=object)), 3, "holds Python objects"),
    Attack("objects as labels", arrays(y_train=np.array([Evil()] * 9, dtype=object)), 3, "holds Python objects"),
    Attack("not an archive", archive(b"hello"), 3, "must be an .npz archive"),
    Attack("an empty archive", archive(zipped({})), 3, "is missing (it holds nothing)"),
    Attack("claims a terabyte", archive(zipped({"x_train.npy": npy("(1000000000000,)")})), 3, "claims"),
    Attack("claims minus one", archive(zipped({"x_train.npy": npy("(-1,)")})), 3, "own.npz"),
    Attack(
        "runs code in its header",
        archive(zipped({"x_train.npy": npy("__import__('os').abort()")})),
        3,
        "must be a numpy array",
    ),
    Attack(
        "zeros by the gigabyte",
        archive(zipped({"x_train.npy": b"\0" * 10**7}, compress=True)),
        3,
        "must be a numpy array",
    ),
    Attack("no test rows named", arrays(x_test=None), 3, "x_test is missing"),
    Attack("text as inputs", arrays(x_train=np.array([["a"] * 4] * 9)), 3, "must hold numbers"),
    Attack("inputs not finite", arrays(x_train=np.full((9, 4), np.nan, np.float32)), 3, "must be finite"),
    Attack("labels below zero", arrays(y_train=np.arange(9) - 5), 3, "must count classes from 0"),
    Attack("labels beyond the outputs", arrays(y_train=np.arange(9)), 3, "The network has 3 outputs, but the labels"),
    Attack(
        "labels that are broken", arrays(y_train=np.linspace(0, 1, 9)), 3, "Cross-entropy needs one whole-number label"
    ),
    Attack(
        "inputs of another shape",
        arrays(x_train=np.zeros((9, 5), np.float32), x_test=np.zeros((9, 5), np.float32)),
        3,
        "The network cannot answer",
    ),
    Attack("no rows", arrays(x_train=np.zeros((0, 4), np.float32), y_train=np.zeros(0, int)), 3, "must have rows"),
]

ATTACKS = {
    f"{kind}: {attack.name}": attack
    for kind, attacks in (
        ("checkpoint", CHECKPOINTS),
        ("pickle", PICKLES),
        ("list", LISTS),
        ("case", CASES),
        ("archive", ARCHIVES),
    )
    for attack in attacks
}
