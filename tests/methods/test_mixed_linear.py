"""Mixed-linear forgetting against dense solutions: the certificate must never be wrong."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, float64, nn
from torch.distributions import MultivariateNormal, kl_divergence

from spotlessnet.core.data import Data
from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.gaussian import Diagonal
from spotlessnet.core.gaussian_dp import delta_of, epsilon_of
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split, rows, whole_class
from spotlessnet.core.trained import Trained
from spotlessnet.methods.mixed_linear import MixedLinear, epsilon_of_requests
from spotlessnet.methods.within_budget import WithinBudget
from spotlessnet.operators import linear_response
from spotlessnet.operators.kernel import kernel
from spotlessnet.training.mixed import CentredTargets, fit_mixed, fit_users, settle, user_network

seeds = st.integers(0, 2**31 - 1)


def core_and_users(seed: int, count: int = 15) -> tuple[Trained, Data]:
    draw = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3)).double()
    core = Trained.of(network)
    core = core.at(0.7 * torch.randn(core.size, dtype=float64, generator=draw))
    x = torch.randn(count, 3, dtype=float64, generator=draw)
    return core, Data.of((x, torch.arange(count) % 3))


def arrays(data: Data) -> tuple[Tensor, Tensor]:
    x, y = data.source.fetch(data.rows)
    assert isinstance(x, Tensor)
    return x, y


def dense_optimum(core: Trained, data: Data, weight_decay: float, scale: float = 5.0) -> Tensor:
    x, y = arrays(data)
    J = torch.func.jacrev(lambda w: core.outputs(x, w))(core.weights).reshape(-1, core.size)
    target = scale * (nn.functional.one_hot(y, 3).double() - 1 / 3)
    gap = (target - core.outputs(x)).reshape(-1)
    return torch.linalg.solve(J.T @ J + len(data) * weight_decay * torch.eye(core.size, dtype=float64), J.T @ gap)


@pytest.mark.parametrize("wrong_by", [0.3, 30.0])
def test_a_kernel_that_is_off_by_more_than_the_ridge_does_not_decide(wrong_by, monkeypatch):
    monkeypatch.setattr("spotlessnet.training.mixed.cheaper_form", lambda *_: "dual")

    def coarse(trained: Trained, data: Data) -> Tensor:
        theta = kernel(trained, data)
        noise = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0), dtype=theta.dtype)
        return theta + wrong_by * (noise @ noise.T) / len(noise)

    monkeypatch.setattr(linear_response, "kernel", coarse)
    core, users = core_and_users(5)
    found = fit_users(core, users, weight_decay=0.001, scale=3.0, tolerance=1e-10)
    torch.testing.assert_close(found.trained.weights, dense_optimum(core, users, 0.001, 3.0), rtol=0, atol=1e-6)
    assert found.failure == ""


@given(seed=seeds)
@settings(max_examples=8, deadline=None)
def test_user_weights_are_the_dense_ridge_solution(seed):
    core, users = core_and_users(seed)
    found = fit_users(core, users, weight_decay=0.01, scale=3.0, tolerance=1e-12)
    torch.testing.assert_close(found.trained.weights, dense_optimum(core, users, 0.01, 3.0), rtol=0, atol=1e-7)
    assert found.failure == ""


@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_either_way_of_solving_gives_the_dense_solution(form, wrapped, monkeypatch):
    monkeypatch.setattr("spotlessnet.training.mixed.cheaper_form", lambda *_: form)
    core, users = core_and_users(5)
    network = user_network(core, weight_decay=0.01, scale=3.0)
    if not wrapped:  # any network linear in its weights will do, not only ours around a core
        network = replace(network, model=Plain(network.model))
    found = settle(network, users, tolerance=1e-12)
    torch.testing.assert_close(found.trained.weights, dense_optimum(core, users, 0.01, 3.0), rtol=0, atol=1e-7)
    assert found.products > 0


class Plain(nn.Module):
    """A user network that does not say that it is one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.user = nn.Parameter(inner.get_parameter("user").detach().clone())
        self.inner = (inner,)

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.functional_call(self.inner[0], {"user": self.user}, (x,))


problems = given(
    seed=seeds,
    weight_decay=st.sampled_from([1e-4, 1e-2, 1.0]),
    tolerance=st.sampled_from([0.3, 1e-2, 1e-4, 1e-8]),
    gone=st.integers(1, 13),
)


