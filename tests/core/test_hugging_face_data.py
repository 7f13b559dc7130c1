"""`Data` from the real `datasets` package."""

import pytest
import torch

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError
from spotlessnet.core.split import ids, where, whole_class

datasets = pytest.importorskip("datasets")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def table():
    return datasets.Dataset.from_dict(
        {
            "id": ["a", "b", "c", "d"],
            "text": ["one", "three", "two", ""],
            "input_ids": [[1, 2], [3, 4], [5, 6], [7, 8]],
            "label": [0, 1, 0, 1],
        }
    )


def test_numbers_become_inputs_and_text_can_be_selected_by(table):
    data = Data.of(table)
    batch = next(data.batches(3))
    assert isinstance(batch.x, dict)
    assert set(batch.x) == {"input_ids"}
    assert batch.x["input_ids"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch.y.tolist() == [0, 1, 0]
    assert data.labels().tolist() == [0, 1, 0, 1]
    assert data.select([3, 1]).labels().tolist() == [1, 1]
    assert data.column("text") == ["one", "three", "two", ""]


def test_cohorts_of_a_hugging_face_data_set(table):
    assert ids(["c", "a"])(table).forget.rows.tolist() == [0, 2]
    assert where("text", "two")(table).forget.rows.tolist() == [2]
    assert whole_class(1)(table).forget.rows.tolist() == [1, 3]


def test_other_formats_and_selections_change_nothing(table):
    for form in (table.with_format("torch"), table.select([0, 1, 2, 3]), table.with_format("numpy")):
        assert torch.equal(next(Data.of(form).batches()).y, torch.tensor([0, 1, 0, 1]))
        assert Data.of(form).column("id") == ["a", "b", "c", "d"]


def test_another_label_by_name(table):
    renamed = table.rename_column("label", "grade")
    assert Data.of(renamed, label="grade").labels().tolist() == [0, 1, 0, 1]
    with pytest.raises(DataError, match=r"but none is the label\. Say which"):
        Data.of(renamed).labels()


def test_one_named_x_is_given_alone():
    table = datasets.Dataset.from_dict({"x": [[[1.0, 2.0]], [[3.0, 4.0]]], "y": [0, 1]})
    x = next(Data.of(table).batches()).x
    assert isinstance(x, torch.Tensor)
    assert x.shape == (2, 1, 2)


def test_several_splits_and_streams_are_refused(table):
    with pytest.raises(
        DataError, match=r"several data sets \(train\)\. Choose one of them, such as `dataset\['train'\]`"
    ):
        Data.of(datasets.DatasetDict(train=table))
    with pytest.raises(DataError, match="can only be iterated"):
        Data.of(table.to_iterable_dataset())


def test_ragged_columns_are_refused():
    table = datasets.Dataset.from_dict({"tokens": [[1], [1, 2]], "label": [0, 1]})
    with pytest.raises(DataError, match=r"Entries of column 'tokens' must have one shape, but have 2\. Pad them"):
        next(Data.of(table).batches())


def test_columns_of_nothing_are_refused():
    table = datasets.Dataset.from_dict({"x": [1.0, 2.0], "words": [["a", "b"], ["c", "d"]], "label": [0, 1]})
    with pytest.raises(DataError, match="must be numbers of one shape"):
        next(Data.of(table).batches())
