"""The numbers that Table 1 of *Eternal Sunshine of the Spotless Net* prints."""

from spotlessnet.experiments.experiment import Published

IMAGES, CLASS = "100 images", "a class"
FACES, CIFAR = "faces10 (for Lacuna-10)", "cifar10"

METHODS = (
    "original", "retrained", "fine-tune", "negative gradient", "random labels", "hiding", "Fisher", "variational",
)  # fmt: skip

PRINTED: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
    (FACES, IMAGES): {
        "error on test": (9.2, 10.2, 9.0, 9.0, 12.3, 17.2, 22.6, 19.0),
        "error on forget": (0.0, 17.0, 0.0, 0.0, 10.0, 100.0, 31.0, 14.0),
        "error on retain": (0.0, 0.0, 0.0, 0.0, 0.1, 7.0, 14.62, 9.53),
        "relearn time": (0, 14, 0, 0, 1, 4, 2, 3),
        "entropy attack, logistic": (55.35, 42.32, 52.23, 50.0, 24.8, 31.9, 49.07, 49.74),
        "information bound": (1953, 1512),
    },
    (FACES, CLASS): {
        "error on test": (9.2, 17.8, 10.0, 17.2, 17.5, 16.9, 26.7, 29.6),
        "error on forget": (0.0, 100.0, 2.0, 100.0, 88.9, 98.5, 100.0, 100.0),
        "error on retain": (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 10.9, 12.2),
        "relearn time": (0, 29, 0, 1, 3, 2, 29, 24),
        "entropy attack, logistic": (53.82, 33.77, 37.94, 28.97, 5.16, 23.16, 44.69, 44.96),
        "information bound": (6310, 3095),
    },
    (CIFAR, IMAGES): {
        "error on test": (13.0, 11.9, 11.9, 11.8, 12.1, 19.5, 23.8, 24.63),
        "error on forget": (0.0, 14.0, 0.0, 0.0, 12.0, 100.0, 22.0, 41.0),
        "error on retain": (0.2, 0.0, 0.0, 0.0, 0.0, 9.9, 16.1, 18.19),
        "relearn time": (0, 29, 0, 0, 3, 8, 4, 2),
        "entropy attack, logistic": (52.58, 45.24, 50.0, 50.0, 49.73, 43.8, 49.58, 49.48),
        "information bound": (21533, 17818),
    },
    (CIFAR, CLASS): {
        "error on test": (13.0, 20.1, 13.1, 18.9, 19.4, 19.5, 26.65, 26.76),
        "error on forget": (0.0, 100.0, 21.0, 100.0, 96.6, 100.0, 99.86, 100.0),
        "error on retain": (0.2, 0.3, 0.0, 0.0, 0.0, 0.1, 10.8, 10.07),
        "relearn time": (0, 29, 1, 1, 3, 13, 29, 21),
        "entropy attack, logistic": (52.17, 39.32, 50.0, 36.07, 8.49, 41.28, 48.74, 49.61),
        "information bound": (218530, 171906),
    },
}
"""Percent, epochs (the paper counts the original as 0, we as 1) and nats (Fisher and variational only)."""


def _published() -> tuple[Published, ...]:
    found = []
    for (data, cohort), table in PRINTED.items():
        for readout, values in table.items():
            share = readout.startswith(("error", "entropy"))
            methods = METHODS if len(values) == len(METHODS) else METHODS[-2:]
            found += [
                Published(f"table 1, {data}, {cohort}", method, readout, value / 100 if share else value, "Table 1")
                for method, value in zip(methods, values, strict=True)
            ]
    return tuple(found)


PAPER = _published()
