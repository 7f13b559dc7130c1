"""A report in MLflow and in Weights & Biases: offline, in a folder, with what the page shows and nothing else."""

import json
import math
import sys
from dataclasses import replace

import pytest

from spotlessnet.auditing.verdict import Check, Checks
from spotlessnet.core.errors import NeedError
from spotlessnet.report.tracking import files_of, log_to_mlflow, log_to_wandb, metrics_of, tags_of
from tests.report.example import report


def test_tags_and_metrics_are_those_of_the_verdict():
    told = replace(report(), header={"request": "ab" * 32})
    assert tags_of(told)["verdict"] == "forgotten"
    assert tags_of(told)["request"] == "ab" * 32
    metrics = metrics_of(told)
    assert (metrics["remembered share"], metrics["remembered share allowed"]) == (0.03, 0.2)
    assert told.verdict is not None
    odd = Checks([Check("rows", "same", math.inf, math.nan, math.nan, math.nan)])
    assert metrics_of(replace(told, verdict=replace(told.verdict, checks=odd))) == {"resolution": 0.08}
    assert metrics_of(replace(told, verdict=None)) == {}


@pytest.mark.parametrize(("log", "name"), [(log_to_mlflow, "mlflow"), (log_to_wandb, "wandb")])
def test_a_tracker_that_is_missing_is_named(monkeypatch, log, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NeedError, match=rf"needs {name}, which is not installed: `pip install spotlessnet\[{name}\]`"):
        log(report())


@pytest.mark.filterwarnings("ignore")
def test_mlflow_holds_verdict_and_report(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        log_to_mlflow(report())
    found = mlflow.get_run(run.info.run_id)
    assert found.data.tags["unlearning.verdict"] == "forgotten"
    assert found.data.metrics["unlearning/remembered share"] == 0.03
    folder = tmp_path / "runs" / found.info.experiment_id / run.info.run_id / "artifacts/unlearning"
    assert {name: (folder / name).read_text(encoding="utf-8") for name in files_of(report())} == files_of(report())


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_holds_verdict_and_report(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    with pytest.raises(NeedError, match="none is"):
        log_to_wandb(report())
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path, project="test") as run:
        log_to_wandb(report())
        assert run.summary["unlearning/verdict"] == "forgotten"
        assert run.summary["unlearning/remembered share"] == 0.03
    [kept] = list(tmp_path.rglob("*.html"))
    assert "✓ Forgotten" in kept.read_text(encoding="utf-8")
    assert list(tmp_path.rglob("run-*.wandb"))


def test_files_are_those_that_an_audit_writes():
    assert json.loads(files_of(report())["verdict.json"])["verdict"] == "forgotten"