@problems
@settings(max_examples=25, deadline=None)
def test_the_certificate_holds(seed, weight_decay, tolerance, gone):
    check_certificate(seed, weight_decay, tolerance, gone)


@pytest.mark.slow
@problems
@settings(max_examples=400, deadline=None)
def test_the_certificate_is_never_violated(seed, weight_decay, tolerance, gone):
    check_certificate(seed, weight_decay, tolerance, gone)


def check_certificate(seed: int, weight_decay: float, tolerance: float, gone: int) -> None:
    core, users = core_and_users(seed)
    trained = user_network(core, weight_decay=weight_decay).at(dense_optimum(core, users, weight_decay))
    chosen = torch.randperm(15, generator=torch.Generator().manual_seed(seed))[:gone]
    split = rows(chosen.tolist())(users)
    scrubbed = MixedLinear(noise=0.1, tolerance=tolerance)(trained, split)
    true = dense_optimum(core, split.retain, weight_decay)
    facts = scrubbed.diagnostics["mixed_linear"]
    distance = float((scrubbed.mean - true).norm())
    assert distance <= facts["distance"] * (1 + 1e-9) + 1e-10
    assert distance**2 / (2 * 0.1**2) <= facts["nats"] * (1 + 1e-9) + 1e-10
    x, y = arrays(split.retain)
    n = len(split.retain)
    r = torch.func.grad(lambda u: trained.losses(x, y, u).sum() + 0.5 * n * weight_decay * u.square().sum())(
        scrubbed.mean
    )
    assert facts["residual"] == pytest.approx(float(r.norm()), rel=1e-6, abs=1e-9)
    assert facts["distance"] == pytest.approx(facts["residual"] / (n * weight_decay))
    assert facts["nats"] == pytest.approx(facts["residual"] ** 2 / (2 * 0.1**2 * (n * weight_decay) ** 2))


