"""What the dry run counts, beside the operations that a method really makes."""

import math
import warnings
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import spotlessnet as sn
from spotlessnet.core.answers import CHECKED
from spotlessnet.core.chaining import Chain
from spotlessnet.core.scrub import METHODS, Scrub, Sizes, drawn_network
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators.cost import TRIAL, expected_products
from spotlessnet.operators.solvers import CG, Dual, LowRank
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.precomputed.step_cost import writing_cost
from spotlessnet.requests.planning import Estimate, estimate
from spotlessnet.training.mixed import fit_users

FACTOR = 2.0
"""How far a count may be off. Elementwise operations are not counted, and a first layer sends nothing back."""

DENSE = {
    torch.ops.aten._linalg_eigh: lambda a, *_, **__: 9 * a[-1] ** 3 * math.prod(a[:-2]),
    torch.ops.aten.linalg_cholesky_ex: lambda a, *_, **__: a[-1] ** 3 // 3,
    torch.ops.aten.cholesky_solve: lambda b, a, *_, **__: 2 * b[-1] * a[-1] ** 2,
}
"""What torch's own counter leaves out."""


@cache
def problem(whole_class: bool = False) -> tuple[Trained, Split]:
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    y = torch.arange(240) % 4
    x = torch.randn(240, 12, generator=draw) + 2 * nn.functional.one_hot(y, 12)
    data, held = sn.Data.of((x, y)), sn.Data.of((x[:60] + 0.1, y[:60]))
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))
    trained = sn.fit(
        sn.Trained.of(model, init=model), data, sn.Recipe(epochs=20, lr=0.1, batch_size=32, weight_decay=1e-2)
    )
    request = sn.whole_class(1) if whole_class else sn.rows(list(range(20)))
    return trained, request(data, validation=held)


@cache
def statistics() -> sn.Statistics:
    trained, split = problem()
    return precompute(trained, split.whole, rank=20)


def counted(scrub: Scrub, trained: Trained, split: Split) -> float:
    """In floating-point operations, by torch's counter."""
    with FlopCounterMode(display=False, custom_mapping=DENSE) as all_of_it, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that is stopped short says so
        scrub(trained, split)
    return float(all_of_it.get_total_flops())


FEW = CG(tolerance=1e-14, max_iterations=12)
"""Solvers that take all of the few products they are given: so it is known how many."""

SURE = {
    "retrain": lambda: sn.Retrain(),
    "short retrain, good at once": lambda: sn.ShortRetrain(error_tolerance=1.0),
    "finetune": lambda: sn.Finetune(epochs=3),
    "sparse": lambda: sn.L1Sparse(epochs=3),
    "negative gradient": lambda: sn.GradientAscent(epochs=2, lr=0.01),
    "negative gradient alone": lambda: sn.GradientAscent(epochs=2, lr=0.01, descend=False),
    "random labels": lambda: sn.RandomLabels(epochs=2),
    "neg grad plus": lambda: sn.NegGradPlus(epochs=2),
    "student": lambda: sn.SCRUB(epochs=3),
    "bad teacher": lambda: sn.BadTeacher(epochs=2),
    "saliency": lambda: sn.SalUn(epochs=2),
    "dampening": lambda: sn.SSD(),
    "respond and fine-tune": lambda: sn.RespondAndFinetune(),
    "respond alone": lambda: sn.RespondAndFinetune(iterations=40, epoch_fraction=0.01),
    "out-of-fold-distillation": lambda: sn.OutOfFoldDistillation(),
    "variational": lambda: sn.Variational(steps=30),
    "fisher": lambda: sn.Fisher(),
    "fisher, drawn labels": lambda: sn.Fisher(kind="monte carlo"),
    "fisher, kronecker": lambda: sn.Fisher(structure="kronecker"),
    "fisher from statistics": lambda: sn.Fisher(statistics=statistics()),
    "newton by products": lambda: sn.Newton(dense_up_to=0, solver=CG(tolerance=1e-4, max_iterations=500)),
    "newton, hessian": lambda: sn.Newton(curvature="hessian"),
    "newton, gauss-newton": lambda: sn.Newton(curvature="gauss-newton"),
    "newton in time": lambda: sn.Newton(curvature="gauss-newton", time="recipe"),
    "newton with noise": lambda: sn.Newton(curvature="hessian", strength=1e-8),
    "newton with dense noise": lambda: sn.Newton(curvature="hessian", strength=1e-8, structure="dense"),
    "newton from statistics": lambda: sn.Newton(statistics=statistics()),
    "ntk, primal": lambda: sn.NTK(solver=FEW, damping=0.01),
    "ntk, dual": lambda: sn.NTK(solver=Dual(), damping=0.01),
    "ntk, low rank": lambda: sn.NTK(solver=LowRank(rank=20), damping=0.01),
    "ntk, both ends": lambda: sn.NTK(solver=FEW, residual="solve", damping=0.01),
    "ntk, preconditioned": lambda: sn.NTK(solver=replace(FEW, precondition=20), damping=0.01),
    "ntk, trapezium": lambda: sn.NTK(solver=FEW, trapezium=True, damping=0.01),
    "ntk, calibrated": lambda: sn.NTK(solver=FEW, calibrate="holdout", damping=0.01),
    "ntk, at the start": lambda: sn.NTK(solver=FEW, linearised="start", damping=0.01),
    "ntk, published": lambda: sn.NTK(solver=FEW, variant="published"),
    "ntk from statistics": lambda: sn.NTK(statistics=statistics()),
    "budget with a reference": lambda: sn.WithinBudget(sn.Fisher(), max_nats=1, reference=problem()[0].weights + 0.01),
    "chain": lambda: sn.chain(sn.NTK(solver=FEW, damping=0.01), sn.Finetune(epochs=3), sn.Fisher()),
}
"""Methods whose work is known before."""

