"""`spotless inspect`: look into a file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from spotlessnet.cli.common import AsJson, Console, Debug, Quiet, printable

SHOWN = 40
"""Tensors that are listed one by one."""

Thing = Annotated[
    Path, typer.Argument(help="A checkpoint, statistics, a receipt, or the folder of a request or a training.")
]


MADE = {"memory": "statistics", "statistics": "statistics", "fold models": "fold_models"}
"""What the header of a file says, and what kind of file that is."""


def inspect(path: Thing, json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> int:
    """Say what is in a checkpoint, statistics, a receipt or a recorded training; nothing in it is run.

    [bold]spotless inspect model.safetensors[/bold]
    """
    console = Console(json, quiet)
    if path.is_dir() and (path / "receipt.json").is_file():
        path = path / "receipt.json"
    if path.is_dir() and (path / "training.json").is_file():
        path = path / "training.json"
    found = _record(path) if path.name == "training.json" else _other(path)
    lines = [f"{name:12} {printable(str(value))}" for name, value in found.items() if not isinstance(value, list)]
    lines += [
        f"  {printable(str(one))}" for value in found.values() if isinstance(value, list) for one in value[:SHOWN]
    ]
    console.give(found, lines)
    return 0


def _other(path: Path) -> dict[str, Any]:
    return _receipt(path) if path.suffix == ".json" else _tensors(path)


def _record(path: Path) -> dict[str, Any]:
    from spotlessnet.requests.lineage import Lineage
    from spotlessnet.requests.recorded import RECORDS
    from spotlessnet.store.training_record import SOURCES, read_record, read_rows

    record = read_record(path.parent)
    named = {name: source.spec for name in SOURCES if (source := getattr(record, name)) is not None}
    told = {name: getattr(record, name) for name in ("recipe", "seed", "id_column", "device", "packages", "requests")}
    record.check_files(path.parent)
    spent = Lineage(path, RECORDS).is_used_up
    serves = "no request: it has served one, and the folder that wrote goes on" if spent else "the next request"
    return {"kind": "training", **named, **told, "rows": len(read_rows(path.parent).keys), "serves": serves}


def _receipt(path: Path) -> dict[str, Any]:
    from spotlessnet.store.receipts import read_receipt

    body = read_receipt(path)["predicate"]
    parts = ("method", "settings", "noise", "request", "audit", "private", "began", "ended", "limits")
    return {"kind": "receipt", **{name: body[name] for name in parts}}


def _tensors(path: Path) -> dict[str, Any]:
    import torch

    from spotlessnet.store.checkpoints import read_metadata, read_weights

    tensors = read_weights(path)
    text = read_metadata(path) if path.suffix == ".safetensors" else {}
    floating = [value for value in tensors.values() if value.is_floating_point()]
    said = text.get("format", "")
    kinds = [kind for word, kind in MADE.items() if said.startswith(f"spotlessnet {word} ")]
    return {
        "kind": kinds[0] if kinds else "checkpoint",
        "tensors": len(tensors),
        "numbers": sum(value.numel() for value in tensors.values()),
        "finite": all(bool(value.isfinite().all()) for value in floating),
        "formats": ", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in tensors.values()})),
        "norm": float(sum(torch.linalg.vector_norm(value.double()) ** 2 for value in floating)) ** 0.5,
        "text": text,
        "listed": [f"{name} {tuple(value.shape)}" for name, value in tensors.items()],
    }
