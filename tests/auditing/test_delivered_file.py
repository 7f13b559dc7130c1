"""The delivered file by itself: a broken one is not let through, and three looks share its levels too."""

from dataclasses import replace

import torch

from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.auditing.evidence import Evidence
from spotlessnet.auditing.judging import judge_networks
from spotlessnet.auditing.rules import Rules
from spotlessnet.auditing.verdict import FILE, FILE_RETAIN_ERROR, FILE_TEST_ERROR
from spotlessnet.auditing.wording import IF_DAMAGED, next_step, sentence
from spotlessnet.core.data import Data
from spotlessnet.core.split import Split
from spotlessnet.training.pairs import train_pairs
from tests.auditing.test_provenance import problem


def answering(test: float, retain: float, networks: int = 16) -> Evidence:
    """Networks whose errors are spread by two points."""
    margins = torch.zeros(networks, 5, dtype=torch.float64)
    spread = torch.linspace(-0.02, 0.02, networks, dtype=torch.float64) if networks > 1 else torch.zeros(1).double()
    return Evidence(margins, spread, test + spread, retain_error=retain + spread)


def test_a_file_that_is_surely_broken_is_seen():
    references = [answering(0.2, 0.1)]
    for test, retain, broken in (
        (0.2, 0.1, []), (0.23, 0.13, []), (0.05, 0.02, []), (0.5, 0.1, [FILE_TEST_ERROR]),
        (0.2, 0.5, [FILE_RETAIN_ERROR]), (0.6, 0.6, [FILE_TEST_ERROR, FILE_RETAIN_ERROR]),
    ):  # fmt: skip
        found = EquivalenceTest().damage_of_file(answering(test, retain, 1), references)
        assert [check.name for check in found if check.state == "different"] == broken
        assert all(check.guards for check in found)
    assert sentence(found[0]).startswith("the delivered network itself: the error on new examples is higher")
    assert sentence(found[1]).startswith("the delivered network itself: the error on retained examples is higher")
    assert next_step("inconclusive", {check.name: check.state for check in found}) == IF_DAMAGED


def test_few_rows_and_missing_ones_break_nothing():
    still = replace(answering(0.0, 0.0), test_error=torch.zeros(16).double(), retain_error=torch.zeros(0).double())
    one = answering(0.008, 0.0, 1)
    [check] = EquivalenceTest().damage_of_file(replace(one, retain_error=torch.zeros(0).double()), [still])
    assert (check.name, check.state) == (FILE_TEST_ERROR, "same")


def test_an_untrained_file_is_not_forgotten():
    """Its rows do not stand out beside those of networks that never saw them, for it knows nothing at all."""
    begun, _ = problem()
    g = torch.Generator().manual_seed(1)
    x = torch.randn(260, 8, generator=g)
    y = (x[:, :3]).argmax(dim=1)
    data = Data.of((x, y))
    split = Split(data.select(range(12)), data.select(range(12, 60)), data.select(range(60, 260)))
    trainings = train_pairs(begun, split, seeds=5)
    found = judge_networks(trainings.held_out, trainings, split, delivered=begun)
    assert found.outcome == "inconclusive"
    assert found.checks[FILE].state != "different"
    assert found.checks[FILE_TEST_ERROR].state == "different"
    own = judge_networks(trainings.held_out, trainings, split, delivered=trainings.retrained[0])
    assert own.checks[FILE_TEST_ERROR].state == own.checks[FILE_RETAIN_ERROR].state == "same"


def test_a_file_has_its_share_of_every_level(monkeypatch):
    levels = set()

    def judged(self, *_):
        levels.add((self.looks, round(self.networks_alarm, 6), round(self.rows_alarm, 6)))
        raise StopIteration

    monkeypatch.setattr(Rules, "stood_out", lambda *_: object())
    monkeypatch.setattr(Rules, "judged", judged)
    for looks in (1, 3):
        try:
            EquivalenceTest(looks=looks).judge_file(answering(0, 0), answering(0, 0, 1), [answering(0, 0)])
        except StopIteration:
            continue
    assert levels == {(1, 0.05, 0.02), (1, round(0.05 / 3, 6), round(0.02 / 3, 6))}
