"""White and black box on linear models, where the black box is exact."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn
from torch.distributions import MultivariateNormal, kl_divergence

from spotlessnet.bounds import BlackBox, WhiteBox, black_box
from spotlessnet.bounds.black_box import chosen, jacobian_of, output_covariance
from spotlessnet.bounds.dense_kl import dense_kl
from spotlessnet.bounds.per_query import per_query, per_query_by_set
from spotlessnet.core.covariance import LowRankPlusRidge
from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.gaussian import Covariance, Diagonal, Gaussian, NoNoise
from spotlessnet.core.progress import memory_limit
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.datasets.digits import load as load_digits
from spotlessnet.operators.precision import in_format

D, C = 3, 2
P = D * C + C


def split_of(g: torch.Generator, n: int = 12) -> Split:
    x, y = torch.randn(3 * n, D, generator=g, dtype=float64), torch.randint(C, (3 * n,), generator=g)
    data = Data.of((x, y))
    return Split(data.select(range(n)), data.select(range(n, 2 * n)), data.select(range(2 * n, 3 * n)))


def covariance(g: torch.Generator, dense: bool) -> Covariance:
    if not dense:
        return Diagonal(0.1 + torch.rand(P, generator=g, dtype=float64))
    A = torch.randn(P, 2 * P, generator=g, dtype=float64)
    return LowRankPlusRidge.dense(A @ A.T / P + 0.05 * torch.eye(P, dtype=float64))


def linear(seed: int) -> Trained:
    torch.manual_seed(seed)
    return Trained.of(nn.Linear(D, C).double())


def mlp(seed: int = 0) -> Trained:
    torch.manual_seed(seed)
    return Trained.of(nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, C)).double())


@given(st.integers(0, 10**6), st.booleans(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_black_is_at_most_white_and_monotone_in_the_queries(seed, dense, shared):
    # 100 problems, five query sets each: 500 cases.
    g = torch.Generator().manual_seed(seed)
    trained, split = linear(seed % 1000), split_of(g)
    S = covariance(g, dense)
    S0 = S if shared else covariance(g, dense)
    a = Gaussian(torch.randn(P, generator=g, dtype=float64), S)
    b = Gaussian(torch.randn(P, generator=g, dtype=float64), S0)
    white = float(WhiteBox()(a, b, trained, split))
    before = 0.0
    for queries in (1, 2, 3, 5, 9):
        black = BlackBox(queries, on=("forget", "retain", "test")[seed % 3])(a, b, trained, split)
        assert before - 1e-9 <= black.value <= white * (1 + 1e-8) + 1e-9
        assert "not a bound" not in black.note
        before = black.value


@pytest.mark.parametrize("order", range(6, 31, 4))
def test_noise_of_very_different_size_is_never_read_too_low(order):
    """Half a nat was read where one output's noise is many orders below the other's and the truth is thousands."""
    g, v = torch.Generator().manual_seed(order), 10.0**-order
    trained, split = linear(order), split_of(g)
    head = torch.cat(
        [torch.tensor([1.0, v], dtype=float64).repeat_interleave(D), torch.tensor([1.0, v], dtype=float64)]
    )
    shift = torch.where(head == 1, 1.0, 1e-9).double()
    a, b = Gaussian(trained.weights + shift, Diagonal(head)), Gaussian(trained.weights, Diagonal(head))
    one = chosen(split.forget, 1)
    inputs = one.fetch(one.rows).x
    assert isinstance(inputs, torch.Tensor)
    x = torch.cat([inputs.flatten(), torch.ones(1, dtype=float64)])
    # By hand: both outputs are x·w + b, independent, with shifts (1, 1e-9)·Σx and variances (1, v)·|x|².
    truth = 0.5 * float(x.sum() ** 2 / x.square().sum()) * (1 + 1e-18 / v)
    read = BlackBox(1)(a, b, trained, split).value
    assert read >= truth * (1 - 1e-6)
    assert float(per_query(a, b, trained, one)) >= truth * (1 - 1e-6)
    if order < 12:
        assert read == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize("order", [6, 26, 28, 40])
def test_noise_that_a_covariance_cannot_tell_from_none_is_not_left_out_silently(order):
    """Two queries that hardly differ: half of the divergence was left out, and the rest called a bound."""
    trained = linear(0)
    x = torch.randn(1, D, generator=torch.Generator().manual_seed(0), dtype=float64).repeat(2, 1)
    x[1, 0] += 2.0**-order
    data = Data.of((x, torch.zeros(2, dtype=torch.long)))
    split = Split(data)
    noise = Diagonal(torch.ones(P, dtype=float64))
    a, b = Gaussian(trained.weights, noise), Gaussian(trained.weights, noise.scaled(4))
    each = 0.5 * (1 / 4 + math.log(4) - 1)
    found = BlackBox(2)(a, b, trained, split)
    assert ("not a bound" in found.note) == (order > 6)
    assert found.value == pytest.approx((4 if order == 6 else 2) * each)
    # The same row twice has no more directions than once.
    data = Data.of((x[:1].repeat(2, 1), torch.zeros(2, dtype=torch.long)))
    twice = BlackBox(2)(a, b, trained, Split(data))
    assert twice.value == pytest.approx(2 * each)
    assert "not a bound" not in twice.note


@pytest.mark.parametrize("seed", range(12))
def test_a_query_whose_noise_only_rounding_makes_full_is_not_read_as_finite(seed):
    """Sixteen nats were read where the scrubbed answers lie on a line and the others do not."""
    trained, g = mlp(seed), torch.Generator().manual_seed(seed)
    one, two = torch.zeros(trained.size, dtype=float64), torch.zeros(trained.size, dtype=float64)
    one[4 * D] = two[4 * D] = 4.4e-6
    two[4 * D + 1] = 3.7e-6
    a, b = Gaussian(trained.weights, Diagonal(one)), Gaussian(trained.weights, Diagonal(two))
    assert per_query(a, b, trained, split_of(g).forget).isinf().all()


def test_enough_queries_of_a_linear_model_give_the_white_box():
    g = torch.Generator().manual_seed(0)
    trained, split = linear(0), split_of(g)
    a, b = (Gaussian(torch.randn(P, generator=g, dtype=float64), covariance(g, True)) for _ in range(2))
    black = BlackBox(12)(a, b, trained, split)
    assert black.value == pytest.approx(float(WhiteBox()(a, b, trained, split)), rel=1e-8)
    assert f"on the {P} of {12 * C} dimensions" in black.note
    assert "logits" in black.note


def test_identical_gaussians_give_zero_and_no_noise_gives_infinity():
    g = torch.Generator().manual_seed(1)
    trained, split = mlp(), split_of(g)
    w = trained.weights
    noise = Diagonal(0.1 + torch.rand(trained.size, generator=g, dtype=float64))
    same, moved = Gaussian(w, noise), Gaussian(w + 0.1, noise)
    still, still_moved = Gaussian(w, NoNoise.at(w)), Gaussian(w + 0.1, NoNoise.at(w))
    for bound in (WhiteBox(), BlackBox(4), BlackBox(4, on="test")):
        assert bound(same, same, trained, split).value == pytest.approx(0.0, abs=1e-9)
        assert bound(same, moved, trained, split).value > 1e-6
        assert bound(still, still, trained, split).value == 0.0
        for a, b in ((still, still_moved), (still, same), (same, still)):
            assert math.isinf(bound(a, b, trained, split).value)
    assert "without noise" in WhiteBox()(still, still_moved, trained, split).note
    assert per_query(still, still, trained, split.forget).eq(0).all()
    assert per_query(still, same, trained, split.forget).isinf().all()


def test_white_box_mean_term_is_quartered_by_twice_the_noise():
    g = torch.Generator().manual_seed(2)
    trained, split = linear(0), split_of(g)
    w = torch.randn(P, generator=g, dtype=float64)
    S = covariance(g, True)
    once = WhiteBox()(Gaussian(w, S), Gaussian(0 * w, S), trained, split)
    twice = WhiteBox()(Gaussian(w, S.scaled(4)), Gaussian(0 * w, S.scaled(4)), trained, split)
    assert twice.value == pytest.approx(once.value / 4, rel=1e-9)
    assert "means" in once.note
    assert "covariances" in once.note


def test_output_covariance_is_joint_over_queries_and_the_same_in_blocks(monkeypatch):
    g = torch.Generator().manual_seed(3)
    trained, split = mlp(), split_of(g)
    gaussian = Gaussian(trained.weights, Diagonal(torch.rand(trained.size, generator=g, dtype=float64)))
    data = split.forget.select(range(5))
    (batch,) = trained.batches(data)
    J = torch.func.jacrev(lambda w: trained.outputs(batch.x, w).flatten())(trained.weights)
    truth = J @ gaussian.covariance.diagonal().diag() @ J.T
    torch.testing.assert_close(output_covariance(gaussian, trained, data), truth)
    torch.testing.assert_close(output_covariance(gaussian, trained, data, entries=1), truth)
    jacobians: list[int] = []

    def spy(at, rows):
        jacobians.append(len(rows))
        return jacobian_of(at, rows)

    monkeypatch.setattr(black_box, "jacobian_of", spy)
    with memory_limit(1):  # a row at a time
        torch.testing.assert_close(output_covariance(gaussian, trained, data), truth)
    assert set(jacobians) == {1}
    torch.testing.assert_close(jacobian_of(trained, data), J)


def test_the_jacobians_are_taken_at_the_two_means():
    g = torch.Generator().manual_seed(4)
    trained, split = mlp(), split_of(g)
    w, w0 = trained.weights + 0.5, trained.weights - 0.5
    S = Diagonal(torch.rand(trained.size, generator=g, dtype=float64))
    (batch,) = trained.batches(chosen(split.forget, 3))

    def f(v: torch.Tensor) -> torch.Tensor:
        return trained.outputs(batch.x, v).flatten()

    J, J0 = torch.func.jacrev(f)(w), torch.func.jacrev(f)(w0)
    truth = dense_kl(f(w) - f(w0), J @ S.variance.diag() @ J.T, J0 @ S.variance.diag() @ J0.T)
    found = BlackBox(3)(Gaussian(w, S), Gaussian(w0, S), trained, split)
    assert found.value == pytest.approx(truth.nats, rel=1e-8)


@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([0.01, 0.3, 3.0]))
@settings(max_examples=100, deadline=None)
def test_against_plain_float64_and_never_above_the_weights(seed, queries, apart):
    """A float32 network beside dense float64 matrices by torch's own autograd and distributions."""
    g = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed % 1000)
    model = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, C))
    trained, split = Trained.of(model), split_of(g)
    w0 = trained.weights
    w = w0 + apart * torch.randn(w0.shape, generator=g)
    S, S0 = (10 ** (4 * torch.rand(w.shape, generator=g) - 2) for _ in range(2))
    a, b = Gaussian(w, Diagonal(S)), Gaussian(w0, Diagonal(S0))
    found = BlackBox(queries)(a, b, trained, split)
    x = chosen(split.forget, queries).source.fetch(chosen(split.forget, queries).rows)[0]
    plain = copy.deepcopy(model).double()

    def f(v: torch.Tensor) -> torch.Tensor:
        first, bias, last, end = v.double().split([4 * D, 4, 4 * C, C])
        return ((x @ first.view(4, D).T + bias).tanh() @ last.view(C, 4).T + end).flatten()

    assert torch.equal(f(w0), plain(x).flatten())
    J, J0 = (torch.autograd.functional.jacobian(f, v.double()) for v in (w, w0))
    truth = kl_divergence(
        MultivariateNormal(f(w).detach(), J @ S.double().diag() @ J.T),
        MultivariateNormal(f(w0).detach(), J0 @ S0.double().diag() @ J0.T),
    )
    white = kl_divergence(
        MultivariateNormal(w.double(), S.double().diag()), MultivariateNormal(w0.double(), S0.double().diag())
    )
    assert found.value == pytest.approx(min(float(truth), float(white)), rel=1e-6)
    assert found.value <= float(white) * (1 + 1e-9)
    assert ("capped at the white box" in found.note) == (float(truth) > float(white))
    each = per_query(a, b, trained, chosen(split.forget, queries))
    assert float(each.max()) <= float(white) * (1 + 1e-9)


