"""`spotless scrub` from the asking to the receipt."""

import json
import shutil
import stat
import tomllib
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import spotlessnet as sn
from spotlessnet.core.files import sha256
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.precomputed.fold_models import FoldModels
from tests.cli.workshop import BASE, DATA, FORGET, QUICK, RECIPE, spotless

INPUTS = ("nets.py", "mydata.py", "forget.csv", "model.safetensors", "start.safetensors")


def test_the_command_of_the_readme_works_and_leaves_inputs_alone(here):
    (here / "mypackage").mkdir()
    (here / "mypackage" / "__init__.py").touch()
    (here / "nets.py").rename(here / "mypackage" / "nets.py")
    before = {name: sha256(here / name) for name in INPUTS if name != "nets.py"}
    ended = spotless(
        *("scrub", "--model", "mypackage.nets:build", "--weights", "model.safetensors", "--data", "mydata.py:train"),
        *("--forget", "forget.csv", "--init", "start.safetensors", "--epochs", "60", "--lr", "0.1", "--out", "run/"),
    )
    assert ended.code == 0, ended.err
    assert ended.out == "run/scrubbed.safetensors\nrun/receipt.json\n"
    assert "3 rows matched, 0 ids missing, 0 duplicates" in ended.err
    assert "utility error on 57 retained rows" in ended.err
    assert {name: sha256(here / name) for name in before} == before
    assert sorted(p.name for p in (here / "run").iterdir()) == ["private", "receipt.json", "scrubbed.safetensors"]
    assert stat.S_IMODE((here / "run/private/salt").stat().st_mode) == 0o600
    assert stat.S_IMODE((here / "run/private").stat().st_mode) == 0o700
    # A server that runs under another account must read the network: as the umask says, like any file.
    (here / "plain").touch()
    usual = stat.S_IMODE((here / "plain").stat().st_mode)
    shared = ("scrubbed.safetensors", "receipt.json")
    assert [stat.S_IMODE((here / "run" / name).stat().st_mode) for name in shared] == [usual] * 2


def test_the_receipt_tells_what_was_run_and_names_nobody(here):
    assert spotless("scrub", *BASE, *QUICK, "--init", "start.safetensors", "--out", "run").code == 0
    text = (here / "run/receipt.json").read_text()
    body = json.loads(text)["predicate"]
    assert not any(name in text for name in FORGET)
    # A digest of the list would let anyone test a guess.
    assert sha256(here / "forget.csv") not in text
    assert body["method"] == "fisher"
    assert body["settings"]["fisher"]["strength"] == 1e-8
    assert body["inputs"]["init"]["digest"]["sha256"] == sha256(here / "start.safetensors")
    assert body["request"]["matched"] == 3
    assert body["request"]["kept"] == 57
    assert body["noise"]["kind"] == "secret, not kept"
    assert "seed" not in body["noise"]
    assert any("optimiser's state" in limit for limit in body["limits"])
    assert any("No audit was run" in limit for limit in body["limits"])


def test_five_lines_of_python_give_the_same_bytes(here):
    assert spotless("scrub", *BASE, "--method", "ntk+fisher", "--seed", "3", "--out", "run").code == 0
    space: dict[str, Any] = {}
    exec(DATA, space)
    x, y, names = space["train"]()
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    trained = sn.Trained.of(sn.load_into(model, sn.read_weights(here / "model.safetensors")))
    split = sn.ids(here / "forget.csv")(sn.Data.of((x, y), columns={"id": names}))
    scrubbed = sn.chain(sn.NTK(), sn.Fisher())(trained, split)
    drawn, said = scrubbed.draw(torch.Generator().manual_seed(3)), {"format": "pt", "after_requests": "1"}
    sn.write_weights(here / "mine.safetensors", trained.module(drawn), said)
    assert (here / "mine.safetensors").read_bytes() == (here / "run/scrubbed.safetensors").read_bytes()


def test_the_default_method_is_a_short_retraining_where_start_and_recipe_are_known(here):
    known = ("--init", "start.safetensors", "--epochs", "60", "--lr", "0.1")
    ended = spotless("scrub", *BASE, *known, "--out", "run")
    assert ended.code == 0, ended.err
    assert json.loads((here / "run/receipt.json").read_text())["predicate"]["method"] == "short-retrain"


