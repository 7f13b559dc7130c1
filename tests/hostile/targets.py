"""What is damaged: every kind of file that the command takes, sound, with the command that reads it."""

import hashlib
import io
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from safetensors.torch import save as as_bytes

from spotlessnet.core.recipe import Recipe
from tests.cli.workshop import RECIPE, spotless
from tests.hostile.attacks import Evil, torch_saved
from tests.hostile.meanings import rearrayed, resaved, retensored
from tests.hostile.mutations import Mutation, damaged, pickled, reheaded, repacked, revalued, reworded

CASE = b"""# a newcomer's case
model = "nets.py:build"
weights = "model.safetensors"
data = "mydata.py:train"
forget = "forget.csv"
id_column = "id"
method = "fisher"
seed = 1
weight_decay = 0.001
epochs = 5
lr = 0.05

[set]
strength = 1e-8
cap = 0.03
"""

NOTE = "statistics.safetensors.next"

USUAL = {
    "--model": "nets.py:build",
    "--weights": "model.safetensors",
    "--data": "mydata.py:train",
    "--forget": "forget.csv",
    "--method": "fisher",
    "--seed": "1",
    "--out": "run",
}


@dataclass(frozen=True)
class Target:
    """A sound file, the command that reads it, how it may be damaged, and how the command ends while it is sound."""

    kind: str
    path: str
    content: bytes
    words: tuple[str, ...]
    mutations: tuple[Mutation, ...] = (damaged,)
    code: int = 0

    def hurt(self, draw: random.Random) -> bytes:
        """The content, damaged in one of the ways."""
        return draw.choice(self.mutations)(self.content, draw)


def scrub(**flags: str | None) -> tuple[str, ...]:
    """The newcomer's request with some flags changed, added or, where they are `None`, left out."""
    named = USUAL | {"--" + name.replace("_", "-"): value for name, value in flags.items()}
    return ("scrub", "--quiet", *(word for flag, value in named.items() if value is not None for word in (flag, value)))


def targets(folder: Path) -> list[Target]:
    """All kinds; whatever they need beside the damaged file is made in `folder`, which is the current one."""
    state = load_file("model.safetensors")
    made = [*_made_by_commands(folder), *_recorded(state)]
    return [*_checkpoints(state), *_lists(), *_data(folder), *made, *_case_files()]


def _checkpoints(state: dict[str, torch.Tensor]) -> list[Target]:
    plain = Path("model.safetensors").read_bytes()
    start = as_bytes({name: tensor / 2 for name, tensor in state.items()})  # the trained weights themselves are refused
    saved = torch_saved({"state_dict": state, "epoch": 3})
    stream = io.BytesIO()
    torch.save(state, stream, _use_new_zipfile_serialization=False)
    Path("shards").mkdir()
    names = list(state)
    for i, part in enumerate((names[:2], names[2:])):
        save_file({name: state[name] for name in part}, f"shards/{i}.safetensors")
    index = {"metadata": {}, "weight_map": {name: f"{int(i > 1)}.safetensors" for i, name in enumerate(names)}}
    Path("shards/model.safetensors.index.json").write_text(json.dumps(index))
    tensor_ways, pickle_ways = (damaged, reheaded, retensored), (damaged, repacked(pickled), repacked(pickled), resaved)
    evil = torch_saved({**state, "0.bias": Evil()})
    return [
        Target("safetensors", "hurt.safetensors", plain, scrub(weights="hurt.safetensors"), tensor_ways),
        Target("safetensors, looked at", "hurt.safetensors", plain, ("inspect", "hurt.safetensors"), tensor_ways),
        Target("start weights", "hurt.safetensors", start, scrub(init="hurt.safetensors"), tensor_ways),
        Target("pt", "hurt.pt", saved, scrub(weights="hurt.pt"), pickle_ways),
        Target("pt, looked at", "hurt.pt", saved, ("inspect", "hurt.pt"), pickle_ways),
        Target("pt with code", "hurt.pt", evil, scrub(weights="hurt.pt"), (damaged, repacked(pickled)), 3),
        Target("old pt", "hurt.pt", stream.getvalue(), scrub(weights="hurt.pt"), (damaged, pickled)),
        Target("index of shards", "shards/model.safetensors.index.json", json.dumps(index).encode(),
               scrub(weights="shards"), (damaged, revalued)),
        Target("shard", "shards/1.safetensors", Path("shards/1.safetensors").read_bytes(), scrub(weights="shards"),
               (damaged, reheaded, retensored)),
    ]  # fmt: skip


def _lists() -> list[Target]:
    people = ["person-1", "person-5", "person-7"]
    objects = [{"id": person, "why": "asked"} for person in people]
    contents = {
        "csv": "id,why\n" + "".join(f"{person},asked\n" for person in people),
        "txt": "# asked today\n" + "".join(f"{person}\n" for person in people),
        "json": json.dumps({"id": people}),
        "jsonl": "".join(json.dumps(entry) + "\n" for entry in objects),
    }
    ways = {"json": (damaged, revalued), "csv": (damaged, reworded), "jsonl": (damaged, reworded)}
    return [
        Target(kind, f"hurt.{kind}", text.encode(), scrub(forget=f"hurt.{kind}"), ways.get(kind, (damaged,)))
        for kind, text in contents.items()
    ]


