"""What passes at once is sized from a budget: a small one gives the same answers from smaller pieces."""

import pytest
import torch
from torch import nn

from spotlessnet.core import progress
from spotlessnet.core.data import Data
from spotlessnet.core.errors import ResourceError
from spotlessnet.core.progress import Footprint, budget, memory_limit
from spotlessnet.core.trained import Trained
from spotlessnet.operators import low_rank as directions
from spotlessnet.operators import room
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.hessian import Hessian
from spotlessnet.operators.jacobian import Jacobian
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.linear_response import cheaper_form
from spotlessnet.operators.linearised import Linearised
from spotlessnet.operators.precision import in_format, matmul
from spotlessnet.operators.room import footprint, in_parts, on_the_tape, vectors_at_once
from spotlessnet.precomputed import step as statistics_step
from spotlessnet.precomputed.step import own_root


def problem(rows: int = 9) -> tuple[Trained, Data]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return Trained.of(model, weight_decay=0.1), Data.of((torch.randn(rows, 4).double(), torch.randint(3, (rows,))))


def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every pass through the network from here on."""
    seen: list[int] = []
    outputs = Trained.outputs

    def spy(self, x, weights=None):
        if torch.is_tensor(x) and x.ndim == 2:
            seen.append(len(x))
        return outputs(self, x, weights)

    monkeypatch.setattr(Trained, "outputs", spy)
    return seen


WORK = {
    "gradient": lambda t, d, v: gradient(t, d),
    "product": lambda t, d, v: GaussNewton(t, d).multiply(v[0]),
    "products": lambda t, d, v: GaussNewton(t, d).multiply(v),
    "hessian": lambda t, d, v: Hessian(t, d).multiply(v),
    "jacobian": lambda t, d, v: Jacobian(t, d).multiply(v[0]),
    "transposed": lambda t, d, v: Jacobian(t, d).transpose_multiply(v[0, : 3 * len(d)].reshape(-1, 3)),
}


@pytest.mark.parametrize("name", WORK)
def test_a_small_budget_gives_the_same_sums_from_single_rows(name, monkeypatch):
    trained, data = problem()
    v = torch.randn(5, trained.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = WORK[name](trained, data, v)
    seen = passes(monkeypatch)
    with memory_limit(1):
        few = WORK[name](trained, data, v)
    assert set(seen) == {1}
    torch.testing.assert_close(few, whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("limit", [1, 3e3, 1e5])
def test_a_kernel_and_a_root_do_not_depend_on_the_budget(limit):
    trained, data = problem()
    theta, (root, dropped) = kernel(trained, data), own_root(trained, data, 400)
    with memory_limit(limit):
        torch.testing.assert_close(kernel(trained, data), theta, rtol=1e-12, atol=1e-13)
        again, left = own_root(trained, data, 400)
    # Columns are eigenvectors, whose signs are free; their products are not.
    torch.testing.assert_close(again @ again.T, root @ root.T, rtol=1e-9, atol=1e-12)
    assert left == pytest.approx(dropped, abs=1e-12)


def test_a_row_takes_what_its_layers_make():
    trained, data = problem()
    x = next(iter(trained.batches(data, 2))).x
    # Six sums, six of their tangents hyperbolic and three sums, eight bytes each; views make nothing.
    assert footprint(trained, x) == Footprint(graph=8.0 * 15, widest=8.0 * 6)
    # A network whose pass is a product itself is seen too.
    linear = Trained.of(Linearised(trained).as_module(trained.weights))
    assert footprint(linear, x).graph > 8 * 15


def test_on_the_tape_a_row_takes_what_autograd_keeps():
    trained, data = problem()
    x = data.fetch(data.rows).x
    # What enters the two layers, and the answer of tanh, which enters the second: 4 + 6 numbers, not the 15 made.
    assert on_the_tape(trained, x) == Footprint(graph=8.0 * 10, widest=8.0 * 6)
    single = in_format(trained, torch.float32)
    with matmul("bfloat16"):
        halved = on_the_tape(single, next(iter(single.batches(data, 9))).x)
    # Copies of the weights in bfloat16 are many more bytes than a row keeps, and are not counted for each.
    assert 0 < halved.graph < 2 * trained.size


def test_parts_fit_into_the_budget():
    trained, data = problem()
    one = next(iter(trained.batches(data, 9)))
    each = 8 * 15 + progress.ALIVE * 8 * 6
    with memory_limit(4 * each):
        found = list(in_parts(trained, one))
    assert [len(part.rows) for part, _ in found] == [3, 3, 3]
    assert torch.equal(torch.cat([part.y for part, _ in found]), one.y)
    assert [one.rows[place].tolist() for _, place in found] == [part.rows.tolist() for part, _ in found]
    # With vectors there is room for fewer: each has its own tangents, and is as long as the weights.
    vector = 8 * trained.size
    with memory_limit(5 * each + 2 * room.ON_THE_WAY * vector):
        assert [len(part.rows) for part, _ in in_parts(trained, one, 2)] == [2, 2, 2, 2, 1]
    with memory_limit(2 * 3 * room.COPIES * vector):
        assert (vectors_at_once(trained, 8), vectors_at_once(trained, 2)) == (3, 2)
    with memory_limit(1):
        assert vectors_at_once(trained, 8) == 1


def test_the_cheaper_form_is_one_that_fits():
    torch.manual_seed(0)
    trained = Trained.of(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)))
    data = Data.of((torch.randn(60, 64), torch.randn(60, 1)))
    assert cheaper_form(trained, data) == "dual"
    with memory_limit(24 * 60**2 - 1):  # the kernel itself does not fit
        assert cheaper_form(trained, data) == "primal"


def test_directions_are_the_same_in_the_main_memory(monkeypatch):
    """As for a GPU whose budget is small: vectors go there a few at a time, rows are made orthonormal by products."""
    e = torch.logspace(0, -3, 40, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(3)).double())[0]
    A = (basis * e) @ basis.T
    counts: list[int] = []

    def multiply(rows):
        counts.append(len(rows))
        return rows @ A

    monkeypatch.setattr(directions, "TALL", 0)
    with memory_limit(2 * 3 * 3 * 40 * 8):
        far = directions._few_at_a_time(multiply, torch.empty(0, dtype=torch.float64), 40.0 * 8, 2 * 3 * 3 * 40 * 8)
        matrix = type("Matrix", (), {"size": 40, "multiply": staticmethod(far)})()
        kept = directions.low_rank(
            matrix, 5, generator=torch.Generator().manual_seed(0), like=torch.empty(0, dtype=torch.float64), block=8
        )
    assert max(counts) == 3
    torch.testing.assert_close(kept.values, e[:5], rtol=1e-6, atol=0)
    torch.testing.assert_close(kept.basis.T @ kept.basis, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-12)


def test_many_rows_go_there_at_once_and_few_come_back(monkeypatch):
    """Forward mode keeps nothing, so the budget that splits a batch on its way back need not split it before."""
    torch.manual_seed(0)
    network = nn.Sequential(*(layer for _ in range(30) for layer in (nn.Linear(20, 20), nn.Tanh())))
    trained = Trained.of(network, "squared-error")
    data = Data.of((torch.randn(40, 20), torch.randn(40, 20)))
    v = torch.randn(trained.size)
    whole = GaussNewton(trained, data).multiply(v)
    there: list[int] = []
    back: list[int] = []
    pushed, pulled = GaussNewton._pushed, GaussNewton._pulled

    def push(self, one, *more):
        there.append(len(one.rows))
        return pushed(self, one, *more)

    def pull(self, x, *more):
        back.append(len(x))
        return pulled(self, x, *more)

    monkeypatch.setattr(GaussNewton, "_pushed", push)
    monkeypatch.setattr(GaussNewton, "_pulled", pull)
    with memory_limit(3 * 4 * trained.size + 60_000):
        torch.testing.assert_close(GaussNewton(trained, data).multiply(v), whole)
    assert there == [40]
    assert 2 <= len(back) <= 20
    assert sum(back) == 40


def test_vectors_leave_some_room_for_rows():
    trained = Trained.of(nn.Linear(200, 200), "squared-error")
    batch = next(iter(trained.batches(Data.of((torch.randn(60, 200), torch.randn(60, 200))))))
    with memory_limit(room.ON_THE_WAY * 4 * trained.size):  # which one vector takes by itself
        assert len(list(in_parts(trained, batch, 1))) < 6


def test_long_vectors_stay_on_the_device_where_fewer_of_them_fit():
    """50 directions of a ViT-B/16 on a GPU of 140 GiB, whose budget holds 107 vectors; 23 are 8 GiB."""
    usual = directions.Layout.of(50, 35, 16, 85_806_346)
    assert (usual.width, usual.vectors, usual.within(160, 25)) == (96, 160, usual)
    fewer = usual.within(107, 25)
    assert (fewer.width, fewer.block, fewer.is_long, fewer.stays) == (80, 8, True, True)
    elsewhere = usual.within(23, 25)
    assert (elsewhere.width, elsewhere.block, elsewhere.stays) == (80, 8, False)


def test_products_of_long_vectors_share_the_budget_with_what_is_held():
    seen = []

    def multiply(rows):
        seen.append(budget(rows.device))
        return rows

    rows = torch.randn(6, 10)
    product = directions._few_at_a_time(multiply, torch.empty(0), 40.0, 2 * 3 * 4 * 40.0)
    torch.testing.assert_close(product(rows), rows)
    assert seen == [2 * 3 * 4 * 40.0] * 2  # 4 fit, so two parts of 3


def test_directions_that_do_not_fit_are_refused_before_any_product(monkeypatch):
    monkeypatch.setattr(directions, "available", lambda device: 1000.0)
    trained, data = problem()
    with pytest.raises(ResourceError, match=r"5 directions need .* GiB while they are found, but .* Ask for a smaller"):
        directions.low_rank(GaussNewton(trained, data), 5, generator=torch.Generator().manual_seed(0))


def test_where_the_directions_of_a_request_lie(monkeypatch):
    trained, _ = problem()
    each = trained.size * 8
    assert statistics_step._place(trained, 3, 7) == (torch.device("cpu"), 7)
    monkeypatch.setattr(statistics_step, "holds", lambda device, bytes: False)
    monkeypatch.setattr(statistics_step, "free_bytes", lambda: (2 * 3 + 4 * 5) * each / progress.MOST)
    assert statistics_step._place(trained, 3, 7) == (torch.device("cpu"), 5)
    monkeypatch.setattr(statistics_step, "free_bytes", lambda: 0.0)
    assert statistics_step._place(trained, 3, 7) == (torch.device("cpu"), 1)
