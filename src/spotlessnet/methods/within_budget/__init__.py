"""Noise by budget: the method, and what noise costs in errors."""

from spotlessnet.methods.within_budget.method import ESTIMATE_RANGE, GRID, LEAST_MISSED, WithinBudget

__all__ = ["ESTIMATE_RANGE", "GRID", "LEAST_MISSED", "WithinBudget"]