def test_digits_in_float32_give_what_float64_gives():
    """Of 1.5e8 nats, float32 found 1,033: the rest lies in directions that its rounding wiped out."""
    train = load_digits().train
    torch.manual_seed(0)
    trained = Trained.of(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)))
    split = Split(train.select(range(30)), train.select(range(30, 200)))
    g = torch.Generator().manual_seed(0)
    w = trained.weights
    noise = Diagonal(1e-6 * (0.5 + torch.rand(w.shape, generator=g)))
    a, b = Gaussian(w + 0.05 * torch.randn(w.shape, generator=g), noise), Gaussian(w, noise)
    found = BlackBox(20)(a, b, trained, split)
    exact = in_format(trained, float64)
    doubled = [Gaussian(one.mean.double(), Diagonal(noise.variance.double())) for one in (a, b)]
    assert found.value == pytest.approx(BlackBox(20)(doubled[0], doubled[1], exact, split).value, rel=1e-9)
    white = 0.5 * float(((a.mean - b.mean).double().square() / noise.variance.double()).sum())
    assert 0 < found.value <= white * (1 + 1e-9)
    J = [jacobian_of(exact.at(one.mean), chosen(split.forget, 20)) for one in doubled]
    gap = exact.at(doubled[0].mean).predict(chosen(split.forget, 20)) - exact.predict(chosen(split.forget, 20))
    S, S0 = (j @ (noise.variance.double().unsqueeze(1) * j.T) for j in J)
    moved = 0.5 * float(gap.flatten() @ torch.linalg.solve(S0, gap.flatten()))
    spread = 0.5 * float(torch.linalg.solve(S0, S).trace() - S.logdet() + S0.logdet() - len(S))
    assert found.value == pytest.approx(min(moved + spread, white), rel=1e-4)


