"""NTK scrubbing: the method, and what it measures of itself."""

from spotlessnet.methods.ntk.facts import NTKFacts
from spotlessnet.methods.ntk.method import NTK

__all__ = ["NTK", "NTKFacts"]
