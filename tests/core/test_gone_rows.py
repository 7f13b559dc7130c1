"""Rows that were forgotten are known again in whatever number format and shape they come back."""

import numpy as np
import pytest
import torch

from spotlessnet.core.data import FORMATS, Data, GoneRows, count_left, format_of, value_digests

SALT = b"s" * 32


def rows(dtype=torch.float32, count=12):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, 4, 6, generator=draw, dtype=torch.float64)
    return x.to(dtype), torch.arange(count) % 3


def gone(x, y, which=(2, 5)):
    data = Data.of((x, y))
    forget = data.select(list(which))
    return GoneRows.of(forget, data.without(forget), SALT)


@pytest.mark.parametrize("first", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("later", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_number_format_hides_no_row(first, later):
    (x, y), (z, _) = rows(first), rows(later)
    if {first, later} == {torch.float16, torch.bfloat16}:
        z = x.to(later)  # the one cannot be had from what the other has lost
    assert count_left(Data.of((z, y)), [gone(x, y)]) == [2]
    stay = [i for i in range(len(y)) if i not in (2, 5)]
    assert count_left(Data.of((z[stay], y[stay])), [gone(x, y)]) == [0]


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: (x.flatten(1), y),
        lambda x, y: (x[:, None], y),
        lambda x, y: (x.transpose(1, 2).contiguous().transpose(1, 2), y),
        lambda x, y: (x, y.float()),
        lambda x, y: (x, y.to(torch.int8)),
        lambda x, y: (x, y[:, None]),
        lambda x, y: (x.flip(0), y.flip(0)),
        lambda x, y: (x.numpy(), y.numpy()),
        lambda x, y: (np.asfortranarray(x.numpy()), y.numpy().astype(">i4").astype(np.int32)),
        lambda x, y: ({"pixels": x}, y),
        lambda x, y: (torch.where(x == 0, -x, x), y),
    ],
)
def test_a_shape_hides_no_row(form):
    x, y = rows()
    x[5, 0] = 0
    assert count_left(Data.of(form(x, y)), [gone(x, y)]) == [2]


def test_whole_numbers_are_the_same_numbers():
    x = torch.arange(48).reshape(12, 4)
    y = torch.arange(12) % 3
    for kind in (torch.float32, torch.float64, torch.int32, torch.uint8):
        assert count_left(Data.of((x.to(kind), y)), [gone(x, y)]) == [2]


def test_other_rows_are_not_taken_for_them():
    x, y = rows()
    known = gone(x, y)
    assert count_left(Data.of((x + 1e-3, y)), [known]) == [0]
    assert count_left(Data.of((x, (y + 1) % 3)), [known]) == [0]
    assert count_left(Data.of((x[:0], y[:0])), [known]) == [0]
    # Two inputs under two names are not the same row the other way round.
    a, b = x[:, 0], x[:, 1]
    told = gone({"a": a, "b": b}, y)
    assert count_left(Data.of(({"a": a, "b": b}, y)), [told]) == [2]
    assert count_left(Data.of(({"a": b, "b": a}, y)), [told]) == [0]
    # Nor is a number that went from the inputs to the label, or from one input to the next.
    one = {
        value_digests(Data.of(pair), "float32")[0]
        for pair in (
            (torch.ones(1, 2), torch.ones(1, 1)),
            (torch.ones(1, 1), torch.ones(1, 2)),
            ({"a": torch.ones(1, 2), "b": torch.ones(1, 1)}, torch.ones(1, 1)),
            ({"a": torch.ones(1, 1), "b": torch.ones(1, 2)}, torch.ones(1, 1)),
        )
    }
    assert len(one) == 4


def test_copies_that_had_stayed_do_not_count():
    x, y = rows()
    x[7], y[7] = x[2], y[2]
    known = gone(x, y)
    assert sorted(known.digests[known.called].values())[-1] == 1
    stay = [i for i in range(len(y)) if i not in (2, 5)]
    assert count_left(Data.of((x[stay].double(), y[stay])), [known]) == [0]
    assert count_left(Data.of((x.double(), y)), [known]) == [2]


def test_each_request_is_told_apart_and_no_digest_says_anything_without_its_salt():
    x, y = rows()
    first, second = gone(x, y, (2,)), gone(x, y, (5, 6))
    assert count_left(Data.of((x, y)), [first, second]) == [1, 2]
    other = GoneRows.of(Data.of((x[2:3], y[2:3])), Data.of((x[3:], y[3:])), b"t" * 32)
    assert not set(other.digests["float32"]) & set(first.digests["float32"])
    assert b"digests" not in repr(first).encode()


def test_the_coarsest_format_among_inputs_and_labels_is_named():
    x, y = rows()
    assert format_of(Data.of((x, y))) == format_of(Data.of((x.double(), y))) == "float32"
    assert format_of(Data.of(({"a": x.half(), "b": x}, y))) == "float16"
    assert format_of(Data.of((x[:0], y[:0]))) == next(iter(FORMATS))


def test_a_copy_that_went_makes_no_room_for_another_row():
    """Two rows go, and a copy of the first stays; then the copy goes as well, and the second row comes back."""
    x, y = torch.arange(5.0).unsqueeze(1), torch.arange(5)
    x[2], y[2] = x[0], y[0]
    data = Data.of((x, y))
    request = GoneRows.of(data.select([0, 1]), data.select([2, 3, 4]), SALT)
    assert count_left(data.select([2, 3, 4]), [request]) == [0]
    assert count_left(data.select([1, 3, 4]), [request]) == [1]
    assert count_left(data.select([0, 2, 3, 4]), [request]) == [1]


@pytest.mark.parametrize("through", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("back", [torch.float32, torch.float64])
def test_rounding_hides_no_row(through, back):
    """One row went through half precision and came back among others that did not."""
    x, y = rows()
    known = gone(x, y)
    stay = [i for i in range(len(y)) if i not in (2, 5)]
    z = torch.cat([x[stay], x[5:6].to(through).float()]).to(back)
    assert count_left(Data.of((z, torch.cat([y[stay], y[5:6]]))), [known]) == [1]
    pair = {"a": z[:, 0], "b": z[:, 1]}, torch.cat([y[stay], y[5:6]])
    assert count_left(Data.of(pair), [gone({"a": x[:, 0], "b": x[:, 1]}, y)]) == [1]
    # All rows rounded, as when a whole file went through that format.
    assert count_left(Data.of((x.to(through).to(back), y)), [known]) == [2]
    assert count_left(Data.of((x[stay].to(through).to(back), y[stay])), [known]) == [0]


def test_few_numbers_that_happen_to_be_round_are_another_row():
    x, y = torch.tensor([[12.51, 1.0], [3.3, 2.0], [301.0, 7.0]]), torch.zeros(3, dtype=torch.long)
    known = gone(x, y, (0, 2))
    new = torch.tensor([[12.5, 1.0], [3.3, 2.0], [302.0, 7.0]])
    assert count_left(Data.of((new, y)), [known]) == [0]
    for shape in ((3,), (3, 0)):  # rows of one number, and of none
        alone = torch.full(shape, 0.1)
        assert count_left(Data.of((alone, y)), [gone(alone, y, (0,))]) == [1]
