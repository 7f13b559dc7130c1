"""Digests of rows tell every change, and copies are found whatever their label."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlessnet.core.data import Data, contents_of
from spotlessnet.core.row_keys import RowKeys

X = torch.arange(12.0).reshape(6, 2)
Y = torch.arange(6) % 3


def test_every_change_of_a_row_changes_the_digest():
    def changed(x=X, y=Y):
        return contents_of(Data.of((x, y))).sha256

    other, label = X.clone(), Y.clone()
    other[3, 1] += 1e-6
    label[3] = 2
    flipped = torch.tensor([1, 0, 2, 3, 4, 5])
    every = [
        changed(),
        changed(other),
        changed(y=label),
        changed(X[flipped], Y[flipped]),
        changed(X.double()),
        changed(X.reshape(6, 1, 2)),
        changed(X[:5], Y[:5]),
        changed(y=Y.float()),
    ]
    assert len(set(every)) == len(every)
    assert changed(X.clone()) == changed()


def test_rows_of_several_inputs_and_batches_are_read_whole():
    x = {"b": torch.zeros(600, 2), "a": torch.arange(600)}
    data = Data.of((x, torch.zeros(600, dtype=torch.long)))
    assert contents_of(data, data.select([5])).copies == 0
    x["a"][599] = 5
    assert contents_of(data, data.select([5])).copies == 1


@given(values=st.lists(st.integers(0, 4), min_size=1, max_size=12), data=st.data())
@settings(max_examples=40, deadline=None)
def test_copies_are_those_that_a_plain_comparison_finds(values, data):
    gone = data.draw(st.sets(st.integers(0, len(values) - 1)))
    x = torch.tensor(values, dtype=torch.float32).unsqueeze(1)
    rows = Data.of((x, torch.randint(3, (len(values),), generator=torch.Generator().manual_seed(0))))
    wanted = sum(i not in gone and any(values[i] == values[j] for j in gone) for i in range(len(values)))
    assert contents_of(rows, rows.select(sorted(gone))).copies == wanted


def test_minus_zero_is_zero():
    """A copy of a row whose zeros have another sign is the same row."""
    x = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    y = torch.zeros(3, 1)
    y[1] = -0.0
    data = Data.of((x, y))
    assert contents_of(data, data.select([0])).copies == 1
    assert contents_of(data.select([0])).sha256 == contents_of(data.select([1])).sha256
    keys = RowKeys.of(data)
    assert keys.find(data)[0] == keys.find(data)[1] != keys.find(data)[2]
    assert x[1, 0].signbit()  # the rows themselves are left as they are


def test_digests_in_files_of_earlier_versions_still_match():
    """Receipts and precomputed files hold these; the values are from before the two digests shared a file."""
    data = Data.of(({"b": X[:3], "a": -torch.zeros(3, 1)}, torch.tensor([1, 2, 0])))
    assert contents_of(data).sha256 == "6a9bcedbdaa0c70dc6d0d369ed99610d59185d44fc2067a3a31acedce73483c2"
    keys = RowKeys.of(data, b"salt").digests.numpy().tobytes().hex()
    assert keys == ("39b603ce3e0d3659bebb6c2364e35a797538dc152cd37c1ce8a67a6158ed825ee078e3848f3f907a62c599cadeab15a3")
