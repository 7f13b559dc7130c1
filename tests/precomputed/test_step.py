"""Requests served from statistics, against retraining where retraining has a closed form."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, NeedError, SettingError
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.row_keys import next_salt
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import NTK, Fisher, Newton
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.jacobian import Jacobian
from spotlessnet.precomputed.after_request import after_request
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.precomputed.step import faithful_step, fisher_after, step_from_statistics
from spotlessnet.training.fit import fit

DECAY = 0.1


def problem(seed: int, n: int = 40, d: int = 5, c: int = 2) -> tuple[Trained, Data]:
    """A linear network fitted to all rows, to the optimum."""
    torch.manual_seed(seed)
    data = Data.of((torch.randn(n, d, dtype=float64), torch.randn(n, c, dtype=float64)))
    model = nn.Linear(d, c, bias=False).double()
    start = torch.randn(d * c, dtype=float64)
    trained = Trained.of(model, SquaredError(), weight_decay=DECAY, init=start)
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
@settings(max_examples=40, deadline=None)
def test_a_request_from_statistics_is_retraining_where_the_model_is_linear(seed, k):
    trained, data = problem(seed)
    statistics = precompute(trained, data, rank=trained.size, diagonal=None)
    forget = data.select(range(k))
    found = step_from_statistics(statistics, trained, forget, DECAY, Notes())
    retrained = ridge(trained, data.without(forget))
    torch.testing.assert_close(trained.weights + found.step, retrained, rtol=0, atol=1e-8)


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_two_requests_in_a_row_are_one_joint_request(seed, a, b):
    trained, data = problem(seed)
    statistics = precompute(trained, data, rank=trained.size, diagonal="exact")
    A, B = data.select(range(a)), data.select(range(a, a + b))
    first = trained.at(trained.weights + step_from_statistics(statistics, trained, A, DECAY, Notes()).step)
    statistics = after_request(statistics, trained, A, first.weights, retain=data.without(A))
    second = first.weights + step_from_statistics(statistics, first, B, DECAY, Notes()).step
    torch.testing.assert_close(second, ridge(trained, data.without(A.join(B))), rtol=0, atol=1e-7)


def every(statistics: Statistics) -> dict[str, object]:
    """All that is in statistics, by name; eigenvectors as the matrix that they make up."""
    tensors, text = statistics.tensors()
    told = {name: value for name, value in text.items() if name not in ("trained_on", "after_requests")}
    return {**tensors, **told}


@given(st.integers(0, 10_000))
@settings(max_examples=12, deadline=None)
def test_with_the_retained_rows_they_are_bit_for_bit_those_without_the_rows(seed):
    trained, data = curved(seed)
    statistics = precompute(trained, data, rank=8, coreset=9, sample=30, seed=seed)
    forget = data.select([3, 8, 20])
    kept = data.without(forget)
    moved = trained.weights + 0.1 * torch.randn_like(trained.weights)  # any weights, noise included
    after = every(after_request(statistics, trained, forget, moved, retain=kept, salt=b"new"))
    afresh = every(precompute(trained.at(moved), kept, rank=8, coreset=9, sample=30, seed=seed, salt=b"new"))
    assert after.keys() == afresh.keys()
    for name, value in afresh.items():
        found = after[name]
        if isinstance(value, torch.Tensor) and isinstance(found, torch.Tensor):
            assert torch.equal(found, value), name
        else:
            assert found == value, name


def test_all_statistics_have_a_salt_of_their_own():
    """Under one salt, whoever kept the statistics before would see in the new ones which keys are gone."""
    trained, data = problem(4, n=200)
    statistics = precompute(trained, data, rank=4, diagonal=None)
    forget, rest = data.select(range(6)), data.select(range(6, 200))
    twice = [after_request(statistics, trained, forget, trained.weights, retain=rest) for _ in range(2)]
    assert len({m.keys.salt for m in (statistics, *twice)}) == 3
    for after in twice:
        assert (len(after.keys), after.keys.count_unknown(rest)) == (len(rest), 0)
        assert not set(after.keys.listed) & set(statistics.keys.listed)
    # Keys of rows that are not at hand cannot be made anew.
    some = after_request(statistics, trained, forget, trained.weights, retain=data.select(range(6, 120)))
    assert some.keys.salt == statistics.keys.salt
    assert (len(some.keys), some.keys.count_unknown(rest)) == (len(rest), 0)
    old = statistics.keys.salt
    assert next_salt(old, 3) == next_salt(old, 3) != next_salt(old, 4) != old


def test_some_of_the_retained_rows_stand_for_all():
    trained, data = problem(4, n=400)
    statistics = precompute(trained, data, rank=trained.size, diagonal="exact", kronecker=False)
    forget, some = data.select(range(6)), data.select(range(100, 300))
    after = after_request(statistics, trained, forget, trained.weights, retain=some)
    afresh = precompute(trained, some, rank=trained.size, diagonal="exact")
    assert after.count == 394
    assert len(after.keys) == len(data.without(forget))
    assert after.keys.count_unknown(data.without(forget)) == 0
    for name in ("gradient", "values", "diagonal"):
        torch.testing.assert_close(after.need(name), 394 / 200 * afresh.need(name))


def test_statistics_are_written_anew_from_rows_that_stay_alone():
    trained, data = problem(1)
    statistics = precompute(trained, data, rank=4, diagonal=None)
    for other in (data, data.select(range(5, 40)), data.without(data.select([1])), data.select([])):
        with pytest.raises(MismatchError, match=r"hold 39 rows beside those of the request, .* but \d+ rows were"):
            after_request(statistics, trained, data.select([0]), trained.weights, retain=other)


def dense(trained: Trained, data: Data) -> torch.Tensor:
    return GaussNewton(trained, data).multiply(torch.eye(trained.size, dtype=float64))


def curved(seed: int, weight_decay: float = DECAY) -> tuple[Trained, Data]:
    """A small network that is not linear, trained for a while; two of its labels are wrong."""
    torch.manual_seed(seed)
    x = torch.randn(60, 4, dtype=float64)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    y[:10] = (y[:10] + 1) % 3
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    recipe = Recipe(epochs=60, lr=0.1, batch_size=20, weight_decay=weight_decay)
    trained = Trained.of(model, recipe=recipe)
    data = Data.of((x, y))
    return fit(replace(trained, init=trained.weights), data), data


@given(st.integers(0, 10_000), st.sampled_from(["exact", "more damping"]))
@settings(max_examples=12, deadline=None)
def test_a_later_request_asks_for_its_own_rows_alone(seed, kind):
    """Whatever the first request did, and with whatever damping, is never asked for again, nor taken back."""
    trained, data = curved(seed)
    A, B = data.select(range(5)), data.select(range(5, 9))
    statistics = precompute(trained, data, rank=trained.size, diagonal=None)
    noise = 0.1 * torch.randn_like(trained.weights)
    first = trained.at(trained.weights + step_from_statistics(statistics, trained, A, DECAY, Notes()).step + noise)
    statistics = after_request(statistics, trained, A, first.weights, retain=data.without(A))
    later = DECAY if kind == "exact" else 50 * DECAY
    found = step_from_statistics(statistics, first, B, later, Notes()).step
    rest, k = data.without(A), len(B)
    H = dense(first, rest.without(B)) + (len(rest) - k) * later * torch.eye(first.size, dtype=float64)
    b = gradient(first, B) - k / len(rest) * gradient(first, rest)
    torch.testing.assert_close(found, torch.linalg.solve(H, b), rtol=1e-6, atol=1e-8)


def test_the_damping_rises_until_the_network_follows_on_the_rows_that_must_go():
    trained, data = curved(1, weight_decay=1e-4)
    statistics = precompute(trained, data, rank=trained.size, diagonal=None)
    forget, notes = data.select(range(10)), Notes()
    found = faithful_step(statistics, trained, forget, 1e-4, notes)
    wild = step_from_statistics(statistics, trained, forget, 1e-4, Notes())
    J, before = Jacobian(trained, forget), trained.predict(forget)
    for step, least, most in ((found.step, 0.0, 0.2), (wild.step, 0.2, 1e9)):
        linear = J.multiply(step)
        drift = (trained.at(trained.weights + step).predict(forget) - before - linear).norm() / linear.norm()
        assert least <= float(drift) <= most
    assert notes.facts["statistics_ridge"] == 1e-4 + notes.facts["damping"] > 1e-4
    assert notes.facts["retrain_now"] is False


def test_a_linear_network_needs_no_damping():
    trained, data = problem(11)
    statistics = precompute(trained, data, rank=trained.size, diagonal=None)
    notes = Notes()
    found = faithful_step(statistics, trained, data.select(range(5)), DECAY, notes)
    assert notes.facts["damping"] == 0
    torch.testing.assert_close(trained.weights + found.step, ridge(trained, data.without(data.select(range(5)))))


@pytest.mark.parametrize("method", [NTK, lambda **own: NTK(damping=1e-4, **own), Newton])
def test_every_step_from_statistics_says_when_it_is_time_to_retrain(method):
    """Newton and a fixed damping once said nothing, whatever became of the network."""
    trained, data = problem(2)
    statistics = precompute(trained, data, rank=trained.size, diagonal=None)
    for count, worn in ((4, False), (12, True)):
        found = method(statistics=statistics)(trained, Split(forget=data.select(range(count)))).diagnostics
        assert (found["retrain_now"], found["gone"]) == (worn, count / 40)
    assert "30% of the rows that the network was trained on are gone" in found["assumed"][-1]


@pytest.mark.parametrize("method", [lambda **own: NTK(damping=0.0, **own), Newton])
def test_a_step_that_the_network_does_not_follow_is_no_step(method):
    trained, data = curved(1, weight_decay=1e-4)
    statistics = precompute(trained, data, rank=trained.size, diagonal=None)
    found = method(statistics=statistics)(trained, Split(forget=data.select(range(10)))).diagnostics
    assert found["drift"] > 0.2
    assert found["retrain_now"] is True
    assert "from the linear picture of the statistics" in found["assumed"][-1]


def test_a_network_that_lost_many_rows_must_be_retrained_though_its_statistics_are_new():
    trained, data = problem(2)
    statistics = precompute(trained, data, rank=trained.size, diagonal=None)
    told = []
    for i in range(3):
        forget, notes = data.select(range(4 * i, 4 * i + 4)), Notes()
        rest = data.select(range(4 * i + 4, 40))
        faithful_step(statistics, trained, forget, DECAY, notes, retain=rest)
        told.append((notes.facts["gone"], notes.facts["retrain_now"]))
        statistics = after_request(statistics, trained, forget, trained.weights, retain=rest)
    assert told == [(0.1, False), (0.2, False), (0.3, True)]
    assert "30% of the rows that the network was trained on are gone" in notes.assumed[-1]


@pytest.mark.parametrize("method", [Newton, NTK])
def test_newton_and_ntk_work_from_the_forgotten_rows_alone(method):
    trained, data = problem(7)
    forget = data.select(range(5))
    alone = Split(forget=forget)  # no retained row is at hand
    statistics = precompute(trained, data, rank=trained.size, diagonal="exact")
    found = method(statistics=statistics)(trained, alone)
    torch.testing.assert_close(found.mean, ridge(trained, data.without(forget)), rtol=0, atol=1e-8)
    assert found.diagnostics["statistics_rank"] == trained.size


def test_fisher_and_newton_noise_from_statistics_is_that_of_the_retained_rows():
    trained, data = problem(8)
    forget = data.select(range(5))
    statistics = precompute(trained, data, rank=trained.size, diagonal="exact")
    alone, full = Split(forget=forget), Split(forget=forget, kept=data.without(forget))
    for from_statistics, from_rows in (
        (Fisher(strength=1e-8, statistics=statistics), Fisher(strength=1e-8)),
        (Newton(strength=1e-8, statistics=statistics), Newton(strength=1e-8)),
    ):
        # Gauss-Newton of a linear network does not depend on the weights, so the two must agree after the step too.
        noise, expected = from_statistics(trained, alone).covariance, from_rows(trained, full).covariance
        torch.testing.assert_close(noise.diagonal(), expected.diagonal(), rtol=1e-6, atol=0)


def test_what_statistics_cannot_serve_is_refused():
    trained, data = problem(9)
    statistics = precompute(trained, data, rank=2, diagonal=None)
    with pytest.raises(SettingError, match=r"`Newton.statistics` know neither `time` nor `keep_residual=False`"):
        Newton(statistics=statistics, time=1.0)
    with pytest.raises(SettingError, match=r"`NTK.statistics` hold the loss's own curvature"):
        NTK(statistics=statistics, output="identity")


def test_rows_forgotten_before_and_rows_that_were_never_there_are_refused():
    trained, data = problem(0)
    statistics = precompute(trained, data, rank=trained.size, diagonal="exact")
    forget = data.select(range(4))
    statistics = after_request(statistics, trained, forget, trained.weights, retain=data.without(forget))
    wrong = r"4 of 5 rows are not among the 36 rows of the statistics: they were forgotten before, their contents have"
    for ask in (
        lambda rows: step_from_statistics(statistics, trained, rows, DECAY, Notes()),
        lambda rows: fisher_after(statistics, trained, rows),
        lambda rows: after_request(statistics, trained, rows, trained.weights, retain=data.without(rows)),
    ):
        with pytest.raises(MismatchError, match=wrong):
            ask(data.select(range(5)))
    changed = data.select([7]).relabel(torch.zeros(1, 2, dtype=float64))
    with pytest.raises(MismatchError, match="1 of 1 rows are not among the 36"):
        step_from_statistics(statistics, trained, changed, DECAY, Notes())


def test_rows_are_found_wherever_they_stand():
    trained, data = problem(0)
    statistics = precompute(trained, data, rank=trained.size, diagonal="exact")
    batch = next(iter(data.batches(40)))
    turned = Data.of((torch.flip(batch.x, [0]), batch.y.flip(0)))  # type: ignore[arg-type]  # one tensor
    steps = [
        step_from_statistics(statistics, trained, rows, DECAY, Notes()).step
        for rows in (data.select([3, 5]), turned.select([36, 34]))
    ]
    torch.testing.assert_close(*steps)


def test_a_rank_that_is_too_small_is_worse_but_still_helps():
    trained, data = problem(1, n=60, d=12, c=1)
    forget = data.select(range(10))
    goal = ridge(trained, data.without(forget))
    gaps = []
    for rank in (4, 12):
        statistics = precompute(trained, data, rank=rank, diagonal=None)
        found = step_from_statistics(statistics, trained, forget, DECAY, Notes())
        gaps.append(float((trained.weights + found.step - goal).norm() / (trained.weights - goal).norm()))
    assert gaps[1] < 1e-7 < gaps[0] < 1


def test_a_sample_scales_curvature_but_never_the_gradient():
    trained, data = problem(2)
    statistics = precompute(trained, data, rank=trained.size, sample=20, diagonal="exact")
    torch.testing.assert_close(statistics.gradient, gradient(trained, data))
    assert statistics.values is not None
    full = precompute(trained, data, rank=trained.size, diagonal=None).values
    assert full is not None
    assert 0.5 < float(statistics.values.sum() / full.sum()) < 2


def test_statistics_of_another_network_are_refused():
    trained, data = problem(3)
    statistics = precompute(trained, data, rank=2, diagonal=None)
    with pytest.raises(MismatchError, match=r"written at other weights \(distance"):
        step_from_statistics(statistics, trained.at(trained.weights + 1), data.select([0]), DECAY, Notes())
    other, _ = problem(3, d=4)
    with pytest.raises(MismatchError, match=r"network with 10 weights, this one has 8"):
        step_from_statistics(statistics, other, data.select([0]), DECAY, Notes())


def test_what_statistics_lack_is_named():
    trained, data = problem(4)
    statistics = precompute(trained, data, rank=0, diagonal=None)
    with pytest.raises(
        NeedError, match=r"The statistics hold no basis\. Write them anew with `precompute\(\.\.\., basis"
    ):
        step_from_statistics(statistics, trained, data.select([0]), DECAY, Notes())
    with pytest.raises(NeedError, match="The statistics hold no diagonal"):
        fisher_after(statistics, trained, data.select([0]))


def test_forgetting_everything_is_refused():
    trained, data = problem(5)
    statistics = precompute(trained, data, rank=4, diagonal=None)
    with pytest.raises(DataError, match=r"hold 40 rows and the request removes 40: nothing would stay"):
        step_from_statistics(statistics, trained, data, DECAY, Notes())


def test_statistics_survive_their_file(tmp_path):
    from spotlessnet.precomputed.statistics_files import read_statistics, write_statistics

    trained, data = problem(6)
    statistics = precompute(trained, data, rank=3, coreset=5)
    write_statistics(tmp_path / "m.safetensors", statistics)
    back = read_statistics(tmp_path / "m.safetensors")
    for name in ("weights", "gradient", "basis", "values", "diagonal", "coreset"):
        assert torch.equal(getattr(back, name), getattr(statistics, name))
    assert torch.equal(back.keys.digests, statistics.keys.digests)
    later = after_request(
        statistics, trained, data.select(range(3)), trained.weights + 1, retain=data.select(range(3, 40))
    )
    write_statistics(tmp_path / "later.safetensors", later)
    read = read_statistics(tmp_path / "later.safetensors")
    for a, b in ((back, statistics), (read, later)):
        numbers = [(m.count, m.weight_decay, m.outside, m.error, m.trained_on, m.written, m.keys.salt) for m in (a, b)]
        assert numbers[0] == numbers[1]
    assert (read.count, read.trained_on) == (37, 40)


def test_a_file_that_holds_no_statistics_is_refused():
    with pytest.raises(DataError, match="must say 'spotlessnet statistics 4' in their header, but say None"):
        Statistics.from_tensors({}, {})
    old = {"format": "spotlessnet memory 2"}
    with pytest.raises(
        DataError, match=r"but say 'spotlessnet memory 2'. Statistics of earlier formats held what their"
    ):
        Statistics.from_tensors({}, old)
    tensors, text = precompute(*problem(6), rank=3).tensors()
    for before in ("spotlessnet memory 3", "spotlessnet statistics 3"):  # these kept numbers of every request
        with pytest.raises(DataError, match="Statistics of earlier formats held what their requests had removed"):
            Statistics.from_tensors(tensors, {**text, "format": before})
    with pytest.raises(DataError, match="lack weights, gradient, keys"):
        Statistics.from_tensors({}, text)
    for spoilt in (
        {"weight_decay": "x"},
        {"salt": "zz"},
        {"written": "[]"},
        {"written": '{"lr_scale": 1}'},
        {"trained_on": ""},
    ):
        with pytest.raises(DataError, match="header is damaged"):
            Statistics.from_tensors(tensors, text | spoilt)
    # A version before wrote such files, in whose directions the rows of the last request stood.
    with pytest.raises(DataError, match=r"written anew from retained rows after every request, .* Destroy them"):
        Statistics.from_tensors(tensors, text | {"since": "1"})
    with pytest.raises(DataError, match=r"header is damaged \(its keys have another shape"):
        Statistics.from_tensors(tensors | {"keys": tensors["keys"][0]}, text)
