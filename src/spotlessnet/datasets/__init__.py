"""Data sets: `load` finds one by its name or its file."""

from spotlessnet.datasets.identities import Lacuna
from spotlessnet.datasets.pair import DataPair, Normalise
from spotlessnet.datasets.registry import NAMES, load

__all__ = ["NAMES", "DataPair", "Lacuna", "Normalise", "load"]
