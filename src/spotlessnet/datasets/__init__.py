"""Data sets: `load` finds one by its name or its file."""

from typing import Any

from spotlessnet.datasets.identities import Lacuna
from spotlessnet.datasets.pair import DataPair, Normalise
from spotlessnet.datasets.registry import DATASETS, NamedData, load

NAMES: tuple[str, ...]
"""The names that `load` knows, found when they are asked for."""

__all__ = ["DATASETS", "NAMES", "DataPair", "Lacuna", "NamedData", "Normalise", "load"]


def __getattr__(name: str) -> Any:
    """`NAMES`, from the registry."""
    if name == "NAMES":
        return DATASETS.names()
    raise AttributeError(f"spotlessnet.datasets has no name {name!r}.")