SOUGHT = {
    "short retrain, never good": lambda: sn.ShortRetrain(error_tolerance=0.0),
    "newton": lambda: sn.Newton(dense_up_to=0),
    "ntk": lambda: sn.NTK(),
    "ntk, exact": lambda: sn.NTK(output="exact"),
    "budget in nats": lambda: sn.WithinBudget(sn.Fisher(), max_nats=1),
    "LoTUS": lambda: sn.LoTUS(),
    "budget of errors": lambda: sn.WithinBudget(sn.Fisher(), max_error_increase=0.02),
}
"""Exceptions: how many products, dampings or stages these need is found on the way, so they are given as a range."""

ELSEWHERE = ("hiding", "mixed-linear", "amun")
"""Methods for requests and networks of their own, or that torch's counter cannot follow (gradients by inputs), which
have tests of their own."""

SURE |= {
    entry.name: entry.thing
    for entry in METHODS.entries()
    if entry.thing not in (type(make()) for make in (*SURE.values(), *SOUGHT.values())) and entry.name not in ELSEWHERE
}
"""A method that is not named above is tried as it comes."""


@pytest.mark.parametrize("make", SURE.values(), ids=SURE.keys())
def test_the_count_is_that_of_a_counter_of_operations(make):
    trained, split = problem()
    scrub = make()
    guess, truth = scrub.cost(trained, split).usual, counted(scrub, trained, split)
    assert truth / FACTOR <= guess <= FACTOR * truth, f"guessed {guess:.0f}, counted {truth:.0f}"


@pytest.mark.parametrize("make", SOUGHT.values(), ids=SOUGHT.keys())
def test_what_is_found_on_the_way_stays_below_the_most(make):
    trained, split = problem()
    scrub = make()
    guess, truth = scrub.foreseen(trained, split), counted(scrub, trained, split)
    assert truth <= guess.most
    assert truth / 6 <= guess.usual <= 6 * truth, f"guessed {guess.usual:.0f}, counted {truth:.0f}"


def test_finetuning_is_a_share_of_the_recipe_however_long_that_is():
    """The plan once took the method's own epochs, which it does not follow where there is a recipe: 4.75 times less."""
    trained, split = problem()
    assert trained.recipe is not None
    long = replace(trained, recipe=trained.recipe.but(epochs=200))
    scrub = sn.RespondAndFinetune(iterations=0)
    assert scrub.cost(long, split).usual == pytest.approx(counted(scrub, long, split), rel=0.1)


@pytest.mark.parametrize("scrub", [sn.Hiding(), sn.OutOfFoldDistillation()], ids=["hiding", "out-of-fold-distillation"])
def test_a_whole_class(scrub):
    trained, split = problem(whole_class=True)
    guess, truth = scrub.cost(trained, split).usual, counted(scrub, trained, split)
    assert truth / FACTOR <= guess <= FACTOR * truth


