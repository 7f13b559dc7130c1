"""`sn.unlearn`: one call, in memory or with a folder, and the same function underneath the command."""

import copy
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import spotlessnet as sn
from spotlessnet.auditing.equivalence import EquivalenceTest
from spotlessnet.core.errors import (
    DamageError,
    DataError,
    MismatchError,
    NeedError,
    SettingError,
    SpotlessError,
)
from spotlessnet.core.scrub import Notes, Scrub
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.requests.audits import LEAST
from spotlessnet.requests.case import Case
from spotlessnet.requests.effects import held_later
from spotlessnet.requests.methods import BEST, FALLBACK, TAUGHT, default
from spotlessnet.requests.planning import plan_of
from spotlessnet.store.receipts import verify
from spotlessnet.store.schema import mistakes
from tests.cli.workshop import spotless
from tests.requests.small import FORGET, RECIPE, problem, weights


def test_gives_a_scrubbed_copy_and_leaves_the_network_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, _, x, y = problem()
    model = copy.deepcopy(model).train()
    before = copy.deepcopy(model.state_dict())
    done = sn.unlearn(model, (x, y), forget=FORGET, method="ntk")
    assert type(done.model) is nn.Sequential
    assert done.model is not model
    assert not torch.equal(weights(done.model), weights(model))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert list(tmp_path.iterdir()) == []
    assert done.report is None
    assert done.folder is None


def test_is_what_the_method_itself_gives():
    model, start, x, y = problem()
    done = sn.unlearn(model, (x, y), forget=FORGET, method="ntk", init=start, recipe=RECIPE, settings={"damping": 0.1})
    trained = sn.Trained.of(model, init=start, recipe=RECIPE)
    expected = sn.NTK(damping=0.1)(trained, sn.rows(FORGET)(sn.Data.of((x, y))))
    torch.testing.assert_close(weights(done.model), expected.mean)
    own = sn.unlearn(trained, (x, y), forget=FORGET, method=sn.NTK(damping=0.1))
    torch.testing.assert_close(weights(own.model), expected.mean)


class Rows(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row], self.y[row]


@pytest.mark.parametrize("kind", ["arrays", "data", "tensors", "dataset", "numpy"])
def test_takes_rows_of_any_kind(kind):
    model, _, x, y = problem()
    kinds = {
        "arrays": (x, y),
        "data": sn.Data.of((x, y)),
        "tensors": TensorDataset(x, y),
        "dataset": Rows(x, y),
        "numpy": (x.numpy(), y.numpy()),
    }
    done = sn.unlearn(model, kinds[kind], forget=FORGET, method="ntk", settings={"damping": 0.1})
    expected = sn.NTK(damping=0.1)(sn.Trained.of(model), sn.rows(FORGET)(sn.Data.of((x, y))))
    torch.testing.assert_close(weights(done.model), expected.mean)


def ways(tmp_path: Path) -> dict[str, dict[str, object]]:
    mask = torch.zeros(90, dtype=torch.bool)
    mask[FORGET] = True
    names = [f"person-{i}" for i in range(90)]
    (tmp_path / "forget.csv").write_text("id\nperson-3\nperson-14\nperson-15\n")
    wanted = ["person-3", "person-14", "person-15"]
    return {
        "list": {"forget": FORGET},
        "tensor": {"forget": torch.tensor(FORGET)},
        "array": {"forget": np.array(FORGET)},
        "set": {"forget": set(FORGET)},
        "mask": {"forget": mask},
        "mask of numpy": {"forget": mask.numpy()},
        "mask of truths": {"forget": mask.tolist()},
        "ids": {"forget": wanted, "ids": names},
        "file": {"forget": tmp_path / "forget.csv", "ids": names},
        "text": {"forget": str(tmp_path / "forget.csv"), "ids": names},
        "cohort": {"forget": sn.rows(FORGET)},
    }


def test_takes_what_must_go_said_in_any_way(tmp_path):
    model, _, x, y = problem()
    found = {
        name: weights(sn.unlearn(model, (x, y), method="ntk", settings={"damping": 0.1}, **said).model)  # type: ignore[arg-type]
        for name, said in ways(tmp_path).items()
    }
    for name, one in found.items():
        assert torch.equal(one, found["list"]), name


