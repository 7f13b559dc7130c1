"""Errors to plant, each with the test that must notice it: in equations, those of docs/papers.md, and in protection."""

from tests.mutants import bounds, frontier, methods, protection, readouts, training
from tests.mutants.planted import Planted as Planted

EQUATIONS: tuple[Planted, ...] = (
    *training.PLANTED,
    *methods.PLANTED,
    *bounds.PLANTED,
    *readouts.PLANTED,
    *frontier.PLANTED,
)
ALL: tuple[Planted, ...] = (*EQUATIONS, *protection.PLANTED)
