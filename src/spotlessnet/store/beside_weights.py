"""What lies beside the weights in a checkpoint and knows the rows as well: optimiser state, averaged copies."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spotlessnet.core.errors import SpotlessError, shown
from spotlessnet.store.pickled import read_content

KNOWS = re.compile(r"(?:^|[^a-z])(?:optim|optims|optimi[sz]ers?|ema|swa|lookahead|averaged?|momenta?)(?:[^a-z]|$)")
"""Names that training scripts give to an optimiser's moments and to averaged copies of the weights."""

PICKLED = (".pt", ".pth", ".bin", ".ckpt")


MOST = 5
"""So many are named."""


def limits_of_file(path: Path) -> list[str]:
    """What a receipt says of a checkpoint that holds more than weights."""
    found = beside_weights(path)
    named = ", ".join(repr(shown(one)) for one in found[:MOST])
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return [f"The weights given to this request lie beside {named}{more}: destroy these too."] if found else []


def beside_weights(path: Path) -> list[str]:
    """Names of what a checkpoint holds beside the weights that carries the forgotten rows; for a folder, of files.

    A file that cannot be read says nothing here: whoever reads its weights says what is wrong.
    """
    if path.is_dir():
        return sorted(one.name for one in path.iterdir() if KNOWS.search(one.name.lower()))
    if path.suffix.lower() not in PICKLED:
        return []  # safetensors hold weights alone
    try:
        content = read_content(path)
    except (SpotlessError, OSError):
        return []
    return sorted(set(_names(content)))


def _names(content: Any) -> Iterator[str]:
    """Of the outermost mapping: deeper ones are the weights' own."""
    if not isinstance(content, Mapping):
        return
    for name, value in content.items():
        if isinstance(name, str) and KNOWS.search(name.lower()) and _holds_something(value):
            yield name


def _holds_something(value: Any) -> bool:
    return bool(value) if isinstance(value, Mapping | list | tuple) else False
