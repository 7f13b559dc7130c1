"""Tables and figures of *Mixed-Privacy Forgetting in Deep Networks* (Golatkar and others, 2021)."""

from spotlessnet.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "mixed_accuracy",
        "mixed_privacy.accuracy",
        "Accuracy of linear user weights, against fine-tuning and against the core alone.",
    ),
    Experiment(
        "mixed_requests",
        "mixed_privacy.requests",
        "Requests one after another, with readouts and the certified bound after each.",
    ),
    Experiment("mixed_class", "mixed_privacy.removal", "Every user of one class leaves.", "class"),
    Experiment("mixed_all", "mixed_privacy.removal", "Every user leaves: the user weights become zero.", "all"),
)
