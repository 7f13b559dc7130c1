"""Noise by budget, where nats and errors are known."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import float64, nn
from torch.distributions import MultivariateNormal, kl_divergence

import spotlessnet as sn
from spotlessnet.core.chaining import Chain, chain
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NumericsError, SettingError
from spotlessnet.core.gaussian import Covariance, Diagonal
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.fisher import Fisher
from spotlessnet.methods.ntk import NTK
from spotlessnet.methods.within_budget import ESTIMATE_RANGE, LEAST_MISSED, WithinBudget
from spotlessnet.methods.within_budget.levels import Levels
from spotlessnet.methods.within_budget.noise_cost import Cost, NoiseCost, _cost
from spotlessnet.operators.solvers import Auto
from tests.methods.problems import classifier, inputs


@dataclass(frozen=True)
class Shaken(Scrub):
    """Stays where it is, with unit noise."""

    stays: ClassVar[bool] = True
    noisy: bool = True

    @property
    def is_noisy(self) -> bool:
        return self.noisy

    def shift(self, trained: Trained, split: Split, notes: Notes) -> torch.Tensor:
        return trained.weights

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        return Diagonal(torch.linspace(1, 2, trained.size, dtype=trained.dtype))


def linear() -> tuple[Trained, Split]:
    torch.manual_seed(0)
    data = Data.of((torch.randn(50, 4, dtype=float64), torch.randn(50, 1, dtype=float64)))
    trained = Trained.of(nn.Linear(4, 1, bias=False).double(), SquaredError(), weight_decay=0.1)
    split = Split(forget=data.select(range(10)), kept=data.select(range(10, 50)))
    return trained.at(ridge(data)), split


def ridge(data: Data) -> torch.Tensor:
    x, y, _ = next(iter(data.batches(len(data))))
    assert isinstance(x, torch.Tensor)
    gram = x.T @ x / len(data) + 0.1 * torch.eye(4, dtype=float64)
    return torch.linalg.solve(gram, x.T @ y / len(data))[:, 0]


def classes() -> tuple[Trained, Split]:
    torch.manual_seed(0)
    x = torch.randn(300, 2, dtype=float64)
    data = Data.of((x, (x[:, 0] > 0).long()))
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-5.0, 0.0], [5.0, 0.0]]))
        model.bias.zero_()
    split = Split(
        forget=data.select(range(10)), kept=data.select(range(10, 150)), validation=data.select(range(150, 300))
    )
    return Trained.of(model, weight_decay=0.1), split


@pytest.mark.parametrize("nats", [0.02, 1.0, 30.0])
def test_the_divergence_is_within_the_one_asked_for(nats):
    """That of the weights by torch, and log 1/p of the level: a quieter level would break the budget."""
    trained, split = linear()
    reference = ridge(split.retain)
    budget = WithinBudget(Shaken(), max_nats=nats, reference=reference)
    scrubbed = budget(trained, split)
    about = scrubbed.diagnostics
    own, other = (MultivariateNormal(m, scrubbed.covariance.diagonal().diag()) for m in (scrubbed.mean, reference))
    moved = float(kl_divergence(own, other))
    assert scrubbed.kl(budget.reference_for(scrubbed, trained.at(reference), split)) == pytest.approx(
        moved + about["level_nats"], rel=1e-9
    )
    assert about["nats_counted"] == pytest.approx(moved + about["level_nats"])
    assert about["nats_counted"] <= about["nats"] == nats
    quieter = next(p for p in about["trade_off"] if p["noise_scale"] == about["noise_scale"] / 4)
    assert quieter["nats"] > nats
    assert quieter["nats"] == pytest.approx(4 * moved + quieter["level_nats"])
    assert not any("estimate" in text for text in about["lost"])


def test_without_a_reference_the_gap_is_estimated_and_said_so():
    """On a quadratic one more Newton step is the whole gap, so the estimate is exact there."""
    trained, split = linear()
    estimated = WithinBudget(Shaken(), max_nats=1.0)(trained, split)
    measured = WithinBudget(Shaken(), max_nats=1.0, reference=ridge(split.retain))(trained, split)
    assert estimated.diagnostics["noise_scale"] == pytest.approx(measured.diagnostics["noise_scale"], rel=1e-2)
    assert any("the nats are an estimate, not a bound" in text for text in estimated.diagnostics["lost"])


def test_the_most_noise_within_an_error_budget():
    trained, split = classes()
    limit = 0.05
    scrubbed = WithinBudget(Shaken(), max_error_increase=limit, draws=20)(trained, split)
    about = scrubbed.diagnostics
    assert 0 < about["error_increase"] <= about["error_increase_limit"] <= limit
    # One network, not only the mean over networks, stays within it: the mean exceeds it at much louder noise only.
    louder = [p["error_increase"] for p in about["trade_off"] if p["noise_scale"] > 100 * about["noise_scale"]]
    assert louder
    assert min(louder) > limit


def test_the_curve_falls_in_nats_as_noise_grows():
    trained, split = classes()
    curve = WithinBudget(Shaken(), max_nats=1.0, draws=2)(trained, split).diagnostics["trade_off"]
    nats = [point["nats"] - point["level_nats"] for point in curve]
    assert nats == sorted(nats, reverse=True)
    assert curve[-1]["error_increase"] > curve[0]["error_increase"]


def test_budgets_that_contradict_each_other_are_refused():
    trained, split = classes()
    gap = 1e-6 * torch.ones_like(trained.weights)
    budget = WithinBudget(Shaken(), max_nats=1e-9, max_error_increase=0.001, reference=trained.weights + gap)
    with pytest.raises(NumericsError, match=r"Both budgets cannot be met: 1e-09 nats need noise that raises the error"):
        budget(trained, split)


def test_nothing_to_forget_means_no_noise():
    trained, split = linear()
    empty = Split(forget=split.forget.select([]), kept=split.retain)
    assert torch.equal(WithinBudget(Shaken(), max_nats=1.0)(trained, empty).mean, trained.weights)


def test_settings_are_checked():
    with pytest.raises(SettingError, match="needs `max_nats` or `max_error_increase`, but got neither"):
        WithinBudget(Shaken())
    with pytest.raises(SettingError, match="A budget is met by noise, but Shaken adds none"):
        WithinBudget(Shaken(noisy=False), max_nats=1.0)
    with pytest.raises(SettingError, match=r"`WithinBudget.max_nats` must be positive, but got -1"):
        WithinBudget(Shaken(), max_nats=-1.0)


def test_a_budget_inside_a_chain_is_refused_with_the_form_that_holds():
    """Its noise would be fitted to its own link: 46.8 nats were left where one was asked for."""
    inside = WithinBudget(Shaken(), max_nats=1.0, max_error_increase=0.5)
    right = r"Write WithinBudget\(chain\(NTK\(\), Shaken\(\)\), max_nats=1, max_error_increase=0.5\)\."
    for links in ((NTK(), inside), (inside, NTK())):
        with pytest.raises(SettingError, match=right):
            chain(*links)
        with pytest.raises(SettingError, match=right):
            Chain(links)
    with pytest.raises(SettingError, match=r"Write WithinBudget\(chain\(Shaken\(\)\), max_nats=1, "):
        chain(inside)
    with pytest.raises(SettingError, match=r"One budget goes around one scrub, .* \(max_nats=1, max_error"):
        WithinBudget(inside, max_nats=2.0)
    trained, split = linear()
    with pytest.raises(SettingError, match=r"cannot be had by itself\. Call the `WithinBudget` itself"):
        inside.spread(trained, split, Notes())


def test_a_budget_around_a_chain_leaves_what_it_says():
    """Against the divergence written out with dense matrices: the whole chain's step, and noise of retained rows."""
    trained, split = classifier(3)
    retrained = trained.weights + 0.1 * torch.randn(trained.size, dtype=float64, generator=seeded(1))
    budget = WithinBudget(chain(NTK(), Fisher()), max_nats=2.0, reference=retrained)
    scrubbed = budget(trained, split)
    other = budget.reference_for(scrubbed, trained.at(retrained), split)
    S, S0 = (torch.diag(one.covariance.diagonal()) for one in (scrubbed, other))
    truth = kl_divergence(MultivariateNormal(scrubbed.mean, S), MultivariateNormal(retrained, S0))
    assert float(truth) + scrubbed.diagnostics["level_nats"] == pytest.approx(scrubbed.diagnostics["nats_counted"])
    assert scrubbed.kl(other) == pytest.approx(scrubbed.diagnostics["nats_counted"], rel=1e-9)
    assert scrubbed.diagnostics["nats_counted"] <= 2.0
    assert scrubbed.diagnostics["nats_range"] == pytest.approx([2.0, 2.0])
    # The noise is that of the retrained network, from retained rows: nothing in its shape knows the others.
    x, _ = inputs(split.retain)
    F = mean_fisher(trained, retrained, x)
    assert torch.allclose(
        scrubbed.covariance.diagonal() / scrubbed.diagnostics["noise_scale"],
        (1e-10 / (F + trained.known_weight_decay)).sqrt().clamp(max=0.03**2),
        rtol=1e-6,
    )


