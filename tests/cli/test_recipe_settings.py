"""`--recipe` and `[recipe]`: every setting of a recipe, understood by every command that trains."""

import json
from dataclasses import fields
from typing import Any

import pytest
import torch

import spotlessnet as sn
from spotlessnet.core.errors import NeedError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.requests.case import Case
from spotlessnet.requests.forgettable import _adaptation
from tests.cli.test_forgettable import TRAIN, furnished
from tests.cli.test_train import rows_of
from tests.cli.workshop import BASE, DATA, spotless

INIT = ("--init", "start.safetensors", "--epochs", "4", "--lr", "0.02", "--batch-size", "16")
ADAMW = (
    "--recipe", "optimizer=adamw", "--recipe", "warmup_ratio=0.25", "--recipe", "max-grad-norm=1.0", "--recipe",
    "label_smoothing=0.1", "--recipe", "decay_toward=zero", "--recipe", "decay_on=matrices", "--recipe",
    "betas=0.8,0.9",
)  # fmt: skip
SAME = Recipe(
    epochs=4, lr=0.02, batch_size=16, weight_decay=0.3, optimizer="adamw", warmup_ratio=0.25, max_grad_norm=1.0,
    label_smoothing=0.1, decay_toward="zero", decay_on="matrices", betas=(0.8, 0.9),
)  # fmt: skip


def test_the_settings_are_those_of_the_recipe():
    told = {"optimizer": "adamw", "warmup_ratio": "0.25", "max-grad-norm": 1, "label_smoothing": 0.1, "bf16": "no"}
    more = {"decay_toward": "zero", "decay_on": "matrices", "betas": [0.8, 0.9], "patience": "none", "dropout": True}
    case = Case.of({"epochs": 4, "lr": 0.02, "batch_size": 16, "weight_decay": 0.3, "recipe": told | more})
    assert case.as_recipe() == SAME
    assert Case.of({"recipe": {"epochs": "4", "lr": "0.02"}}).as_recipe() == Recipe(epochs=4, lr=0.02)


def test_text_can_say_every_setting():
    """A setting that is added to the recipe is understood at once."""
    told = {f.name: str(f.default) for f in fields(Recipe) if f.name not in ("betas", "augment")}
    assert Case.of({"recipe": {**told, "betas": "0.9,0.999"}}).as_recipe() == Recipe()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"optimiser": "adam"}, r"--recipe has no setting 'optimiser'\. Did you mean 'optimizer'\?"),
        ({"optimizer": "lion"}, r"--recipe optimizer must be 'sgd' or 'adam' or 'adamw', but got 'lion'"),
        ({"warmup_ratio": "1.5"}, r"`Recipe\.warmup_ratio` must be in \[0, 1\), but got 1\.5"),
        ({"betas": "0.9"}, r"--recipe betas must be two numbers with a comma between, but got '0\.9'"),
        ({"betas": "a,b"}, r"--recipe betas must be two numbers with a comma between, but got 'a,b'"),
        ({"bf16": "maybe"}, r"--recipe bf16 must be true or false, but got 'maybe'"),
        ({"batch_size": "1.5"}, r"--recipe batch_size must be a whole number, but got '1\.5'"),
        ({"batch_size": True}, r"--recipe batch_size must be a whole number, but got 'True'"),
        ({"augment": "flip"}, r"--recipe augment must be `package\.module:name` or `file\.py:name`, but got flip"),
        ({"lr": "0.1"}, r"--lr was given, and --recipe lr too\. Give it once\."),
        ({"decay-on": "all", "decay_on": "all"}, r"The setting 'decay_on' of --recipe was given twice"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_opened(table, message):
    with pytest.raises(SettingError, match=message):
        Case.of({"epochs": 3, "lr": 0.1, "recipe": table})


def test_a_table_alone_needs_epochs_and_rate():
    with pytest.raises(NeedError, match="A recipe needs at least epochs and lr, but --epochs and --lr was not given"):
        Case.of({"recipe": {"optimizer": "adam"}})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("scrub", "--optimizer", "adamw"), "It is a setting of the training: `--recipe optimizer=adamw`."),
        (("audit", "--warmup-ratio=0.1"), "It is a setting of the training: `--recipe warmup_ratio=VALUE`."),
    ],
)
def test_a_flag_of_its_own_that_no_setting_has_points_to_the_flag_of_all(words, message):
    """The fault before: *No such option: --optimizer* alone, where whoever trained with AdamW asked for just that."""
    ended = spotless(*words)
    assert ended.code == 2
    assert message in ended.err


@pytest.mark.parametrize("words", [("scrub", "--optimzer", "adamw"), ("verify", "--optimizer", "adamw")])
def test_other_strange_flags_are_told_as_before(words):
    ended = spotless(*words)
    assert ended.code == 2
    assert "No such option" in ended.err
    assert "setting of the training" not in ended.err


def by_hand(here) -> sn.Trained:
    space: dict[str, Any] = {}
    exec((here / "nets.py").read_text(), space)
    x, y, _ = rows_of(DATA)
    start = sn.load_into(space["build"](), sn.read_weights(here / "start.safetensors"))
    data = sn.Data.of((x, y))
    gone = data.select([1, 5, 7])
    return sn.fit(sn.Trained.of(start), data.without(gone), SAME, order_of=data)


def test_scrub_trains_by_them(here):
    ended = spotless("scrub", *BASE, *INIT, "--weight-decay", "0.3", *ADAMW, "--method", "retrain", "--accept-damage",
                     "--out", "run")  # fmt: skip
    assert ended.code == 0, ended.err
    found = sn.read_weights(here / "run/scrubbed.safetensors")
    want = by_hand(here).module().state_dict()
    assert all(torch.equal(value, found[name]) for name, value in want.items())


