"""Tables and figures of *Eternal Sunshine of the Spotless Net* (Golatkar, Achille and Soatto, 2020)."""

from spotlessnet.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "figure_1",
        "eternal_sunshine.figure_1",
        "Logistic regression: weights and decision boundaries of 100 trainings before and after forgetting a cluster.",
    ),
    Experiment("figure_2", "eternal_sunshine.figure_2", "What noise costs in test error and buys in nats."),
    Experiment(
        "figure_3", "eternal_sunshine.figure_3", "Filters of a two-layer network before and after forgetting 5."
    ),
    Experiment(
        "table_1_cifar10_images", "eternal_sunshine.table_1", "Table 1 on CIFAR-10, 100 images.", "cifar10 images"
    ),
    Experiment("table_1_cifar10_class", "eternal_sunshine.table_1", "Table 1 on CIFAR-10, a class.", "cifar10 class"),
    Experiment("table_1_faces", "eternal_sunshine.table_1", "Table 1 on faces10, in place of Lacuna-10.", "faces10"),
    Experiment("table_1_mnist", "eternal_sunshine.table_1", "Table 1 on a fourth data set, MNIST.", "mnist"),
    Experiment("pretraining", "eternal_sunshine.pretraining", "What pre-training does to the bound (section 4.3)."),
)
