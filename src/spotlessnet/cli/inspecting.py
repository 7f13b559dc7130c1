"""`spotless inspect` and `spotless verify`: look into a file, and check a receipt."""

from pathlib import Path
from typing import Annotated, Any

import typer

from spotlessnet.cli.options import AsJson, Debug, Quiet
from spotlessnet.cli.talk import Talk, printable
from spotlessnet.core.errors import DataError, IntegrityError

SHOWN = 40
"""Tensors that are listed one by one."""

Thing = Annotated[Path, typer.Argument(help="A checkpoint, a memory, a receipt, or the folder of a request.")]
Receipt = Annotated[Path, typer.Argument(help="receipt.json, or the folder that holds it.")]
List = Annotated[Path | None, typer.Option("--forget", help="Also check that this list is the one it was written for.")]
Column = Annotated[str, typer.Option("--id-column", help="The list's column that holds the ids.")]


def inspect(path: Thing, json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> int:
    """Say what is in a checkpoint, a memory or a receipt; nothing in it is run.

    [bold]spotless inspect model.safetensors[/bold]
    """
    talk = Talk(json, quiet)
    if path.is_dir() and (path / "receipt.json").is_file():
        path = path / "receipt.json"
    found = _receipt(path) if path.suffix == ".json" else _tensors(path)
    lines = [f"{name:12} {printable(str(value))}" for name, value in found.items() if not isinstance(value, list)]
    lines += [
        f"  {printable(str(one))}" for value in found.values() if isinstance(value, list) for one in value[:SHOWN]
    ]
    talk.give(found, lines)
    return 0


def _receipt(path: Path) -> dict[str, Any]:
    from spotlessnet.store.receipts import read_receipt

    receipt = read_receipt(path)
    body = receipt.get("predicate")
    if not isinstance(body, dict):
        raise DataError(f"{path} is a receipt without content. It was damaged.")
    parts = ("method", "settings", "noise", "request", "audit", "began", "ended")
    return {"kind": "receipt", **{name: body.get(name) for name in parts}, "limits": body.get("limits", [])}


def _tensors(path: Path) -> dict[str, Any]:
    import torch

    from spotlessnet.store.checkpoints import read_metadata, read_weights

    tensors = read_weights(path)
    text = read_metadata(path) if path.suffix == ".safetensors" else {}
    floating = [value for value in tensors.values() if value.is_floating_point()]
    said = text.get("format", "")
    kinds = [kind for kind in ("memory", "tutors") if said.startswith(f"spotlessnet {kind}")]
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


def verify(
    path: Receipt,
    forget: List = None,
    id_column: Column = "id",
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Check that the files beside a receipt are the ones it was written for; ends with 7 if not.

    [bold]spotless verify run/ --forget forget.csv[/bold]
    """
    from spotlessnet.core.cohorts import read_ids
    from spotlessnet.store.receipts import commit_to, read_receipt
    from spotlessnet.store.receipts import verify as check

    talk = Talk(json, quiet)
    receipt = path / "receipt.json" if path.is_dir() else path
    names = check(receipt)
    if forget is not None:
        salt = receipt.parent / "private" / "salt"
        if not salt.is_file():
            raise DataError(f"Checking a list needs {salt}, which was written with the receipt.")
        wanted = read_receipt(receipt)["predicate"]["request"]["cohort"]["commitment"]
        listed = set(read_ids(forget, id_column))
        if commit_to(listed, salt.read_bytes()) != wanted:
            raise IntegrityError(f"{forget} is not the list that the receipt was written for.")
        names.append(forget.name)
    talk.give({"status": "verified", "files": names}, [f"verified {name}" for name in names])
    return 0