def test_the_receipt_is_whole_and_speaks_of_the_network(tmp_path):
    model, _, x, y = problem()
    done = sn.unlearn(model, (x, y), forget=FORGET, method="ntk")
    assert mistakes(done.receipt) == []
    body = done.receipt["predicate"]
    assert body["request"]["matched"] == 3
    assert body["request"]["kept"] == 87
    assert body["method"] == "ntk"
    assert body["about"]["utility"].keys() == done.diagnostics["utility"].keys()
    assert {one["kind"] for one in done.diagnostics["utility"]["measured"]} >= {"error", "loss"}
    digest = sn.write_weights(tmp_path / "after.safetensors", done.model)
    assert done.receipt["subject"] == [{"name": "scrubbed.safetensors", "digest": {"sha256": digest}}]
    assert "person" not in json.dumps(done.receipt)


def test_the_plan_says_what_it_costs_and_which_method_was_taken():
    model, start, x, y = problem()
    said: list[str] = []
    done = sn.unlearn(model, (x, y), forget=FORGET, init=start, recipe=RECIPE, say=said.append)
    assert done.plan is not None
    assert done.plan.method == BEST == "short-retrain"
    assert done.plan.lines() == said
    assert "method  short-retrain (none was named, and init and recipe are known)" in said
    assert done.plan.cost.seconds > 0
    assert done.plan.cost.retraining > 0
    without = sn.unlearn(model, (x, y), forget=FORGET)
    assert without.plan is not None
    assert without.plan.method == FALLBACK
    assert "no init and no recipe or trainer is known" in without.plan.lines()[1]
    without = sn.unlearn(model, (x, y), forget=FORGET, init=start)
    assert without.plan is not None
    assert "(none was named, and no recipe or trainer is known" in without.plan.lines()[1]
    assert default(Case(fold_models=Path("f")))[0] == TAUGHT


def test_with_a_folder_it_writes_what_the_command_writes(tmp_path):
    model, start, x, y = problem()
    out = tmp_path / "run"
    done = sn.unlearn(model, (x, y), forget=FORGET, init=start, recipe=RECIPE, method="ntk", out=out)
    assert {p.name for p in out.iterdir()} == {"scrubbed.safetensors", "receipt.json", "private"}
    assert verify(out / "receipt.json", (out / "private/salt").read_bytes()) == ["scrubbed.safetensors"]
    assert json.loads((out / "receipt.json").read_text()) == done.receipt
    again = sn.unlearn(model, (x, y), forget=FORGET, init=start, recipe=RECIPE, method="ntk", out=out, resume=True)
    assert again.again
    assert again.receipt == done.receipt
    assert torch.equal(weights(again.model), weights(done.model))
    with pytest.raises(DataError, match="holds the result of another request"):
        sn.unlearn(model, (x, y), forget=[4], init=start, recipe=RECIPE, method="ntk", out=out, resume=True)
    with pytest.raises(DataError, match="nothing is ever overwritten"):
        sn.unlearn(model, (x, y), forget=FORGET, method="ntk", out=out)


def test_a_folder_from_memory_passes_the_command_that_verifies(tmp_path):
    model, _, x, y = problem()
    sn.unlearn(model, (x, y), forget=FORGET, method="ntk", out=tmp_path / "run")
    (tmp_path / "rows.txt").write_text("3\n14\n15\n")
    ended = spotless("verify", str(tmp_path / "run"), "--forget", str(tmp_path / "rows.txt"), "--id-column", "row")
    assert ended.code == 0, ended.err


def test_a_ruined_network_is_refused_unless_insisted():
    model, _, x, y = problem()
    ruin = {"method": "gradient-ascent", "settings": {"lr": 5.0, "epochs": 20}}
    with pytest.raises(DamageError, match="The scrubbed network is ruined"):
        sn.unlearn(model, (x, y), forget=FORGET, **ruin)  # type: ignore[arg-type]
    done = sn.unlearn(model, (x, y), forget=FORGET, accept_damage=True, **ruin)  # type: ignore[arg-type]
    assert done.diagnostics["utility"]["accepted_any"]
    with pytest.raises(DamageError, match="at least 30 rows"):
        sn.unlearn(model, (x[:12], y[:12]), forget=[3], method="ntk")


@dataclass(frozen=True)
class Never(Scrub):
    """Must not be reached."""

    def shift(self, trained: Trained, split: Split, notes: Notes) -> Tensor:
        raise AssertionError("the work was begun")


def broken(where: str) -> nn.Module:
    model = copy.deepcopy(problem()[0])
    if where == "model":
        with torch.no_grad():
            next(model.parameters())[0, 0] = torch.nan
    return model


def with_nan(x: Tensor, row: int = 60) -> Tensor:
    x = x.clone()
    x[row, 0] = torch.nan
    return x


