"""How much faster is training 64 small networks as one program than one by one?

    python benchmarks/fit_many.py

Two threads, scikit-learn's digits, an MLP with one hidden layer, other seeds and other rows for every network.
"""

import time

import torch
from sklearn.datasets import load_digits

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.models import MLP
from spotlessnet.training import fit, fit_many

NETWORKS, EPOCHS = 64, 5


def measure(hidden: int, batch: int) -> float:
    x, y = load_digits(return_X_y=True)
    data = Data.of((torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)))
    recipe = Recipe(epochs=EPOCHS, rate=0.05, batch=batch, decay=1e-3)
    trained = Trained.of(MLP(64, 10, hidden=(hidden,), seed=0), recipe=recipe)
    generator = torch.Generator().manual_seed(0)
    keep = torch.rand(NETWORKS, len(data), generator=generator) < 0.9
    seeds = list(range(NETWORKS))

    fit_many(trained, data, recipe.but(epochs=1), seeds=seeds, keep=keep)  # warm
    began = time.perf_counter()
    together = fit_many(trained, data, seeds=seeds, keep=keep)
    many = time.perf_counter() - began

    fit(trained, data, recipe.but(epochs=1), order_of=data)
    began = time.perf_counter()
    single = torch.stack(
        [fit(trained, data.pick(keep[s].nonzero().flatten()), seed=s, order_of=data).weights for s in seeds]
    )
    one_by_one = time.perf_counter() - began

    apart = float((single - together).abs().max())
    assert apart < 1e-5, f"the two ways differ by {apart:.1e}"
    ratio = one_by_one / many
    print(f"{hidden:6d} {batch:5d}   {one_by_one:9.2f}   {many:7.2f}   {ratio:5.1f}   {apart:8.1e}")
    return ratio


def main() -> None:
    torch.set_num_threads(2)
    print(f"{NETWORKS} MLPs on digits, {EPOCHS} epochs, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print("hidden batch   one by one/s   many/s   ratio   largest difference")
    for hidden, batch in ((32, 32), (32, 128), (100, 32)):
        measure(hidden, batch)


if __name__ == "__main__":
    main()
