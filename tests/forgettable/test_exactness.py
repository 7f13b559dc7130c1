"""State and weights after a request against exact arithmetic, on random problems."""

import mpmath
import pytest
import torch
from torch import nn

from spotlessnet.core.errors import SettingError, SolveError
from spotlessnet.forgettable.certificate import refine
from spotlessnet.forgettable.fixed_point import LARGEST, FixedPoint
from spotlessnet.forgettable.inverse import cholesky, inverse, update_, worth_updating
from spotlessnet.forgettable.moments import Moments
from spotlessnet.forgettable.residual import residual, scheme, size_of


def problem(seed, most=8):
    """Codes, targets, how many go, and a ridge, of very different sizes and conditions."""
    draw = torch.Generator().manual_seed(seed)

    def pick(low, high):
        return int(torch.randint(low, high + 1, (), generator=draw))

    d, n, outputs = pick(2, most), pick(4, 40), pick(1, 3)
    spread = 10 ** (-3 * torch.rand(d, generator=draw))
    q = (torch.randn(n, d, generator=draw) * 8000 * spread).round().clamp(-LARGEST, LARGEST).to(torch.int16)
    t = torch.randint(-5, 6, (n, outputs), generator=draw)
    w = torch.randint(1, 4, (n,), generator=draw)
    return q, t, w, pick(1, n - 1), 10 ** pick(2, 9)


def filled(q, t, w):
    moments = Moments.zero(q.shape[1], t.shape[1])
    moments.add(q, t, w)
    return moments


def exact(q, t, w, ridge):
    """The optimum with sixty digits, by code that shares nothing with the package."""
    with mpmath.workdps(60):
        Q, T = mpmath.matrix(q.tolist()), mpmath.matrix(t.tolist())
        S = mpmath.diag([mpmath.mpf(int(v)) for v in w])
        A = Q.T * S * Q + ridge * mpmath.eye(q.shape[1])
        B = Q.T * S * T
        return [mpmath.lu_solve(A, B[:, c]) for c in range(t.shape[1])]


def distance(W, columns):
    with mpmath.workdps(60):
        gaps = [mpmath.mpf(float(W[i, c])) - columns[c][i] for c in range(W.shape[1]) for i in range(W.shape[0])]
        return float(mpmath.sqrt(mpmath.fsum(g * g for g in gaps)))


@pytest.mark.parametrize("block", range(8))
def test_forgotten_examples_leave_nothing_and_the_bound_is_true_and_tight(block):
    refused = 0
    for seed in range(25 * block, 25 * block + 25):
        q, t, w, k, ridge = problem(seed)
        held, never = filled(q, t, w), filled(q[k:], t[k:], w[k:])
        P = inverse(held.gram, ridge)
        W = P @ held.cross
        held.remove(q[:k], t[:k], w[:k])
        assert torch.equal(held.gram, never.gram)
        assert torch.equal(held.cross, never.cross)
        fresh = inverse(never.gram, ridge)
        root = w[:k].double().sqrt()[:, None]
        step = update_(P, q[:k].double() * root, -1, (t[:k].double() - q[:k].double() @ W) * root)
        condition = float(torch.linalg.cond(never.gram + ridge * torch.eye(len(P), dtype=P.dtype)))
        if step is None:
            # What the examples leave of their directions has too few digits, so the inverse is made anew.
            refused += 1
            P, step = fresh.clone(), fresh @ never.cross - W
        # Rounding of the old inverse is carried over, and it grows by what the examples took away.
        before = float(torch.linalg.cond(filled(q, t, w).gram + ridge * torch.eye(len(P), dtype=P.dtype)))
        assert float((P - fresh).norm()) <= 1e-14 * before * condition * float(fresh.norm()), seed
        found = refine(held, ridge, P, W + step, near=True)
        if found.coarse:
            found = refine(held, ridge, fresh, W + step)
        anew = refine(never, ridge, fresh, fresh @ never.cross)
        truth = exact(q[k:], t[k:], w[k:], ridge)
        for one in (found, anew):
            gap = distance(one.weights, truth)
            assert one.certificate.bound >= gap, (seed, condition)
            assert one.certificate.bound <= 100 * gap + 1e-300 or not one.weights.any(), (seed, condition)
        assert torch.equal(found.weights.float(), anew.weights.float()), seed
    assert refused <= 12, "most requests must be updates"


