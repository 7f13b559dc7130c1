"""The registry, settings, thinning, and the page that is made from rows."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from torch import nn

from spotlessnet.auditing.rows import Row, append_lines, append_rows, read_rows
from spotlessnet.auditing.summary import summarise
from spotlessnet.cli.entry import application
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NumericsError, SettingError
from spotlessnet.core.gaussian import Gaussian
from spotlessnet.core.loss import SquaredError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Notes
from spotlessnet.core.split import rows as by_number
from spotlessnet.core.trained import Trained
from spotlessnet.experiments import EXPERIMENTS, Experiment, page
from spotlessnet.experiments.__main__ import flags, main
from spotlessnet.experiments.experiment import Published, Sized, read_runs
from spotlessnet.experiments.few import FromFew, OnFew, Remembered, WhiteBoxWithNoise, fewer
from spotlessnet.experiments.page import broken, judge, make, verdicts
from spotlessnet.experiments.runner import seeds_of, size_of
from spotlessnet.experiments.setting import Setting, find_weights
from spotlessnet.methods import NTK, Fisher, Newton
from spotlessnet.readouts import Error
from tests.cli.workshop import spotless

SHARED = Path(os.environ.get("SPOTLESS_SHARED", Path(__file__).parents[2].parent / "shared"))


def line_problem(n=400, forget=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=draw, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64)
    y[:forget] += 3
    return by_number(range(forget))(Data.of((x, y)), Data.of((x[:50], y[:50])))


def linear(weight_decay=1e-3):
    return Trained.of(nn.Linear(3, 1, bias=False).double(), SquaredError(), weight_decay=weight_decay)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_has_settings_numbers_and_a_sentence(name):
    one = EXPERIMENTS[name]
    assert one.name == name
    assert one.about.endswith(".")
    assert one.__doc__ == one.about
    for size in ("toy", "full", "tiny"):
        settings = getattr(one, size)()
        assert settings.size == size
        assert settings.seeds
        assert isinstance(settings, Sized)
    assert len(one.full().seeds) >= 3
    assert all(isinstance(p, Published) and p.source for p in one.paper)


def test_unknown_devices_are_refused():
    with pytest.raises(SettingError, match="device"):
        _ = Sized(device="abacus").place


def test_drawing_without_rows_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match="Run the experiment first"):
        EXPERIMENTS["figure_2"].draw(tmp_path)


def test_the_command_runs_and_draws(tmp_path, capsys):
    assert main(["shifting_optima", "--tiny", "--out", str(tmp_path), "--seeds", "3", "--device", "cpu"]) == 0
    assert "33 rows" in capsys.readouterr().out
    assert main(["shifting_optima", "--draw", "--out", str(tmp_path)]) == 0
    assert "shifting_optima.svg" in capsys.readouterr().out


def test_the_command_has_the_same_flags_and_writes_the_same_rows(tmp_path):
    """Both ways run one function: `spotless reproduce` once lacked --tiny, --seeds, --seed, --device and --draw."""
    mine = {flag for action in flags()._actions for flag in action.option_strings}
    theirs = {
        flag
        for parameter in typer.main.get_group(application()).commands["reproduce"].params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    common = {"--dry-run", "--json", "--quiet", "-q", "--debug", "--help", "-h", "name"}
    assert mine - common == theirs - common
    words = ["shifting_optima", "--tiny", "--seed", "4", "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    assert spotless("reproduce", *words, "--out", str(tmp_path / "b"), "--quiet").code == 0
    a, b = ((tmp_path / place / "shifting_optima" / "rows.csv").read_text() for place in "ab")
    assert a == b
    assert main(["shifting_optima", "--draw", "--out", str(tmp_path / "a")]) == 0
    assert spotless("reproduce", "shifting_optima", "--draw", "--out", str(tmp_path / "b")).code == 0


def test_two_sizes_or_two_kinds_of_seeds_are_refused():
    with pytest.raises(SettingError, match="--full and --tiny are two sizes"):
        size_of(True, True)
    with pytest.raises(SettingError, match="--seeds says how many, --seed says which"):
        seeds_of(3, [1])
    with pytest.raises(SettingError, match="--seeds must be at least 1, but got 0"):
        seeds_of(0, None)


def test_processes_with_seeds_of_their_own_share_a_folder(tmp_path):
    for seed in ("4", "2"):
        assert main(["shifting_optima", "--tiny", "--out", str(tmp_path), "--seed", seed, "--device", "cpu"]) == 0
    place = tmp_path / "shifting_optima"
    assert {row.seed for row in read_rows(place / "rows.jsonl")} == {2, 4}
    runs = read_runs(place)
    assert [run["command"].endswith(f"--seed {seed}") for run, seed in zip(runs, (4, 2), strict=True)] == [True, True]
    [how] = page._how(runs)
    assert "and the like for every other seed, — 2 seeds" in how
    assert "side by side" in how


def test_setting_opens_digits_with_few_classes_and_a_pretrained_start():
    recipe = Recipe(epochs=1, lr=0.05)
    setting = Setting(options={"hidden": (4,)}, recipe=recipe, pretrain="digits", core=0.2, classes=3, per_class=10)
    opened = replace(setting, pretrain_recipe=recipe).open(None, torch.device("cpu"))
    assert len(opened.train) == 30
    assert opened.train.labels().unique().tolist() == [0, 1, 2]
    assert int(opened.test.labels().max()) == 2
    assert torch.equal(opened.start.weights, opened.start.anchor)
    assert opened.start.recipe == recipe
    fresh = replace(setting, pretrain=None).open(None, torch.device("cpu"))
    assert not torch.equal(fresh.start.weights, opened.start.weights)


def test_missing_weights_and_missing_core_are_said():
    with pytest.raises(DataError, match=r"nothing\.safetensors must be in the data folder"):
        Setting(weights="nothing.safetensors").open(None, torch.device("cpu"))
    with pytest.raises(DataError, match="needs a share of it set aside"):
        Setting(pretrain="digits").open(None, torch.device("cpu"))


def test_weights_are_found_beside_the_data(tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "a.safetensors").write_bytes(b"x")
    assert find_weights("a.safetensors", tmp_path / "data") == tmp_path / "weights" / "a.safetensors"
    assert find_weights("b.safetensors", tmp_path / "data") is None


def test_faces_are_said_to_stand_in():
    setting = Setting("faces10", pretrain="faces14")
    assert "Lacuna-10" in setting.title
    assert "not VGGFace2" in setting.note
    assert "Lacuna-100" in setting.note


def test_a_step_from_few_rows_has_the_length_of_the_whole_one():
    split, trained = line_problem(), linear()
    w = torch.linalg.lstsq(*list(split.whole.fetch(split.whole.rows)[:2])).solution.flatten()
    trained = trained.at(w)
    full = NTK(damping=0.0).shift(trained, split, Notes()) - w
    few = FromFew(NTK(damping=0.0, search=False), 200).shift(trained, split, Notes()) - w
    assert 0.8 < float(few.norm() / full.norm()) < 1.25
    assert float(torch.cosine_similarity(few, full, dim=0)) > 0.95
    every = FromFew(NTK(damping=0.0), None).shift(trained, split, Notes()) - w
    assert torch.allclose(every, full)


def test_remembered_asks_once():
    class Counting(Newton):
        calls = 0

        def shift(self, trained, split, notes):
            Counting.calls += 1
            return super().shift(trained, split, notes)

    split, trained = line_problem(60), linear()
    scrub = Remembered(Counting())
    first, second = scrub.shift(trained, split, Notes()), scrub.shift(trained, split, Notes())
    assert first is second
    assert Counting.calls == 1
    scrub.shift(trained.at(trained.weights + 1), split, Notes())
    assert Counting.calls == 2


def test_a_readout_on_few_says_so():
    pair = Setting(options={"hidden": (4,)}).open(None, torch.device("cpu"))
    split = by_number(range(5))(pair.train.select(range(50)), pair.test)
    reading = OnFew(Error("retain"), 10)(pair.start, split)
    assert reading.note == "10 of 45 retained rows"
    assert len(fewer(split, 10, 2).forget) == 2
    assert OnFew(Error("retain"), None)(pair.start, split) == Error("retain")(pair.start, split)


def test_the_bound_adds_the_same_noise_to_both_sides():
    split, trained = line_problem(60), linear()
    noise = Fisher(strength=1e-4, cap=1.0)
    moved = trained.weights + 0.1
    still = noise.shift(trained, split, Notes())
    from spotlessnet.core.gaussian import NoNoise

    a, b = (Gaussian(w, NoNoise.at(w)) for w in (still, moved))
    nats = WhiteBoxWithNoise(noise)(a, b, trained, split)
    truth = Gaussian(still, noise.spread(trained, split, Notes())).kl(
        Gaussian(moved, noise.spread(trained.at(moved), split, Notes()))
    )
    assert float(nats) == pytest.approx(truth, rel=1e-12)
    assert "Fisher noise" in nats.note
    assert float(WhiteBoxWithNoise(noise)(a, a, trained, split)) == pytest.approx(0, abs=1e-9)


def test_judging():
    def rows(value, retrained):
        made = [Row("t", "m", "error", seed, value + 0.001 * seed, unit="share of rows") for seed in range(3)]
        return made + [Row("t", "retrained", "error", seed, retrained, unit="share of rows") for seed in range(3)]

    paper = {("t", "m", "error"): Published("t", "m", "error", 0.5, "Table 1")}
    paper["t", "retrained", "error"] = Published("t", "retrained", "error", 0.1, "Table 1")
    assert judge(summarise(rows(0.48, 0.1))[0], paper) == "agrees"
    assert judge(summarise(rows(0.8, 0.1))[0], paper) == "same side"
    assert judge(summarise(rows(0.05, 0.1))[0], paper) == "differs"
    assert "1 agree, 0 lie on the same side of retraining, 1 differ" in verdicts(summarise(rows(0.05, 0.1)), paper)


def test_what_broke_down_is_no_disagreement_and_its_reason_is_told():
    why = "no number: The training loss must be finite, but it is nan in epoch {}. Lower `Recipe.lr`."
    rows = [
        Row("t", "climb", name, seed, math.nan, unit="x", note=why.format(seed)) for name in "abc" for seed in (1, 2)
    ]
    rows += [Row("t", "hide", "relearn time", seed, math.nan, unit="x", note=why.format(seed)) for seed in (1, 2)]
    rows += [Row("t", "fine", "a", 1, 0.5, unit="x"), Row("u", "other", "a", 1, math.nan, note=why.format(1))]
    assert broken("t", rows) == (
        "- No number on some seeds: every readout of climb; relearn time of hide. "
        "The training loss must be finite, but it is nan.\n"
    )
    assert broken("v", rows) == ""
    paper = {("t", "climb", "a"): Published("t", "climb", "a", 0.5, "Table 1")}
    assert "0 differ, 1 have no number of ours beside them." in verdicts(summarise(rows), paper)


def test_the_page_is_made_from_rows(tmp_path):
    place = tmp_path / "results" / "table_1_faces"
    name = "table 1, faces10 (for Lacuna-10), 100 images"
    append_rows(
        place / "rows.jsonl",
        [
            Row(name, method, "error on test", seed, 0.1 + 0.01 * seed, unit="share of rows")
            for method in ("original", "retrained")
            for seed in range(3)
        ],
    )
    (place / "images.svg").write_text("<svg/>")
    page = tmp_path / "docs" / "reproduction.md"
    assert make(tmp_path / "results", page) == []
    assert "- `table_1_faces`" in page.read_text()  # no record yet: the run was cut off
    run = {"command": "python -m x", "seeds": [0, 1, 2], "device": "CPU", "torch": "2", "seconds": 5.0}
    append_lines(place / "runs.jsonl", [json.dumps({**run, "started": "2026-01-01T00:00:00"})])
    assert make(tmp_path / "results", page) == ["table_1_faces"]
    text = page.read_text()
    assert "stands in for Lacuna-10; it is not VGGFace2" in text
    assert "0.11 ± 0.025 (*paper* 0.092)" in text
    assert "![Table 1 on faces10, in place of Lacuna-10.](../results/table_1_faces/images.svg)" in text
    assert not (tmp_path / "docs" / "figures").exists()  # linked, not copied
    assert "`python -m x` — 3 seeds, CPU, torch 2, 5 s, 2026-01-01." in text
    assert "## Not run at full size" in text
    assert "- `figure_1`" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["figure_3", "corrected_root", "table_1_mnist", "pretraining"])
def test_the_full_path_on_a_few_rows(name, tmp_path):
    if not (SHARED / "data").is_dir():
        pytest.skip("the data sets are not here")
    rows = EXPERIMENTS[name].run(replace(EXPERIMENTS[name].tiny(), device="cpu"), tmp_path, SHARED / "data")
    assert rows


def test_an_experiment_imports_its_module_late():
    late = Experiment("later", "eternal_sunshine.does_not_exist", "Not there.")
    with pytest.raises(ModuleNotFoundError, match="does_not_exist"):
        late.toy()


def test_a_seed_that_diverges_is_left_out_and_the_others_stay(tmp_path, capsys):
    from spotlessnet.experiments.outside_the_box.scene import keep, stored, toy_scene

    def diverging():
        yield Row("scene", "NTK", "error on test", 1, 0.5)
        raise NumericsError("The training loss must be finite.")

    scene = toy_scene()
    keep(tmp_path, scene, [Row("scene", "NTK", "error on test", 0, 0.5)])
    keep(tmp_path, scene, diverging())
    assert [row.seed for row in stored(tmp_path)] == [0]
    assert "a seed was left out. The training loss must be finite." in capsys.readouterr().err