@given(
    seed=seeds,
    weight_decay=st.sampled_from([1e-2, 1.0]),
    tolerance=st.sampled_from([0.5, 1e-2]),
    max_nats=st.sampled_from([1e-3, 1.0, 50.0]),
    known=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_the_certificate_is_that_of_the_noise_a_budget_chose(seed, weight_decay, tolerance, max_nats, known):
    """It stayed that of the unscaled noise, and below the true divergence where the budget asked for less noise."""
    core, users = core_and_users(seed)
    trained = user_network(core, weight_decay=weight_decay).at(dense_optimum(core, users, weight_decay))
    split = rows([0, 3, 5, 8])(users)
    true = dense_optimum(core, split.retain, weight_decay)
    scrub = MixedLinear(noise=1.0, tolerance=tolerance)
    made = WithinBudget(scrub, max_nats=max_nats, reference=true if known else None)(trained, split)
    facts, S = made.diagnostics["mixed_linear"], made.covariance.multiply(torch.eye(len(true), dtype=float64))
    dense = kl_divergence(MultivariateNormal(made.mean, S), MultivariateNormal(true, S))
    assert float(dense) <= facts["nats"] * (1 + 1e-8) + 1e-9
    price = made.diagnostics["level_nats"]  # what the choice of the level tells is part of what is certified
    assert facts["nats"] == pytest.approx(0.5 * facts["distance"] ** 2 / float(S[0, 0]) + price)


@given(seed=seeds)
@settings(max_examples=4, deadline=None)
def test_one_request_after_another_is_both_at_once(seed):
    core, users = core_and_users(seed)
    trained = fit_users(core, users, weight_decay=0.01, tolerance=1e-10).trained
    scrub = MixedLinear(tolerance=1e-10)
    first = rows([0, 3, 5])(users)
    second = first.next_request(users.select([3, 7, 8]))
    assert len(second.forget) == 2
    after = scrub(trained.at(scrub(trained, first).mean), second).mean
    together = scrub(trained, rows([0, 3, 5, 7, 8])(users)).mean
    torch.testing.assert_close(after, together, rtol=0, atol=1e-7)
    torch.testing.assert_close(after, dense_optimum(core, second.retain, 0.01), rtol=0, atol=1e-7)


def test_a_whole_class_can_go():
    core, users = core_and_users(1)
    trained = fit_users(core, users, weight_decay=0.01).trained
    split = whole_class(2)(users)
    scrubbed = MixedLinear(tolerance=1e-10)(trained, split)
    torch.testing.assert_close(scrubbed.mean, dense_optimum(core, split.retain, 0.01), rtol=0, atol=1e-7)


def test_all_user_data_goes_by_zeroing():
    core, users = core_and_users(2)
    trained = fit_users(core, users, weight_decay=0.01).trained
    everything = Split(forget=users, kept=users.select([]))
    scrubbed = MixedLinear(noise=0.3)(trained, everything)
    assert not scrubbed.mean.any()
    assert scrubbed.diagnostics["mixed_linear"] == {"residual": 0.0, "distance": 0.0, "zeroed": True, "nats": 0.0}
    x, _ = arrays(users)
    torch.testing.assert_close(trained.at(scrubbed.mean).outputs(x), core.outputs(x), rtol=0, atol=0)
    assert torch.equal(MixedLinear()(trained, Split(forget=users.select([]), kept=users)).mean, trained.weights)


def test_noise_is_what_was_asked_for():
    core, users = core_and_users(3)
    trained = fit_users(core, users, weight_decay=0.01).trained
    split = rows([1, 2])(users)
    noisy, quiet = MixedLinear(noise=0.2), MixedLinear()
    assert noisy.is_noisy
    assert not quiet.is_noisy
    covariance = noisy(trained, split).covariance
    assert isinstance(covariance, Diagonal)
    torch.testing.assert_close(covariance.variance, torch.full_like(trained.weights, 0.04))
    assert quiet(trained, split).is_noiseless
    alone = noisy.spread(trained, split, Notes())
    assert alone.logdet() == pytest.approx(trained.size * math.log(0.04))


def test_the_user_network_is_a_module_of_its_own():
    core, users = core_and_users(4)
    settled = fit_users(core, users, weight_decay=0.01)
    x, _ = arrays(users)
    u = settled.trained.weights
    J = torch.func.jacrev(lambda w: core.outputs(x, w))(core.weights)
    expected = core.outputs(x) + torch.einsum("ncp,p->nc", J, u)
    module = settled.module()
    torch.testing.assert_close(module(x), expected)
    torch.testing.assert_close(module.train()(x), expected)
    again = user_network(core, weight_decay=0.01).module()
    again.load_state_dict(module.state_dict())
    torch.testing.assert_close(again(x), expected)
    assert [n for n, p in module.named_parameters() if p.requires_grad] == ["user"]


def test_dropout_and_batch_norm_of_the_core_stand_still():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    _, users = core_and_users(5)
    settled = fit_users(Trained.of(network), users, weight_decay=0.01)
    x, _ = arrays(users)
    module = settled.module().train()
    assert torch.equal(module(x), module(x))
    torch.testing.assert_close(module(x), settled.trained.outputs(x))


def test_core_and_users_are_learnt_one_after_the_other():
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(150) % 3
    x = 2 * nn.functional.one_hot(y, 4).double() + torch.randn(150, 4, dtype=float64, generator=draw)
    data = Data.of((x, y))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    settled = fit_mixed(
        Trained.of(network),
        data.select(range(60)),
        data.select(range(60, 150)),
        Recipe(epochs=5, lr=0.05, batch_size=16),
    )
    trained = settled.trained
    core = trained.at(torch.zeros_like(trained.weights))
    users = data.select(range(60, 150))
    before, after = (float(t.loss.mistakes(t.predict(users), users.labels()).mean()) for t in (core, trained))
    assert after < before
    assert settled.distance <= 1e-3 * float(trained.weights.norm())


def test_float32_says_what_it_reached():
    core, users = core_and_users(6)
    single = Trained.of(core.module().float())
    settled = fit_users(single, users, weight_decay=1e-3, tolerance=1e-9)
    assert "to 1e-09 of" in settled.failure
    split = rows([0])(users)
    scrubbed = MixedLinear(tolerance=1e-9)(settled.trained, split)
    facts = scrubbed.diagnostics["mixed_linear"]
    assert scrubbed.diagnostics["lost"] == [
        "the residual is larger than asked for; the certificate states the larger one"
    ]
    true = dense_optimum(Trained.of(single.module().double()), split.retain, 1e-3)
    assert float((scrubbed.mean.double() - true).norm()) <= 1.5 * facts["distance"]


def test_only_a_parabola_will_do():
    core, users = core_and_users(7)
    split = rows([0])(users)
    with pytest.raises(SettingError, match="needs a network linear in its weights with squared loss"):
        MixedLinear()(core, split)
    bent = Trained.of(core.module(), CentredTargets(), weight_decay=0.1)
    with pytest.raises(SettingError, match="needs a network linear in its weights with squared loss"):
        MixedLinear()(bent, split)
    logistic = Trained.of(nn.Linear(3, 3).double(), weight_decay=0.1)
    with pytest.raises(SettingError, match="needs a network linear in its weights with squared loss"):
        MixedLinear()(logistic, split)
    plain = Trained.of(nn.Linear(3, 3).double(), SquaredError(), weight_decay=0.1)
    assert MixedLinear()(plain, split).diagnostics["mixed_linear"]["distance"] < 1e-4


def test_settings_out_of_range_are_named():
    core, users = core_and_users(8)
    with pytest.raises(SettingError, match=r"`MixedLinear.noise` must be zero or positive, but got -1"):
        MixedLinear(noise=-1.0)
    with pytest.raises(SettingError, match=r"`MixedLinear.tolerance` must be positive, but got 0"):
        MixedLinear(tolerance=0.0)
    with pytest.raises(SettingError, match=r"`weight_decay` must be positive, but got 0"):
        fit_users(core, users, weight_decay=0.0)
    with pytest.raises(SettingError, match="User weights need a positive decay"):
        settle(user_network(core, weight_decay=0.0), users)
    with pytest.raises(SettingError, match=r"`CentredTargets.scale` must be positive"):
        CentredTargets(scale=0.0)


def test_centred_targets_know_their_curvature():
    loss = CentredTargets(2.0)
    f, y = torch.randn(3, 4, dtype=float64), torch.tensor([0, 3, 1])
    H = torch.func.hessian(lambda out: loss(out, y).sum())(f)
    torch.testing.assert_close(H.reshape(12, 12), torch.eye(12, dtype=float64))
    S = loss.hessian_root(f, y)
    torch.testing.assert_close(S @ S.transpose(1, 2), torch.eye(4, dtype=float64).expand(3, 4, 4))
    target = torch.tensor([[1.5, -0.5, -0.5, -0.5]], dtype=float64)
    assert float(loss(target, y[:1])) == 0.0
    assert loss.mistakes(target, y[:1]).tolist() == [0.0]


def test_epsilon_of_a_sequence_of_requests_bounds_that_of_the_true_gaussians(monkeypatch):
    """Three requests, each begun at what noise left of the one before: the true distances give less than certified."""
    # Iterations that stop early leave a residual; the other form solves so small a problem to the last digit.
    monkeypatch.setattr("spotlessnet.training.mixed.cheaper_form", lambda *_: "primal")
    core, users = core_and_users(4)
    trained = user_network(core, weight_decay=0.05).at(dense_optimum(core, users, 0.05))
    left, releases, true = users, [], []
    for t in range(3):
        split = rows([int(left.rows[2 * t]), int(left.rows[2 * t + 1])])(left)
        made = MixedLinear(noise=0.01, tolerance=0.3)(trained, split)
        true.append(float((made.mean - dense_optimum(core, split.retain, 0.05)).norm()))
        releases.append(made)
        trained, left = trained.at(made.draw(torch.Generator().manual_seed(t))), split.retain
    certified = epsilon_of_requests(releases, delta=1e-3)
    assert 0 < epsilon_of(true, 0.01, 1e-3) <= certified < 1e6
    assert certified == pytest.approx(
        epsilon_of([one.diagnostics["mixed_linear"]["distance"] for one in releases], 0.01, 1e-3), rel=1e-9
    )
    assert certified > epsilon_of_requests(releases[:1], delta=1e-3)
    with pytest.raises(NeedError, match="above zero"):
        epsilon_of_requests([MixedLinear()(trained, rows([int(left.rows[0])])(left))])


def test_delta_is_that_of_two_gaussians_counted_out():
    """The privacy loss of the best test, by simulation of the releases themselves over two steps."""
    draw = torch.Generator().manual_seed(0)
    gaps, sigma, epsilon = torch.tensor([0.3, 0.4], dtype=float64), 0.5, 0.7
    x = sigma * torch.randn(400_000, 2, generator=draw, dtype=float64) + gaps
    loss = ((x**2 - (x - gaps) ** 2).sum(dim=1) / (2 * sigma**2)).exp().reciprocal()
    counted = float((1 - math.exp(epsilon) * loss).clamp(min=0).mean())
    assert delta_of(float(gaps.norm()) / sigma, epsilon) == pytest.approx(counted, abs=0.003)
