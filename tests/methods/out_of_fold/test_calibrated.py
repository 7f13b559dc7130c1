"""Fold models' answers as sure as the network's: each row, model and division written out, and what it is good for."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, float64, nn

from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Request, Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import OutOfFoldDistillation
from spotlessnet.methods.out_of_fold.calibrated import ENOUGH, HELD, as_sure, calibrated, read_held_out
from spotlessnet.methods.out_of_fold.presets import CALIBRATED, CORRECTED, UNTAUGHT
from spotlessnet.precomputed.fold_models import FoldModels, train_fold_models
from spotlessnet.readouts.margin import margins
from spotlessnet.training.fit import fit

CLASSES = 3


def problem(count: int = 240, folds: int = 3, repeats: int = 1) -> tuple[Trained, Data, Data, FoldModels]:
    """Rows, of which the first nine are one person's, held-out rows, a network that memorises, and fold models."""
    torch.manual_seed(0)
    x = torch.randn(count + 400, 6, dtype=float64)
    y = (x[:, :CLASSES] + 0.7 * torch.randn(len(x), CLASSES, dtype=float64)).argmax(dim=1)
    ids = ["person"] * 9 + [str(i) for i in range(9, count)]
    data, held = Data.of((x[:count], y[:count]), columns={"id": ids}), Data.of((x[count:], y[count:]))
    network = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, CLASSES)).double()
    recipe = Recipe(epochs=40, lr=0.3, batch_size=32, weight_decay=1e-4)
    trained = fit(Trained.of(network, init=network, recipe=recipe), data, seed=1)
    return trained, data, held, train_fold_models(trained, data, folds=folds, repeats=repeats, seed=1)


def margin_of(z: Tensor, y: int) -> float:
    others = [float(z[c]) for c in range(CLASSES) if c != y]
    return float(z[y]) - float(torch.tensor(others, dtype=float64).logsumexp(0))


def lead_of(z: Tensor) -> float:
    return sum(float(row.sort().values[-1] - row.sort().values[-2]) for row in z) / len(z)


@pytest.mark.parametrize("ordinary", [True, False])
@pytest.mark.parametrize("repeats", [1, 2])
def test_every_row_written_out(ordinary: bool, repeats: int) -> None:
    trained, data, held, folds = problem(repeats=repeats)
    person = data.select(range(9))
    found = calibrated(folds, trained, person, person, held, ordinary=ordinary)
    labels, known = person.labels().tolist(), held.labels()
    asked = held.select(torch.isin(known, person.labels()).nonzero().squeeze(1)) if ordinary else held
    own, y = trained.predict(asked), asked.labels()
    for i, label in enumerate(labels):
        expected = torch.zeros(CLASSES, dtype=float64)
        for d in range(repeats):
            k = int(folds.part[d, folds.keys.find(person)][i])
            fold = trained.at(folds.weights[k])
            theirs, said = fold.predict(asked), fold.predict(person)[i]
            scale = lead_of(own) / lead_of(theirs)
            said = scale * said
            if ordinary:
                alike = (y == label).nonzero().squeeze(1).tolist()
                before = torch.tensor([margin_of(scale * theirs[j], label) for j in alike], dtype=float64)
                there = torch.tensor([margin_of(own[j], label) for j in alike], dtype=float64)
                said[label] += there.mean() - before.mean()
            expected += said / repeats
        torch.testing.assert_close(found[i], expected)


def test_held_out_rows_themselves_get_the_networks_mean():
    draw = torch.Generator().manual_seed(0)
    theirs, own = (torch.randn(300, CLASSES, generator=draw, dtype=float64) * s for s in (1.0, 3.0))
    y = torch.arange(300) % CLASSES
    told = as_sure(theirs, y, theirs, own, y)
    for c in range(CLASSES):
        mine = (y == c).nonzero().squeeze(1).tolist()
        now, there = (torch.tensor([margin_of(z[i], c) for i in mine]) for z in (told, own))
        assert now.mean() == pytest.approx(float(there.mean()))
        others = [k for k in range(CLASSES) if k != c]
        assert torch.equal(told[mine][:, others], theirs[mine][:, others])


