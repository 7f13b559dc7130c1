"""Names of version 0.1 work for one release: the command ends with 0, and one line on stderr says the new name."""

import json

import pytest

from spotlessnet.core import deprecated
from spotlessnet.core.scrub import METHODS
from spotlessnet.requests.methods import named
from tests.cli.workshop import BASE, spotless

ROWS = ("--model", "nets.py:build", "--weights", "model.safetensors", "--data", "mydata.py:train")


def test_methods_have_the_names_of_the_field():
    for name in ("scrub", "salun", "ssd", "l1-sparse", "gradient-ascent", "out-of-fold-distillation"):
        assert name in METHODS
        assert type(named(name, {})) is METHODS[name]


@pytest.mark.parametrize(
    ("old", "value"),
    [("--rate", "0.05"), ("--batch", "16"), ("--decay", "1e-3"), ("--start", "start.safetensors")],
)
@pytest.mark.parametrize("joined", [False, True])
def test_flags_of_a_case(here, old, value, joined):
    new = deprecated.FLAGS[old]
    known = {"--epochs": "5", "--lr": "0.05", "--init": "start.safetensors"}
    known.pop(new, None)
    words = [f"{old}={value}"] if joined else [old, value]
    ended = spotless(
        "scrub", *BASE, *(w for pair in known.items() for w in pair), *words, "--method", "ntk", "--dry-run", "--quiet"
    )
    assert ended.code == 0, ended.err
    assert ended.err == f"warning: {old} is now called {new}; the old name goes with version 0.3.\n"


def test_commands_files_and_the_flags_of_precompute(here):
    recipe = ("--start", "start.safetensors", "--epochs", "2", "--rate", "0.05")
    ended = spotless(
        "remember", *ROWS, *recipe, "--rank", "2", "--parts", "2", "--divisions", "1", "--out", "memory", "--quiet"
    )
    assert ended.code == 0, ended.err
    for old, new in (
        ("spotless remember", "spotless precompute"),
        ("--parts", "--folds"),
        ("--divisions", "--repeats"),
    ):
        assert f"warning: {old} is now called {new}; " in ended.err
    base = ("scrub", *BASE, "--dry-run")
    ended = spotless(*base, "--memory", "memory/statistics.safetensors", "--method", "fisher")
    assert ended.code == 0, ended.err
    assert "warning: --memory is now called --statistics; " in ended.err
    ended = spotless(*base, *recipe, "--tutors", "memory/fold-models.safetensors", "--method", "unlabel")
    assert ended.code == 0, ended.err
    assert "warning: --tutors is now called --fold-models; " in ended.err
    assert "method  out-of-fold-distillation" in ended.out
    ended = spotless("audit", *BASE, "--strong", "--dry-run")
    assert ended.code == 0, ended.err
    assert "warning: --strong is now called --shadow-attack; " in ended.err


@pytest.mark.parametrize(("old", "new"), deprecated.METHODS.items())
def test_methods_and_their_settings(here, old, new):
    recipe = ("--init", "start.safetensors", "--epochs", "5", "--lr", "0.05")
    setting = {"selective-dampening": "dampening=0.9"}.get(old, "seed=1")
    ended = spotless("scrub", *BASE, *recipe, "--method", old, "--set", f"{old}.{setting}", "--dry-run")
    if new == "out-of-fold-distillation":  # which is refused where there are neither fold models nor held-out rows
        assert ended.code == 2
        assert f"warning: the method {old!r} is now called the method {new!r}; " in ended.err
        return
    assert ended.code == 0, ended.err
    assert f"method  {new}" in ended.out
    assert f"warning: the method {old!r} is now called the method {new!r}; " in ended.err
    assert ended.err.count("warning: ") == 1  # the same thing once


@pytest.mark.parametrize(
    ("method", "old", "new", "value"),
    [
        *(
            ("out-of-fold-distillation", old, new, "0.5")
            for old, new in (
                ("share", "forget_weight"),
                ("lift", "label_boost"),
                ("own", "self_weight"),
                ("cost", "compute_budget"),
            )
        ),
        ("out-of-fold-distillation", "stretch", "max_step_scale", "2.0"),
        ("out-of-fold-distillation", "rows", "examples_per_epoch", "7"),
        ("out-of-fold-distillation", "speed", "lr_scale", "0.5"),
        ("short-retrain", "speed", "lr_scale", "2.0"),
        ("short-retrain", "thin", "batch_scale", "2"),
        ("short-retrain", "effort", "epoch_fraction", "0.5"),
        ("short-retrain", "slack", "error_tolerance", "0.5"),
        ("respond-and-finetune", "effort", "epoch_fraction", "0.5"),
        ("finetune", "rate", "lr", "0.5"),
        ("ntk", "batch", "batch_size", "7"),
    ],
)
def test_settings(here, method, old, new, value):
    with pytest.warns(DeprecationWarning, match=f"the setting {old!r} of .* is now called {new!r}"):
        scrub = named(method, {old: value})
    assert getattr(scrub, new) == type(getattr(scrub, new))(float(value))
    with pytest.warns(DeprecationWarning, match=f"the setting {old!r}"):
        assert named(method, {f"{method}.{old}": value}) == scrub


def test_both_names_of_a_setting_are_refused(here):
    ended = spotless("scrub", *BASE, "--method", "finetune", "--set", "rate=1", "--set", "lr=2", "--dry-run")
    assert ended.code == 2
    assert "'lr' was given twice" in ended.err


def test_a_case_file(here):
    (here / "case.toml").write_text(
        'model = "nets.py:build"\nweights = "model.safetensors"\ndata = "mydata.py:train"\nforget = "forget.csv"\n'
        'start = "start.safetensors"\nepochs = 5\nrate = 0.05\nbatch = 16\ndecay = 1e-3\nmethod = "student"\n'
        "[set]\nrate = 0.5\n"
    )
    ended = spotless("scrub", "--case", "case.toml", "--dry-run", "--json")
    assert ended.code == 0, ended.err
    assert "method  scrub" in json.loads(ended.out)["plan"]
    for old, new in (("start", "init"), ("rate", "lr"), ("batch", "batch_size"), ("decay", "weight_decay")):
        assert f"warning: the field {old!r} is now called the field {new!r}; " in ended.err
    with (here / "case.toml").open("a") as file:
        file.write("lr = 1.0\n")
    ended = spotless("scrub", "--case", "case.toml", "--dry-run")
    assert ended.code == 2
    (here / "twice.toml").write_text("rate = 0.05\nlr = 0.05\n")
    ended = spotless("scrub", "--case", "twice.toml", "--dry-run")
    assert ended.code == 3
    assert "has 'lr' twice, once by its old name 'rate'" in ended.err


def test_compare_takes_old_names_too(here):
    ended = spotless(
        *("compare", *BASE, "--start", "start.safetensors", "--epochs", "2", "--rate", "0.05", "--seeds", "1"),
        *("--methods", "negative-gradient", "--set", "negative-gradient.rate=0.001", "--out", "lined", "--quiet"),
    )
    assert ended.code == 0, ended.err
    assert "gradient-ascent" in ended.out


def test_nothing_is_said_of_names_that_are_new(here):
    assert "warning" not in spotless("scrub", *BASE, "--method", "finetune", "--set", "lr=0.1", "--dry-run").err