def test_user_weights():
    core, split = problem()
    trained = fit_users(core, split.whole, weight_decay=1e-1).trained
    guess, truth = sn.MixedLinear().cost(trained, split), counted(sn.MixedLinear(), trained, split)
    assert truth / 3 <= guess.usual <= 3 * truth
    assert truth <= guess.most
    assert sn.MixedLinear().cost(trained, Split(split.whole, split.whole.select([]))).usual == 0


@cache
def normed() -> tuple[Trained, Split]:
    """A network with BatchNorm whose statistics training moved, and many rows beside few to forget or to judge by."""
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    y = torch.arange(1200) % 4
    x = torch.randn(1200, 12, generator=draw) + 2 * nn.functional.one_hot(y, 12)
    model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, 4))
    recipe = sn.Recipe(epochs=3, lr=0.1, batch_size=32, weight_decay=1e-2, freeze_statistics=False)
    trained = sn.fit(sn.Trained.of(model, init=model), sn.Data.of((x, y)), recipe)
    return trained, sn.rows([0, 1])(sn.Data.of((x, y)), validation=sn.Data.of((x[:40], y[:40])))


def seconds_of(work: float, trained: Trained, split: Split, per_row: float) -> float:
    """Of so many operations, where a row's gradient takes `per_row`."""
    return work * per_row / Sizes.of(trained, split).gradient


@pytest.mark.parametrize("noisy", [False, True])
def test_a_plan_counts_running_statistics_that_are_made_anew(noisy, monkeypatch):
    """They were left out: of a request that reads but two rows, nearly all that is done."""
    monkeypatch.setattr("spotlessnet.requests.planning.seconds_per_row", lambda *_: 1e-6)
    trained, split = normed()
    sums = precompute(trained, split.whole, rank=0, diagonal="exact")
    scrub = sn.Fisher(statistics=sums) if noisy else sn.GradientAscent(epochs=1, lr=1e-3, descend=False)
    with FlopCounterMode(display=False) as all_of_it:
        found = scrub(trained, split)
        drawn_network(trained, found, found.mean, split.kept)
    truth = seconds_of(all_of_it.get_total_flops(), trained, split, 1e-6)
    looked = seconds_of(2 * (min(CHECKED, 1198) + 40) * Sizes.of(trained, split).answer, trained, split, 1e-6)
    guess = estimate(trained, split, scrub).seconds
    assert truth / FACTOR <= guess - looked <= FACTOR * truth


@pytest.mark.parametrize("limit", [{"max_nats": 8.0}, {"max_error_increase": 0.02}], ids=str)
def test_a_budget_counts_running_statistics_at_every_draw(limit):
    trained, split = normed()
    scrub = sn.WithinBudget(sn.Fisher(), reference=trained.weights + 0.01, **limit)
    guess, truth = scrub.cost(trained, split), counted(scrub, trained, split)
    factor = FACTOR if "max_nats" in limit else 6  # as above: how often a level must be confirmed is found on the way
    assert truth / factor <= guess.usual <= factor * truth, f"guessed {guess.usual:.0f}, counted {truth:.0f}"
    assert truth <= 1.1 * guess.most


@pytest.mark.parametrize(
    "how",
    [{"rank": 20}, {"rank": 0}, {"rank": 20, "diagonal": "exact", "kronecker": True}, {"rank": 20, "sample": 60}],
    ids=str,
)
def test_writing_the_next_statistics_is_counted(how, monkeypatch):
    """It was left out of plans, and is nearly all that a request from statistics takes."""
    trained, split = problem()
    with FlopCounterMode(display=False, custom_mapping=DENSE) as all_of_it:
        written = precompute(trained, split.retain, **how).written
    guess = writing_cost(written, Sizes.of(trained, split)).usual
    truth = float(all_of_it.get_total_flops())
    assert truth / FACTOR <= guess <= FACTOR * truth, f"guessed {guess:.0f}, counted {truth:.0f}"
    monkeypatch.setattr("spotlessnet.requests.planning.seconds_per_row", lambda *_: 1e-6)
    scrub = sn.NTK(statistics=statistics())
    plain, more = (estimate(trained, split, scrub, next_request=one) for one in (None, written))
    assert more.seconds - plain.seconds > 0.9 * seconds_of(guess, trained, split, 1e-6)


