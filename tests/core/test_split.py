"""`Split`: every row on one side, and requests that follow each other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError
from spotlessnet.core.split import Request, Split, joined, rows

N = 12


def numbered(n: int = N, start: int = 0) -> Data:
    x = torch.arange(start, start + n, dtype=torch.float64)[:, None]
    return Data.of((x, torch.arange(start, start + n)), columns={"id": [f"r{i}" for i in range(start, start + n)]})


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, N - 1), min_size=1, max_size=N - 1))
def test_whole_is_kept_and_forgotten_together(chosen):
    split = rows(chosen)(numbered())
    assert split.whole.rows.tolist() == list(range(N))
    assert split.whole.rows[split.forgotten].tolist() == sorted(chosen)
    assert torch.equal(split.whole.rows[~split.forgotten], split.retain.rows)


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(N)), st.integers(1, 4), st.integers(1, 4))
def test_then_never_counts_a_row_twice_and_joint_is_one_request(order, first, second):
    data = numbered()
    a, b = order[:first], order[first - 1 : first + second]
    one = rows(a)(data)
    two = one.next_request(data.select(b))
    assert two.gone is not None
    assert set(two.gone.rows.tolist()) == set(a)
    assert set(two.forget.rows.tolist()) == set(b) - set(a)
    assert set(two.retain.rows.tolist()) == set(range(N)) - set(a) - set(b)
    assert set(two.whole.rows.tolist()) == set(range(N)) - set(a)
    assert two.request.matched == len(two.forget)
    joint = two.joint()
    assert joint.gone is None
    assert set(joint.forget.rows.tolist()) == set(a) | set(b)
    assert torch.equal(joint.retain.rows, two.retain.rows)
    assert set(joint.whole.rows.tolist()) == set(range(N))


def test_three_requests():
    data = numbered()
    split = rows([0])(data).next_request(data.select([1])).next_request(data.select([2, 0]))
    assert split.gone is not None
    assert split.gone.rows.tolist() == [0, 1]
    assert split.forget.rows.tolist() == [2]
    assert split.joint().forget.rows.tolist() == [0, 1, 2]


def test_joint_of_a_first_request_is_itself():
    split = rows([1])(numbered())
    assert split.joint() is split


def test_a_row_on_both_sides_is_refused():
    data = numbered()
    with pytest.raises(DataError, match=r"2 rows are both kept and forgotten\. Each training row must be on one side"):
        Split(forget=data.select([0, 1, 2]), kept=data.select([1, 2, 3]))


def test_sources_that_differ():
    kept, forget = numbered(5), numbered(3, start=100)
    split = Split(forget=forget.select([2, 0]), kept=kept.select([4, 1, 3]))
    assert split.forgotten.tolist() == [False] * 3 + [True] * 2
    assert split.whole.labels().tolist() == [4, 1, 3, 102, 100]
    assert split.whole.column("id") == ["r4", "r1", "r3", "r102", "r100"]
    assert split.whole.fetch(torch.tensor([4, 0, 3, 0])).y.tolist() == [100, 4, 102, 4]
    x = split.whole.fetch(torch.tensor([3, 1])).x
    assert isinstance(x, torch.Tensor)
    assert x.squeeze(1).tolist() == [102, 1]


def test_joined_data_with_named_inputs_and_an_empty_part():
    parts = [Data.of(({"a": torch.full((n, 1), float(n))}, torch.full((n,), n))) for n in (2, 1, 3)]
    data = joined(parts[0], parts[1].select([]), parts[2])
    batch = data.fetch(torch.tensor([4, 1, 2]))
    assert isinstance(batch.x, dict)
    assert batch.x["a"].squeeze(1).tolist() == [3, 2, 3]
    assert batch.y.tolist() == [3, 2, 3]


def test_what_is_missing_is_named():
    split = Split(forget=numbered())
    with pytest.raises(NeedError, match=r"needs the retained data, but the split has none\. Give `kept`, or a method"):
        _ = split.retain
    with pytest.raises(NeedError, match=r"needs test data, but the split has none\. Give `test`"):
        _ = split.tests


def test_without_kept_data_requests_still_follow_each_other():
    data = numbered()
    split = Split(forget=data.select([0, 1])).next_request(data.select([1, 2]))
    assert split.kept is None
    assert split.forget.rows.tolist() == [2]


def test_the_request_tells_counts_only():
    assert str(Request("ids", 3, 1, 2)) == "ids: 3 rows matched, 1 id missing, 2 duplicates"


def test_other_data_is_passed_on():
    train, test, validation, core = (numbered(start=100 * i) for i in range(4))
    split = rows([0])(train, test, validation=validation, core=core)
    assert (split.tests, split.validation, split.core) == (test, validation, core)
