"""One reference for every bound: budgets, comparisons and audits read the same nats, from retained data alone."""

from dataclasses import dataclass, replace

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

from spotlessnet.auditing.comparison import Context, compare, original_of, retrained_of
from spotlessnet.auditing.run_audit import audit
from spotlessnet.bounds import BlackBox, WhiteBox
from spotlessnet.bounds.adversarial_query import adversarial_query
from spotlessnet.bounds.per_query import per_query
from spotlessnet.core.buffers import reestimated
from spotlessnet.core.chaining import chain
from spotlessnet.core.gaussian import Covariance, Diagonal
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split, rows
from spotlessnet.core.trained import Trained, buffers_of
from spotlessnet.methods import NTK, Fisher, Newton, Variational, WithinBudget
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.readouts import Error


def problem(*, normed: bool = False) -> tuple[Trained, Split]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=draw, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(6)] if normed else []
    model = nn.Sequential(nn.Linear(4, 6), *norm, nn.Tanh(), nn.Linear(6, 2))
    recipe = Recipe(epochs=10, lr=0.1, batch_size=12, weight_decay=1e-3, freeze_statistics=not normed)
    trained = Trained.of(model.double(), recipe=recipe)
    split = rows(range(5))((x[:45], y[:45]), (x[45:], y[45:]))
    return replace(trained, init=trained.weights), split


def told(context: Context) -> Scrub:
    return WithinBudget(chain(NTK(), Fisher()), max_nats=1.0, reference=context.retrained.weights)


@pytest.mark.parametrize("normed", [False, True])
def test_a_comparison_reads_the_budget_that_was_asked_for(normed):
    """It read 26,452 nats for a budget of one: the reference had the noise from before the budget.

    With BatchNorm it read 3.7: its noise was fitted with running statistics of the network that knew the rows.
    """
    trained, split = problem(normed=normed)
    found = compare(trained, split, scrubs={"told": told}, readouts=[Error("test")], bounds=[WhiteBox()], seeds=(0, 1))
    nats = [row.value for row in found if row.method == "told" and row.readout == "WhiteBox"]
    assert max(nats) <= 1.0
    counted = []
    for seed in (0, 1):
        original, retrained = original_of(trained, split, seed), retrained_of(trained, split, seed)
        budget = WithinBudget(chain(NTK(), Fisher()), max_nats=1.0, reference=retrained.weights)
        counted.append(budget(original, split).diagnostics["nats_counted"])
    assert nats == pytest.approx(counted, rel=1e-5)  # many networks trained as one program differ by rounding


