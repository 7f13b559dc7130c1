"""How much faster is training 64 small networks as one program than one by one, and is it the same?

    python benchmarks/fit_many.py

Two threads, scikit-learn's digits, an MLP with one hidden layer, other seeds and other rows for every network.
Times are for float32. Equality is asserted in float64; in float32 it holds to 1e-5 for smooth activations, while
among millions of ReLU inputs a few lie within rounding of zero and fall on the other side of the kink, so there
the median over networks is asserted.
"""

import sys
import time

import torch
from sklearn.datasets import load_digits

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.trained import Trained
from spotlessnet.models import MLP
from spotlessnet.training import fit, fit_many

NETWORKS, EPOCHS, WANTED = 64, 3, 5.0


def measure(hidden: int, batch_size: int, dtype: torch.dtype) -> tuple[float, float, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    data = Data.of((torch.tensor(x / 16, dtype=dtype), torch.tensor(y)))
    recipe = Recipe(epochs=EPOCHS, lr=0.05, batch_size=batch_size, weight_decay=1e-3)
    trained = Trained.of(MLP(64, 10, hidden=(hidden,), seed=0).to(dtype), recipe=recipe)
    keep = torch.rand(NETWORKS, len(data), generator=torch.Generator().manual_seed(0)) < 0.9
    seeds = list(range(NETWORKS))
    kept = [data.select(keep[s].nonzero().flatten()) for s in seeds]

    fit_many(trained, data, recipe.but(epochs=1), seeds=seeds[:2])  # warm
    began = time.perf_counter()
    together = fit_many(trained, data, seeds=seeds, keep=keep)
    many = time.perf_counter() - began

    fit(trained, data, recipe.but(epochs=1), order_of=data)  # warm
    began = time.perf_counter()
    single = torch.stack([fit(trained, kept[s], seed=s, order_of=data).weights for s in seeds])
    one_by_one = time.perf_counter() - began
    return one_by_one, many, (single - together).abs().amax(1)


def main() -> int:
    torch.set_num_threads(2)
    print(f"{NETWORKS} MLPs on digits, {EPOCHS} epochs, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print("hidden  batch   one by one   together   ratio   difference: float32 median, max; float64 max")
    slow = 0
    for hidden, batch in ((32, 128), (64, 64)):
        one_by_one, many, apart = measure(hidden, batch, torch.float32)
        _, _, fine = measure(hidden, batch, torch.float64)
        ratio = one_by_one / many
        print(
            f"{hidden:6d} {batch:6d} {one_by_one:10.2f} s {many:8.2f} s {ratio:6.1f}x"
            f"   {apart.median():.1e}, {apart.max():.1e}; {fine.max():.1e}"
        )
        assert fine.max() < 1e-9, "one by one and together must agree in float64"
        assert apart.median() < 1e-5, "one by one and together must agree in float32"
        slow += ratio < WANTED
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