def test_a_class_with_few_held_out_rows_is_left_as_it_is():
    y = torch.zeros(ENOUGH, dtype=torch.long)
    z = torch.randn(ENOUGH, CLASSES, dtype=float64)
    assert torch.equal(as_sure(z, y, z[1:], 2 * z[1:], y[1:]), z)
    assert not torch.equal(as_sure(z, y, z, 2 * z, y), z)


def test_without_held_out_rows_what_was_measured_in_training_scales():
    trained, data, _, folds = problem()
    person = data.select(range(9))
    plain = calibrated(folds, trained, person, person, None, ordinary=True)
    torch.testing.assert_close(plain, folds.answers(trained, person, person))
    scales = torch.tensor([2.0, 3.0, 4.0], dtype=float64)
    k = int(folds.part[0, folds.keys.find(person)][0])
    torch.testing.assert_close(
        calibrated(replace(folds, scales=scales), trained, person, person, None, ordinary=True), scales[k] * plain
    )


def test_how_many_answers_about_held_out_rows_it_takes():
    _, data, held, folds = problem()
    person = data.select(range(9))
    assert len(person.labels().unique()) == CLASSES
    # Grouped rows: the network and one fold model.
    assert read_held_out(folds, person, held, ordinary=True) == 2 * 400
    assert read_held_out(folds, data, held, ordinary=True) == 4 * 400
    one = person.select(range(1))
    of_class = int((held.labels() == one.labels()).sum())
    assert read_held_out(folds, one, held, ordinary=True) == 2 * of_class
    assert read_held_out(folds, one, held, ordinary=False) == 2 * 400
    assert read_held_out(folds, one, None, ordinary=True) == 0
    many = Data.of((torch.randn(2 * HELD, 6, dtype=float64), torch.zeros(2 * HELD, dtype=torch.long)))
    assert read_held_out(folds, one, many, ordinary=False) == 2 * HELD


def test_margins_come_nearer_to_retrained_ones_than_those_of_fold_models():
    trained, data, held, _ = problem()
    gaps = []
    for seed in range(3):
        # A third of the rows go: each is one of a thousand to a network of usual size, so they are asked one by one.
        forget = data.select(torch.arange(seed, len(data), 12))
        folds = train_fold_models(trained, data, folds=2, groups=None, seed=seed)
        assert trained.init is not None
        retrained = fit(trained.at(trained.init), data.without(forget), seed=seed)
        y = forget.labels()
        told = [calibrated(folds, trained, forget, forget, held, ordinary=True), folds.answers(trained, forget)]
        means = [torch.tensor([margin_of(z, int(c)) for z, c in zip(t, y, strict=True)]).mean() for t in told]
        gaps.append([abs(float(m) - float(margins(retrained, forget).mean())) for m in means])
    ours, theirs = torch.tensor(gaps).mean(dim=0).tolist()
    assert ours < theirs


@pytest.mark.parametrize("limit", [{"compute_budget": 0.5}, {"examples_per_epoch": 20}])
def test_few_visits_are_served_by_it(limit: dict[str, float]) -> None:
    trained, data, held, folds = problem()
    split = Split(data.select(range(9)), data.select(range(9, 240)), validation=held)
    wrong = replace(split, request=Request(mislabelled=True))
    bare = replace(split, validation=None)
    scrub = OutOfFoldDistillation(fold_models=folds, **limit)  # type: ignore[arg-type]  # one of each kind
    for which, preset in ((split, CALIBRATED), (wrong, UNTAUGHT), (bare, CORRECTED)):
        facts = scrub(trained, which).diagnostics
        assert facts["targets"] == preset.targets
        assert facts["retain_temperature"] == preset.retain_temperature
    every = OutOfFoldDistillation(fold_models=folds, epochs=1)(trained, split).diagnostics
    assert every["targets"] == "in minus out, shrunk"


def test_the_price_holds_what_is_read():
    _, data, held, folds = problem()
    split = Split(data.select(range(9)), data.select(range(9, 240)), validation=held)
    ours = OutOfFoldDistillation(fold_models=folds, targets="calibrated", compute_budget=0.5)
    other = replace(ours, targets="in minus out")
    assert ours.price(split, 1).readings == 1
    assert other.price(split, 1).readings == 4
    assert ours.price(split, 1).others - other.price(split, 1).others == 2 * 400
