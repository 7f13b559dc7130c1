"""Every method's plan beside the operations that it makes: on a perceptron, a convolutional and an attention network,
each of two sizes. `test_cost.py` has more settings, on one network."""

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry

import spotlessnet as sn
from spotlessnet.core.scrub import METHODS, Scrub, Sizes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.solvers import CG, Dual, LowRank
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.requests.planning import _running_statistics

FACTOR = 2.0
"""How far a plan may be off, either way."""


def convolution_back(grad: Any, x: Any, w: Any, *rest: Any) -> int:
    """Once for what comes back to the inputs and once for the weights, as far as they are asked for.

    Torch's own formula takes each gradient of a grouped convolution for that of a full one: as many times too much as
    there are groups.
    """
    transposed, mask = rest[4], rest[7]
    return conv_flop_count(list(x.shape), list(w.shape), list(grad.shape), transposed) * (bool(mask[0]) + bool(mask[1]))


OWN: dict[Any, Callable[..., int]] = {
    torch.ops.aten.convolution_backward: convolution_back,
    torch.ops.aten.addmm_: lambda c, a, b: 2 * a.shape[0] * a.shape[1] * b.shape[1],
    torch.ops.aten._linalg_eigh: lambda a, *_: 9 * a.shape[-1] ** 3 * math.prod(a.shape[:-2]),
    torch.ops.aten.linalg_cholesky_ex: lambda a, *_: a.shape[-1] ** 3 // 3,
    torch.ops.aten.cholesky_solve: lambda b, a, *_: 2 * b.shape[-1] * a.shape[-1] ** 2,
}
"""What torch's own counter leaves out, or counts otherwise."""


class Counted(TorchDispatchMode):
    """Adds up operations. `FlopCounterMode` also follows modules, which gradients of gradients do not let it."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        kind = func._overloadpacket
        if kind in OWN:
            self.total += OWN[kind](*args, **{name: one for name, one in (kwargs or {}).items() if name != "alpha"})
        elif kind in flop_registry:
            self.total += flop_registry[kind](*args, **(kwargs or {}), out_val=made)
        return made


class Attention(nn.Module):
    """One block of a transformer over a few tokens."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embed, self.head = nn.Linear(8, width), nn.Linear(width, 3)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        h = self.before(x)
        q, k, v = (one(h).unflatten(2, (self.heads, -1)).transpose(1, 2) for one in (self.query, self.key, self.value))
        mixed = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return self.head((x + self.down(nn.functional.gelu(self.up(self.between(x))))).mean(dim=1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 8))


def convolutional() -> nn.Module:
    head = nn.Linear(48, 5)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 12, 3), nn.ReLU(), nn.Flatten(), head
    )


def normed() -> nn.Module:
    head = nn.Linear(48, 5)
    first, second = nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.Conv2d(6, 12, 3)
    return nn.Sequential(
        first, nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), second, nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), head
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, int]] = {
    "perceptron": (perceptron, (12,), 4, 60, 6),
    "perceptron, wider": (wide, (20,), 8, 200, 10),
    "convolutional": (convolutional, (1, 8, 8), 5, 60, 5),
    "convolutional, with BatchNorm": (normed, (1, 8, 8), 5, 160, 10),
    "attention": (Attention, (6, 8), 3, 40, 4),
    "attention, more rows": (Attention, (6, 8), 3, 120, 10),
}
"""What makes a network, the shape of a row, classes, rows, and how many of them must go."""

SMALL = ("perceptron", "convolutional", "attention")
"""Tried with everything else; the others take minutes."""