def test_the_default_method_is_a_step_and_finetuning_otherwise(here):
    ended = spotless("scrub", *BASE, "--dry-run")
    assert "method  ntk+finetune" in ended.out
    assert "finetune: epochs=3" in ended.out
    assert "method  ntk+finetune" in spotless("scrub", *BASE, "--init", "start.safetensors", "--dry-run").out


def test_a_case_file_is_the_same_as_its_flags_and_flags_go_before_it(here):
    (here / "case.toml").write_text(
        'model = "nets.py:build"\nweights = "model.safetensors"\ndata = "mydata.py:train"\nforget = "forget.csv"\n'
        'method = "fisher"\nseed = 1\nout = "from-file"\n[set]\nstrength = 1e-8\n'
    )
    assert tomllib.loads((here / "case.toml").read_text())["seed"] == 1
    assert spotless("scrub", "--case", "case.toml").code == 0
    assert spotless("scrub", *BASE, *QUICK, "--seed", "1", "--out", "from-flags").code == 0
    assert spotless("scrub", "--case", "case.toml", "--seed", "2", "--out", "other").code == 0
    bytes_of = {n: (here / n / "scrubbed.safetensors").read_bytes() for n in ("from-file", "from-flags", "other")}
    assert bytes_of["from-file"] == bytes_of["from-flags"] != bytes_of["other"]


def test_noise_is_secret_unless_a_seed_is_given_and_a_seed_is_labelled(here):
    for out, seed in (("a", ()), ("b", ()), ("c", ("--seed", "1")), ("d", ("--seed", "1"))):
        assert spotless("scrub", *BASE, *QUICK, *seed, "--out", out).code == 0
    found = {out: (here / out / "scrubbed.safetensors").read_bytes() for out in "abcd"}
    assert found["a"] != found["b"]
    assert found["c"] == found["d"]
    receipt = json.loads((here / "c/receipt.json").read_text())["predicate"]
    assert receipt["noise"] == {"kind": "published, for experiments only", "seed": 1}
    assert any("published seed: anyone can take it away" in limit for limit in receipt["limits"])


def test_secrets_that_agree_in_32_bits_release_different_networks(here, monkeypatch):
    """What a search over the seeds of torch's generator would find again."""
    given = iter([5, 5 | 1 << 32, 5 | 1 << 63])
    monkeypatch.setattr("spotlessnet.store.noise_seed.secrets.randbits", lambda bits: next(given))
    for out in "abc":
        assert spotless("scrub", *BASE, *QUICK, "--out", out).code == 0
    assert len({(here / out / "scrubbed.safetensors").read_bytes() for out in "abc"}) == 3
    assert spotless("scrub", *BASE, *QUICK, "--seed", "5", "--out", "d").code == 0
    assert (here / "d/scrubbed.safetensors").read_bytes() != (here / "a/scrubbed.safetensors").read_bytes()


def test_the_same_request_again_is_the_same_receipt_and_another_is_refused(here):
    asked = ("scrub", *BASE, *QUICK, "--out", "run")
    assert spotless(*asked).code == 0
    before = {p: p.read_bytes() for p in (here / "run").rglob("*") if p.is_file()}
    again = spotless(*asked, "--resume", "--json")
    assert again.code == 0
    assert json.loads(again.out)["status"] == "already done"
    refused = spotless(*asked)
    assert refused.code == 3
    assert "--out run holds 3 files already, and nothing is ever overwritten" in refused.err
    (here / "forget.csv").write_text("id\nperson-2\n")
    other = spotless(*asked, "--resume")
    assert other.code == 3
    assert "--out run holds the result of another request" in other.err
    assert {p: p.read_bytes() for p in (here / "run").rglob("*") if p.is_file()} == before


def test_a_finished_folder_that_was_changed_is_an_integrity_error(here):
    asked = ("scrub", *BASE, *QUICK, "--out", "run", "--quiet")
    assert spotless(*asked).code == 0
    path = here / "run/scrubbed.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    ended = spotless(*asked, "--resume")
    assert ended.code == 7
    assert "The folder was changed after its receipt was written." in ended.err


