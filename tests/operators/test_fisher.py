"""The Fisher diagonal against the diagonal of the dense matrix, sample by sample."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, float64, nn
from torch.nn.grad import conv2d_weight

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.loss import BinaryCrossEntropy, PerSample, SquaredError
from spotlessnet.core.trained import Trained
from spotlessnet.operators import fisher, layers
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.per_sample import Plan, plan
from tests.reference import NETWORKS, dense_gauss_newton, dense_hessian, problem, random_weights, row

EVERY = st.sampled_from(sorted(NETWORKS))


def per_sample_squares(trained: Trained, data: Data, s: torch.Tensor) -> torch.Tensor:
    def grad(i: int) -> torch.Tensor:
        return torch.func.grad(lambda w: trained.losses(*row(data, i), w)[0])(trained.weights)

    return sum((s[i] * grad(i).square() for i in range(len(data))), torch.zeros_like(trained.weights))


@given(name=EVERY, seed=st.integers(0, 999), batch=st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_exact_is_the_diagonal_of_the_dense_matrix(name, seed, batch):
    trained, data = problem(name, seed)
    s = random_weights(len(data), seed)
    found = fisher_diagonal(trained, data, sample_weights=s, ridge=0.2, batch_size=batch)
    torch.testing.assert_close(found, dense_gauss_newton(trained, data, s).diagonal() + 0.2)


@given(name=EVERY, seed=st.integers(0, 999), batch=st.integers(1, 9))
@settings(max_examples=9, deadline=None)
def test_empirical_squares_each_sample_by_itself(name, seed, batch):
    trained, data = problem(name, seed)
    s = random_weights(len(data), seed)
    found = fisher_diagonal(trained, data, kind="empirical", sample_weights=s, batch_size=batch)
    torch.testing.assert_close(found, per_sample_squares(trained, data, s))


class Idle(nn.Module):
    """A layer, and a weight that has no part in the answers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.idle = nn.Parameter(torch.ones(5, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize("kind", ["exact", "empirical"])
def test_a_weight_without_part_in_the_answers_has_no_curvature(kind):
    model = Idle().double()
    data = Data.of((torch.randn(7, 4, dtype=float64), torch.arange(7) % 3))
    found = Trained.of(model).unflatten(fisher_diagonal(Trained.of(model), data, kind=kind))
    assert not found["idle"].any()
    alone = Trained.of(model.layer)
    expected = alone.unflatten(fisher_diagonal(alone, data, kind=kind))
    for name, value in expected.items():
        torch.testing.assert_close(found[f"layer.{name}"], value)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_layer_by_layer_and_by_vmap_are_the_same(name):
    trained, data = problem(name, 3)
    fast = fisher_diagonal(trained, data, batch_size=4)
    with patch.object(fisher, "plan", lambda trained, x: Plan([], list(trained.names))):
        slow = fisher_diagonal(trained, data, batch_size=4)
    torch.testing.assert_close(fast, slow)


def test_the_plan_leaves_out_what_has_no_closed_form():
    rest = {name: plan(problem(name, 0)[0], problem(name, 0)[1].fetch(torch.arange(5)).x).rest for name in NETWORKS}
    assert rest["linear"] == rest["mlp"] == rest["residual"] == rest["grouped"] == rest["positions"] == []
    assert rest["tied"] == ["embed.weight", "middle.weight", "middle.bias"]
    assert rest["words"] == ["embed.weight"]
    # `a.bias` has a closed form, but goes the sure way along with the weight that has none.
    assert rest["outside"] == ["scale", "a.weight", "a.bias"]


class OtherAxes(nn.Module):
    """Layers that see positions before rows, and positions and rows along one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.folded = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.transpose(0, 1)).tanh().transpose(0, 1)
        return self.head(self.folded(h.flatten(0, 1)).tanh().unflatten(0, x.shape[:2]).mean(dim=1))


@pytest.mark.parametrize("positions", [1, 2, 3, 5])
def test_layers_that_see_rows_along_another_axis_stay_per_sample(positions):
    torch.manual_seed(0)
    trained = Trained.of(OtherAxes().double())
    data = Data.of((torch.randn(5, positions, 3, dtype=float64), torch.randint(3, (5,))))
    found = fisher_diagonal(trained, data, kind="empirical")
    torch.testing.assert_close(found, per_sample_squares(trained, data, torch.ones(5, dtype=float64)))
    rest = plan(trained, data.fetch(data.rows).x).rest
    assert {"first.weight", "first.bias"} <= set(rest)
    assert "head.weight" not in rest


@pytest.mark.parametrize(("dtype", "close"), [(float64, 1e-9), (torch.float32, 1e-4)])
def test_convolutions_of_many_channels_stay_per_sample(dtype, close):
    torch.manual_seed(0)
    wide = nn.Conv2d(16, 16, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1))
    network = nn.Sequential(nn.Conv2d(2, 16, 3), nn.Tanh(), wide, nn.Tanh(), nn.Flatten(), nn.LazyLinear(3)).double()
    data = Data.of((torch.randn(5, 2, 7, 7, dtype=float64), torch.randint(3, (5,))))
    network(data.fetch(data.rows).x)
    s = random_weights(5, 0)
    truth = per_sample_squares(Trained.of(network), data, s)
    trained = Trained.of(network.to(dtype))
    with patch.object(layers, "CONVOLVED", 1), patch.object(layers, "conv2d_weight", wraps=conv2d_weight) as convolved:
        found = fisher_diagonal(trained, data, kind="empirical", sample_weights=s.to(dtype))
    torch.testing.assert_close(found.double(), truth, rtol=close, atol=close * float(truth.max()))
    assert convolved.call_count == 1 + 4  # the plan looks at one row, and one of five rows has weight zero


@pytest.mark.parametrize("name", ["residual", "grouped"])
def test_images_unfolded_a_few_at_a_time_are_the_same(name):
    trained, data = problem(name, 4)
    whole = fisher_diagonal(trained, data)
    for entries in (1, 200):
        with patch.object(layers, "UNFOLDED", {"cpu": entries}):
            torch.testing.assert_close(fisher_diagonal(trained, data), whole)


def test_squares_of_a_linear_layer_are_those_of_its_gradients_written_out():
    draw = torch.Generator().manual_seed(0)
    layer = layers.LinearLayer(nn.Linear(5, 3), "weight", "bias")
    entered, returned = (torch.randn(*shape, generator=draw, dtype=float64) for shape in ((7, 5), (7, 4, 3)))
    found = layer.weight_squares(entered, returned)
    assert found is not None
    outer = torch.einsum("nro,ni->nroi", returned, entered)
    torch.testing.assert_close(found, outer.square().sum(dim=(0, 1)))
    # Over positions a gradient is a sum of outer products, whose square is not the sum of squares.
    assert layer.weight_squares(entered.unsqueeze(1), returned.unsqueeze(2)) is None


def test_negative_weights_take_away():
    trained, data = problem("mlp", 0)
    s = random_weights(len(data), 0) - 0.5
    assert bool((s < 0).any())
    torch.testing.assert_close(
        fisher_diagonal(trained, data, sample_weights=s, ridge=0.3),
        dense_gauss_newton(trained, data, s).diagonal() + 0.3,
    )


class Tokens(nn.Module):
    """A class token and places, as vision transformers have them, and a scale along the first axis of the rows."""

    def __init__(self, places: int = 3, *, crossed: bool = False) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.token, self.place, self.scale = (
            nn.Parameter(torch.randn(1, *shape, generator=draw)) for shape in ((1, 4), (places + 1, 4), (4,))
        )
        self.mix, self.head, self.crossed = nn.Linear(4, 4), nn.Linear(4, 3), crossed

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.place
        if self.crossed:  # rows on the second axis: a copy for each row would be taken for one of each place
            h = (h.transpose(0, 1) * self.scale.unsqueeze(1)).transpose(0, 1)
        return self.head(torch.tanh(self.mix(h)).mean(dim=1) * self.scale)


@pytest.mark.parametrize("crossed", [False, True])
def test_tokens_and_places_are_lent_to_each_row(crossed):
    # Two rows and two positions: where a copy might be mistaken for a position.
    model = Tokens(1, crossed=crossed).double()
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(5, 1, 4, generator=draw, dtype=float64)
    data = Data.of((x, torch.arange(5) % 3))
    trained = Trained.of(model)
    made = plan(trained, x)
    assert made.rest == (["scale"] if crossed else [])
    torch.testing.assert_close(fisher_diagonal(trained, data), dense_gauss_newton(trained, data).diagonal())


def test_a_copy_that_changes_the_answer_is_not_lent():
    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.head = nn.Parameter(torch.ones(1, 4)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.shift.sum(dim=0))  # of two copies, the sum would be twice as large

    trained = Trained.of(Summed().double())
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=float64)
    assert plan(trained, x).rest == ["shift"]
    data = Data.of((x, torch.arange(5) % 3))
    torch.testing.assert_close(fisher_diagonal(trained, data), dense_gauss_newton(trained, data).diagonal())


def test_hooks_are_gone_afterwards():
    trained, data = problem("residual", 0)
    fisher_diagonal(trained, data)
    assert not any(module._forward_hooks for module in trained.model.modules())


def test_is_the_diagonal_of_the_hessian_for_logistic_regression():
    trained, data = problem("linear", 1)
    torch.testing.assert_close(fisher_diagonal(trained, data), dense_hessian(trained, data).diagonal())


@pytest.mark.parametrize("loss", [None, SquaredError()])
def test_monte_carlo_comes_close_to_exact(loss):
    trained, data = problem("mlp", 2, loss=loss)
    exact = fisher_diagonal(trained, data)
    again = data.select(list(range(len(data))) * 1000)  # every row a thousand times, twenty draws for each
    found = fisher_diagonal(
        trained, again, kind="monte carlo", generator=torch.Generator().manual_seed(0), draws=20, batch_size=5000
    )
    torch.testing.assert_close(found / 1000, exact, rtol=0.1, atol=0.02 * float(exact.max()))


def test_monte_carlo_is_the_same_for_the_same_seed():
    trained, data = problem("mlp", 2)
    a, b, c = (
        fisher_diagonal(trained, data, kind="monte carlo", generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_yes_or_no_labels():
    torch.manual_seed(0)
    data = Data.of((torch.randn(6, 4, dtype=float64), torch.randint(2, (6, 3))))
    trained = Trained.of(nn.Linear(4, 3).double(), BinaryCrossEntropy())
    torch.testing.assert_close(fisher_diagonal(trained, data), dense_gauss_newton(trained, data).diagonal())


def test_outputs_with_two_axes():
    torch.manual_seed(0)
    loss = PerSample(lambda out, y: (out.logsumexp(2) - out.gather(2, y.unsqueeze(2)).squeeze(2)).sum(dim=1))
    trained = Trained.of(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double(), loss)
    data = Data.of((torch.randn(5, 2, 3, dtype=float64), torch.randint(3, (5, 2))))
    x, y = data.fetch(data.rows)[:2]
    J = torch.func.jacrev(lambda w: trained.outputs(x, w).flatten())(trained.weights)
    H = torch.func.hessian(lambda out: loss(out.view(5, 2, 3), y).sum())(trained.outputs(x).detach().flatten())
    torch.testing.assert_close(fisher_diagonal(trained, data), (J.T @ H @ J).diagonal())
    ones = torch.ones(5, dtype=float64)
    empirical = fisher_diagonal(trained, data, kind="empirical")
    torch.testing.assert_close(empirical, per_sample_squares(trained, data, ones))


def test_float32_agrees_with_float64():
    trained, data = problem("residual", 5)
    found = fisher_diagonal(Trained.of(trained.module().float()), data)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, fisher_diagonal(trained, data).float(), rtol=1e-4, atol=1e-6)


def test_errors_say_what_to_do():
    trained, data = problem("linear", 0)
    with pytest.raises(SettingError, match="`kind` must be one of 'exact', 'monte carlo', 'empirical', but got 'mc'"):
        fisher_diagonal(trained, data, kind="mc")
    with pytest.raises(NeedError, match=r"needs a `generator`. Give a `torch.Generator`"):
        fisher_diagonal(trained, data, kind="monte carlo")
    with pytest.raises(SettingError, match="`draws` must be positive, but got 0"):
        fisher_diagonal(trained, data, kind="monte carlo", generator=torch.Generator(), draws=0)
