"""What does not belong together is refused in words before an audit trains anything."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.auditing import run_audit
from spotlessnet.auditing.before_work import check_kinds
from spotlessnet.core.errors import DataError, MismatchError, NumericsError, SettingError
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=G), torch.randint(3, (60,), generator=G)
TEST = torch.randn(30, 4, generator=G), torch.randint(3, (30,), generator=G)


def network(out: int = 3) -> Trained:
    made = Trained.of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, out)), recipe=sn.Recipe(epochs=1))
    return replace(made, init=made.weights)


def split(x: torch.Tensor = X, y: torch.Tensor = Y, test: object = TEST, rows: object = range(5)) -> Split:
    return sn.rows(rows)((x, y), test)  # type: ignore[arg-type]  # any numbers


def holed(x: torch.Tensor) -> torch.Tensor:
    return x.clone().index_fill_(0, torch.tensor([7]), torch.nan)


WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "no row": (DataError, "An audit needs rows that must go", {"split": split(rows=[])}),
    "no test row": (DataError, "There is no test row, though test data", {"split": split(test=(X[:0], Y[:0]))}),
    "too little stays": (DataError, "Finetune must keep at least 5%", {"split": split(rows=range(58))}),
    "test holes": (DataError, "inputs of test rows must be finite", {"split": split(test=(holed(TEST[0]), TEST[1]))}),
    "holes": (DataError, "inputs of retained rows must be finite", {"split": split(x=holed(X))}),
    "wide": (MismatchError, "cannot answer the test rows", {"split": split(test=(TEST[0][:, :2], TEST[1]))}),
    "labels": (MismatchError, "3 classes, but labels of test rows go from", {"split": split(test=(X, Y + 2))}),
    "one seed": (SettingError, "`seeds` must be a whole number of at least 2, but got 1", {"seeds": 1}),
    "another form": (MismatchError, "`delivered` must answer as the original", {"delivered": network(5)}),
    "no numbers": (
        NumericsError,
        "weights of `delivered` must be finite",
        {"delivered": network().at(network().weights * torch.nan)},
    ),
    "too large": (
        NumericsError,
        "answers of `delivered` must be finite",
        {"delivered": network().at(network().weights.sign() * 1e30)},
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case, monkeypatch):
    def trains(*_: object, **__: object) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr(run_audit, "train_pairs", trains)
    error, text, changed = WRONG[case]
    given: dict[str, Any] = {"original": network(), "split": split(), "scrub": sn.Finetune(), "name": "it"} | changed
    with pytest.raises(error, match=text):
        sn.audit(**given)


OF_NO_KIND: dict[str, tuple[Any, str]] = {
    "original": ("net", "An audit begins at a `Trained`, or at a function of the seed, but got str"),
    "scrubs": ({"it": "finetune"}, r"The method 'it' must be one, such as `sn.Retrain\(\)`, but got finetune"),
    "seeds": (5.5, "`seeds` must be a whole number of at least 2, but got 5.5"),
    "delivered": (nn.Linear(4, 3), "`delivered` must be a `Trained`, but got Linear"),
    "bank": ("kept/", "`bank` must be a `Bank`, but got kept/"),
}


@pytest.mark.parametrize("name", OF_NO_KIND)
def test_what_is_of_no_kind_is_refused(name):
    fine: dict[str, Any] = {
        "original": network(),
        "scrubs": {"it": sn.Finetune()},
        "seeds": 8,
        "delivered": None,
        "bank": None,
    }
    check_kinds(**fine)
    given, text = OF_NO_KIND[name]
    with pytest.raises(SettingError, match=text):
        check_kinds(**(fine | {name: given}))


@pytest.mark.parametrize("fits", [{}, {"split": split(test=None)}, {"delivered": network()}, {"seeds": 2}])
def test_what_is_taken(fits, monkeypatch):
    class BegunError(Exception):
        pass

    def trains(*_: object, **__: object) -> None:
        raise BegunError

    monkeypatch.setattr(run_audit, "train_pairs", trains)
    with pytest.raises(BegunError):
        sn.audit(**({"original": network(), "split": split(), "scrub": sn.Finetune(), "name": "it"} | fits))


def test_an_audit_of_very_few_kept_rows_does_not_end_after_its_trainings():
    """Retraining serves three rows of a hundred; the picture of noise refused them when all had been trained."""
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    data = sn.Data.of((x, torch.arange(100) % 3))
    few = sn.rows(range(97))(data, sn.Data.of(TEST))
    report = sn.audit(network(), few, sn.Retrain(), name="retrain", seeds=2)
    assert report.verdict is not None
    assert not report.curves.trade_off