def test_folders_of_others_and_folders_with_inputs_are_refused(here):
    (here / "full").mkdir()
    (here / "full" / "thesis.txt").write_text("mine")
    ended = spotless("scrub", *BASE, *QUICK, "--out", "full", "--resume")
    assert ended.code == 3
    assert "holds files, but none of a request, so there is nothing to resume" in ended.err
    assert spotless("scrub", *BASE, *QUICK, "--out", "run").code == 0
    swapped = ["run/scrubbed.safetensors" if word == "model.safetensors" else word for word in BASE]
    ended = spotless("scrub", *swapped, *QUICK, "--out", "run", "--resume")
    assert ended.code == 3
    assert "--weights run/scrubbed.safetensors lies in --out run, where it could be overwritten" in ended.err
    ended = spotless("scrub", *BASE, *QUICK, "--out", "nets.py")
    assert ended.code == 3
    assert "--out nets.py is a file. Give a folder." in ended.err


def test_two_runs_cannot_work_in_one_folder(here):
    from spotlessnet.requests.folder import Folder

    with Folder(here / "run", again=False).claimed():
        ended = spotless("scrub", *BASE, *QUICK, "--out", "run", "--resume")
    assert ended.code == 4
    assert "Another run is at work in run. Wait for it, or choose another folder." in ended.err


def test_tutors_are_trained_once_and_asked_by_every_request(here):
    rows = ("--model", "nets.py:build", "--weights", "model.safetensors", "--data", "mydata.py:train")
    ended = spotless("precompute", *rows, *RECIPE, "--rank", "0", "--folds", "2", "--out", "kept")
    assert ended.code == 0, ended.err
    assert ended.out == "kept/statistics.safetensors\nkept/fold-models.safetensors\n"
    fold_models = sn.read_fold_models(here / "kept/fold-models.safetensors")
    assert fold_models.weights.shape == (2, 51)
    assert len(fold_models.keys) == 60
    for copy in (
        "same.safetensors",
        "third.safetensors",
    ):  # as trained again elsewhere, for one file serves one request
        shutil.copy(here / "kept/fold-models.safetensors", here / copy)
    asked: tuple[str, ...] = ("scrub", *BASE, *RECIPE, "--fold-models", "kept/fold-models.safetensors")
    ended = spotless(*asked, "--out", "first")
    assert ended.code == 0, ended.err
    receipt = json.loads((here / "first/receipt.json").read_text())["predicate"]
    assert receipt["method"] == "out-of-fold-distillation"
    assert len(receipt["inputs"]["fold_models"]["commitment"]) == 64
    assert any(
        "The file of the fold models holds the network from before this request" in limit for limit in receipt["limits"]
    )
    (here / "forget.csv").write_text("id\nperson-2\n")
    # What a second request finds beside the new network is in `test_memories`.
    asked = tuple("same.safetensors" if word == "kept/fold-models.safetensors" else word for word in asked)
    assert spotless(*asked, "--set", "compute_budget=2", "--out", "cheap").code == 0
    costs = [
        json.loads((here / name / "receipt.json").read_text())["predicate"]["about"]["cost_in_trainings"]
        for name in ("first", "cheap")
    ]
    assert costs[1] <= 2 < costs[0]
    plan = json.loads(spotless(*asked, "--set", "compute_budget=2", "--dry-run", "--json").out)
    # Two networks answer the retained rows, by count half of a gradient each here; five epochs have one gradient each.
    looked = 2 / 2 / 5
    # Retraining sees one row less. A row that is only read counts a third of a visit in the price, half by count here.
    least, found = costs[1] * 60 / 59 + looked, plan["seconds"] / plan["retraining"]
    assert least < found < 1.5 * least
    ended = spotless("inspect", "kept/fold-models.safetensors", "--json")
    assert json.loads(ended.out)["kind"] == "fold_models"
    asked = tuple("third.safetensors" if word == "same.safetensors" else word for word in asked)
    ended = spotless(*asked, "--method", "ntk", "--out", "x")
    assert ended.code == 2
    assert "no part of the method asks them. Name the method out-of-fold-distillation, or none." in ended.err


def test_tutors_of_several_divisions_learn_from_held_out_rows_how_sure_to_be(here):
    rows = ("--model", "nets.py:build", "--weights", "model.safetensors", "--data", "mydata.py:train", *RECIPE)
    more = ("--rank", "0", "--folds", "2", "--repeats", "2", "--validation", "mydata.py:test")
    ended = spotless("precompute", *rows, *more, "--out", "kept")
    assert ended.code == 0, ended.err
    assert "and train 4 fold models: as long as 2 trainings" in ended.err
    fold_models = sn.read_fold_models(here / "kept/fold-models.safetensors")
    assert fold_models.weights.shape == (4, 51)
    assert fold_models.part.shape == (2, 60)
    assert 0 < fold_models.scale != 1


