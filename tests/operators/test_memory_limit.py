"""Pieces are sized from a budget: a small one gives the same sums from smaller pieces."""

import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.progress import budget, memory_limit
from spotlessnet.core.trained import Trained
from spotlessnet.operators import fisher
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.hessian import Hessian
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.per_sample import Plan, pull_back


class Attending(nn.Module):
    """A transformer of torch's own layers: attention's weights are used outside their modules."""

    def __init__(self, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.encode(self.embed(x)).mean(dim=1))


def problem(rows: int = 7) -> tuple[Trained, Data]:
    torch.manual_seed(0)
    model = Attending().double().eval()
    x, y = torch.randint(0, 11, (rows, 6)), torch.randint(0, 5, (rows,))
    return Trained.of(model, weight_decay=1e-3), Data.of((x, y))


@pytest.mark.parametrize("kind", fisher.KINDS)
def test_a_small_budget_gives_the_same_diagonal_in_smaller_pieces(kind, monkeypatch):
    trained, data = problem()
    seen: list[tuple[int, int]] = []

    def spy(record, cotangents, *, again=False):
        seen.append((cotangents.shape[0], cotangents.shape[2]))
        return pull_back(record, cotangents, again=again)

    monkeypatch.setattr(fisher, "pull_back", spy)
    whole = fisher_diagonal(trained, data, kind=kind, generator=torch.Generator().manual_seed(1), draws=3)
    assert seen == [(7, {"exact": 4, "monte carlo": 3, "empirical": 1}[kind])]
    seen.clear()
    with memory_limit(1):
        few = fisher_diagonal(trained, data, kind="exact" if kind == "monte carlo" else kind)
    assert set(seen) == {(1, 1)}
    if kind == "monte carlo":  # labels drawn row by row are other labels
        return
    torch.testing.assert_close(few, whole, rtol=1e-10, atol=1e-14)


def test_the_diagonal_of_attention_is_that_of_dense_gradients():
    trained, data = problem(3)
    expected = torch.zeros_like(trained.weights)
    for batch in trained.batches(data, 1):
        p = trained.outputs(batch.x).softmax(dim=1)[0]
        for label, probability in enumerate(p):
            w = trained.weights.clone().requires_grad_()
            loss = -trained.outputs(batch.x, w).log_softmax(dim=1)[0, label]
            expected += probability * torch.autograd.grad(loss, w)[0].square()
    with memory_limit(10_000):
        torch.testing.assert_close(fisher_diagonal(trained, data), expected.detach(), rtol=1e-8, atol=1e-12)


def test_pieces_fit_into_the_budget_where_one_row_does():
    plan = Plan([], [], graph=100.0, returned=20.0)
    assert plan.rows_at_once(2400.0) == 10
    assert plan.columns_at_once(10, 2400.0) == 6
    assert plan.rows_at_once(1.0) == plan.columns_at_once(1, 1.0) == 1


def test_the_budget_is_what_was_asked_for():
    with memory_limit(2**20):
        assert budget(torch.device("cpu")) == 2**20
    assert budget(torch.device("cpu")) > 2**20
    with pytest.raises(SettingError), memory_limit(0):
        pass


WITHIN = """
    import sys, torch
    from pathlib import Path
    sys.path.insert(0, {here!r})
    from tests.operators.test_memory_limit import Attending
    from spotlessnet.core.data import Data
    from spotlessnet.core.progress import memory_limit
    from spotlessnet.core.trained import Trained
    from spotlessnet.operators.fisher import fisher_diagonal

    def peak():
        return next(int(s.split()[1]) for s in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in s)

    trained = Trained.of(Attending(64, classes=24).eval())
    data = Data.of((torch.randint(0, 11, (32, 96)), torch.arange(32) % 24))
    fisher_diagonal(trained, data.select([0, 1]))  # code that is loaded does not count
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak()
    with memory_limit({limit}):
        fisher_diagonal(trained, data)
    print((peak() - before) * 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_what_is_alive_stays_within_the_limit(request):
    limit = 48 * 2**20
    program = textwrap.dedent(WITHIN).format(here=str(request.config.rootpath), limit=limit)
    # Else glibc keeps what was freed, and nobody can tell it from what is in use.
    freed_at_once = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300,
        env={**os.environ, **freed_at_once},
    )  # fmt: skip
    assert int(done.stdout.split()[-1]) <= limit


PROGRAM = """
    import resource, sys, torch
    sys.path.insert(0, {here!r})
    from tests.operators.test_memory_limit import Attending
    from torch import nn
    from spotlessnet.core.data import Data
    from spotlessnet.core.trained import Trained
    from spotlessnet.operators.fisher import fisher_diagonal

    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(1000, 512)
            layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
            self.encode = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.head = nn.Linear(512, 10)

        def forward(self, x):
            return self.head(self.encode(self.embed(x)).mean(dim=1))

    trained = Trained.of(Large().eval(), weight_decay=1e-3)
    assert trained.size > 19e6
    data = Data.of((torch.randint(0, 1000, (64, 32)), torch.randint(0, 10, (64,))))
    assert fisher_diagonal(trained, data).isfinite().all()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_transformer_of_19_million_weights_takes_less_than_3_gib(request):
    program = textwrap.dedent(PROGRAM).format(here=str(request.config.rootpath))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=1800)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout.split()[-1]) * unit <= 3 * 2**30


def most_alive(work: Callable[[], object]) -> int:
    """Bytes of all that lives at the same time while something is done, what torch makes inside its kernels too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    assert seen.profiler is not None
    events = [one for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"]
    return max(itertools.accumulate(one.nbytes() for one in sorted(events, key=lambda one: one.start_ns())))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 8 * 8, 10),
    )  # fmt: skip


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


TEXTS, IMAGES, VECTORS = torch.zeros(48, 96, dtype=torch.long), torch.zeros(48, 3, 16, 16), torch.zeros(256, 64)
HELD: dict[str, tuple[Callable[[], nn.Module], Tensor, int, Callable[[Trained, Data], Tensor]]] = {
    "Hessian": (lambda: Attending(64), TEXTS, 64, lambda t, d: Hessian(t, d).multiply(torch.ones(t.size))),
    "Hessian, eight vectors": (
        lambda: Attending(64), TEXTS, 64, lambda t, d: Hessian(t, d).multiply(torch.ones(8, t.size))
    ),
    "kernel of convolutions": (convolutions, IMAGES, 10, kernel),
    "kernel of linear layers": (wide, VECTORS, 12, kernel),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_all_that_is_alive_lies_within_the_limit_or_is_the_answer(name):
    torch.manual_seed(0)
    model, x, limit, work = HELD[name]
    trained = Trained.of(model().eval())
    data = Data.of((x, torch.arange(len(x)) % 5))
    answer = work(trained, data)  # what is found once for each network is found now
    with memory_limit(limit * 2**20):
        assert most_alive(lambda: work(trained, data)) <= limit * 2**20 + answer.nbytes
        torch.testing.assert_close(work(trained, data), answer, rtol=1e-3, atol=1e-4)
