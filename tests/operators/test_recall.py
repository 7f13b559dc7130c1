"""Requests served from a memory, against retraining where retraining has a closed form."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, NeedError, SettingError
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.memory import Memory
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.operators import recall as recalling
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.jacobian import Jacobian
from spotlessnet.operators.recall import after_request, fisher_after, own_root, recall, recall_faithfully
from spotlessnet.operators.remember import remember
from spotlessnet.scrubs import NTK, Fisher, Newton
from spotlessnet.training.fit import fit

DECAY = 0.1


def problem(seed: int, n: int = 40, d: int = 5, c: int = 2) -> tuple[Trained, Data]:
    """A linear network fitted to all rows, to the optimum."""
    torch.manual_seed(seed)
    data = Data.of((torch.randn(n, d, dtype=float64), torch.randn(n, c, dtype=float64)))
    model = nn.Linear(d, c, bias=False).double()
    start = torch.randn(d * c, dtype=float64)
    trained = Trained.of(model, SquaredError(), decay=DECAY, start=start)
    return trained.at(ridge(trained, data)), data


def ridge(trained: Trained, data: Data) -> torch.Tensor:
    """The minimiser of the mean squared error plus the decay toward the start."""
    batch = next(iter(data.batches(len(data))))
    assert isinstance(batch.x, torch.Tensor)
    n, d = batch.x.shape
    centre = trained.anchor.reshape(-1, d)
    gram = batch.x.T @ batch.x / n + DECAY * torch.eye(d, dtype=float64)
    return torch.linalg.solve(gram, batch.x.T @ batch.y / n + DECAY * centre.T).T.reshape(-1)


@given(st.integers(0, 10_000), st.integers(1, 15))
@settings(max_examples=100, deadline=None)
def test_a_request_from_memory_is_retraining_where_the_model_is_linear(seed, k):
    trained, data = problem(seed)
    memory = remember(trained, data, rank=trained.size, diagonal=None)
    forget = data.pick(range(k))
    found = recall(memory, trained, forget, DECAY, Notes())
    retrained = ridge(trained, data.without(forget))
    torch.testing.assert_close(trained.weights + found.step, retrained, rtol=0, atol=1e-8)


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_two_requests_in_a_row_are_one_joint_request(seed, a, b):
    trained, data = problem(seed)
    memory = remember(trained, data, rank=trained.size, diagonal="exact")
    A, B = data.pick(range(a)), data.pick(range(a, a + b))
    first = trained.at(trained.weights + recall(memory, trained, A, DECAY, Notes()).step)
    memory = after_request(memory, trained, A, first.weights, ridge=DECAY)
    both = A.join(B)  # naming A again must not count it twice
    second = first.weights + recall(memory, first, both, DECAY, Notes()).step
    torch.testing.assert_close(second, ridge(trained, data.without(both)), rtol=0, atol=1e-7)


@given(st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_the_memory_after_a_request_is_the_one_that_retraining_would_have_left(seed):
    trained, data = problem(seed)
    memory = remember(trained, data, rank=trained.size, diagonal="exact")
    forget = data.pick(range(6))
    kept = data.without(forget)
    moved = trained.weights + 0.1 * torch.randn_like(trained.weights)  # any weights, noise included
    after = after_request(memory, trained, forget, moved)
    assert torch.equal(after.weights, moved)
    # The sums stay those where the memory was written.
    afresh = remember(trained, kept, rank=trained.size, diagonal="exact")
    assert after.count == afresh.count == 34
    torch.testing.assert_close(after.gradient, afresh.gradient, rtol=1e-7, atol=1e-7)
    assert after.diagonal is not None
    assert afresh.diagonal is not None
    torch.testing.assert_close(after.diagonal, afresh.diagonal, rtol=1e-7, atol=1e-7)
    assert after.basis is not None
    assert afresh.basis is not None
    for m in (after, afresh):
        assert m.basis is not None
    dense = [
        m.basis @ m.values.diag() @ m.basis.T for m in (after, afresh) if m.basis is not None and m.values is not None
    ]
    torch.testing.assert_close(dense[0], dense[1], rtol=1e-6, atol=1e-6)


def curved(seed: int, decay: float = DECAY) -> tuple[Trained, Data]:
    """A small network that is not linear, trained for a while; two of its labels are wrong."""
    torch.manual_seed(seed)
    x = torch.randn(60, 4, dtype=float64)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    y[:10] = (y[:10] + 1) % 3
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    recipe = Recipe(epochs=60, rate=0.1, batch=20, decay=decay)
    trained = Trained.of(model, recipe=recipe)
    data = Data.of((x, y))
    return fit(replace(trained, start=trained.weights), data), data


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_requests_in_a_row_are_one_joint_request_where_the_network_is_curved_too(seed, a, b):
    trained, data = curved(seed)
    memory = remember(trained, data, rank=trained.size, diagonal=None)
    joint = recall(memory, trained, data.pick(range(a + b)), DECAY, Notes())
    network = trained
    for part in (range(a), range(a, a + b)):
        forget = data.pick(part)
        after = network.at(network.weights + recall(memory, network, forget, DECAY, Notes()).step)
        memory = after_request(memory, network, forget, after.weights, ridge=DECAY)
        network = after
    torch.testing.assert_close(network.weights, trained.weights + joint.step, rtol=0, atol=1e-7)


def test_noise_that_a_request_added_is_not_taken_back_by_the_next():
    trained, data = curved(3)
    memory = remember(trained, data, rank=trained.size, diagonal=None)
    A, B = data.pick(range(5)), data.pick(range(5, 9))
    noise = torch.randn_like(trained.weights)
    first = trained.weights + recall(memory, trained, A, DECAY, Notes()).step + noise
    memory = after_request(memory, trained, A, first, ridge=DECAY)
    second = first + recall(memory, trained.at(first), B, DECAY, Notes()).step
    joint = remember(trained, data, rank=trained.size, diagonal=None)
    expected = trained.weights + recall(joint, trained, A.join(B), DECAY, Notes()).step + noise
    torch.testing.assert_close(second, expected, rtol=0, atol=1e-7)


def test_the_damping_rises_until_the_network_follows_on_the_rows_that_must_go():
    trained, data = curved(1, decay=1e-4)
    memory = remember(trained, data, rank=trained.size, diagonal=None)
    forget, notes = data.pick(range(10)), Notes()
    found = recall_faithfully(memory, trained, forget, 1e-4, notes)
    wild = recall(memory, trained, forget, 1e-4, Notes())
    J, before = Jacobian(trained, forget), trained.predict(forget)
    for step, least, most in ((found.step, 0.0, 0.2), (wild.step, 0.2, 1e9)):
        linear = J.multiply(step)
        departure = (trained.at(trained.weights + step).predict(forget) - before - linear).norm() / linear.norm()
        assert least <= float(departure) <= most
    assert notes.facts["memory_ridge"] == 1e-4 + notes.facts["damping"] > 1e-4
    assert notes.facts["retrain_now"] is False
    assert notes.facts["wear"] == 1


def test_a_linear_network_needs_no_damping():
    trained, data = problem(11)
    memory = remember(trained, data, rank=trained.size, diagonal=None)
    notes = Notes()
    found = recall_faithfully(memory, trained, data.pick(range(5)), DECAY, notes)
    assert notes.facts["damping"] == 0
    torch.testing.assert_close(trained.weights + found.step, ridge(trained, data.without(data.pick(range(5)))))


def test_a_worn_memory_says_that_it_is_time_to_retrain():
    trained, data = curved(1, decay=1e-4)
    memory = remember(trained, data, rank=trained.size, diagonal=None)
    # As after a first request that needed hardly any damping.
    memory = replace(memory, first=1e-4)
    notes = Notes()
    recall_faithfully(memory, trained, data.pick(range(10)), 1e-4, notes)
    assert notes.facts["retrain_now"] is True
    assert notes.lost == ["retrain now and write a new memory; how much this request forgot is not known"]
    after = after_request(memory, trained, data.pick(range(10)), trained.weights, ridge=0.5)
    assert (after.ridge, after.first) == (0.5, 1e-4)


def test_a_request_that_only_added_noise_is_made_up_for_by_the_next_step():
    trained, data = problem(12)
    memory = remember(trained, data, rank=trained.size, diagonal="exact")
    A, B = data.pick(range(5)), data.pick(range(5, 9))
    noise = torch.randn_like(trained.weights)
    memory = after_request(memory, trained, A, trained.weights + noise)
    step = recall(memory, trained.at(trained.weights + noise), B, DECAY, Notes()).step
    torch.testing.assert_close(trained.weights + step, ridge(trained, data.without(A.join(B))), rtol=0, atol=1e-7)


@pytest.mark.parametrize("method", [Newton, NTK])
def test_newton_and_ntk_work_from_the_forgotten_rows_alone(method):
    trained, data = problem(7)
    forget = data.pick(range(5))
    alone = Split(forget=forget)  # no retained row is at hand
    memory = remember(trained, data, rank=trained.size, diagonal="exact")
    found = method(memory=memory)(trained, alone)
    torch.testing.assert_close(found.mean, ridge(trained, data.without(forget)), rtol=0, atol=1e-8)
    assert found.about["memory_rank"] == trained.size


def test_fisher_and_newton_noise_from_memory_is_that_of_the_retained_rows():
    trained, data = problem(8)
    forget = data.pick(range(5))
    memory = remember(trained, data, rank=trained.size, diagonal="exact")
    alone, full = Split(forget=forget), Split(forget=forget, kept=data.without(forget))
    for from_memory, from_rows in (
        (Fisher(strength=1e-8, memory=memory), Fisher(strength=1e-8)),
        (Newton(strength=1e-8, memory=memory), Newton(strength=1e-8)),
    ):
        # Gauss-Newton of a linear network does not depend on the weights, so the two must agree after the step too.
        noise, expected = from_memory(trained, alone).covariance, from_rows(trained, full).covariance
        torch.testing.assert_close(noise.diagonal(), expected.diagonal(), rtol=1e-6, atol=0)


def test_what_a_memory_cannot_serve_is_refused():
    trained, data = problem(9)
    memory = remember(trained, data, rank=2, diagonal=None)
    with pytest.raises(SettingError, match=r"`Newton.memory` knows neither `time` nor `keep_residual=False`"):
        Newton(memory=memory, time=1.0)
    with pytest.raises(SettingError, match=r"`NTK.memory` holds the loss's own curvature"):
        NTK(memory=memory, output="identity")


def test_rows_forgotten_before_change_nothing():
    trained, data = problem(0)
    memory = remember(trained, data, rank=trained.size, diagonal="exact")
    forget = data.pick(range(4))
    first = trained.at(trained.weights + recall(memory, trained, forget, DECAY, Notes()).step)
    memory = after_request(memory, trained, forget, first.weights, ridge=DECAY)
    notes = Notes()
    again = recall(memory, first, forget, DECAY, notes)
    torch.testing.assert_close(again.step, torch.zeros_like(again.step), rtol=0, atol=1e-12)
    assert notes.facts["already_forgotten"] == 4
    assert memory.diagonal is not None
    torch.testing.assert_close(fisher_after(memory, first, forget), memory.diagonal)


def test_a_rank_that_is_too_small_is_worse_but_still_helps():
    trained, data = problem(1, n=60, d=12, c=1)
    forget = data.pick(range(10))
    goal = ridge(trained, data.without(forget))
    gaps = []
    for rank in (4, 12):
        memory = remember(trained, data, rank=rank, diagonal=None)
        found = recall(memory, trained, forget, DECAY, Notes())
        gaps.append(float((trained.weights + found.step - goal).norm() / (trained.weights - goal).norm()))
    assert gaps[1] < 1e-7 < gaps[0] < 1


def test_a_sample_scales_curvature_but_never_the_gradient():
    trained, data = problem(2)
    memory = remember(trained, data, rank=trained.size, sample=20, diagonal="exact")
    torch.testing.assert_close(memory.gradient, gradient(trained, data))
    assert memory.values is not None
    full = remember(trained, data, rank=trained.size, diagonal=None).values
    assert full is not None
    assert 0.5 < float(memory.values.sum() / full.sum()) < 2


def test_the_memory_of_another_network_is_refused():
    trained, data = problem(3)
    memory = remember(trained, data, rank=2, diagonal=None)
    with pytest.raises(MismatchError, match=r"written at other weights \(distance"):
        recall(memory, trained.at(trained.weights + 1), data.pick([0]), DECAY, Notes())
    other, _ = problem(3, d=4)
    with pytest.raises(MismatchError, match=r"network with 10 weights, this one has 8"):
        recall(memory, other, data.pick([0]), DECAY, Notes())


def test_what_the_memory_lacks_is_named():
    trained, data = problem(4)
    memory = remember(trained, data, rank=0, diagonal=None)
    with pytest.raises(NeedError, match=r"The memory holds no basis\. Write it anew with `remember\(\.\.\., basis"):
        recall(memory, trained, data.pick([0]), DECAY, Notes())
    with pytest.raises(NeedError, match="The memory holds no diagonal"):
        fisher_after(memory, trained, data.pick([0]))


def test_forgetting_everything_is_refused():
    trained, data = problem(5)
    memory = remember(trained, data, rank=4, diagonal=None)
    with pytest.raises(DataError, match=r"holds 40 rows and the request removes 40: nothing would stay"):
        recall(memory, trained, data, DECAY, Notes())


def test_a_memory_survives_its_file(tmp_path):
    from spotlessnet.store.memories import read_memory, write_memory

    trained, data = problem(6)
    memory = remember(trained, data, rank=3, coreset=5)
    write_memory(tmp_path / "m.safetensors", memory)
    back = read_memory(tmp_path / "m.safetensors")
    for name in ("weights", "gradient", "basis", "values", "diagonal", "gone", "coreset"):
        assert torch.equal(getattr(back, name), getattr(memory, name))
    later = after_request(memory, trained, data.pick(range(3)), trained.weights + 1, ridge=0.25)
    write_memory(tmp_path / "later.safetensors", later)
    read = read_memory(tmp_path / "later.safetensors")
    assert torch.equal(read.taken_at, trained.weights)
    torch.testing.assert_close(read.left_undone, memory.gradient / memory.count)
    assert read.moved is not None
    assert later.moved is not None
    assert torch.equal(read.moved, later.moved)
    for pair in ((back, memory), (read, later)):
        same = [(m.count, m.decay, m.outside, m.error, m.ridge, m.first) for m in pair]
        assert same[0] == same[1]


def test_a_file_that_is_no_memory_is_refused():
    with pytest.raises(DataError, match="must say 'spotlessnet memory 2' in its header, but says None"):
        Memory.from_tensors({}, {})
    text = dict.fromkeys(("count", "decay", "outside", "error", "ridge", "first"), "0")
    text |= {"format": "spotlessnet memory 2", "count": "x"}
    with pytest.raises(DataError, match="lacks weights, gradient"):
        Memory.from_tensors({}, text)
    tensors = {"weights": torch.zeros(1), "gradient": torch.zeros(1)}
    with pytest.raises(DataError, match="header is damaged"):
        Memory.from_tensors(tensors, text)


def classifier(seed: int, rows: int) -> tuple[Trained, Data]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return Trained.of(model), Data.of((torch.randn(rows, 4, dtype=float64), torch.randint(3, (rows,))))


def dense(trained: Trained, data: Data) -> torch.Tensor:
    return GaussNewton(trained, data).multiply(torch.eye(trained.size, dtype=float64))


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 20))
@settings(max_examples=25, deadline=None)
def test_the_cohorts_root_squares_to_its_curvature(seed, rows):
    trained, data = classifier(seed, rows)
    root, dropped = own_root(trained, data, most=trained.size)
    assert root.shape[1] <= min(trained.size, 2 * rows)
    torch.testing.assert_close(root @ root.T, dense(trained, data), rtol=1e-9, atol=1e-9)
    assert dropped < 1e-9


def test_a_cut_root_keeps_the_strongest_directions_and_says_what_it_lost():
    trained, data = classifier(0, 12)
    H = dense(trained, data)
    values, vectors = torch.linalg.eigh(H)
    root, dropped = own_root(trained, data, most=3)
    torch.testing.assert_close(root @ root.T, (vectors[:, -3:] * values[-3:]) @ vectors[:, -3:].T)
    assert dropped == pytest.approx(float(values[:-3].sum() / values.sum()))
    bar = float(values[-5])
    assert own_root(trained, data, most=99, beneath=1.0001 * bar)[0].shape[1] == 4
    assert own_root(trained, data, most=99, beneath=1e9)[0].shape[1] == 1


def test_some_rows_of_a_large_cohort_stand_for_all(monkeypatch):
    monkeypatch.setattr(recalling, "SEEN", 3 * 5)  # five rows of three outputs
    trained, data = classifier(0, 20)
    drawn = torch.randperm(20, generator=torch.Generator().manual_seed(7))[:5].sort().values
    root, _ = own_root(trained, data, most=trained.size, seed=7)
    torch.testing.assert_close(root @ root.T, 20 / 5 * dense(trained, data.pick(drawn)))
