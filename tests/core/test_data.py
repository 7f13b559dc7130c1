"""`Data` from everything it says it takes, and what it refuses."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.errors import DataError, MismatchError
from spotlessnet.core.source import Inputs

X, Y = torch.arange(10.0).reshape(5, 2), torch.tensor([0, 1, 2, 1, 0])


def everything(data: Data, size: int = 2) -> tuple[Inputs, Tensor]:
    batches = list(data.batches(size))
    y = torch.cat([batch.y for batch in batches])
    first = batches[0].x
    if isinstance(first, dict):
        return {n: torch.cat([b.x[n] for b in batches if isinstance(b.x, dict)]) for n in first}, y
    return torch.cat([b.x for b in batches if isinstance(b.x, Tensor)]), y


class Rows(Dataset[Any]):
    """A data set that counts how often it is read."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows, self.reads = rows, 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        self.reads += 1
        return self.rows[i]


PAIRS = [(x, int(y)) for x, y in zip(X, Y, strict=True)]


@pytest.mark.parametrize(
    "given_as",
    [
        (X, Y),
        (X.numpy(), Y.numpy()),
        (X.tolist(), Y.tolist()),
        TensorDataset(X, Y),
        Rows(PAIRS),
        PAIRS,
        DataLoader(TensorDataset(X, Y), batch_size=3),
        [{"x": x, "label": y} for x, y in PAIRS],
    ],
    ids=["tensors", "numpy", "lists", "TensorDataset", "Dataset", "pairs", "DataLoader", "dictionaries"],
)
def test_the_same_rows_from_every_form(given_as):
    data = Data.of(given_as)
    x, y = everything(data)
    assert isinstance(x, Tensor)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    assert torch.equal(data.labels(), Y)
    assert len(data) == 5


def test_named_inputs():
    data = Data.of(({"ids": X, "mask": X > 3}, Y))
    x, y = everything(data)
    assert isinstance(x, dict)
    assert torch.equal(x["ids"], X)
    assert torch.equal(x["mask"], X > 3)
    assert torch.equal(y, Y)
    rows = [{"ids": x, "mask": x > 3, "target": y} for x, y in PAIRS]
    again, y = everything(Data.of(rows))
    assert isinstance(again, dict)
    assert torch.equal(again["ids"], X)
    assert torch.equal(y, Y)
    assert set(again) == {"ids", "mask"}


def test_a_pair_whose_input_is_a_dictionary():
    x, _ = everything(Data.of([({"ids": x}, y) for x, y in PAIRS]))
    assert isinstance(x, dict)
    assert torch.equal(x["ids"], X)


def test_label_by_name_and_without():
    rows = [{"x": x, "grade": y} for x, y in PAIRS]
    assert torch.equal(Data.of(rows, label="grade").labels(), Y)
    with pytest.raises(DataError, match=r"Rows are dictionaries with \['grade', 'x'\], but none is the label\. Say"):
        Data.of(rows).labels()
    with pytest.raises(DataError, match="none is the label 'mark'"):
        Data.of(rows, label="mark").labels()


def test_a_loader_that_shuffles_keeps_row_numbers_and_its_collate_function():
    def doubled(rows: list[Any]) -> tuple[Tensor, Tensor]:
        return 2 * torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])

    loader = DataLoader(TensorDataset(X, Y), batch_size=2, shuffle=True, drop_last=True, collate_fn=doubled)
    for _ in range(3):
        x, y = everything(Data.of(loader))
        assert isinstance(x, Tensor)
        assert torch.equal(x, 2 * X)
        assert torch.equal(y, Y)


def test_only_rows_that_are_asked_for_are_read():
    source = Rows(PAIRS)
    data = Data.of(source)
    assert source.reads == 0
    next(data.select([3, 1]).batches(1))
    assert source.reads == 1


def test_data_of_data_is_itself():
    data = Data.of((X, Y))
    assert Data.of(data) is data
    assert repr(data.select([1])) == "Data(1 of 5 rows)"


class Endless(IterableDataset[Any]):
    def __iter__(self):
        yield X[0], 0


@pytest.mark.parametrize("given_as", [Endless(), DataLoader(Endless())], ids=["dataset", "loader"])
def test_iterable_data_is_refused(given_as):
    with pytest.raises(DataError, match=r"can only be iterated\. Give a map-style Dataset"):
        Data.of(given_as)


@pytest.mark.parametrize("given_as", [5, None, [], "abc", b"ab", {"a": [1]}, {1, 2}])
def test_other_things_are_refused(given_as):
    with pytest.raises(DataError, match="Data must be a pair of arrays, a Dataset, a DataLoader or a Hugging Face"):
        Data.of(given_as)


@pytest.mark.parametrize("pair", [(X, Y[:3]), ({"a": X, "b": X[:2]}, Y), (X, torch.tensor(1.0)), (torch.tensor(1), Y)])
def test_lengths_must_agree(pair):
    with pytest.raises(MismatchError, match=r"same number of rows, but have the shapes .*Give one label for each"):
        Data.of(pair)


def test_ragged_and_textual_inputs_are_refused():
    with pytest.raises(DataError, match="must be numbers of one shape"):
        Data.of(([[1], [1, 2]], [0, 1]))
    with pytest.raises(DataError, match="must be numbers of one shape"):
        Data.of((["a", "b"], [0, 1]))
    with pytest.raises(DataError, match=r"\(input, label\).* or a dictionary with a label, .* are a Tensor\. Wrap"):
        next(Data.of([1, 2, 3]).batches())


