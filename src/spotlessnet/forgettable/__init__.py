"""Forgettable by design: user data enter only a linear problem, which they can leave again, exactly and at once."""

from spotlessnet.forgettable.adapt import Adaptation
from spotlessnet.forgettable.certificate import Certificate
from spotlessnet.forgettable.files import load_forgettable, save_forgettable
from spotlessnet.forgettable.fit import fit_forgettable
from spotlessnet.forgettable.model import ForgettableModel, Request

__all__ = [
    "Adaptation",
    "Certificate",
    "ForgettableModel",
    "Request",
    "fit_forgettable",
    "load_forgettable",
    "save_forgettable",
]