REFUSED: dict[str, tuple[dict[str, object], type[SpotlessError], str]] = {
    "a row that is not there": ({"forget": [90]}, DataError, "1 missing"),
    "a negative row": ({"forget": [-1]}, DataError, "missing"),
    "nothing": ({"forget": []}, DataError, "names none"),
    "an empty mask": ({"forget": [False] * 90}, DataError, "names none"),
    "a short mask": ({"forget": [True, False]}, DataError, "one truth value for each of 90"),
    "parts of rows": ({"forget": [0.5]}, SettingError, "must hold row numbers, but holds '0.5'"),
    "ids without the data's": ({"forget": ["ann"]}, SettingError, "give those of the data too"),
    "a number": ({"forget": 3}, SettingError, "`forget` must be row numbers"),
    "a list that is not there": ({"forget": "nowhere.csv"}, DataError, "there is no file 'nowhere.csv'"),
    "too few ids": ({"forget": ["ann"], "ids": ["ann"]}, DataError, "one id for each of 90"),
    "a misspelt method": ({"method": "ntkk"}, SettingError, "Did you mean 'ntk'"),
    "a misspelt setting": ({"method": "ntk", "settings": {"dampin": 1}}, SettingError, "Did you mean 'damping'"),
    "a bad value": ({"method": "ntk", "settings": {"damping": -1}}, SettingError, "must be"),
    "settings of a built method": ({"settings": {"damping": 1}}, SettingError, "`method` is one already"),
    "a negative budget": ({"max_nats": -1.0}, SettingError, "must be positive"),
    "a start of another shape": ({"init": nn.Linear(2, 2)}, MismatchError, "missing"),
    "weights beside a network": ({"weights": "model.pt"}, SettingError, "is a network already"),
    "a start that is not a number": ({"init": torch.full((51,), torch.nan)}, DataError, "must be finite"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_come_before_the_work(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given, error, message = REFUSED[name]
    model, _, x, y = problem()
    with pytest.raises(error, match=message):
        sn.unlearn(model, (x, y), **{"forget": FORGET, "method": Never(), "out": tmp_path / "run", **given})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["pair", "dataset", "test", "model"])
def test_what_is_not_a_number_is_refused_before_the_work(kind):
    x, y = problem()[2:]
    data = {"pair": (with_nan(x), y), "dataset": Rows(with_nan(x), y)}.get(kind, (x, y))
    test = Rows(with_nan(x), y) if kind == "test" else None
    with pytest.raises(SpotlessError, match="finite"):
        sn.unlearn(broken(kind), data, forget=FORGET, test=test, method=Never())


def test_data_that_do_not_fit_are_named_as_arguments():
    model, _, x, y = problem()
    with pytest.raises(MismatchError, match="the labels of `data` go from 0 to 7"):
        sn.unlearn(model, (x, y % 3 + 5 * (y == 2)), forget=FORGET, method=Never())
    with pytest.raises(MismatchError, match="cannot answer the rows of `test`"):
        sn.unlearn(model, (x, y), test=(x[:, :3], y), forget=FORGET, method=Never())


def test_a_trained_network_brings_its_own_history():
    model, start, x, y = problem()
    trained = sn.Trained.of(model, init=start, recipe=RECIPE)
    done = sn.unlearn(trained, (x, y), forget=FORGET)
    assert done.plan is not None
    assert done.plan.method == BEST
    with pytest.raises(SettingError, match="recipe was given beside it"):
        sn.unlearn(trained, (x, y), forget=FORGET, recipe=RECIPE)


def test_statistics_serve_and_the_next_ones_come_back(tmp_path):
    model, start, x, y = problem()
    trained = sn.Trained.of(model, init=start, recipe=RECIPE)
    kept = sn.precompute(trained, sn.Data.of((x, y)), rank=10)
    first = sn.unlearn(trained, (x, y), forget=FORGET, statistics=kept, method="ntk")
    assert first.statistics is not None
    assert first.statistics.count == 87
    left = [row for row in range(90) if row not in FORGET]
    second = sn.unlearn(first.model, (x[left], y[left]), forget=[0], statistics=first.statistics, method="ntk")
    assert second.receipt["predicate"]["request"]["kept"] == 86
    sn.write_statistics(tmp_path / "kept.safetensors", kept)
    with pytest.raises(NeedError, match="serves one request, whose folder is noted"):
        sn.unlearn(trained, (x, y), forget=FORGET, statistics=tmp_path / "kept.safetensors", method="ntk")


AFTER = {"statistics": "`statistics=result.statistics`", "fold_models": "fold models that are trained anew"}


@pytest.mark.parametrize("kind", ["statistics", "fold_models"])
def test_objects_serve_one_request_too(kind):
    """From one object two networks would come, each of which still knows what the other forgot."""
    model, start, x, y = problem()
    trained = sn.Trained.of(model, init=start, recipe=RECIPE)
    data = sn.Data.of((x, y))
    kept = sn.precompute(trained, data, rank=10) if kind == "statistics" else sn.train_fold_models(trained, data)
    how: dict[str, Any] = {kind: kept, "method": "ntk" if kind == "statistics" else TAUGHT}
    with pytest.raises(SpotlessError, match="row"):
        sn.unlearn(trained, (x, y), forget=[1000], **how)
    # A request that was refused used nothing up.
    first = sn.unlearn(trained, (x, y), forget=[5], accept_damage=True, **how)
    with pytest.raises(DataError, match=f"served a request before.*{AFTER[kind]}"):
        sn.unlearn(trained, (x, y), forget=[6], **how)
    left = [row for row in range(90) if row != 5]
    after = sn.Trained.of(first.model, init=start, recipe=RECIPE)
    rest = sn.Data.of((x[left], y[left]))
    how[kind] = first.statistics if kind == "statistics" else sn.train_fold_models(after, rest)
    second = sn.unlearn(after, (x[left], y[left]), forget=[5], accept_damage=True, **how)
    assert second.receipt["predicate"]["request"]["kept"] == 88


@pytest.mark.parametrize("kind", ["statistics", "fold_models"])
def test_a_method_brings_nothing_that_serves_one_request(kind):
    model, start, x, y = problem()
    trained = sn.Trained.of(model, init=start, recipe=RECIPE)
    data = sn.Data.of((x, y))
    method: sn.Scrub = (
        sn.NTK(statistics=sn.precompute(trained, data, rank=10))
        if kind == "statistics"
        else sn.OutOfFoldDistillation(fold_models=sn.train_fold_models(trained, data))
    )
    for asked in (method, sn.chain(sn.Finetune(epochs=1), method), sn.chain(sn.chain(method))):
        with pytest.raises(SettingError, match=f"Give `{kind}=...` to `sn.unlearn`"):
            sn.unlearn(trained, (x, y), forget=[5], method=asked)


@pytest.mark.parametrize("seeds", [0, 4, 1.5, True])
def test_an_audit_of_too_few_seeds_is_refused_before_any_work(seeds):
    assert EquivalenceTest().least == LEAST
    with pytest.raises((SettingError, TypeCheckError), match="seeds"):
        sn.Audit(seeds=seeds)


def test_a_loss_goes_by_the_names_of_the_command():
    model, _, x, y = problem()
    for name, kind in {"squared-error": sn.SquaredError, "cross-entropy": sn.CrossEntropy}.items():
        one, two = (
            sn.unlearn(model, (x, y), forget=FORGET, loss=loss, method="ntk", accept_damage=True)
            for loss in (name, kind())
        )
        assert torch.equal(weights(one.model), weights(two.model))
    assert isinstance(sn.Trained.of(model, "binary-cross-entropy").loss, sn.BinaryCrossEntropy)
    with pytest.raises(
        SettingError, match="one of 'cross-entropy', 'next-token', 'squared-error', 'binary-cross-entropy', or a fun"
    ):
        sn.unlearn(model, (x, y), forget=FORGET, loss="squared")


def test_an_audit_comes_back_as_a_report(tmp_path):
    model, start, x, y = problem()
    few = sn.Recipe(epochs=2, lr=0.1, batch_size=30)
    how = {"forget": FORGET, "init": start, "recipe": few, "method": "finetune", "settings": {"epochs": 1}}
    done = sn.unlearn(model, (x, y), test=(x, y), audit=sn.Audit(seeds=5), out=tmp_path / "run", **how)  # type: ignore[arg-type]
    assert done.report is not None
    assert done.receipt["predicate"]["audit"]
    assert (tmp_path / "run/report.html").is_file()
    assert done.report.rerun_command.startswith("sn.unlearn(")


def test_what_unlearn_gave_is_known_to_follow_a_request():
    """Two requests in memory: what was precomputed for the first one's network must not make the second a first."""
    torch.manual_seed(0)
    x, y = torch.randn(24, 3), torch.arange(24) % 2
    recipe = sn.Recipe(epochs=2, lr=0.1, batch_size=8)
    start = nn.Linear(3, 2)
    model = sn.fit(sn.Trained.of(start, recipe=recipe, init=start), sn.Data.of((x, y))).module()
    done = sn.unlearn(model, (x, y), forget=[0], init=start, recipe=recipe, method="retrain", accept_damage=True)
    for network, later in ((model, False), (done.model, True), (copy.deepcopy(done.model), True)):
        trained, left = sn.Trained.of(network, recipe=recipe, init=start), sn.Data.of((x[1:], y[1:]))
        fold_models = sn.train_fold_models(trained, left, folds=2)
        assert fold_models.after_requests == later
        assert sn.precompute(trained, left, rank=2, diagonal=None).after_requests == later
        # Also where somebody says otherwise, as a file may.
        first = replace(fold_models, after_requests=False)
        assert held_later(first, None, trained.model).after_requests == later


def test_a_list_with_several_columns_is_read_by_the_name_of_one(tmp_path):
    model, _, x, y = problem()
    (tmp_path / "gone.csv").write_text("name,email\nJane,3@mail.org\nJoe,14@mail.org\n")
    emails = [f"{i}@mail.org" for i in range(len(y))]
    asked: dict[str, Any] = {"ids": emails, "method": "ntk", "accept_damage": True}
    path = tmp_path / "gone.csv"
    for how in ({"forget": path, "id_column": "email"}, {"forget": sn.ids(path, column="email")}):
        done = sn.unlearn(model, (x, y), **asked, **how)
        assert done.receipt["predicate"]["request"]["matched"] == 2
        assert repr(done) == "Unlearned(ntk, 2 rows forgotten, no audit, nothing written)"
    with pytest.raises(DataError, match=r"none is 'id'\. Name the column .* in Python `id_column=`"):
        sn.unlearn(model, (x, y), **asked, forget=path)
    with pytest.raises(DataError, match=r"there is no file '3@mail\.org'\. Give one id as a list"):
        sn.unlearn(model, (x, y), **asked, forget="3@mail.org")
    with pytest.raises(DataError, match=r"in Python `sn\.ids\(\.\.\., allow_missing=True\)`"):
        sn.unlearn(model, (x, y), **asked, forget=["3@mail.org", "nobody"])
    with pytest.raises(DataError, match=r"0 duplicates\. Correct the list\.$"):
        sn.unlearn(model, (x, y), **asked, forget=["nobody"])


def test_the_plan_of_a_result_has_the_lines_of_its_audit():
    model, start, x, y = problem()
    said: list[str] = []
    plan = plan_of(Case.of({"model": Trained.of(model, init=start, recipe=RECIPE), "data": sn.Data.of((x, y)),
                            "forget": sn.rows(FORGET)}))  # fmt: skip
    assert not any(line.startswith("audit") for line in plan.lines())
    assert "beside Python, torch" in str(plan)
    with pytest.raises(KeyboardInterrupt):
        sn.unlearn(model, (x, y), forget=FORGET, init=start, recipe=RECIPE, audit=True, say=_stop_at("total", said))
    assert any("beside looking at the networks, the figures and the report" in line for line in said)


def _stop_at(word: str, said: list[str]) -> Any:
    def say(line: str) -> None:
        said.append(line)
        if line.startswith(word):
            raise KeyboardInterrupt

    return say


@pytest.mark.parametrize("kind", ["module", "state dict", "vector", "file"])
def test_a_start_that_is_the_trained_network_itself_is_refused(kind, tmp_path):
    """It retrained from weights that know the rows, and the audit said that it never saw them."""
    model, _, x, y = problem()
    sn.write_weights(tmp_path / "model.safetensors", model)
    starts: dict[str, Any] = {"module": model, "state dict": model.state_dict(), "vector": weights(model)}
    start = starts.get(kind, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match="`init` holds the weights of the trained network itself"):
        sn.unlearn(model, (x, y), forget=FORGET, init=start, recipe=RECIPE)


@pytest.mark.parametrize("as_given", [torch.Tensor.clone, torch.Tensor.numpy, torch.Tensor.tolist])
def test_a_mask_is_one_beside_ids_too(as_given):
    """Its truth values were looked for among the ids."""
    model, start, x, y = problem()
    mask = torch.zeros(len(x), dtype=torch.bool)
    mask[FORGET] = True
    people = [f"person-{i}" for i in range(len(x))]
    done = sn.unlearn(model, (x, y), forget=as_given(mask), ids=people, init=start, recipe=RECIPE, accept_damage=True)
    assert done.plan is not None
    assert done.plan.opened.split.request.matched == len(FORGET)
