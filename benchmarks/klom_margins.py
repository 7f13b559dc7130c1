"""Margins of the networks of `benchmarks/klom.py` in a file small enough to keep beside the code.

KLoM of any later method needs no more of the originals and retrained networks than their margins on the same rows. So
runs add up: `benchmarks/klom_page.py` reads several files as one, if they say the same of rows and recipe and no seed
twice. Margins are rounded to float16 (a part in two thousand), which is far below what networks differ by.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe

MARGINS, ROWS = "margins of ", "rows of "
EACH = ("seed", "error", "seconds")


def digest(asked: Mapping[str, Data]) -> str:
    """Of the rows whose margins are kept: their numbers, labels and pictures, these rounded to a thousandth."""
    found = hashlib.sha256()
    for name, data in asked.items():
        x = data.fetch(data.rows).x
        assert isinstance(x, Tensor)  # pictures
        found.update(name.encode())
        for part in (data.rows, data.labels(), (1000 * x.double()).round()):
            found.update(part.cpu().long().numpy().astype("<i4").tobytes())
    return found.hexdigest()


def recipe_of(recipe: Recipe) -> str:
    """How the networks were trained, as one line."""
    return json.dumps(recipe.described(), sort_keys=True)


@dataclass(frozen=True)
class About:
    """What must be alike where networks of several runs are put together, and how they came about."""

    digest: str
    recipe: str
    command: str

    def is_like(self, other: "About") -> bool:
        return (self.digest, self.recipe) == (other.digest, other.recipe)


def keep(path: Path, networks: Sequence[Mapping[str, Any]], asked: Mapping[str, Data], about: About) -> None:
    """Write what `Training.networks` found; a file that is there is replaced as a whole."""
    sets = [name for name in asked if name not in ("retain", "validation")]
    found = {key: np.array([one[key] for one in networks]) for key in EACH}
    found["missed"] = np.array([[name in one["missed"] for name in sets] for one in networks])
    for name, data in asked.items():
        found[MARGINS + name] = torch.stack([one["margins"][name] for one in networks]).half().numpy()
        found[ROWS + name] = data.rows.cpu().numpy().astype(np.int32)
    for key, value in (("sets", sets), ("about", [about.digest, about.recipe, about.command])):
        found[key] = np.array(value)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, **found)  # type: ignore[arg-type]  # arrays by name, whatever its second keyword
    part.replace(path)


def kept(path: Path) -> tuple[list[dict[str, Any]], About]:
    """The networks of a file, as `Training.networks` tells them."""
    with np.load(path, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    sets = [str(name) for name in found["sets"]]
    margins = {name.removeprefix(MARGINS): torch.from_numpy(each) for name, each in found.items() if MARGINS in name}
    networks = []
    for i, seed in enumerate(found["seed"].tolist()):
        missed = [name for name, was in zip(sets, found["missed"][i].tolist(), strict=True) if was]
        numbers = {key: float(found[key][i]) for key in EACH[1:]}
        one = {"seed": seed, "missed": missed, "margins": {name: each[i] for name, each in margins.items()}}
        networks.append(one | numbers)
    return networks, About(*(str(text) for text in found["about"]))


def joined(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], About]:
    """The networks of several runs as one."""
    first, about = kept(paths[0])
    networks = list(first)
    for path in paths[1:]:
        more, said = kept(path)
        if not said.is_like(about):
            raise ValueError(f"{path} and {paths[0]} are of different rows or recipes: their networks do not add up.")
        networks += more
    seeds = [one["seed"] for one in networks]
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if twice:
        raise ValueError(f"Seeds {twice} are there twice: give each run a `--first` of its own.")
    return networks, about
