"""What a receipt publishes does not tell which row was forgotten; what it was written from stays private."""

import json
import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import IntegrityError
from spotlessnet.datasets import load
from spotlessnet.operators.gradient import gradient
from spotlessnet.precomputed.step import BENEATH, WIDEST, own_root
from spotlessnet.requests.verifying import verify_request
from spotlessnet.store import receipts
from spotlessnet.store.receipts import COUNTED, PROMISED, coarse, public, without_figures

TRAIN, OTHERS = 300, 40


def digits(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    batches = list(load("digits").train.batches())
    x, y = (torch.cat([getattr(b, name) for b in batches]) for name in ("x", "y"))
    chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[: TRAIN + OTHERS]
    return x.flatten(1)[chosen], y[chosen]


def told_of(about: dict[str, Any]) -> dict[str, float]:
    """The numbers of a receipt that an attacker can work out for any row."""
    kinds = [one for one in about["utility"]["measured"] if (one["on"], one["kind"]) == ("retained rows", "loss")]
    told = {"dropped curvature": about.get("dropped_curvature"), "step": about["ntk"].get("step")}
    told["loss before"] = kinds[0].get("before")
    return {name: value for name, value in told.items() if value is not None}


def ranks(seed: int) -> dict[str, list[float]]:
    """Of rows asked for one by one: the share of others that fit a number of the receipt better than the true one.

    As an attacker who holds the retained rows, the new network and the new statistics would: for each row that may
    have been forgotten, go back by the step that it would have been, and compare with what the receipt says.
    """
    x, y = digits(seed)
    data = sn.Data.of((x[:TRAIN], y[:TRAIN]))
    torch.manual_seed(seed)
    recipe = sn.Recipe(epochs=30, lr=0.3, batch_size=32, weight_decay=1e-3)
    trained = sn.fit(sn.Trained.of(nn.Linear(64, 10), weight_decay=1e-3), data, recipe)
    kept, got = sn.precompute(trained, data, rank=200), defaultdict[str, list[float]](list)
    for row in (5, 50, 100):
        done = sn.unlearn(trained, data, forget=[row], method="ntk", statistics=replace(kept), progress=False)
        told, new = told_of(done.receipt["predicate"]["about"]), done.statistics
        assert new is not None
        assert new.basis is not None
        assert new.values is not None
        after, stay = sn.Trained.of(done.model, weight_decay=1e-3), [i for i in range(TRAIN) if i != row]
        off = defaultdict[str, list[float]](list)
        for i in (row, *range(TRAIN, TRAIN + OTHERS)):
            one = sn.Data.of((x[i : i + 1], y[i : i + 1]))
            b = gradient(after, one)
            ridge, c = new.count * 1e-3 + new.outside, new.basis.T @ b
            step = b / ridge + new.basis @ (c / ((new.values - new.outside).clamp(min=0) + ridge) - c / ridge)
            at = after.at(after.weights - step)
            guess = {"loss before": float(at.losses(x[stay], y[stay]).mean()), "step": float(step.norm())}
            guess["dropped curvature"] = own_root(at, one, WIDEST, beneath=BENEATH * new.outside)[1]
            for name, value in told.items():
                off[name].append(abs(math.log((guess[name] + 1e-9) / (value + 1e-9))))
        for name, (true, *others) in off.items():
            got[name].append(float((torch.tensor(others) < true).double().mean()))
    return got


def test_a_receipt_does_not_single_out_the_row(monkeypatch):
    assert ranks(1) == {}
    monkeypatch.setattr(receipts, "public", dict)  # all digits, as earlier versions wrote them
    assert sum(ranks(1)["dropped curvature"]) / 3 < 0.1


def every_number(told: Any, name: str = "") -> list[tuple[str, float]]:
    if isinstance(told, dict):
        return [pair for key, value in told.items() for pair in every_number(value, key)]
    if isinstance(told, list):
        return [pair for value in told for pair in every_number(value, name)]
    return [(name, told)] if isinstance(told, (int, float)) and not isinstance(told, bool) else []


@pytest.mark.parametrize("method", ["ntk", "newton", "fisher", "ntk+finetune", "ssd", "newton+fisher"])
def test_no_number_is_told_that_was_measured(method, tmp_path):
    torch.manual_seed(0)
    y = torch.arange(90) % 3
    x = torch.randn(90, 4) + 2 * nn.functional.one_hot(y, 4)
    trained = sn.fit(sn.Trained.of(nn.Linear(4, 3), weight_decay=1e-2), sn.Data.of((x, y)), sn.Recipe(epochs=5, lr=0.1))
    out = tmp_path / "run"
    done = sn.unlearn(trained, (x, y), forget=[3], method=method, out=out, accept_damage=True, progress=False)
    about = json.loads((out / "receipt.json").read_text())["predicate"]["about"]
    numbers = [(name, value) for name, value in every_number(about) if name not in COUNTED]
    assert {name for name, _ in numbers} <= PROMISED
    assert all(value == float(f"{value:.2g}") for _, value in numbers)
    exact = json.loads((out / "private/receipt-diagnostics.json").read_text())
    assert exact == done.diagnostics
    assert all(name.split(".")[0] in exact for name in about["held_back"])
    assert verify_request(out).is_sealed
    exact["seconds"] = 1e-9
    (out / "private/receipt-diagnostics.json").write_text(json.dumps(exact))
    with pytest.raises(IntegrityError, match="diagnostics kept in `private` are not those"):
        verify_request(out)


def test_what_a_request_promises_is_rounded_up():
    cases = ((0.61, 1.0), (0.1, 0.1), (1.2e-15, 1e-14), (9.5, 10.0), (0.0, 0.0), (-0.15, 0.0), ("inf", "inf"))
    for value, rounded in cases:
        assert coarse(value) == pytest.approx(rounded) if isinstance(rounded, float) else rounded == value
    assert coarse(0.98765) == 1.0


def test_only_words_flags_and_counts_of_a_nested_diagnostic_are_told():
    nested = {
        "ntk": {"step": 1.5, "searched": True, "gap": "nan"},
        "trade_off": [{"nats": 0.11, "scale": 2.0}],
        "looks": [{"on": "kept rows", "rows": 7}],
        "solved": ["dual, off by 1.2e-3 (0.4 % of 12)"],
        "audit": [{"name": "rows", "state": "same", "value": 0.1}],
    }
    assert public(nested) == {
        "ntk": {"searched": True},
        "looks": [{"on": "kept rows"}],
        "solved": ["dual, off by …"],
        "held_back": ["audit", "looks.rows", "ntk.gap", "ntk.step", "trade_off.nats", "trade_off.scale"],
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("by 12.5 points, up to −3 % or 1e-07", "by … points, up to … or …"),
        ("in float32, with U-LiRA (2 of 3 rows) and conv2", "in float32, with U-LiRA and conv2"),
        ("1,234 rows.", "… rows."),
        ("0.5.", "…."),
        ("p = 0.003: rows", "p = …: rows"),
        ("no number", "no number"),
    ],
)
def test_sentences_lose_their_figures_alone(text, told):
    assert without_figures(text) == told