def test_fold_models_that_cannot_be_trained_are_refused_before_statistics_are_written(here):
    rows = ("--model", "nets.py:build", "--weights", "model.safetensors", "--data", "mydata.py:train")
    ended = spotless("precompute", *rows, "--folds", "2", "--out", "kept")
    assert ended.code == 2
    assert "Fold models are trained like the network, but its start or recipe is not known. Give both." in ended.err
    ended = spotless("precompute", *rows, *RECIPE, "--folds", "1", "--out", "kept")
    assert "Fold models' `folds` must be at least 2 and at most one per row, but got 1." in ended.err
    assert not (here / "kept").exists()
    ended = spotless("precompute", *rows, *RECIPE, "--repeats", "2", "--out", "kept")
    assert ended.code == 2
    assert "--repeats divides the rows among fold models, but none are trained. Give --folds 2 as well." in ended.err
    assert not (here / "kept").exists()
    ended = spotless("precompute", *rows, *RECIPE, "--folds", "3", "--dry-run")
    assert "and train 3 fold models: as long as 2 trainings" in ended.out


def test_an_audit_holds_each_of_its_networks_to_what_it_said_itself(here, monkeypatch):
    rows = ("--model", "nets.py:build", "--weights", "model.safetensors", "--data", "mydata.py:train")
    assert spotless("precompute", *rows, *RECIPE, "--rank", "0", "--folds", "2", "--out", "kept").code == 0
    seen: list[Any] = []

    def measure(trained: Any, split: Any, scrub: Any, **about: Any) -> None:
        seen.append(scrub)
        raise sn.SpotlessError("Enough was seen.")

    monkeypatch.setattr(import_module("spotlessnet.auditing.run_audit"), "audit", measure)
    asked = ("audit", *BASE, *RECIPE, "--test", "mydata.py:test", "--fold-models", "kept/fold-models.safetensors")
    spotless(*asked, "--out", "x")
    assert seen[0].fold_models is not None
    assert seen[0].fold_models.origin is None


def test_tutors_that_do_not_fit_are_refused_before_any_work(here):
    asked = ("scrub", *BASE, *RECIPE, "--out", "x", "--fold-models")
    ended = spotless(*asked, "model.safetensors")
    assert ended.code == 3
    assert "model.safetensors must hold fold models, but does not say so" in ended.err
    space: dict[str, Any] = {}
    exec(DATA, space)
    data = sn.Data.of(space["train"]()[:2])
    rows = RowKeys.of(data)
    part = (torch.arange(60) % 2).unsqueeze(0)
    good = FoldModels(torch.zeros(2, 51), rows, part, origin=torch.zeros(51))
    small = replace(good, weights=torch.zeros(2, 7), origin=torch.zeros(7))
    sn.write_fold_models(here / "other.safetensors", small)
    assert "The fold models have 7 weights, the network 51" in spotless(*asked, "other.safetensors").err
    few = replace(good, keys=RowKeys.of(data.select(range(4))), part=part[:, :4])
    sn.write_fold_models(here / "few.safetensors", few)
    ended = spotless(*asked, "few.safetensors")
    assert ended.code == 3
    assert "56 of 60 rows are not among the 4 rows of the fold models" in ended.err
    sn.write_fold_models(here / "broken.safetensors", replace(good, part=part + 1))
    assert "rows and parts do not belong together" in spotless(*asked, "broken.safetensors").err
    sn.write_fold_models(here / "turned.safetensors", replace(good, scale=-1.0))
    assert "rows and parts do not belong together" in spotless(*asked, "turned.safetensors").err
    with pytest.raises(sn.SpotlessError, match="A fold model's weights are not finite, so nothing was written"):
        sn.write_fold_models(here / "nan.safetensors", FoldModels(torch.full((2, 51), torch.nan), rows, part))
    assert not (here / "x").exists()
    assert not (here / "nan.safetensors").exists()


