"""Fisher scrubbing: the declared noise is the formula, and the measured noise is the declared one."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn

from spotlessnet.core.chaining import chain
from spotlessnet.core.data import Data
from spotlessnet.core.errors import MismatchError, NeedError, SettingError
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.core.split import Split, whole_class
from spotlessnet.core.trained import Trained
from spotlessnet.methods.fisher import Fisher
from spotlessnet.methods.newton import Newton
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.kronecker import kronecker
from spotlessnet.precomputed.statistics import Statistics
from tests.methods.problems import dense_hessian, logistic_problem, optimum, unchecked


@given(seed=st.integers(0, 2**31), exponent=st.sampled_from(["half", "one"]), strength=st.sampled_from([1e-8, 1e-3]))
@settings(max_examples=6, deadline=None)
def test_variance_is_the_formula_on_the_dense_fisher(seed: int, exponent: Any, strength: float):
    """For logistic regression the Fisher matrix is the Hessian."""
    trained, split = logistic_problem(seed)
    F = dense_hessian(trained, split.retain).diagonal()
    scrubbed = Fisher(strength=strength, exponent=exponent, cap=1e3)(trained, split)
    expected = (strength / F).sqrt() if exponent == "half" else strength / F
    torch.testing.assert_close(scrubbed.covariance.diagonal(), expected, rtol=1e-8, atol=0)
    assert torch.equal(scrubbed.mean, trained.weights)
    assert scrubbed.diagnostics["capped"] == 0


def test_measured_noise_is_the_declared_one():
    trained, split = logistic_problem(0)
    for structure in ("diagonal", "kronecker"):
        scrubbed = Fisher(strength=1e-4, structure=structure)(trained, split)
        draw = torch.Generator().manual_seed(0)
        noise = torch.stack([scrubbed.draw(draw) for _ in range(1500)]) - trained.weights
        declared = scrubbed.covariance.multiply(torch.eye(trained.size, dtype=float64))
        scale = declared.diagonal().sqrt()
        gap = (noise.T @ noise / len(noise) - declared) / (scale.unsqueeze(0) * scale.unsqueeze(1))
        assert float(gap.abs().max()) < 6 / len(noise) ** 0.5


def test_noise_is_capped_in_every_direction():
    trained, split = logistic_problem(0)
    for structure in ("diagonal", "kronecker"):
        scrubbed = Fisher(strength=1.0, structure=structure, cap=0.02)(trained, split)
        eye = torch.eye(trained.size, dtype=float64)
        largest = torch.linalg.eigvalsh(scrubbed.covariance.multiply(eye))[-1]
        assert float(largest) <= 0.02**2 * (1 + 1e-12)
        assert scrubbed.diagnostics["capped"] == 1.0
        assert scrubbed.diagnostics["largest_deviation"] == pytest.approx(0.02)


def test_kronecker_noise_is_the_map_of_its_matrix():
    trained, split = logistic_problem(2)
    n, v = len(split.retain), torch.ones(trained.size, dtype=float64)
    F = kronecker(trained, split.retain).map(lambda e: e / n + 0.1)
    scrubbed = Fisher(strength=1e-6, structure="kronecker", exponent="one")(trained, split)
    torch.testing.assert_close(scrubbed.covariance.multiply(F.multiply(v)), 1e-6 * v, rtol=1e-8, atol=1e-14)


def test_after_a_step_a_whole_class_has_the_largest_noise_in_its_row():
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = torch.randn(60, 4, generator=draw, dtype=float64) + 2 * nn.functional.one_hot(y, 4)
    data = Data.of((x, y))
    trained = Trained.of(nn.Linear(4, 3).double(), weight_decay=1e-3)
    trained = trained.at(optimum(trained, data))
    split, noise = whole_class(1)(data), Fisher(exponent="one", cap=1e3)
    retrained = trained.at(optimum(trained, split.retain))
    stepped = chain(Newton(), noise)(trained, split)
    for scrubbed, factor in ((stepped, 1.5), (noise(retrained, split), 3.0)):
        rows = trained.unflatten(scrubbed.covariance.diagonal())["weight"].mean(dim=1)
        assert float(rows[1]) > factor * float(rows[[0, 2]].max())


def remembered(trained: Trained, data: Data) -> Statistics:
    F, K = fisher_diagonal(trained, data), kronecker(trained, data)
    zero = torch.zeros_like(trained.weights)
    return Statistics(trained.weights, zero, RowKeys.of(data), trained.known_weight_decay, diagonal=F, kronecker=K)


def test_from_statistics_only_the_forgotten_rows_are_read():
    trained, split = logistic_problem(3)
    statistics = remembered(trained, split.whole)
    alone = Split(forget=split.forget)
    from_statistics = Fisher(statistics=statistics)(trained, alone)
    from_rows = Fisher()(trained, split)
    torch.testing.assert_close(
        from_statistics.covariance.diagonal(), from_rows.covariance.diagonal(), rtol=1e-9, atol=0
    )
    assert from_statistics.diagnostics["assumed"] == []
    rough = Fisher(statistics=statistics, structure="kronecker")(trained, alone)
    assert "still hold the forgotten rows" in rough.diagnostics["assumed"][0]


def test_rows_that_statistics_do_not_hold_are_refused():
    trained, split = logistic_problem(3)
    first, both = split.forget.select(range(4)), split.forget
    after = remembered(trained, split.whole.without(first))
    with pytest.raises(MismatchError, match=r"4 of \d+ rows are not among the \d+ rows of the statistics"):
        Fisher(statistics=after)(trained, Split(forget=both))


def test_noise_after_a_step_says_where_its_statistics_were_written():
    trained, split = logistic_problem(3)
    statistics = remembered(trained, split.whole)
    about = chain(Newton(), Fisher(statistics=statistics))(trained, split).diagnostics
    assert any("at the weights of the statistics" in text for text in about["assumed"])
    with pytest.raises(NeedError, match="The statistics hold no diagonal"):
        Fisher(statistics=replace(statistics, diagonal=None))(trained, Split(forget=split.forget))
    with pytest.raises(NeedError, match="The statistics hold no kronecker"):
        Fisher(statistics=replace(statistics, kronecker=None), structure="kronecker")(
            trained, Split(forget=split.forget)
        )


def test_kinds_of_diagonal():
    trained, split = logistic_problem(5)
    exact = Fisher(exponent="one", cap=10.0)(trained, split).covariance.diagonal()
    drawn = Fisher(exponent="one", cap=10.0, kind="monte carlo")(trained, split).covariance.diagonal()
    assert float((drawn / exact - 1).abs().max()) < 1.0
    assert not torch.equal(drawn, exact)
    same = Fisher(exponent="one", cap=10.0, kind="monte carlo")(trained, split).covariance.diagonal()
    assert torch.equal(drawn, same)
    empirical = Fisher(kind="empirical")(trained, split)
    assert "squared gradients at the true labels" in empirical.diagnostics["assumed"][0]


def test_without_a_known_decay_the_damping_is_said():
    trained, split = logistic_problem(0)
    blind = Trained.of(trained.module())
    about = Fisher()(blind, split).diagnostics
    assert about["damping"] == 1e-3
    assert "decay is not known" in about["assumed"][0]
    assert Fisher(damping=0.5)(trained, split).diagnostics["damping"] == 0.5
    with pytest.raises(SettingError, match="plus the decay` must be positive, but got 0"):
        Fisher(damping=0.0)(Trained.of(trained.module(), weight_decay=0.0), split)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"strength": 0.0}, r"`Fisher.strength` must be positive, but got 0.0. Smaller adds less noise"),
        ({"cap": -1.0}, r"`Fisher.cap` must be positive, but got -1.0"),
        ({"damping": -1.0}, r"`Fisher.damping` must be zero or positive, but got -1.0"),
        ({"exponent": "two"}, r"`Fisher.exponent` must be one of 'zero', 'half', 'one', but got 'two'"),
        ({"structure": "dense"}, r"`Fisher.structure` must be one of 'diagonal', 'kronecker', but got 'dense'"),
        ({"kind": "true"}, r"`Fisher.kind` must be one of 'exact', 'monte carlo', 'empirical', but got 'true'"),
    ],
)
def test_bad_settings_are_named(wrong: dict[str, Any], message: str):
    with pytest.raises(SettingError, match=message):
        unchecked(Fisher, **wrong)
