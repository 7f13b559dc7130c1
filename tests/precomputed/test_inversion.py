"""What a request leaves behind, turned around: can its row be read back from it?

One row is forgotten. An attacker takes every vector of the size of the weights that can be made of what is left, and
reads inputs and label off it as off a gradient. Being allowed the best of all of them, he is judged against the same
best for rows that were never there: a row that was forgotten must be no easier to read.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, float64, nn
from torch.func import functional_call, jacrev

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.after_request import after_request
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.precomputed.step import own_root, step_from_statistics
from spotlessnet.training.fit import fit

ROWS, WIDTH, CLASSES, DECAY, RIDGE = 40, 5, 3, 0.02, 0.05
SEEDS = 20
NETWORKS = {
    "linear": lambda: nn.Linear(WIDTH, CLASSES),
    "hidden layer": lambda: nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES)),
}


@dataclass(frozen=True)
class Case:
    """A network, its statistics, and both after a request for row 0; `other` was never in the data."""

    before: Trained
    after: Trained
    written: Statistics
    left: Statistics
    x: Tensor
    y: Tensor
    other: Tensor

    @property
    def kept(self) -> tuple[Tensor, Tensor]:
        return self.x[1:], self.y[1:]


def case(network: str, seed: int, *, rank: int | None = None) -> Case:
    torch.manual_seed(seed)
    x, y = torch.randn(ROWS + 1, WIDTH, dtype=float64), torch.randint(CLASSES, (ROWS,))
    data = Data.of((x[:ROWS], y))
    began = Trained.of(
        NETWORKS[network]().double(), recipe=Recipe(epochs=30, lr=0.2, batch_size=ROWS, weight_decay=DECAY)
    )
    began = Trained.of(began.model, recipe=began.recipe, init=began.weights, weight_decay=DECAY)
    before, forget = fit(began, data), data.select([0])
    statistics = precompute(before, data, rank=before.size if rank is None else rank, diagonal="exact")
    after = before.at(before.weights + step_from_statistics(statistics, before, forget, RIDGE, Notes()).step)
    left = after_request(statistics, before, forget, after.weights, retain=data.select(range(1, ROWS)))
    return Case(before, after, statistics, left, x[:ROWS], y, x[ROWS])


def gradient_of(trained: Trained, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The summed gradient, by plain autograd."""

    def loss(w: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            functional_call(trained.model, trained.unflatten(w), (x,)), y, reduction="sum"
        )

    return jacrev(loss)(w)


def curvature_of(trained: Trained, w: Tensor, x: Tensor) -> Tensor:
    """The Gauss-Newton matrix of the summed loss, by plain autograd."""

    def answers(w: Tensor) -> Tensor:
        return functional_call(trained.model, trained.unflatten(w), (x,))

    J, z = jacrev(answers)(w), answers(w)
    p = z.softmax(dim=1)
    L = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    return torch.einsum("ncp,ncd,ndq->pq", J, L, J)


def read(trained: Trained, g: Tensor) -> tuple[Tensor, int]:
    """Inputs and label of the row whose gradient this is: a weight's gradient is its bias's times the input."""
    named = list(trained.unflatten(g).values())
    weight, bias, last = named[0], named[1], named[-1]
    surest = int(bias.abs().argmax())
    return weight[surest] / bias[surest], int(last.argmin())


def error(guess: Tensor, x: Tensor) -> float:
    """Zero where it is the row; one where nothing is known but the length."""
    return float((guess - x).norm() / x.norm())


def vectors(found: Case, *, rows: bool) -> Iterator[Tensor]:
    """All that the folder holds and what can be made of it, `rows` with every retained row at hand."""
    left, w = found.left, found.after.weights
    basis, values = left.need("basis"), left.need("values")
    H, moved = basis @ values.diag() @ basis.T, w - found.after.anchor
    yield from (left.gradient, left.gradient + left.count * DECAY * moved, H @ left.gradient, H @ moved, w, moved)
    yield from basis.T
    yield left.need("diagonal").sqrt()
    if rows:
        x, y = found.kept
        g, B = gradient_of(found.after, w, x, y), curvature_of(found.after, w, x)
        yield from (left.gradient - g, left.gradient + left.count * RIDGE * moved - g)
        yield from torch.linalg.eigh(H - B).eigenvectors.T
        yield torch.linalg.solve(B + left.count * RIDGE * torch.eye(len(B), dtype=float64), left.gradient - g)


