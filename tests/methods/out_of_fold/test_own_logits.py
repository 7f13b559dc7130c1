"""The network's own view of mislabelled rows: of the other classes only, and the less the surer it is of the label."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import float64

from spotlessnet.methods.out_of_fold.own_logits import blend_own_logits


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 6),
    classes=st.integers(2, 7),
    spread=st.floats(0.1, 20),
    c=st.floats(0, 0.9),
)
def test_row_by_row_in_plain_probabilities(seed: int, rows: int, classes: int, spread: float, c: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    t, o = (spread * torch.randn(rows, classes, dtype=float64, generator=draw) for _ in range(2))
    y = torch.randint(classes, (rows,), generator=draw)
    found = blend_own_logits(t, o, y, c).softmax(dim=1)
    for i in range(rows):
        p, q = t[i].softmax(0), o[i].softmax(0)
        others = [j for j in range(classes) if j != y[i]]
        a = c * (1 - q[y[i]])
        # Of the others: a weighted geometric mean, scaled to what fold models leave them.
        mixed = torch.stack([(1 - a) * t[i, j] + a * o[i, j] for j in others]).softmax(0) * p[others].sum()
        torch.testing.assert_close(found[i, others], mixed, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found[i, y[i]], p[y[i]], rtol=1e-9, atol=1e-12)


def test_a_network_that_has_learnt_the_label_by_heart_is_not_asked():
    t, y = torch.tensor([[1.0, 2.0, 0.5]], dtype=float64), torch.tensor([1])
    sure = torch.tensor([[3.0, 60.0, -3.0]], dtype=float64)
    torch.testing.assert_close(blend_own_logits(t, sure, y, 0.5).softmax(1), t.softmax(1))


def test_tutors_that_are_sure_of_the_label_leave_it_finite():
    t, y = torch.tensor([[0.0, 300.0, 0.0]]), torch.tensor([1])
    assert blend_own_logits(t, torch.zeros(1, 3), y, 0.25).isfinite().all()
