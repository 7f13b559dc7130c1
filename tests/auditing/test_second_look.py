"""An audit in sequence: three looks with a third of every level each, and networks of its own at each of them."""

from dataclasses import replace

import pytest
import torch
from torch import float64, nn

import spotlessnet as sn
from spotlessnet.auditing import run_audit
from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.looks import goes_on
from spotlessnet.auditing.verdict import RETAIN_ERROR, SHARE, Check, Checks, Verdict
from spotlessnet.core.data import Data
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import Retrain
from spotlessnet.readouts.matched_controls import Unseen
from spotlessnet.training.pairs import train_pairs

RECIPE = Recipe(epochs=2, lr=0.1, batch_size=16)


def problem() -> tuple[Trained, Split]:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(120, 4, generator=g), torch.randint(3, (120,), generator=g)
    torch.manual_seed(0)
    network = Trained.of(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), recipe=RECIPE)
    train = Data.of((x[:60], y[:60]))
    split = Split(train.select(range(5)), train.select(range(5, 60)), Data.of((x[60:], y[60:])))
    return replace(network, init=network.weights), split


def networks(seed: int, count: int = 16) -> Evidence:
    """Answers of networks that differ by chance alone."""
    place, g = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    labels = torch.arange(10) % 3
    where = [4 * torch.rand(rows, 3, generator=place, dtype=float64) - 3 for rows in (10, 60)]
    own, unseen = (at + 0.4 * torch.randn(count, *at.shape, generator=g, dtype=float64) for at in where)
    margins = own[:, torch.arange(10), labels]
    beside = Unseen(unseen, labels, torch.zeros(60, dtype=torch.long), torch.empty(0, dtype=torch.long))
    error = 0.1 + 0.01 * torch.rand(count, generator=g, dtype=float64)
    return Evidence(margins, (margins < 0).double().mean(1), error, beside, answers=own, retain_error=error)


def test_each_look_has_half_of_every_level_and_all_of_the_doubt():
    whole, half = EquivalenceTest(looks=2), EquivalenceTest(looks=2).one_look()
    assert half.looks == 1
    assert 1 - half.level == pytest.approx((1 - whole.level) / 2)
    for name in ("false_alarm", "networks_alarm", "rows_alarm", "rows_sure"):
        assert getattr(half, name) == getattr(whole, name) / 2
    assert (half.networks_doubt, half.rows_doubt, half.share) == (0.05, 0.1, 0.2)
    assert EquivalenceTest().one_look() == EquivalenceTest()


def test_a_test_of_two_looks_judges_by_the_levels_of_one():
    groups = [networks(seed, 8) for seed in range(4)]
    twice, once = EquivalenceTest(looks=2, permutations=199), EquivalenceTest(looks=2, permutations=199).one_look()
    assert repr(twice(*groups)) == repr(once(*groups))
    assert repr(twice.gates(*groups[:3]).known) == repr(once.gates(*groups[:3]).known)


def test_halves_of_a_group_joined_are_the_group():
    whole = networks(1)
    first, second = (whole.select(half) for half in torch.arange(16).chunk(2))
    joined = first.join(second)
    for name in ("margins", "forget_error", "test_error", "retain_error", "answers"):
        torch.testing.assert_close(getattr(joined, name), getattr(whole, name))
    for ours, theirs in zip(joined.channels or (), whole.channels or (), strict=True):
        torch.testing.assert_close(ours.rows, theirs.rows)
        torch.testing.assert_close(ours.controls, theirs.controls)


@pytest.mark.parametrize(
    ("sequential", "words", "looked_at"),
    [
        (False, ["inconclusive"], [5]),
        (True, ["forgotten"], [5]),
        (True, ["inconclusive", "forgotten"], [5, 10]),
        (True, ["inconclusive", "inconclusive", "not forgotten"], [5, 10, 20]),
        (True, ["inconclusive", "inconclusive", "inconclusive"], [5, 10, 20]),
    ],
)
def test_the_next_look_comes_only_where_the_one_before_says_nothing(monkeypatch, sequential, words, looked_at):
    seen, left, trained = [], list(words), []

    def judge(scrubbed, trainings, split, **told):
        seen.append(len(scrubbed))
        assert told["test"].looks == (3 if sequential else 1)
        assert len(scrubbed) == len(trainings.original) == len(trainings.retrained) == len(trainings.held_out)
        return Verdict(left.pop(0), "", 0.1, len(scrubbed), "forgotten", "not forgotten")

    def train(*given, **how):
        found = train_pairs(*given, **how)
        trained.append(torch.stack([one.weights for one in (*found.retrained, *found.held_out)]))
        return found

    monkeypatch.setattr(run_audit, "judge_networks", judge)
    monkeypatch.setattr(run_audit, "train_pairs", train)
    monkeypatch.setattr(run_audit, "never_sees", lambda *_: False)
    network, split = problem()
    report = sn.audit(network, split, Retrain(), name="retrain", seeds=5, sequential=sequential)
    assert (seen, report.outcome) == (looked_at, words[-1])
    every = torch.cat(trained)
    assert len(every) == 2 * looked_at[-1]
    assert len(every.unique(dim=0)) == len(every)  # no network serves twice


@pytest.mark.parametrize(
    ("outcome", "guards", "state", "expected"),
    [
        ("inconclusive", True, "unclear", True),
        ("inconclusive", True, "different", False),
        ("inconclusive", False, "different", True),
        ("forgotten", True, "same", False),
        ("not forgotten", False, "different", False),
    ],
)
def test_more_networks_are_trained_unless_those_that_are_there_are_surely_damaged(outcome, guards, state, expected):
    check = Check(RETAIN_ERROR if guards else SHARE, state, 0.1, 0.05, 0.2, 0.01, guards=guards)
    assert goes_on(Verdict(outcome, "", 0.1, 5, "forgotten", "not forgotten", Checks([check]))) is expected
