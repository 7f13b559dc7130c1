"""Ten requests in a row: none takes back what an earlier one did; a planted fault is seen to."""

import pytest
import torch
from benchmarks.sequence_shares import shares
from benchmarks.sequences import (
    AS_FAR,
    AT_HAND,
    FOLD_MODELS,
    JOINT,
    LOOKED,
    LOSS,
    METHODS,
    RETRAINED,
    SAMPLE,
    SCORE,
    SERVED,
    SETTINGS,
    every,
    measure,
    networks,
    problem,
    table,
    taken_back,
)

from benchmarks import sequences
from spotlessnet.auditing.rows import Row
from spotlessnet.core.split import rows
from spotlessnet.methods.out_of_fold import drift
from spotlessnet.precomputed.effect import Effect
from spotlessnet.training.fit import fit

MEMORIES = (AT_HAND, SAMPLE)


def found(setting: int, seed: int, *methods: str) -> dict[tuple[str, str], float]:
    return {(row.method, row.readout): row.value for row in measure(SETTINGS[setting], seed, methods)}


@pytest.mark.parametrize(("setting", "seed"), [(1, 2), (4, 1)])
def test_no_request_from_a_memory_takes_back_what_an_earlier_one_did(setting, seed):
    # Of the first, seed 2: with 0 and 1 the guard against near copies refuses the third and the sixth request.
    # Of wrong labels, seed 1: with seed 0 the eighth request is refused, for the fourth one had hardly done anything.
    seen = found(setting, seed, AT_HAND)
    assert seen[AT_HAND, SERVED] == 10
    assert seen[AT_HAND, LOOKED[LOSS]] > 25
    assert seen[AT_HAND, LOSS] == seen[AT_HAND, SCORE] == 0


def test_fold_models_refuse_before_wrong_labels_come_back(monkeypatch):
    """As it was judged once, by rows with their own labels, each request alone, 8 of 28 looks had come back here."""
    seen = found(4, 307, FOLD_MODELS)
    assert seen[FOLD_MODELS, SERVED] >= 1
    assert seen[FOLD_MODELS, LOSS] == 0
    monkeypatch.setattr(drift, "_taken_back", lambda alone, step, effects: alone.taken_back(step, effects))
    monkeypatch.setattr(Effect, "of_all", Effect.of)
    before = found(4, 307, FOLD_MODELS)
    assert before[FOLD_MODELS, LOSS] > 3
    # Where a sequence ends, retraining is counted no further.
    looked = LOOKED[LOSS] + AS_FAR
    assert seen[FOLD_MODELS, looked] < before[FOLD_MODELS, looked]


def test_shares_are_of_all_looks_and_their_intervals_of_whole_sequences():
    def rows_of(seed, taken, looked, theirs):
        values = {LOSS: taken, LOOKED[LOSS]: looked, LOSS + AS_FAR: theirs, LOOKED[LOSS] + AS_FAR: looked}
        return [Row("one", FOLD_MODELS, name, seed, float(value)) for name, value in values.items()]

    text = shares([*rows_of(0, 10, 10, 0), *rows_of(1, 0, 10, 0)], (FOLD_MODELS, AT_HAND), LOOKED, AS_FAR)
    assert "| 10 of 20 | 50.0% (0.0 to 100.0) | 0.0% (0.0 to 0.0) | +50.0 points (0.0 to 100.0) |" in text
    assert len(text.splitlines()) == 3  # of what was not measured nothing is said


def test_what_was_measured_is_not_measured_again(monkeypatch):
    asked: list[tuple[int, int, tuple[str, ...]]] = []

    def one(*job):
        asked.append(job)
        return []

    monkeypatch.setattr(sequences, "one", one)
    known = [Row(SETTINGS[0].name, AT_HAND, SERVED, 5, 10.0)]
    list(every([5, 6], (AT_HAND, SAMPLE), known, 1, float("inf")))
    assert asked[0] == (0, 5, (SAMPLE,))
    assert len(asked) == 14
    assert not list(every([5, 6], (AT_HAND,), known, 1, -1.0))


def test_a_cohort_is_taken_back_if_it_returns_by_half_and_beyond_strangers_if_none_of_them_does():
    strangers = torch.tensor([[4], [5]])
    path = [torch.tensor(p) for p in ([0.0, 0, 0, 0, 3, 3], [2.0, 0, 0, 0, 3, 3], [0.8, 0.01, 5, 5, 3, 2.9])]
    *counts, furthest = taken_back(path, [[0], [1], [2]], strangers)
    assert counts == [1, 1, 1]
    assert furthest == pytest.approx(0.6)
    moved = [*path[:2], torch.tensor([0.8, 0.01, 5, 5, 3, 1.0])]
    assert taken_back(moved, [[0], [1], [2]], strangers)[:3] == (1, 1, 0)
    kept = [*path[:2], torch.tensor([1.1, 0.01, 5, 5, 3, 3.0])]
    assert taken_back(kept, [[0], [1], [2]], strangers)[:3] == (1, 0, 0)
    # What its own request hardly moved has nothing to lose: the second cohort rose by 0.01.
    longer = [*kept, torch.zeros(6)]
    assert taken_back(longer, [[0], [1], [2]], strangers)[:2] == (2, 1)


def test_retraining_is_coupled_and_without_all_rows_gone_so_far():
    start, everything, cohorts = problem(SETTINGS[1], 0)
    data = everything.select(range(SETTINGS[1].rows))
    original = fit(start, data)
    second = list(networks(RETRAINED, original, data, cohorts[:2]))[1]
    kept = data.without(rows(cohorts[0] + cohorts[1])(data).forget)
    assert torch.equal(second.weights, fit(start, kept, order_of=data).weights)


def test_asking_for_everything_again_at_a_raised_damping_is_seen_to_take_back():
    """As requests once were served: the damping that one of them needs was applied to all before it."""
    seen = found(4, 0, JOINT)
    assert seen[JOINT, LOSS] > 5
    assert seen[JOINT, SCORE] > 5


def test_the_table_tells_of_every_method():
    made = list(measure(SETTINGS[0], 0, (AT_HAND,)))
    assert "| linear, squared loss | statistics, all retained examples | 1 | 10 of 10 | 0 of 9 | none | 0 |" in table(
        made
    )
    assert {AT_HAND, RETRAINED} < set(METHODS)


@pytest.mark.slow
def test_a_hundred_sequences():
    """As often as retraining does, and one time in a hundred, a cohort may come back by half."""
    taken, looked = dict.fromkeys((*MEMORIES, RETRAINED), 0.0), dict.fromkeys((*MEMORIES, RETRAINED), 0.0)
    for seed in range(20):
        for setting in range(len(SETTINGS)):
            seen = found(setting, seed, *taken)
            for method in taken:
                taken[method] += seen[method, LOSS]
                looked[method] += seen[method, LOOKED[LOSS]]
    natural = taken[RETRAINED] / looked[RETRAINED]
    for method in MEMORIES:
        assert taken[method] / looked[method] <= natural + 0.01