def mean_fisher(trained: Trained, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The diagonal of the mean of Jᵀ(diag p − ppᵀ)J, by plain autograd, row by row."""
    total = torch.zeros_like(w)
    for row in x:
        J = torch.func.jacrev(lambda v, row=row: trained.outputs(row.unsqueeze(0), v)[0])(w)
        p = trained.outputs(row.unsqueeze(0), w)[0].softmax(0)
        total += torch.diagonal(J.T @ (p.diag() - torch.outer(p, p)) @ J)
    return total / len(x)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_without_retrained_weights_no_step_is_trusted_to_have_missed_nothing():
    """A Newton step that is checked by another one seems perfect; the budget leaves a share, and gives a range."""
    trained, split = linear()
    alone = WithinBudget(Shaken(), max_nats=1.0)(trained, split).diagnostics
    after = WithinBudget(chain(NTK(solver=Auto(tolerance=1e-12)), Shaken()), max_nats=1.0)(trained, split).diagnostics
    assert after["noise_scale"] == pytest.approx(LEAST_MISSED * alone["noise_scale"], rel=1e-2)
    assert alone["nats_range"] == pytest.approx([ESTIMATE_RANGE[0], ESTIMATE_RANGE[1]])
    assert any("in trials they were 0.1 to 250 times as many" in text for text in alone["lost"])


def test_a_level_is_confirmed_on_rows_and_noise_that_did_not_choose_it(monkeypatch):
    trained, split = classes()
    cost = NoiseCost(trained, Diagonal(torch.ones(trained.size, dtype=float64)), split.retain, 5, 0)
    halves = [set(cost._half(which).rows.tolist()) for which in (0, 1)]
    assert not halves[0] & halves[1]
    draws = [torch.randn(3, generator=cost._stream(number)).tolist() for number in range(3)]
    assert draws[0] != draws[1] != draws[2]
    # What the choice says is not believed: a level that the others do not confirm is none.
    monkeypatch.setattr(NoiseCost, "confirmed", lambda *_: Cost(1.0, 1.0))
    with pytest.raises(NumericsError):
        cost.best(Levels(0, 0.5), 1.0, 0.5)


def test_the_limit_is_of_the_worst_draw_and_allows_for_the_rows():
    """One network is released, not their mean, and rows that were not looked at are answered otherwise."""
    increases = torch.tensor([[0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]], dtype=float64)
    found = _cost(increases)
    assert found.mean == pytest.approx(0.375)
    # Half a standard error: of the worse draw, a mean of .5 and a deviation of .5 over four rows.
    assert found.limit == pytest.approx(0.5 + 0.5 * 0.5 / 3**0.5)


def test_another_seed_reaches_the_scrub_inside():
    inside = WithinBudget(Fisher(kind="monte carlo", seed=3), max_nats=1.0, seed=5).reseeded(10)
    assert isinstance(inside, WithinBudget)
    assert isinstance(inside.scrub, Fisher)
    assert (inside.seed, inside.scrub.seed) == (15, 13)


@pytest.mark.parametrize(
    "scrub",
    [
        sn.NoisyFinetune(),
        sn.Rewind("weights.safetensors", 2, smoothness=1.0, gradient_bound=1.0),
        sn.chain(sn.Finetune(), sn.NoisyFinetune()),
    ],
)
@pytest.mark.parametrize("limit", [{"max_nats": 1e6}, {"max_error_increase": 0.01}])
def test_noise_that_a_certificate_rests_on_is_not_rescaled(scrub, limit):
    """It was: 18,000 times less noise than the receipt's epsilon of one asks for."""
    with pytest.raises(SettingError, match="is what its certificate rests on"):
        WithinBudget(scrub, **limit)