def test_no_method_is_counted_by_default():
    """A method without a `cost` of its own would be planned as not known: each must count, and each count is tried."""
    kinds: tuple[type[Scrub], ...] = (*METHODS.things(), Chain)
    assert not [kind for kind in kinds if kind.cost is Scrub.cost]
    tried = {type(make()) for make in (*SURE.values(), *SOUGHT.values())} | {METHODS.find(name) for name in ELSEWHERE}
    assert tried == set(kinds)


def test_a_method_that_nobody_counted_is_said_to_be_so():
    @dataclass(frozen=True)
    class Stranger(Scrub):
        def shift(self, trained, split, notes) -> Tensor:
            return trained.weights

    trained, split = problem()
    found = estimate(trained, split, Stranger())
    assert math.isnan(found.seconds)
    assert "time    not known: nobody has counted what this method does" in found.lines()[0]
    assert math.isnan(estimate(trained, split, sn.chain(Stranger(), sn.Fisher())).seconds)
    assert "1.0 s" not in Estimate(0.5, 1.0, 2.0, 1.0, 2.0).lines()[0]
    told = Estimate(0.5, 1.0, 2.0, 1.0, 2.0).lines()[0]
    assert "about 0.5 s (25.0% of one retraining), at most 1 s (50%); one retraining takes 2 s" in told


def my_training(model, examples, seed):
    return model


def stepwise(model, examples, seed, epochs=20):
    return model


@pytest.mark.parametrize("scrub", [sn.Retrain(), sn.ShortRetrain(), sn.chain(sn.Retrain(), sn.Fisher())])
def test_a_training_by_a_function_is_said_to_be_one_and_not_timed(scrub):
    trained, split = problem()
    found = estimate(replace(trained, recipe=None, trainer=my_training), split, scrub)
    assert math.isnan(found.seconds)
    line = found.lines()[0]
    assert line.startswith(
        "time    not known: it is one training by my_training, and nobody recorded how long that takes"
    )
    assert "; one epoch of plain steps takes " in line
    found = estimate(replace(trained, recipe=None, trainer=stepwise), split, scrub)
    assert found.seconds > 0
    assert found.lines()[0].endswith("; in plain steps, and stepwise may do more")


def test_a_method_that_does_not_train_by_the_function_is_timed_as_ever():
    trained, split = problem()
    line = estimate(replace(trained, recipe=None, trainer=my_training), split, sn.Fisher()).lines()[0]
    assert "my_training" not in line
    assert "about" in line


@pytest.mark.parametrize("damping", [1.0, 0.1, 1e-3])
def test_a_trial_on_a_few_rows_foresees_what_a_newton_step_takes(damping):
    trained, split = problem()
    newton = sn.Newton(damping=damping, dense_up_to=0, search=False)
    guess = newton.foreseen(trained, split)
    truth = counted(newton, trained, split)
    assert truth / FACTOR <= guess.usual <= FACTOR * truth
    assert truth <= guess.most == newton.cost(trained, split).most
    assert sn.chain(newton, sn.Fisher()).foreseen(trained, split).usual > guess.usual
    # Statistics and written-out matrices need no trial.
    for other in (sn.Newton(), sn.Newton(statistics=statistics())):
        assert other.foreseen(trained, split) == other.cost(trained, split)


def test_a_trial_that_does_not_end_is_carried_on_at_its_pace():
    trained, split = problem()
    quick = expected_products(trained, split, CG(tolerance=1e-2), 1.0)
    slow = expected_products(trained, split, CG(tolerance=1e-12), 1e-3)
    assert TRIAL < slow <= 500
    assert quick <= TRIAL
    assert expected_products(trained, split, CG(tolerance=1e-12, max_iterations=7), 1e-3) == 7


def test_a_short_retraining_is_planned_between_its_least_and_its_most():
    trained, split = problem()
    least, planned = sn.ShortRetrain().cost(trained, split), sn.ShortRetrain().foreseen(trained, split)
    assert least.usual < planned.usual < planned.most == least.most
    # Within a factor of two of one stage, of two and of three.
    assert planned.usual**2 == pytest.approx(3 * least.usual**2)


def test_the_count_of_adversarial_inputs_is_that_of_its_gradients():
    trained, split = problem()
    gradient = Sizes.of(trained, split).gradient
    short, long = (sn.AMUN(steps=steps).cost(trained, split) for steps in (5, 6))
    # One step more is one gradient more for each forgotten row, at the four radii that are tried as a rule.
    assert long.usual - short.usual == pytest.approx(4 * len(split.forget) * gradient)
    assert short.most > short.usual
