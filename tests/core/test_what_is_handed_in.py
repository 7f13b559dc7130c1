"""One level below `unlearn`, bare modules are taken, and what is no network, no rows or no request is refused in words.

In a process of its own, where types are not checked as they are in these tests.
"""

import json
import subprocess
import sys

import pytest

ASKED = """
import json, torch, spotlessnet as sn
torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.arange(64) % 2
model, data = torch.nn.Linear(4, 2), sn.Data.of((x, y))
split, trained, recipe = sn.rows([0, 1])(data), sn.Trained.of(model), sn.Recipe(epochs=1, lr=0.1)
noise = sn.SSD()(model, split)
calls = {
    "precompute": lambda model, data, split: sn.precompute(model, data, rank=1),
    "fit": lambda model, data, split: sn.fit(model, data, recipe),
    "fit_many": lambda model, data, split: sn.fit_many(model, data, recipe, seeds=[0]),
    "check_damage": lambda model, data, split: sn.check_damage(model, model, split),
    "audit": lambda model, data, split: sn.audit(model, split, sn.SSD(), name="ssd"),
    "trade_off": lambda model, data, split: sn.trade_off(
        noise, noise, model, split, readouts=[sn.Error("retain")], bounds=[], scales=[1.0], draws=1),
    "a method": lambda model, data, split: sn.SSD()(model, split),
    "a budget": lambda model, data, split: sn.WithinBudget(sn.Fisher(), max_nats=1)(model, split),
    "train_fold_models": lambda model, data, split: sn.train_fold_models(model, data),
    "u_lira": lambda model, data, split: sn.u_lira(model, split, sn.SSD()),
    "compare": lambda model, data, split: sn.compare(model, split, scrubs={}, readouts=[sn.Error("retain")]),
}
told = {}
for name, call in calls.items():
    for what, given in {
        "modules": (model, data, split), "a function": (lambda: model, data, split), "pairs": (model, (x, y), (x, y))
    }.items():
        try:
            call(*given)
            told[f"{name}: {what}"] = "fine"
        except Exception as e:
            told[f"{name}: {what}"] = f"{type(e).__name__}: {e}"
for name, value in {"rank": "3", "seed": None, "coreset": 2.0, "sample": True}.items():
    try:
        sn.precompute(model, data, **{"rank": 1, name: value})
    except Exception as e:
        told[f"precompute: {name}"] = f"{type(e).__name__}: {e}"
print(json.dumps(told))
"""
NEEDY = ("train_fold_models", "u_lira", "compare")
CALLS = ("precompute", "fit", "fit_many", "check_damage", "audit", "trade_off", "a method", "a budget", *NEEDY)


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("call", CALLS)
def test_a_bare_module_is_taken_where_nothing_more_must_be_known(told, call):
    found = told[f"{call}: modules"]
    assert found == "fine" or (call in NEEDY and "NeedError" in found)


@pytest.mark.parametrize("call", sorted({*CALLS} - {"audit", "compare"}))
def test_what_is_no_network_is_refused_in_words(told, call):
    expected = "SettingError: A network must be a torch module or a `Trained`, but got function."
    assert told[f"{call}: a function"] == expected


@pytest.mark.parametrize("call", CALLS)
def test_pairs_are_refused_with_what_makes_rows_or_a_request_of_them(told, call):
    found = told[f"{call}: pairs"]
    assert found.startswith("SettingError: ")
    assert "sn.Data.of(" in found


@pytest.mark.parametrize(
    ("setting", "value"), [("rank", "'3'"), ("seed", "None"), ("coreset", "2.0"), ("sample", "True")]
)
def test_settings_that_are_no_whole_numbers_are_refused_in_words(told, setting, value):
    found = told[f"precompute: {setting}"]
    assert found.startswith(f"SettingError: precompute.{setting} must be a whole number from ")
    assert found.endswith(f", but got {value}.")