@pytest.mark.parametrize(
    "scrub", [Fisher(strength=1e-8), WithinBudget(chain(NTK(), Fisher()), max_nats=8.0)], ids=["noise", "budget"]
)
def test_table_and_curve_of_an_audit_and_a_comparison_agree(scrub):
    """The table read 1.0 where the curve beside it read 26,500."""
    trained, split = problem()
    report = audit(trained, split, scrub, name="it", seeds=2)
    table = next(row.value for row in report.rows if row.readout == "WhiteBox" and row.seed == 0)
    (curve,) = report.curves.trade_off.values()
    assert curve[len(curve) // 2][0] == pytest.approx(table, rel=1e-9)
    compared = compare(trained, split, scrubs={"it": scrub}, readouts=[Error("test")], bounds=[WhiteBox()])
    value = next(row.value for row in compared if row.method == "it" and row.readout == "WhiteBox")
    assert value == pytest.approx(table, rel=1e-5)  # many networks trained as one program differ by rounding


def test_a_reference_is_the_noise_recipe_at_retrained_weights_written_out_densely():
    trained, split = problem()
    original, retrained = original_of(trained, split, 0), retrained_of(trained, split, 0)
    scrub = Fisher(strength=1e-8)
    scrubbed = scrub(original, split)
    variances = [
        (1e-8 / (dense_fisher(network, split.retain.source.fetch(split.retain.rows)[0]) + 1e-3)).sqrt().clamp(max=9e-4)
        for network in (original, retrained)
    ]
    truth = kl_divergence(
        MultivariateNormal(original.weights, variances[0].diag()),
        MultivariateNormal(retrained.weights, variances[1].diag()),
    )
    assert scrubbed.kl(scrub.reference_for(scrubbed, retrained, split)) == pytest.approx(float(truth), rel=1e-8)


def dense_fisher(network: Trained, x: object) -> Tensor:
    assert isinstance(x, Tensor)
    w = network.weights
    J = torch.func.jacrev(lambda v: network.outputs(x, v))(w)
    p = network.outputs(x, w).softmax(1)
    H = p.diag_embed() - p.unsqueeze(2) * p.unsqueeze(1)
    return torch.einsum("ncp,ncd,ndp->p", J, H, J).detach() / len(x)


@dataclass(frozen=True)
class Telltale(Scrub):
    """A cheat: its noise spells the forgotten rows, one variance for each."""

    @property
    def is_noisy(self) -> bool:
        return True

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Float[Tensor, " P"]:
        return trained.weights

    def spread(self, trained: Trained, split: Split, notes: Notes) -> Covariance:
        variance = torch.ones_like(trained.weights)
        variance[split.forget.rows] = 4.0
        return Diagonal(variance)


def test_noise_that_spells_the_rows_does_not_read_zero():
    trained, split = problem()
    scrubbed = Telltale()(trained, split)
    # Retrained weights equal to the original's: all that is left to tell the rows is the noise.
    reference = Telltale().reference_for(scrubbed, trained, split)
    assert bool((reference.covariance.diagonal() == 1).all())
    # Five variances of four against one: 5 · ½(4 − ln 4 − 1).
    assert scrubbed.kl(reference) == pytest.approx(5 * 0.5 * (3 - torch.tensor(4.0).log().item()), rel=1e-6)
    report = audit(trained, split, Telltale(), name="telltale", seeds=2)
    assert min(row.value for row in report.rows if row.readout == "WhiteBox") > 4.0


@pytest.mark.parametrize(
    "scrub",
    [
        Fisher(),
        Fisher(structure="kronecker"),
        Newton(strength=1e-8),
        Newton(strength=1e-8, structure="dense"),
        Newton(strength=1e-8, structure="kronecker"),
        Variational(steps=3),
    ],
    ids=repr,
)
def test_no_reference_changes_with_the_forgotten_rows(scrub):
    """The same retained rows, another request: the reference is the same, bit by bit."""
    trained, split = problem()
    draw = torch.Generator().manual_seed(5)
    data = type(split.whole).of((torch.randn(5, 4, generator=draw, dtype=torch.float64), torch.ones(5).long()))
    other = replace(split, forget=data)
    references = [scrub.reference_for(scrub(trained, one), trained, one) for one in (split, other)]
    assert torch.equal(references[0].covariance.diagonal(), references[1].covariance.diagonal())


def test_no_bound_looks_through_running_statistics_that_knew_the_rows():
    """Answers of both sides were those of the original's statistics, which neither of the two networks has."""
    trained, split = problem(normed=True)
    original, retrained = original_of(trained, split, 0), retrained_of(trained, split, 0)
    scrub = Fisher(strength=1e-4)
    scrubbed = scrub(original, split)
    reference = scrub.reference_for(scrubbed, retrained, split)
    moved = {name: value + 1 for name, value in buffers_of(original.model).items()}
    others = {name: value + 1 for name, value in buffers_of(retrained.model).items()}
    same = scrub.reference_for(scrubbed, retrained.with_buffers(others), split)
    assert torch.equal(reference.covariance.diagonal(), same.covariance.diagonal())
    for network in (original, original.with_buffers(moved)):
        assert BlackBox(2)(scrubbed, reference, network, split).value == pytest.approx(
            BlackBox(2)(scrubbed, same, original, split).value
        )
        nats = per_query(scrubbed, reference, network, split.forget)
        torch.testing.assert_close(nats, per_query(scrubbed, same, original, split.forget))
        x = split.forget.source.fetch(split.forget.rows)[0]
        assert isinstance(x, Tensor)
        query = adversarial_query(scrubbed, reference, network, x[0], radius=0.1, steps=1)
        assert query.before == pytest.approx(float(nats[0]))
    # By hand: what is released answers with statistics of its own weights.
    found = original.at(scrubbed.mean, reestimated(original.at(scrubbed.mean), split.retain))
    torch.testing.assert_close(
        original.at(scrubbed.mean, scrubbed.buffers).predict(split.forget), found.predict(split.forget)
    )


def test_statistics_of_the_network_that_knew_the_rows_stay_out_of_the_reference():
    trained, split = problem()
    original, retrained = original_of(trained, split, 0), retrained_of(trained, split, 0)
    statistics = precompute(original, split.whole, rank=0)
    scrub = chain(NTK(), Fisher(statistics=statistics))
    scrubbed = scrub(original, split)
    plain = Fisher().spread(retrained, split, Notes())
    found = scrub.reference_for(scrubbed, retrained, split)
    assert torch.equal(found.covariance.diagonal(), plain.diagonal())