def test_one_exact_residual_is_enough_and_nearly_zero_weights_agree_too():
    draw = torch.Generator().manual_seed(1)
    q = (torch.randn(900, 200, generator=draw) * 900).round().to(torch.int16)
    q[:, 150:] //= 900  # features that say next to nothing, so that their weights are far below the largest
    t = nn.functional.one_hot(q[:, :4].argmax(dim=1), 4)
    held, never, ones = filled(q, t, torch.ones(900)), filled(q[30:], t[30:], torch.ones(870)), torch.ones(30)
    ridge = round(0.1 * float(held.gram.diagonal().mean()))
    P = inverse(held.gram, ridge)
    W = refine(held, ridge, P, P @ held.cross).weights
    held.remove(q[:30], t[:30], ones)
    step = update_(P, q[:30].double(), -1, t[:30].double() - q[:30].double() @ W)
    assert step is not None
    found = refine(held, ridge, P, W + step, near=True)
    fresh = inverse(never.gram, ridge)
    assert found.steps == 1
    assert torch.equal(found.weights, refine(never, ridge, fresh, fresh @ never.cross).weights)


def test_a_wrong_inverse_cannot_fool_the_certificate():
    q, t, w, _, ridge = problem(3)
    moments = filled(q, t, w)
    P = inverse(moments.gram, ridge) * (1 + 0.02 * torch.rand(q.shape[1], q.shape[1], dtype=torch.float64))
    found = refine(moments, ridge, P, torch.zeros_like(moments.cross))
    assert found.certificate.bound >= distance(found.weights, exact(q, t, w, ridge))


@pytest.mark.parametrize("share", [0.3, 0.9, 1.5])
def test_weights_that_are_still_far_away_are_told_by_the_residual(share):
    """An inverse so wrong that corrections hardly help: what is left lies in the residual, not in rounding."""
    for seed in range(20):
        q, t, w, _, ridge = problem(seed)
        moments = filled(q, t, w)
        P = share * inverse(moments.gram, ridge)
        found = refine(moments, ridge, P, torch.zeros_like(moments.cross))
        gap = distance(found.weights, exact(q, t, w, ridge))
        assert found.certificate.bound >= gap, seed
        if share != 0.9:
            assert found.coarse
            assert gap > 1e-6 * found.certificate.size


@pytest.mark.parametrize(("d", "k", "sign"), [(5, 2, -1), (300, 7, 1), (300, 7, -1), (600, 40, -1), (600, 1, 1)])
def test_rank_k_updates_are_those_of_the_dense_matrix(d, k, sign):
    draw = torch.Generator().manual_seed(d + k)
    X = torch.randn(k, d, generator=draw, dtype=torch.float64)
    B = torch.randn(2 * d, d, generator=draw, dtype=torch.float64)
    T, C = torch.randn(k, 3, generator=draw, dtype=torch.float64), torch.randn(d, 3, generator=draw).double()
    A = B.T @ B + torch.eye(d, dtype=torch.float64) + (X.T @ X if sign < 0 else 0)
    P, W = torch.linalg.inv(A), torch.linalg.solve(A, C)
    step = update_(P, X, sign, T - X @ W)
    now = A + sign * X.T @ X
    torch.testing.assert_close(P, torch.linalg.inv(now), rtol=0, atol=1e-11)
    torch.testing.assert_close(W + step, torch.linalg.solve(now, C + sign * X.T @ T), rtol=0, atol=1e-11)


def test_taking_away_more_than_is_there_is_noticed():
    P = torch.eye(4, dtype=torch.float64)
    assert update_(P, 2 * torch.eye(4, dtype=torch.float64)[:1], -1, torch.zeros(1, 1, dtype=torch.float64)) is None
    assert torch.equal(P, torch.eye(4, dtype=torch.float64))
    nearly = (1 - 1e-9) * torch.eye(4, dtype=torch.float64)[:1]
    assert update_(P, nearly, -1, torch.zeros(1, 1, dtype=torch.float64)) is None
    with pytest.raises(SolveError, match="must be positive definite"):
        cholesky(-torch.eye(3, dtype=torch.float64), 0)


def test_large_requests_are_inverted_anew():
    assert worth_updating(8000, 100)
    assert not worth_updating(8000, 2000)
    assert not worth_updating(300, 75)


