"""Figures of *Reinterpretation of 'Eternal Sunshine of the Spotless Net'* (Watanabe)."""

from spotlessnet.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "shifting_optima",
        "reinterpretation.shifting_optima",
        "The step from one optimum to the other, in one dimension.",
    ),
    Experiment(
        "corrected_root",
        "reinterpretation.corrected_root",
        "What the missing root of λ does to the noise and its cost.",
    ),
)