def test_a_case_file_says_the_same(here):
    table = 'optimizer = "adamw"\nwarmup_ratio = 0.25\nmax-grad-norm = 1\nlabel_smoothing = 0.1\nbetas = [0.8, 0.9]\n'
    table += (
        'decay_toward = "zero"\ndecay_on = "matrices"\nepochs = 4\nlr = 0.02\nbatch_size = 16\nweight_decay = 0.3\n'
    )
    (here / "case.toml").write_text(f'init = "start.safetensors"\nmethod = "retrain"\n[recipe]\n{table}')
    ended = spotless("scrub", "--case", "case.toml", *BASE, "--accept-damage", "--out", "run")
    assert ended.code == 0, ended.err
    found = sn.read_weights(here / "run/scrubbed.safetensors")
    assert all(torch.equal(value, found[name]) for name, value in by_hand(here).module().state_dict().items())


def test_python_by_name_is_the_same(here):
    done = sn.unlearn("nets.py:build", "mydata.py:train", forget="forget.csv", ids="id", weights="model.safetensors",
                      init="start.safetensors", recipe=SAME, method="retrain", accept_damage=True)  # fmt: skip
    want = by_hand(here).module().state_dict()
    assert all(torch.equal(value, want[name]) for name, value in done.model.state_dict().items())
    with pytest.raises(SettingError, match="takes a recipe without `augment`"):
        sn.unlearn("nets.py:build", "mydata.py:train", forget="forget.csv", weights="model.safetensors",
                   init="start.safetensors", recipe=SAME.but(augment=torch.flip))  # fmt: skip


def test_the_decay_of_adamw_is_no_penalty(here):
    """Methods with curvature must not take AdamW's decay for a part of the loss."""
    words = ("scrub", *BASE, *INIT, "--weight-decay", "0.3", "--method", "ntk", "--out")
    plain, adamw = spotless(*words, "plain"), spotless(*words, "adamw", "--recipe", "optimizer=adamw")
    assert (plain.code, adamw.code) == (0, 0), plain.err + adamw.err
    one, other = (sn.read_weights(here / name / "scrubbed.safetensors") for name in ("plain", "adamw"))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_a_transform_of_batches_is_named_and_digested(here):
    (here / "views.py").write_text("def tilt(x):\n    return x + 0.5\n")
    words = ("scrub", *BASE, *INIT, "--method", "retrain", "--accept-damage", "--recipe", "augment=views.py:tilt")
    ended = spotless(*words, "--out", "run")
    assert ended.code == 0, ended.err
    space: dict[str, Any] = {}
    exec((here / "nets.py").read_text(), space)
    x, y, _ = rows_of(DATA)
    start = sn.load_into(space["build"](), sn.read_weights(here / "start.safetensors"))
    data = sn.Data.of((x + 0.5, y))
    gone = data.select([1, 5, 7])
    want = sn.fit(sn.Trained.of(start), data.without(gone), Recipe(epochs=4, lr=0.02, batch_size=16), order_of=data)
    found = sn.read_weights(here / "run/scrubbed.safetensors")
    assert all(torch.equal(value, found[name]) for name, value in want.module().state_dict().items())
    assert "augment" in json.loads((here / "run/receipt.json").read_text())["predicate"]["inputs"]


@pytest.mark.parametrize(
    "command", [("audit", "--seeds", "5"), ("precompute", "--folds", "2"), ("compare", "--seeds", "2")]
)
def test_other_commands_understand_them(here, command):
    base = BASE if command[0] != "precompute" else BASE[:-2]
    ended = spotless(*command, *base, *INIT, *ADAMW, "--out", "out", "--quiet")
    assert ended.code in (0, 1, 6), ended.err
    assert list((here / "out").iterdir())
    wrong = spotless(*command, *base, *INIT, "--recipe", "optimizer=lion", "--out", "other")
    assert wrong.code == 2
    assert "--recipe optimizer must be 'sgd' or 'adam' or 'adamw'" in wrong.err


def test_the_report_says_how_to_run_it_again(here):
    ended = spotless("audit", *BASE, *INIT, *ADAMW, "--seeds", "5", "--out", "out", "--quiet")
    assert ended.code in (0, 1, 6), ended.err
    assert "--recipe optimizer=adamw --recipe warmup_ratio=0.25" in (here / "out/report.html").read_text()


def test_forgettable_models_take_them_too(tmp_path, monkeypatch):
    folder = furnished(tmp_path, monkeypatch)
    adamw = ("--recipe", "optimizer=adamw", "--recipe", "warmup_ratio=0.2")
    ended = spotless(*TRAIN, "--epochs", "2", *adamw, "--out", folder / "model")
    assert ended.code == 0, ended.err
    case = Case(epochs=2, recipe={"optimizer": "adamw", "warmup_ratio": "0.2", "bf16": "yes"})
    how = _adaptation(case)
    assert how is not None
    assert (how.epochs, how.lr, how.optimizer, how.warmup, how.bfloat16) == (2, 0.01, "adamw", 0.2, True)
    strange = spotless(*TRAIN, "--epochs", "2", "--recipe", "momentum=0.5", "--out", folder / "other")
    assert strange.code == 2
    assert "--recipe momentum says nothing of the training on core rows" in strange.err
    short = spotless(*TRAIN, *adamw, "--out", folder / "other")
    assert "not for how long. Give --epochs too" in short.err
    audited = spotless("audit", *TRAIN[1:], "--forget", "forget.csv", "--epochs", "2", "--lr", "0.05", *adamw,
                       "--dry-run")  # fmt: skip
    assert audited.code == 0, audited.err