@pytest.mark.parametrize(("d", "codes", "halved"), [(3, LARGEST, False), (70, LARGEST, True), (70, 300, False)])
def test_residuals_carry_no_rounding(d, codes, halved):
    draw = torch.Generator().manual_seed(d)
    q = torch.randint(-codes, codes + 1, (2 * d, d), generator=draw).to(torch.int16)
    moments = filled(q, torch.randint(0, 2, (2 * d, 2), generator=draw), torch.full((2 * d,), 1 + codes // 500))
    W = torch.linalg.solve(moments.gram + 10 * torch.eye(d, dtype=torch.float64), moments.cross)
    size = size_of(moments.gram, 10)
    assert size >= float((moments.gram + 10 * torch.eye(d, dtype=torch.float64)).norm())
    diagonal = (moments.gram.diagonal() + 10).sqrt()
    cut = scheme(float(diagonal.max() ** 2), float(diagonal.max() * diagonal.sum()), size, 10, d, 200)
    assert bool(cut.shift) == halved
    found = residual(moments.gram, moments.cross, 10, W, size=size)
    with mpmath.workdps(60):
        A = mpmath.matrix(moments.gram.tolist()) + 10 * mpmath.eye(d)
        R = mpmath.matrix(moments.cross.tolist()) - A * mpmath.matrix(W.tolist())
        gap = mpmath.mnorm(R - mpmath.matrix(found.value.tolist()), "f")
        total = mpmath.mnorm(R, "f")
    assert float(gap) <= float(found.slack.norm())
    assert float(gap) <= 1e-9 * float(total)
    assert float(found.slack.norm()) <= 1e-8 * float(total)
    plain = moments.cross - moments.gram @ W - 10 * W
    assert float((plain - found.value).norm()) > 1e-3 * float(total), "float64 alone would not do"


@pytest.mark.parametrize("largest", [4.0, 2.0**20, 2.0**37, 2.0**53])
@pytest.mark.parametrize("d", [2, 1153, 30_000])
def test_no_partial_product_can_exceed_what_is_exact(largest, d):
    row = largest * d
    cut = scheme(largest, row, largest * d, 7, d, 10)
    high = row / 2**cut.shift
    low = (d + 1) * 2.0**cut.shift if cut.shift else 0
    assert max(high, low) * 2**cut.bits <= 2**53
    assert cut.bits * cut.slices >= 8 + 1.5 * torch.tensor(float(d)).log2() - 1e-3


def test_moments_are_the_same_whole_numbers_in_any_order():
    draw = torch.Generator().manual_seed(0)
    q = torch.randint(-LARGEST, LARGEST, (9000, 5), generator=draw).to(torch.int16)
    t, w = torch.randint(-9, 9, (9000, 2), generator=draw), torch.randint(1, 200, (9000,), generator=draw)
    one, other, order = filled(q, t, w), Moments.zero(5, 2), torch.randperm(9000, generator=draw)
    for part in order.split(700):
        other.add(q[part], t[part], w[part])
    whole = (q.long() * w[:, None]).T @ q.long()
    assert torch.equal(one.gram, other.gram)
    assert torch.equal(one.gram.long(), whole)
    assert torch.equal(one.cross.long(), (q.long() * w[:, None]).T @ t)
    assert (one.count, one.weight) == (9000, int(w.sum()))


def test_what_would_not_stay_exact_is_refused():
    moments, q = Moments.zero(2, 1), torch.ones(1, 2, dtype=torch.int16)
    with pytest.raises(SettingError, match="sum to at most 8388608"):
        moments.add(q, torch.ones(1, 1), torch.tensor([2**24]))
    with pytest.raises(SettingError, match="whole numbers"):
        moments.add(q, torch.ones(1, 1), torch.tensor([0.5]))
    with pytest.raises(SettingError, match="at most 16 bits"):
        moments.add(q, torch.full((1, 1), 1e6))


def test_fixed_point_evens_out_blocks_and_clips_what_lies_beyond():
    x = torch.cat([torch.randn(500, 3) * 100, torch.randn(500, 4) * 0.01], dim=1)
    point = FixedPoint.of_core(x, [3, 4])
    q = point(x).float()
    assert float(q[:, :3].square().mean() / q[:, 3:].square().mean()) == pytest.approx(1, rel=1e-2)
    assert int(q.abs().max()) <= LARGEST // 4 + 1
    assert int(point(x * 1e6).abs().max()) == LARGEST
