"""Tables and figures of *Forgetting Outside the Box* (Golatkar, Achille and Soatto, 2020)."""

from spotlessnet.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "outside_figure_1",
        "outside_the_box.training_paths",
        "Training paths in a plane, and where Fisher and NTK scrubbing lead.",
        "figure_1",
    ),
    Experiment(
        "outside_figure_2",
        "outside_the_box.five_readouts",
        "Five readouts beside retrained networks: All-CNN on CIFAR-10 and faces10, in place of Lacuna-10.",
        "figure_2",
    ),
    Experiment(
        "outside_figure_3",
        "outside_the_box.noise_trade_off",
        "Error against nats, white box and black box, and the leak by the query's origin: All-CNN on CIFAR-10.",
        "figure_3",
    ),
    Experiment(
        "outside_figure_4",
        "outside_the_box.activations",
        "Answers on the way from the original to the scrubbed network, against the retrained one.",
    ),
    Experiment(
        "outside_figure_6",
        "outside_the_box.training_paths",
        "The loss over the plane of the training paths, and along lines between networks.",
        "figure_6",
    ),
    Experiment(
        "outside_figure_7",
        "outside_the_box.five_readouts",
        "Figure 2 for ResNet-18 and TinyImageNet.",
        "figure_7",
    ),
    Experiment(
        "outside_figure_8",
        "outside_the_box.noise_trade_off",
        "Figure 3 for ResNet-18, faces10 (in place of Lacuna-10) and TinyImageNet.",
        "figure_8",
    ),
    Experiment(
        "outside_published_code",
        "outside_the_box.published_code",
        "What the published code's slips do to its own numbers.",
    ),
)