def test_more_answers_than_weights_are_worth_no_more_than_the_weights():
    """Their linearised covariances have different supports, so the linearised divergence is infinite; zero was read."""
    g = torch.Generator().manual_seed(8)
    trained, split = mlp(), split_of(g)
    S = Diagonal(0.1 + torch.rand(trained.size, generator=g, dtype=float64))
    a, b = Gaussian(trained.weights + 0.3, S), Gaussian(trained.weights, S)
    white = WhiteBox()(a, b, trained, split).value
    many = replace(split, kept=Data(split.forget.source, torch.arange(12, 36)))
    black = BlackBox(24, on="retain")(a, b, trained, many)
    assert trained.size < 24 * C
    assert black.value == pytest.approx(white)
    assert "infinite: no noise where the outputs differ; capped at the white box" in black.note


def test_noise_on_some_weights_alone_is_no_cap_of_zero():
    """The reference has no noise on the weights of one output, which the answers show."""
    trained, split = linear(0), split_of(torch.Generator().manual_seed(9))
    every = torch.ones(P, dtype=float64)
    some = every.clone()
    some[:D] = some[D * C] = 0
    w = trained.weights
    for S, S0, shift in ((every, some, 0.0), (some, some, 0.1), (every, some, 0.1)):
        a, b = Gaussian(w + shift, Diagonal(S)), Gaussian(w, Diagonal(S0))
        assert BlackBox(4)(a, b, trained, split).value == WhiteBox()(a, b, trained, split).value == math.inf
    a, b = Gaussian(w + 0.1 * (some > 0), Diagonal(some)), Gaussian(w, Diagonal(some))
    white = WhiteBox()(a, b, trained, split)
    assert white.value == pytest.approx(0.005 * int(some.sum()))
    assert "nan" not in white.note
    assert 0 < BlackBox(4)(a, b, trained, split).value <= white.value * (1 + 1e-9)