def easier(found: list[Case], *, rows: bool) -> float:
    """How often the forgotten row is read better than one that was never there; a half if nothing is left of it."""
    wins = 0.0
    for one in found:
        tries = [guess for v in vectors(one, rows=rows) for guess in [read(one.after, v)[0]] if guess.isfinite().all()]
        mine, others = (min(error(guess, x) for guess in tries) for x in (one.x[0], one.other))
        wins += float(mine < others) + 0.5 * float(mine == others)
    return wins / len(found)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_form_before_gave_the_row_away(network):
    """The attack works: on what requests once left, the row comes back to rounding. Nothing but the file is needed."""
    for seed in range(8):
        found = case(network, seed)
        statistics, before = found.written, found.before
        # What that file held: the mean gradient from before the request, and the sum without the row.
        undone = statistics.gradient / statistics.count
        without = gradient_of(before, before.weights, *found.kept)
        guess, label = read(before, undone * (len(found.kept[0]) + 1) - without)
        assert error(guess, found.x[0]) < 1e-6
        assert label == int(found.y[0])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rank", [None, 6])
def test_nothing_left_reads_as_the_row(network, rank):
    found = [case(network, seed, rank=rank) for seed in range(SEEDS)]
    # Within three standard deviations of a fair coin, and never the row itself.
    for rows in (False, True):
        assert easier(found, rows=rows) < 0.5 + 3 * 0.5 / SEEDS**0.5


SECRET = torch.tensor([1.0, 0, 1, 1, 0, 0, 1, 0, 1, 0])
"""Words that one text holds and no other."""


def texts() -> tuple[Trained, Data]:
    """A linear classifier of bags of 80 words; row 7 alone holds some of the last ten."""
    drawn = torch.Generator().manual_seed(0)
    x, y = (torch.rand(300, 80, generator=drawn) < 0.05).float(), torch.randint(0, 4, (300,), generator=drawn)
    x[:, 70:] = 0
    x[7, 70:] = SECRET
    torch.manual_seed(0)
    model, data = nn.Linear(80, 4), Data.of((x, y))
    began = Trained.of(model, init=model, recipe=Recipe(epochs=40, lr=0.1, weight_decay=1e-3))
    return fit(began, data), data


def words_in(basis: Tensor) -> Tensor:
    """How much of each of the last ten words is in directions of the weights."""
    return basis[:320].reshape(4, 80, -1).square().sum(dim=(0, 2)).sqrt()[70:]


@pytest.mark.parametrize("rank", [3, 40, 200])
def test_no_word_that_only_the_forgotten_row_held_is_in_the_statistics(rank):
    before, data = texts()
    forget, kept = data.select([7]), data.select([i for i in range(300) if i != 7])
    statistics = precompute(before, data, rank=rank, diagonal="exact")
    moved = before.weights + step_from_statistics(statistics, before, forget, 1e-3, Notes()).step
    for rows in (kept, kept.select(range(150))):
        left = after_request(statistics, before, forget, moved, retain=rows)
        found = words_in(left.need("basis"))
        # Random vectors that directions were found from leave a little of every word, of those in no text too.
        assert float(found.max()) < 1e-4 or float(found[SECRET == 1].mean() / found[SECRET == 0].mean()) < 1.5
        assert float(words_in(left.need("diagonal").unsqueeze(1)).max()) == 0.0


def test_taking_a_row_out_of_a_low_rank_spells_it():
    """Why statistics are never made of old ones: all words of the row are read off the directions of the difference."""
    before, data = texts()
    statistics = precompute(before, data, rank=40, diagonal=None)
    own, _ = own_root(before, data.select([7]), most=4)
    basis, values = statistics.need("basis"), statistics.need("values")
    values, directions = torch.linalg.eigh((basis @ values.diag() @ basis.T - own @ own.T).double())
    kept = directions[:, values > 1e-3 * values.max()]
    found = words_in(kept)
    assert torch.equal((found > 0.5 * found.max()).float(), SECRET)


def asked_for(found: Case, w: Tensor, H: Tensor) -> Tensor:
    """`g_f` from the step that it led to, `(H_r + ridge) d = g_f - (g_r + g_f) / N`."""
    b = H @ (found.after.weights - w) + len(found.kept[0]) * RIDGE * (found.after.weights - w)
    return (ROWS * b + gradient_of(found.after, w, *found.kept)) / (ROWS - 1)


def test_whoever_kept_the_old_weights_and_all_other_rows_needs_no_statistics():
    """Why the receipt has the old weights destroyed: the step itself is the row's gradient in another form."""
    for seed in range(5):
        found = case("linear", seed)
        H = curvature_of(found.before, found.before.weights, found.kept[0])
        guess, label = read(found.after, asked_for(found, found.before.weights, H))
        assert error(guess, found.x[0]) < 1e-5
        assert label == int(found.y[0])
