"""A later request for a near copy of a forgotten row: known again without the row, refused where it returns."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import torch
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import NTK, OutOfFoldDistillation
from spotlessnet.precomputed.after_request import after_request
from spotlessnet.precomputed.effect import MOST_HASHED, Effect, as_text, from_text
from spotlessnet.precomputed.fold_models import train_fold_models
from spotlessnet.precomputed.near_copies import TABLES, comes_back, hashes_of
from spotlessnet.precomputed.precompute import precompute
from spotlessnet.training.fit import fit
from tests.precomputed.test_others import digits


def near_copy(seed: int) -> tuple[Trained, Data, Data, Data, Data]:
    """A network that learnt a wrong label by heart, and a right one of nearly the same picture; both, and the rest."""
    x, y = digits()
    x, y = x.clone(), y.clone()
    torch.manual_seed(seed)
    first, copy = torch.randperm(len(x))[:2].tolist()
    x[copy] = x[first] + 0.1 * x.std() * torch.randn(x.shape[1])
    y[copy] = y[first]
    y[first] = (y[first] + 1 + int(torch.randint(0, 9, ()))) % 10
    data, model = Data.of((x, y)), nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    recipe = Recipe(epochs=150, lr=0.1, weight_decay=1e-3, batch_size=50, schedule="cosine")
    network = fit(Trained.of(model, init=model, recipe=recipe), data, seed=seed)
    left = [i for i in range(len(x)) if i not in (first, copy)]
    return network, data, data.select([first]), data.select([copy]), data.select(left)


def loss_of(network: Trained, row: Data) -> float:
    return float(network.losses(row.fetch(row.rows).x, row.labels()).detach())


def second_request(seed: int, *, purged: bool) -> tuple[bool, bool, bool]:
    """From statistics: whether the first row came back by half, by retraining too, and whether that was served."""
    network, data, first, copy, left = near_copy(seed)
    once = left.join(copy)
    statistics = precompute(network, data, rank=40, diagonal=None)
    done = NTK(statistics=statistics)(network, Split(forget=first, kept=once))
    assert not done.diagnostics["retrain_now"]
    now = network.at(done.mean)
    statistics = after_request(statistics, network, first, now.weights, retain=once)
    statistics = replace(statistics, effects=None) if purged else statistics
    more = NTK(statistics=statistics)(now, Split(forget=copy, kept=left))
    path = [loss_of(one, first) for one in (network, now, now.at(more.mean))]
    anew = [loss_of(fit(network.at(network.init), kept, order_of=data), first) for kept in (once, left)]  # type: ignore[arg-type]  # it has one
    return _back(*path), _back(path[0], *anew), not more.diagnostics["retrain_now"]


def _back(first: float, own: float, later: float) -> bool:
    return own - first > 0.05 and own - later > 0.5 * (own - first)


@pytest.mark.parametrize("purged", [False, True], ids=["known", "purged"])
def test_a_near_copy_brings_nothing_back_unsaid(purged):
    """It was served without a word, though retraining brings none of these back."""
    found = [second_request(seed, purged=purged) for seed in SEEDS]
    assert any(back for back, _, _ in found), "none of these would come back: nothing was tested"
    assert not any(anew for _, anew, _ in found)
    assert not any(back and served for back, _, served in found)


SEEDS = range(6)


def test_hashes_know_near_copies_and_no_others():
    x, y = digits()
    key = bytes(16)
    torch.manual_seed(0)
    rows = Data.of((x, y))
    own = [set(one) for one in hashes_of(rows, key)]
    for shift, least, most in ((0.0, 1.0, 1.0), (0.1, 0.95, 1.0), (0.2, 0.3, 1.0)):
        moved = x + shift * x.std() * torch.randn(x.shape)
        again = hashes_of(Data.of((moved, y)), key)
        share = sum(not a.isdisjoint(b) for a, b in zip(own, again, strict=True)) / len(x)
        assert least <= share <= most
    pairs = [(i, j) for i in range(60) for j in range(i) if not own[i].isdisjoint(own[j])]
    angle = torch.nn.functional.cosine_similarity(x.unsqueeze(1), x.unsqueeze(0), dim=2).clamp(max=1).acos()
    assert all(float(angle[i, j]) < math.radians(20) for i, j in pairs)
    # Under another key nothing is the same, and of one picture no two hashes are.
    assert not own[0] & set(hashes_of(rows.select([0]), bytes(15) + b"1")[0])
    assert len(own[0]) == TABLES
    # Labels are no part of them: a near copy comes with its own.
    assert hashes_of(Data.of((x[:3], (y[:3] + 1) % 10)), key) == hashes_of(rows.select(range(3)), key)


def test_inputs_with_names_are_hashed_as_their_parts():
    x = torch.randn(3, 5, 2)
    named = Data.of(({"b": x[:, :, 0], "a": x[:, :, 1]}, torch.zeros(3).long()))
    plain = Data.of((torch.cat([x[:, :, 1], x[:, :, 0]], dim=1), torch.zeros(3).long()))
    assert hashes_of(named, b"k") == hashes_of(plain, b"k")


def two_answers(p: float) -> Trained:
    """A network of one weight that gives the first of two classes this probability for the input one."""
    model = nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[math.log(p / (1 - p))], [0.0]]))
    return Trained.of(model)


def test_a_row_comes_back_when_a_quarter_of_what_was_done_is_lost():
    """By hand: forgotten from 0.2 to 1.2 under label 1; the copy's label 0 holds it there."""
    rows = Data.of((torch.ones(1, 1, dtype=torch.float64), torch.zeros(1).long()))
    now = two_answers(1 - math.exp(-1.2))
    key = bytes(16)
    effect = Effect(1, 1.0, 1.2, "", key.hex(), tuple(hashes_of(rows, key)[0]))
    for loss, back in ((0.96, False), (0.94, True), (1.3, False)):
        step = two_answers(1 - math.exp(-loss)).weights - now.weights
        assert comes_back(now, step, rows, [effect]) is back
        # Another's row is no near copy, and what is no near copy is seen by stand-ins.
        assert not comes_back(now, step, rows, [replace(effect, hashes=())])
        # Under its own label nothing comes back.
        own = Data.of((torch.ones(1, 1, dtype=torch.float64), torch.ones(1).long()))
        assert not comes_back(now, step, own, [effect])
    # Purged: likelier than a guess, and was not.
    for loss, back in ((0.70, False), (0.68, True)):
        step = two_answers(1 - math.exp(-loss)).weights - now.weights
        assert comes_back(now, step, rows, None) is back