@cache
def problem(name: str) -> tuple[Trained, Split]:
    make, shape, classes, count, gone = NETWORKS[name]
    torch.manual_seed(0)
    centres = torch.randn(classes, *shape)
    y = torch.arange(count) % classes
    held = torch.arange(count // 4) % classes
    data, validation = (sn.Data.of((centres[of] + torch.randn(len(of), *shape), of)) for of in (y, held))
    model = make()
    recipe = sn.Recipe(epochs=20, lr=0.05, batch_size=32, weight_decay=1e-2, freeze_statistics=make is not normed)
    trained = sn.fit(sn.Trained.of(model, init=model), data, recipe)
    return trained, sn.rows(list(range(gone)))(data, validation=validation)


@cache
def statistics(name: str) -> sn.Statistics:
    trained, split = problem(name)
    return precompute(trained, split.whole, rank=20)


Make = Callable[[str], Scrub]

SETTINGS: dict[str, Make] = {
    "newton by products": lambda _: sn.Newton(dense_up_to=0),
    "newton with Kronecker noise": lambda _: sn.Newton(dense_up_to=0, strength=1e-8, structure="kronecker"),
    "newton from statistics": lambda name: sn.Newton(statistics=statistics(name)),
    "ntk by products": lambda _: sn.NTK(solver=CG()),
    "ntk by products, damped": lambda _: sn.NTK(solver=CG(), damping=0.01),
    "ntk by the kernel": lambda _: sn.NTK(solver=Dual(), damping=0.01),
    "ntk in low rank": lambda _: sn.NTK(solver=LowRank(rank=20), damping=0.01),
    "ntk, both ends": lambda _: sn.NTK(residual="solve", damping=0.01),
    "ntk, trapezium": lambda _: sn.NTK(trapezium=True, damping=0.01),
    "ntk, at the start": lambda _: sn.NTK(linearised="start", damping=0.01),
    "ntk, preconditioned": lambda _: sn.NTK(solver=CG(precondition=20), damping=0.01),
    "ntk from statistics": lambda name: sn.NTK(statistics=statistics(name)),
    "fisher, drawn labels": lambda _: sn.Fisher(kind="monte carlo"),
    "fisher, empirical": lambda _: sn.Fisher(kind="empirical"),
    "fisher, kronecker": lambda _: sn.Fisher(structure="kronecker"),
    "fisher, kronecker from drawn labels": lambda _: sn.Fisher(structure="kronecker", kind="monte carlo"),
    "fisher from statistics": lambda name: sn.Fisher(statistics=statistics(name)),
    "budget in nats": lambda _: sn.WithinBudget(sn.Fisher(), max_nats=8),
    "budget of errors": lambda _: sn.WithinBudget(sn.Fisher(), max_error_increase=0.1),
    "budget after a step": lambda _: sn.WithinBudget(sn.chain(sn.Newton(dense_up_to=0), sn.Fisher()), max_nats=8),
    "chain": lambda _: sn.chain(sn.NTK(), sn.Finetune(epochs=3), sn.Fisher()),
    "respond, many products": lambda _: sn.RespondAndFinetune(iterations=40, epoch_fraction=0.01),
    "variational": lambda _: sn.Variational(steps=30),
    "newton": lambda _: sn.Newton(dense_up_to=500),  # else matrices of a thousand rows
}

ELSEWHERE = ("hiding", "mixed-linear", "within-budget")
"""Methods for requests or networks of their own, in `test_cost.py`; and one that goes around others, above."""


def as_it_comes(thing: Callable[[], Scrub]) -> Make:
    return lambda _: thing()


MADE = SETTINGS | {
    entry.name: as_it_comes(entry.thing)
    for entry in METHODS.entries()
    if entry.name not in ELSEWHERE and entry.name not in SETTINGS
}


def planned_and_counted(name: str, make: Make) -> tuple[float, float, float]:
    """Planned as usual and at most, and counted: in floating-point operations."""
    trained, split = problem(name)
    scrub = make(name)
    work = scrub.foreseen(trained, split) + _running_statistics(trained, split, scrub, Sizes.of(trained, split))
    with Counted() as counted, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that is stopped short says so
        scrub(trained, split)
    return work.usual, work.most, float(counted.total)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SMALL else pytest.mark.slow) for n in NETWORKS])
@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_a_plan_is_within_a_factor_of_two_and_its_most_is_never_exceeded(make: Make, name: str):
    planned, most, counted = planned_and_counted(name, make)
    assert counted <= most, f"at most {most:.0f}, counted {counted:.0f}"
    assert counted / FACTOR <= planned <= FACTOR * counted, f"planned {planned:.0f}, counted {counted:.0f}"


@pytest.mark.parametrize(
    ("make", "name", "factor"),
    [
        # Newton steps of a problem whose products are of products.
        (lambda _: sn.NTK(output="exact"), "perceptron", FACTOR),
        # The published system has neither damping nor saturation: a trial of few products tells less of it.
        pytest.param(
            lambda _: sn.NTK(variant="published", solver=CG()), "perceptron, wider", 4.0, marks=pytest.mark.slow
        ),
        # However many stages are needed.
        (lambda _: sn.ShortRetrain(error_tolerance=0.0), "convolutional", 3.0),
        (lambda _: sn.ShortRetrain(error_tolerance=1.0), "convolutional", FACTOR),
    ],
    ids=["exact", "published", "short retrain, never good", "short retrain, good at once"],
)
def test_what_is_found_on_the_way_never_exceeds_the_most(make: Make, name: str, factor: float):
    planned, most, counted = planned_and_counted(name, make)
    assert counted <= most
    assert counted / factor <= planned <= factor * counted, f"planned {planned:.0f}, counted {counted:.0f}"


@pytest.mark.parametrize(
    ("name", "decay", "scrub"),
    [
        ("perceptron", 1e-3, sn.NTK(solver=CG())),
        ("perceptron", 1e-4, sn.NTK(solver=CG())),
        ("perceptron", 1e-3, sn.Newton(dense_up_to=0)),
        ("attention", 1e-4, sn.NTK(solver=CG())),
        ("attention", 1e-3, sn.Newton()),
        ("convolutional", 1e-3, sn.NTK(solver=CG())),
    ],
    ids=str,
)
def test_the_less_the_decay_the_more_products_are_planned(name: str, decay: float, scrub: Scrub):
    """Up to fifteen times as many as at a decay of 0.01, and up to five dampings, of which none is known beforehand."""
    trained, split = problem(name)
    assert trained.recipe is not None
    assert trained.init is not None
    begun = trained.module(trained.init)
    again = sn.fit(sn.Trained.of(begun, init=begun), split.whole, trained.recipe.but(weight_decay=decay))
    work = scrub.foreseen(again, split)
    with Counted() as counted, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scrub(again, split)
    assert counted.total <= work.most
    assert counted.total / FACTOR <= work.usual <= FACTOR * counted.total