@pytest.mark.parametrize(
    "names", [[f"{name}@example.org" for name in "abcde"], list(range(7, 12))], ids=["text", "numbers"]
)
def test_rows_may_bring_their_ids(names):
    """A newcomer's data set gave input, label and e-mail address, and was refused as "list"."""
    data = Data.of(Rows([(x, y, name) for (x, y), name in zip(PAIRS, names, strict=True)]))
    x, y = everything(data)
    assert isinstance(x, Tensor)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    assert data.select([4, 0]).column("id") == [names[4], names[0]]
    with pytest.raises(DataError, match="no column 'person'"):
        data.column("person")
    named = Data.of(Rows([{"x": x, "y": y, "person": str(name)} for (x, y), name in zip(PAIRS, names, strict=True)]))
    x, _ = everything(named)
    assert isinstance(x, Tensor)
    assert torch.equal(x, X)
    assert named.column("person") == [str(name) for name in names]


@pytest.mark.parametrize("third", [0.5, True, torch.zeros(2)], ids=["weight", "truth", "vector"])
def test_what_else_stands_third_is_refused(third):
    with pytest.raises(DataError, match=r"put together are a list of 3 entries\. Wrap the data set"):
        next(Data.of(Rows([(x, y, third) for x, y in PAIRS])).batches())


def test_columns():
    data = Data.of((X, Y), columns={"person": list("abcde")})
    assert data.select([4, 0]).column("person") == ["e", "a"]
    with pytest.raises(DataError, match=r"no column 'id' \(columns given: person\)\. Pass it, one entry per row"):
        data.column("id")
    with pytest.raises(DataError, match="columns given: none"):
        Data.of(PAIRS).column("id")
    with pytest.raises(MismatchError, match="Column 'id' has 2 entries for 5 rows"):
        Data.of((X, Y), columns={"id": [1, 2]})


def test_views_join_and_subtract():
    data = Data.of((X, Y))
    a, b = data.select([0, 1, 2]), data.select([2, 4])
    assert a.without(b).rows.tolist() == [0, 1]
    assert b.join(a).rows.tolist() == [0, 1, 2, 4]
    assert b.select([1]).rows.tolist() == [4]
    assert [batch.rows.tolist() for batch in data.select([]).batches()] == []
    assert data.select([]).labels().shape == (0,)
    assert Data.of(PAIRS).select([]).labels().shape == (0,)
    with pytest.raises(MismatchError, match=r"only when they look at the same source\. Pick both from one `Data`"):
        a.join(Data.of((X, Y)))


def test_fetch_keeps_the_order_asked_for():
    batch = Data.of((X, Y)).fetch(torch.tensor([4, 0, 4]))
    assert isinstance(batch, Batch)
    assert torch.equal(batch.y, Y[[4, 0, 4]])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 19), unique=True, min_size=1), st.lists(st.integers(0, 19), min_size=1))
def test_relabelled_rows_change_and_others_do_not(changed, asked):
    x, y = torch.zeros(20, 1), torch.arange(20)
    data = Data.of((x, y))
    new = data.select(changed).relabel(100 + torch.arange(len(changed)))
    expected = y.clone()
    expected[torch.tensor(changed)] = 100 + torch.arange(len(changed))
    assert torch.equal(new.fetch(torch.tensor(asked)).y, expected[torch.tensor(asked)])
    assert torch.equal(new.labels(), expected[torch.tensor(changed)])
    assert torch.equal(data.labels(), y)


def test_new_labels_may_be_soft_and_come_with_columns():
    data = Data.of(PAIRS, columns={"id": list("abcde")}).select([1, 3])
    soft = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    assert torch.equal(data.relabel(soft).labels(), soft)
    assert data.relabel(soft).column("id") == ["b", "d"]
    with pytest.raises(MismatchError, match="Relabelling 2 rows needs 2 labels, but got 1"):
        data.relabel(soft[:1])


def test_many_batches_of_relabelled_rows_are_quick():
    n = 200_000
    data = Data.of((torch.zeros(n, 1), torch.zeros(n, dtype=torch.long)))
    new = data.relabel(torch.ones(n, dtype=torch.long))
    began = time.monotonic()
    assert sum(int(batch.y.sum()) for batch in new.batches(1000)) == n
    assert time.monotonic() - began < 5


def test_numpy_rows_of_a_dataset():
    rows = [(np.full(2, i, np.float32), i % 2) for i in range(4)]
    x, y = everything(Data.of(rows))
    assert isinstance(x, Tensor)
    assert x[:, 0].tolist() == [0, 1, 2, 3]
    assert y.tolist() == [0, 1, 0, 1]


def test_tables_of_pandas_are_read_in_their_order():
    """The fault before: `columns` found ids by label, so after shuffling another person's row went."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [0.0, 1.0, 2.0], "y": [0, 1, 1], "id": ["ann", "bob", "cem"]}).iloc[[2, 0, 1]]
    data = Data.of((table[["a"]], table["y"]), columns={"id": table["id"]})
    x, y = everything(data)
    assert isinstance(x, Tensor)
    assert (x.tolist(), y.tolist()) == ([[2.0], [0.0], [1.0]], [1, 0, 1])
    assert data.column("id") == ["cem", "ann", "bob"]
    assert data.select([1]).column("id") == ["ann"]


def test_text_in_a_table_is_refused():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match="must be numbers of one shape"):
        Data.of((pandas.DataFrame({"a": ["x", "y"]}), [0, 1]))
