"""How long a step is made: the closed form where answers are linear in it, and its limits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained
from spotlessnet.methods.out_of_fold.step_scale import ASKED, ASKED_RETAINED, LENGTHS, Side, step_length
from tests.methods.problems import inputs


def extend_step(trained: Trained, step: Tensor, data: Data, taught: Tensor, most: float) -> float:
    """For the forgotten rows alone: retained ones count nothing and err as they did."""
    held = Data.of((torch.zeros(2, inputs(data)[0].shape[1], dtype=float64), torch.zeros(2).long()))
    nobody = Side(held, torch.full((2, taught.shape[1]), -1e9, dtype=float64).index_fill(1, ERRS, 1e9), 0.0, 1.0)
    return step_length(trained, trained.weights, step, Side(data, taught, 1.0, 1.0), nobody, most=most)


ERRS = torch.tensor([1])
"""Retained rows were wrong before, so that they cannot become worse."""


def problem(seed: int, rows: int = 20) -> tuple[Trained, Tensor, Data]:
    draw = torch.Generator().manual_seed(seed)
    network = nn.Linear(4, 3).double()
    for p in network.parameters():
        nn.init.normal_(p, generator=draw)
    trained = Trained.of(network)
    step = torch.randn(trained.size, generator=draw, dtype=float64)
    data = Data.of((torch.randn(rows, 4, generator=draw, dtype=float64), torch.zeros(rows, dtype=torch.long)))
    return trained, step, data


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.floats(0.5, 2.0), st.floats(1.2, 1.8))
def test_a_small_step_is_made_as_long_as_what_was_taught(seed: int, wanted: float, most: float) -> None:
    # The divergence of small steps is quadratic in them, so the parabola is exact but for their third power.
    trained, step, data = problem(seed)
    step = 1e-4 * step
    taught = trained.at(trained.weights + wanted * step).predict(data)
    assert extend_step(trained, step, data, taught, most) == pytest.approx(min(max(wanted, 0.5), most), abs=2e-3)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.integers(0, 1000))
def test_it_is_the_vertex_of_the_parabola_through_three_lengths(seed: int, other: int) -> None:
    trained, step, data = problem(seed)
    taught = trained.at(trained.weights + 1.0 * step + 0.3 * problem(other)[1]).predict(data)
    answers = [trained.at(trained.weights + a * step).predict(data) for a in (0.5, 1.0, 1.5)]
    off = [
        nn.functional.kl_div(f.log_softmax(1), taught.log_softmax(1), reduction="batchmean", log_target=True)
        for f in answers
    ]
    # Through (a, off) by least squares with as many terms as points.
    powers = torch.tensor([[a**k for k in range(3)] for a in (0.5, 1.0, 1.5)], dtype=float64)
    _, b, c = torch.linalg.solve(powers, torch.stack(off)).tolist()
    assert extend_step(trained, step, data, taught, 1.5) == pytest.approx(min(max(-b / (2 * c), 0.5), 1.5), abs=1e-6)


class Falling(nn.Module):
    """One logit falls ever faster with the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([20 - self.w**2 + 0 * x[:, 0], 0 * x[:, 0]], dim=1)


def test_where_the_parabola_bends_down_the_best_length_is_taken():
    trained, data = Trained.of(Falling()), Data.of((torch.zeros(3, 1, dtype=float64), torch.zeros(3, dtype=torch.long)))
    other = torch.tensor([[-100.0, 0.0]], dtype=float64).expand(3, 2)
    step = torch.ones(1, dtype=float64)
    assert extend_step(trained, step, data, other, 2.0) == 2.0
    assert extend_step(trained, torch.zeros_like(step), data, other, 2.0) == 0.5


class Exploding(nn.Module):
    """One logit is finite at the weight one, and no longer at two."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.exp(400 * self.w) + 0 * x[:, 0], 0 * x[:, 0]], dim=1)


def test_a_network_that_breaks_further_on_is_left_where_it_is():
    trained = Trained.of(Exploding())
    data = Data.of((torch.zeros(3, 1, dtype=float64), torch.zeros(3, dtype=torch.long)))
    wanted = torch.tensor([[1e300, 0.0]], dtype=float64).expand(3, 2)
    assert extend_step(trained, torch.ones(1, dtype=float64), data, wanted, 3.0) == 0.5


def test_it_asks_rows_from_all_parts_of_the_data():
    trained, step, data = problem(0, rows=4 * ASKED)
    asked: list[int] = []
    trained.model.register_forward_hook(lambda module, inputs, output: asked.append(len(output)))
    taught = trained.at(trained.weights + 1.1 * step).predict(data)
    # Only the first rows are taught something else: they are a quarter of those asked.
    taught[:ASKED] = trained.at(trained.weights + 3 * step).predict(data)[:ASKED]
    asked.clear()
    first = extend_step(trained, step, data.select(range(ASKED)), taught[:ASKED], 1.5)
    assert sum(asked) == LENGTHS * (ASKED + 2)
    assert extend_step(trained, step, data, taught, 1.5) < first


def test_retained_rows_have_their_say_and_their_limit():
    trained, step, data = problem(3, rows=200)
    step = 1e-3 * step
    forget, retain = data.select(range(100)), data.select(range(100, 200))
    taught, known = trained.at(trained.weights + 1.4 * step).predict(forget), trained.predict(retain)
    own = Data.of((retain.fetch(retain.rows).x, known.argmax(dim=1)))
    far, near = (
        step_length(
            trained, trained.weights, step, Side(forget, taught, b, 3.0), Side(own, known, 1 - b, 3.0), most=1.5
        )
        for b in (1.0, 0.5)
    )
    assert far == pytest.approx(1.4, abs=0.02)
    assert near == pytest.approx(0.7, abs=0.15)  # half way, as rows of both kinds pull alike
    # A step that turns every answer of the retained rows round is made short until it turns none.
    flip = -3 * trained.weights
    sides = Side(forget, -2 * trained.predict(forget), 0.9, 3.0), Side(own, known, 0.1, 3.0)
    # Answers turn round after a third of it, which three halvings of the gap between a quarter and a half come near.
    assert step_length(trained, trained.weights, flip, *sides, most=1.0) == 0.3125
    assert step_length(trained, trained.weights, flip / 2.4, *sides, most=1.0) == 0.78125
    assert step_length(trained, trained.weights, flip / 2.5, *sides, most=1.0) == 0.8125
    much = step_length(trained, trained.weights, 100 * flip, *sides, most=1.0)
    assert much == 0.0
    assert ASKED_RETAINED >= 200
