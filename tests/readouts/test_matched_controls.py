"""Margins under every label against the margin itself, and shifts beyond strangers against what was planted."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64, nn

from spotlessnet.core.answers import margin
from spotlessnet.core.data import Data
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.readouts.margin import margins_of
from spotlessnet.readouts.matched_controls import Unseen, margins_by_label, matched, matched_controls


@given(rows=st.integers(1, 6), classes=st.integers(2, 5), scale=st.floats(0.01, 300), seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_every_label_has_the_margin_of_a_row_with_that_label(rows, classes, scale, seed):
    z = scale * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=float64)
    found = margins_by_label(z)
    for c in range(classes):
        torch.testing.assert_close(found[:, c], margin(z, torch.full((rows,), c)), rtol=1e-9, atol=1e-9)


def test_certain_and_undecided_rows_keep_their_digits():
    z = torch.tensor([[1000.0, 0.0], [3.0, 3.0]], dtype=float64)
    torch.testing.assert_close(margins_by_label(z), torch.tensor([[1000.0, -1000.0], [0.0, 0.0]], dtype=float64))


def groups(seed: int = 0, seeds: int = 3, rows: int = 4, unseen: int = 12, classes: int = 3):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (rows,), generator=g)
    return torch.randn(seeds, rows, generator=g, dtype=float64), Unseen(
        torch.randn(seeds, unseen, classes, generator=g, dtype=float64), labels
    )


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 8), classes=st.integers(2, 4), each=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_strangers_have_other_labels_that_retrained_networks_find_as_likely(seed, rows, classes, each):
    own, unseen = groups(seed, unseen=rows, classes=classes)
    near, given = matched(3 * own, unseen, each)
    for i, label in enumerate(unseen.labels.tolist()):
        pairs = [(u, c) for u in range(rows) for c in range(classes) if c != label]
        pairs.sort(key=lambda p: abs(float(unseen.margins[:, p[0], p[1]].mean() - 3 * own[:, i].mean())))
        assert set(zip(near[:, i].tolist(), given[:, i].tolist(), strict=True)) == set(pairs[:each])


def test_more_strangers_than_pairs_are_all_pairs():
    own, unseen = groups(unseen=3)
    assert matched(own, unseen, each=8)[0].shape == (6, 4)


def test_it_looks_at_test_rows_under_every_label_and_at_nothing_without_them():
    g = torch.Generator().manual_seed(0)
    data = Data.of((torch.randn(9, 4, generator=g), torch.randint(3, (9,), generator=g)))
    split = Split(data.select([0, 1]), data.select([2, 3]), data.select(range(4, 9)))
    networks = [Trained.of(nn.Linear(4, 3)) for _ in range(2)]
    found = Unseen.of(networks, split)
    assert found is not None
    assert found.labels is not None
    assert found.labels.tolist() == split.forget.labels().tolist()
    order = torch.randperm(5, generator=torch.Generator().manual_seed(0))
    test = data.select(range(4, 9))
    own = found.margins.gather(2, test.labels()[order].expand(2, -1).unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(own, margins_of(networks, test)[:, order])
    assert torch.equal(found.select(torch.tensor([1])).margins, found.margins[1:])
    assert found.own is not None
    assert torch.equal(found.own, test.labels()[order])
    assert Unseen.of(networks, Split(data.select([0, 1]), data.select([2, 3]))) is None


def test_strangers_as_data_are_test_rows_with_labels_of_their_own():
    g = torch.Generator().manual_seed(0)
    data = Data.of((torch.randn(40, 4, generator=g), torch.randint(3, (40,), generator=g)))
    split = Split(data.select(range(5)), data.select(range(5, 20)), data.select(range(20, 40)))
    networks = [Trained.of(nn.Linear(4, 3)) for _ in range(2)]
    found, unseen = matched_controls(networks, split, each=3), Unseen.of(networks, split)
    x, y, _ = found.fetch(found.rows)
    test = split.tests.fetch(split.tests.rows).x
    assert isinstance(x, torch.Tensor)
    assert isinstance(test, torch.Tensor)
    assert unseen is not None
    assert all((row == test).all(dim=1).any() for row in x)
    pairs = {(tuple(row.tolist()), int(label)) for row, label in zip(x, y, strict=True)}
    assert len(pairs) == len(found) <= 15
    # Every forgotten row's own strangers are among them.
    near, given = matched(margins_of(networks, split.forget), unseen, each=3)
    drawn = test[torch.randperm(20, generator=torch.Generator().manual_seed(0))]
    for j, label in zip(near.flatten().tolist(), given.flatten().tolist(), strict=True):
        assert (tuple(drawn[j].tolist()), label) in pairs


def test_classes_that_are_gone_are_known():
    """Their test rows would show what a network knows of the class, and excuse it."""
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    data = Data.of((x, y))
    network = [Trained.of(nn.Linear(4, 3))]
    test = data.select([9, 10, 11])
    for forget, kept, gone in (([0, 3, 6], [1, 2, 4, 5], [0]), ([0, 3], [1, 2, 6], []), ([0, 1], [2, 5], [0, 1])):
        found = Unseen.of(network, Split(data.select(forget), data.select(kept), test))
        assert found is not None
        assert found.gone is not None
        assert found.gone.tolist() == gone
