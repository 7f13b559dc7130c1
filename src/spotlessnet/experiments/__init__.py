"""The papers' tables and figures, one file each, by the name that `spotless reproduce` takes."""

from spotlessnet.experiments import eternal_sunshine, mixed_privacy, outside_the_box, reinterpretation
from spotlessnet.experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for paper in (eternal_sunshine, outside_the_box, reinterpretation, mixed_privacy)
    for one in paper.EXPERIMENTS
}
"""Every experiment by its name."""

__all__ = ["EXPERIMENTS", "Experiment"]