def test_per_query_is_the_black_box_of_one_query():
    g = torch.Generator().manual_seed(5)
    trained, split = mlp(), split_of(g)
    S, S0 = (Diagonal(0.1 + torch.rand(trained.size, generator=g, dtype=float64)) for _ in range(2))
    a, b = Gaussian(trained.weights + 0.2, S), Gaussian(trained.weights, S0)
    one = chosen(split.forget, 1)
    assert float(per_query(a, b, trained, one)[0]) == pytest.approx(BlackBox(1)(a, b, trained, split).value, rel=1e-9)
    sets = per_query_by_set(a, b, trained, split, count=4)
    assert {name: len(v) for name, v in sets.items()} == {"forget": 4, "retain": 4, "test": 4}
    without = per_query_by_set(a, b, trained, Split(split.forget, split.retain), count=4)
    assert set(without) == {"forget", "retain"}


def test_names_settings_and_needs():
    assert BlackBox(4, on="test").name == "BlackBox(4 on test)"
    assert WhiteBox().unit == "nats"
    with pytest.raises(SettingError, match=r"`BlackBox.queries` must be positive, but got 0"):
        BlackBox(0)
    with pytest.raises(SettingError, match=r"`BlackBox.on` must be one of 'forget', 'retain', 'test', but got 'all'"):
        BlackBox(on="all")
    g = torch.Generator().manual_seed(6)
    split = split_of(g)
    still = Gaussian(torch.zeros(P, dtype=float64), NoNoise.at(torch.zeros(P, dtype=float64)))
    with pytest.raises(NeedError, match="This needs test data"):
        BlackBox(on="test")(still, still, linear(0), Split(split.forget, split.retain))
