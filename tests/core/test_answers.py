"""Margins and error rates: against their formulas, and defined once in the whole package."""

import re
from pathlib import Path

import pytest
import torch
from torch import float64, nn

import spotlessnet
from spotlessnet.core.answers import check_damage, error_rate, margin, mistakes
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DamageError
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.split import rows
from spotlessnet.core.trained import Trained
from spotlessnet.readouts import Error
from spotlessnet.readouts.margin import margins


def world() -> tuple[Trained, Data]:
    torch.manual_seed(0)
    x, y = torch.randn(300, 4, dtype=float64), torch.arange(300) % 3
    return Trained.of(nn.Linear(4, 3).double()), Data.of((x, y))


def test_a_margin_is_the_log_odds_of_the_label():
    network, data = world()
    p = network.predict(data).softmax(dim=1).gather(1, data.labels().unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(margins(network, data), (p / (1 - p)).log())


def test_a_margin_is_float64_whatever_the_logits_are():
    assert margin(torch.tensor([[1.0, 0.0]]), torch.tensor([1])).tolist() == [-1.0]
    assert margin(torch.zeros(1, 2), torch.tensor([1])).dtype == float64


def test_mistakes_are_wrong_answers_row_by_row_and_the_rate_is_their_mean():
    network, data = world()
    wrong = [
        int(answer.argmax()) != int(label) for answer, label in zip(network.predict(data), data.labels(), strict=True)
    ]
    assert mistakes(network, data).tolist() == [float(w) for w in wrong]
    assert error_rate(network, data) == pytest.approx(sum(wrong) / 300, abs=1e-15)


def test_without_classes_a_mistake_is_the_loss():
    torch.manual_seed(0)
    x, y = torch.randn(9, 4, dtype=float64), torch.randn(9, 1, dtype=float64)
    network = Trained.of(nn.Linear(4, 1).double(), SquaredError())
    expected = network.loss(network.predict(Data.of((x, y))), y)
    torch.testing.assert_close(mistakes(network, Data.of((x, y))), expected)


@pytest.mark.parametrize(
    ("what", "home"),
    [
        (r"argmax\(dim=-?1\)(\.cpu\(\))? != ", "core/loss.py"),
        (r"- \w+\.logsumexp\(dim=1\)", "core/answers.py"),
        (r"loss\.mistakes\(network\.outputs\(", "core/answers.py"),
    ],
)
def test_there_is_one_definition(what, home):
    package = Path(spotlessnet.__file__).parent
    found = {
        path.relative_to(package).as_posix(): len(re.findall(what, path.read_text(encoding="utf-8")))
        for path in package.rglob("*.py")
    }
    assert {path: count for path, count in found.items() if count} == {home: 1}


def test_the_readout_reads_the_same_rate():
    network, data = world()
    split = spotlessnet.Split(forget=data)
    assert float(Error("forget")(network, split)) == error_rate(network, data)


def test_answers_that_are_no_numbers_are_not_told_as_a_share():
    network, data = world()
    broken = network.at(network.weights.clone().fill_(torch.nan))
    with pytest.raises(DamageError, match=r"is ruined: answers to 290 retained rows are not finite numbers; a rise by"):
        check_damage(network, broken, rows(range(10))(data))
