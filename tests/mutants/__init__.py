"""Errors to plant in the equations, each with the test of docs/papers.md that must notice it."""

from tests.mutants import bounds, frontier, methods, readouts, training
from tests.mutants.planted import Planted as Planted

ALL: tuple[Planted, ...] = (*training.PLANTED, *methods.PLANTED, *bounds.PLANTED, *readouts.PLANTED, *frontier.PLANTED)