def test_hashes_are_kept_with_the_effect_and_damaged_ones_count_as_not_known():
    network, _, first, _, _ = near_copy(0)
    effect = Effect.of(network, network.at(0 * network.weights), first)
    assert effect is not None
    assert len(effect.hashes) == TABLES
    due = replace(effect, due="2999-01-01T00:00:00+00:00")
    text, now = as_text(due, ""), datetime(2026, 1, 1, tzinfo=UTC)
    told = from_text(text, now)
    assert told is not None
    assert told[0] is not None
    assert (told[0], told[0].key, told[0].hashes) == (due, due.key, due.hashes)
    many = Effect.of_all(network, network.at(0 * network.weights), Data.of(tuple(t[:200] for t in digits())))
    assert many is not None
    assert len(many.hashes) == MOST_HASHED * TABLES
    assert len(as_text(replace(many, due=due.due), "x" * 4000)) < 2**16
    plain = json.loads(text)
    for name, value in (("key", "xyz"), ("hashes", ["0" * 15]), ("hashes", [1]), ("hashes", ["0" * 16] * 2049)):
        damaged = {**plain, "effect": {**plain["effect"], name: value}}
        with pytest.raises(ValueError, match="near copies"):
            from_text(json.dumps(damaged), now)


def test_fold_models_see_near_copies_too():
    network, _, first, copy, left = near_copy(0)
    split, models = Split(forget=copy, kept=left), train_fold_models(network, left.join(copy), after_requests=True)

    def served(*effects: Effect) -> tuple[bool, torch.Tensor]:
        done = OutOfFoldDistillation(fold_models=replace(models, effects=effects), epochs=3)(network, split)
        return not done.diagnostics["retrain_now"], done.mean

    allowed, mean = served()
    assert allowed
    x = copy.fetch(copy.rows).x
    now, after = (
        -one.outputs(x).detach().double().log_softmax(1)[0] for one in (network, network.at(mean))
    )  # one tensor
    fall = (now - after).max()
    # An earlier request that left its row with this loss, and did so much that only its copy can bring it back.
    left_with, did, key = float(now[(now - after).argmax()]), float(2 * fall), bytes(16)
    known = Effect(1, did, left_with, "", key.hex(), tuple(hashes_of(first, key)[0]))
    assert served(replace(known, hashes=()))[0]
    assert not served(known)[0]