def _data(folder: Path) -> list[Target]:
    x, y = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32), np.arange(20) % 3
    ids = np.array([f"person-{i}" for i in range(20)])
    found = []
    for kind, save in (("npz", np.savez), ("npz, compressed", np.savez_compressed)):
        stream = io.BytesIO()
        save(stream, x_train=x, y_train=y, x_test=x, y_test=y, id_train=ids)
        ways = (damaged, repacked(damaged), rearrayed)
        found.append(Target(kind, "hurt.npz", stream.getvalue(), scrub(data="hurt.npz"), ways))
    for person in ("ann", "bob"):
        (folder / "people" / person).mkdir(parents=True)
        for i in range(3):
            pixels = np.random.default_rng(i).integers(0, 255, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "people" / person / f"{i}.png")
    picture = (folder / "people/ann/0.png").read_bytes()
    mosaic = io.BytesIO()
    Image.fromarray(np.zeros((8, 16 * 8), np.uint8)).save(mosaic, "PNG")
    blob = np.frombuffer(mosaic.getvalue(), np.uint8)
    shard = {
        "kind": "mosaic",
        "shape": [16, 8, 8],
        "blobs": blob,
        "offsets": [0, len(blob)],
        "labels": np.arange(16) % 3,
    }
    stream = io.BytesIO()
    np.savez(stream, **shard, classes=["a", "b", "c"])  # type: ignore[arg-type]  # stub
    Path("data").mkdir()
    inside = (damaged, repacked(damaged), rearrayed, rearrayed)
    found.append(Target("packed shard", "data/mini.train.npz", stream.getvalue(), scrub(data="mini"), inside, 3))
    # The network takes no pictures, so the command refuses after it has read them.
    found.append(Target("png", "people/ann/0.png", picture, scrub(data="people"), (damaged,), 3))
    return found


def _made_by_commands(folder: Path) -> list[Target]:
    """Files that the tool itself writes: receipt, memory, tutors."""
    for words in (
        scrub(out="done"),
        ("remember", "--quiet", *_without("--forget", "--method", "--out"), *RECIPE, "--out", "kept", "--folds", "2"),
    ):
        ended = spotless(*words)
        assert ended.code == 0, ended.err
    receipt, memory, fold_models = (
        Path(name).read_bytes()
        for name in ("done/receipt.json", "kept/statistics.safetensors", "kept/fold-models.safetensors")
    )
    shutil.rmtree("kept")
    with_memory = scrub(statistics="statistics.safetensors")
    with_tutors = (*scrub(fold_models="fold-models.safetensors", method=None), *RECIPE, "--dry-run")
    check = ("verify", "done", "--forget", "forget.csv")
    # The one file beside --out that a request writes: which request used the statistics.
    note = {"statistics": hashlib.sha256(memory).hexdigest(), "folder": "run", "state": "at work"}
    Path("statistics.safetensors").write_bytes(memory)
    return [
        Target("note", NOTE, json.dumps(note).encode(), with_memory, (damaged, revalued)),
        Target("receipt", "done/receipt.json", receipt, check, (damaged, revalued, revalued)),
        Target("receipt, looked at", "done/receipt.json", receipt, ("inspect", "done"), (damaged, revalued)),
        Target("memory", "statistics.safetensors", memory, with_memory, (damaged, reheaded, retensored, retensored)),
        Target(
            "memory, looked at",
            "statistics.safetensors",
            memory,
            ("inspect", "statistics.safetensors"),
            (reheaded, retensored),
        ),
        Target(
            "fold models",
            "fold-models.safetensors",
            fold_models,
            with_tutors,
            (damaged, reheaded, retensored, retensored),
        ),
    ]


def _recorded(state: dict[str, torch.Tensor]) -> list[Target]:
    """A training as `sn.record` writes it."""
    from spotlessnet.requests.case import made
    from spotlessnet.requests.recording import record
    from spotlessnet.store.checkpoints import load_into, read_weights

    model = load_into(made("nets.py:build", "model"), read_weights("start.safetensors"))
    recipe = Recipe(epochs=5, lr=0.05, batch_size=16)
    with record("recorded", model, "mydata.py:train", build="nets.py:build", recipe=recipe):
        model.load_state_dict(state)
    words = ("scrub", "--quiet", "--training", "recorded", "--forget", "forget.csv", "--seed", "1", "--out", "run")
    told, rows = (Path("recorded", name).read_bytes() for name in ("training.json", "rows.safetensors"))
    return [
        Target("training record", "recorded/training.json", told, (*words, "--dry-run"), (damaged, revalued, revalued)),
        Target("training record, looked at", "recorded/training.json", told, ("inspect", "recorded"), (revalued,)),
        Target("row digests", "recorded/rows.safetensors", rows, (*words, "--dry-run"), (damaged, retensored)),
    ]


def _case_files() -> list[Target]:
    words = ("scrub", "--quiet", "--case", "hurt.toml", "--out", "run")
    return [Target("case", "hurt.toml", CASE, words, (damaged, reworded, reworded))]


def _without(*flags: str) -> list[str]:
    return [word for flag, value in USUAL.items() if flag not in flags for word in (flag, value)]


def sound(target: Target) -> Any:
    """Run a target undamaged, and give how it ended."""
    Path(target.path).write_bytes(target.content)
    ended = spotless(*target.words)
    cleared()
    return ended


def cleared() -> None:
    """Remove what a request leaves, so that the next one finds the folder as this one did."""
    shutil.rmtree("run", ignore_errors=True)
    Path(NOTE).unlink(missing_ok=True)