def test_statistics_that_carry_the_rows_are_named_in_the_limits(here):
    space: dict[str, Any] = {}
    exec((here / "nets.py").read_text(), space)
    save_file(space["normed"]().state_dict(), here / "normed.safetensors")
    swapped = [{"nets.py:build": "nets.py:normed", "model.safetensors": "normed.safetensors"}.get(w, w) for w in BASE]
    # The network was never trained, so what its statistics become is no damage to anybody.
    assert spotless("scrub", *swapped, *QUICK, "--accept-damage", "--out", "run").code == 0
    limits = json.loads((here / "run/receipt.json").read_text())["predicate"]["limits"]
    assert any("BatchNorm's running statistics were gathered with the forgotten rows" in limit for limit in limits)


def test_rows_can_be_named_by_number_and_missing_ones_allowed(here):
    (here / "forget.csv").write_text("row\n1\n5\n5\n")
    assert spotless("scrub", *BASE, *QUICK, "--id-column", "row", "--out", "run").code == 0
    request = json.loads((here / "run/receipt.json").read_text())["predicate"]["request"]
    assert (request["matched"], request["missing"], request["duplicates"]) == (2, 0, 1)
    (here / "forget.csv").write_text("id\nperson-1\nnobody\n")
    refused = spotless("scrub", *BASE, *QUICK, "--out", "strict", "--quiet")
    assert refused.code == 3
    assert "1 matched, 1 missing ('nobody'), 0 duplicates" in refused.err
    assert spotless("scrub", *BASE, *QUICK, "--allow-missing", "--out", "lenient").code == 0


def test_a_dry_run_prints_plan_cost_and_memory_and_writes_nothing(here):
    before = sorted(here.rglob("*"))
    ended = spotless("scrub", *BASE, *RECIPE, "--method", "ntk", "--dry-run", "--out", "run")
    assert ended.code == 0, ended.err
    assert "; one retraining takes " in ended.out
    assert "GiB available" in ended.out
    told = json.loads(spotless("scrub", *BASE, *RECIPE, "--method", "ntk", "--dry-run", "--json").out)
    assert told["status"] == "planned"
    assert 0 < told["seconds"] <= told["at_most"]
    assert told["retraining"] > 0
    assert told["available"] > told["memory"] > 0
    assert [p for p in sorted(here.rglob("*")) if "__pycache__" not in str(p)] == before


@pytest.mark.parametrize("extra", [(), ("--dry-run",)])
def test_work_that_would_not_fit_is_refused_before_it_begins(here, extra):
    ended = spotless("scrub", *BASE, *QUICK, "--memory-limit", "1e-9", "--out", "run", "--quiet", *extra)
    assert ended.code == 4
    assert "may be used. Take a method that needs less" in ended.err
    assert not (here / "run").exists()


def test_data_sets_by_name_need_no_code_of_ones_own(here):
    torch.manual_seed(0)
    (here / "digits_net.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    save_file(net.state_dict(), here / "digits.safetensors")
    (here / "forget.txt").write_text("0\n3\n")
    ended = spotless(
        *("scrub", "--model", "digits_net.py:build", "--weights", "digits.safetensors", "--data", "digits"),
        *("--forget", "forget.txt", "--id-column", "row", "--method", "finetune", "--set", "epochs=1", "--out", "run"),
    )
    assert ended.code == 0, ended.err
    assert set(load_file(here / "run/scrubbed.safetensors")) == set(net.state_dict())


def test_too_few_seeds_for_a_verdict_are_refused_before_any_work(here):
    for command in (("audit",), ("scrub", "--audit")):
        ended = spotless(*command, *BASE, "--seeds", "4", "--out", "run")
        assert ended.code == 2
        assert "--seeds must be from 5 to 1000, but got 4: fewer than 5 pairs of trainings give no verdict" in ended.err
        assert not (here / "run").exists()


def test_what_a_checkpoint_holds_beside_the_weights_is_named_as_to_be_destroyed(here):
    state = load_file(here / "model.safetensors")
    torch.save({"state_dict": state, "optimizer_states": [{"state": {0: state}}], "ema": state}, here / "last.ckpt")
    given = ["last.ckpt" if one == "model.safetensors" else one for one in BASE]
    assert given != list(BASE)
    assert spotless("scrub", *given, "--method", "fisher", "--out", "run").code == 0
    limits = json.loads((here / "run/receipt.json").read_text())["predicate"]["limits"]
    assert "The weights given to this request lie beside 'ema', 'optimizer_states': destroy these too." in limits
