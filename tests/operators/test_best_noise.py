"""Proposition 4 for any error of the step: the equation, the optimum, and the special case."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, float64

from spotlessnet.core.errors import SettingError
from spotlessnet.methods.fisher import Fisher
from spotlessnet.methods.newton import Newton
from spotlessnet.operators.best_noise import best_noise
from tests.methods.problems import dense_hessian, logistic_problem

SIZE = 5


def definite(seed: int) -> Tensor:
    A = torch.randn(SIZE, 2 * SIZE, generator=torch.Generator().manual_seed(seed), dtype=float64)
    return A @ A.T / SIZE + 0.1 * torch.eye(SIZE, dtype=float64)


@given(seed=st.integers(0, 10**6), strength=st.sampled_from([1e-3, 1.0, 20.0]))
@settings(max_examples=20, deadline=None)
def test_any_error_has_its_best_noise(seed, strength):
    B, error = definite(seed), definite(seed + 1)
    S = best_noise(B, error, strength)
    torch.testing.assert_close(S @ B @ S, strength * error, rtol=1e-8, atol=1e-9 * strength)

    def price(noise: Tensor) -> Tensor:
        return 0.5 * (B @ noise).trace() + 0.5 * strength * (torch.linalg.inv(noise) @ error).trace()

    assert float(torch.func.grad(price)(S).abs().max()) < 1e-7 * float(B.norm())
    for other in range(5):
        turn = definite(seed + 2 + other)
        assert float(price(S + 0.05 * turn)) > float(price(S))
    values, Q = torch.linalg.eigh(B)
    isotropic = (Q * (0.3 * strength / values).sqrt()) @ Q.T
    torch.testing.assert_close(best_noise(B, 0.3 * torch.eye(SIZE, dtype=float64), strength), isotropic)


def test_newton_takes_the_error_that_it_is_told():
    trained, split = logistic_problem(0)
    A = torch.randn(trained.size, trained.size, generator=torch.Generator().manual_seed(0), dtype=float64)
    error = A @ A.T / trained.size + 0.1 * torch.eye(trained.size, dtype=float64)
    found = Newton(strength=0.5, structure="dense", error=error)(trained, split)
    S, B = (
        found.covariance.multiply(torch.eye(trained.size, dtype=float64)),
        dense_hessian(trained.at(found.mean), split.retain),
    )
    torch.testing.assert_close(S @ B @ S, 0.5 * error, rtol=1e-6, atol=1e-7)
    with pytest.raises(SettingError, match=r"`Newton\.error` needs `structure=.dense.`, but it is 'diagonal'"):
        Newton(strength=0.5, error=error)


def test_equal_noise_on_every_weight_forgets_as_it_grows():
    """Example 1: KL = ‖w − w'‖² / 2σ², to zero for large noise."""
    trained, split = logistic_problem(1)
    gap = float((trained.weights - trained.anchor).square().sum())
    for strength in (1e-4, 1.0, 1e4):
        scrub = Fisher(exponent="zero", strength=strength, cap=1e3)
        here, there = scrub(trained, split), scrub(trained.at(trained.anchor), split)
        torch.testing.assert_close(here.covariance.diagonal(), torch.full_like(trained.weights, strength))
        assert here.kl(there) == pytest.approx(gap / (2 * strength), rel=1e-9)
    capped = Fisher(exponent="zero", strength=1.0, cap=0.1)(trained, split)
    assert float(capped.covariance.diagonal().max()) == pytest.approx(0.01)
    assert capped.diagnostics["capped"] == 1.0
