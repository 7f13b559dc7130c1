"""MLflow as a place to publish, with a stand-in for its client: logged first, then the alias, and once."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from spotlessnet.core.errors import NeedError
from spotlessnet.requests.folder import PRIVATE, RECEIPT, SCRUBBED
from spotlessnet.requests.forgettable import NETWORK
from spotlessnet.serve.app import make_app
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.engine import WorkError
from spotlessnet.serve.registry import ALIAS, LOGGED, NETWORK_TAG, Mlflow, files_to_log
from spotlessnet.store.training_record import WEIGHTS
from tests.serve.conftest import model_of, new_tenant, until
from tests.serve.stand_in import StandIn


class FakeClient:
    """As much of `mlflow.MlflowClient` as the desk calls, in memory; may fail at one call."""

    def __init__(self, broken: str = "") -> None:
        self.models: dict[str, list[SimpleNamespace]] = {}
        self.aliases: dict[tuple[str, str], str] = {}
        self.files: dict[str, list[str]] = {}
        self.calls: list[str] = []
        self.broken = broken

    def __getattribute__(self, name):
        if name in ("models", "aliases", "files", "calls", "broken") or name.startswith("_"):
            return object.__getattribute__(self, name)
        if name == self.broken:
            raise ConnectionError("the registry at http://secret is away")
        self.calls.append(name)
        return object.__getattribute__(self, name)

    def search_registered_models(self, filter_string):
        return [name for name in self.models if filter_string == f"name='{name}'"]

    def create_registered_model(self, name):
        assert name not in self.models
        self.models[name] = []

    def search_model_versions(self, filter_string):
        return [one for name, all_ in self.models.items() if filter_string == f"name='{name}'" for one in all_]

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return "1"

    def create_run(self, experiment_id, run_name):
        run = f"run{len(self.files)}"
        self.files[run] = []
        return SimpleNamespace(info=SimpleNamespace(run_id=run, artifact_uri=f"file:///{run}"))

    def log_artifact(self, run_id, local_path, artifact_path):
        assert Path(local_path).is_file()
        self.files[run_id].append(Path(local_path).name)

    def set_terminated(self, run_id):
        assert run_id in self.files

    def create_model_version(self, name, source, run_id, tags):
        version = SimpleNamespace(version=str(len(self.calls)), run_id=run_id, tags=tags, source=source)
        self.models[name].append(version)
        return version

    def set_registered_model_alias(self, name, alias, version):
        assert any(one.version == version for one in self.models[name]), "an alias leads to what is there"
        self.aliases[name, alias] = version

    def delete_run(self, run_id):
        self.files.pop(run_id, None)

    def delete_model_version(self, name, version):
        assert self.aliases[name, ALIAS] != version, "what is published is not deleted"
        self.models[name] = [one for one in self.models[name] if one.version != version]


class Weights(StandIn):
    """Writes a file of weights beside its list of names."""

    def forget(self, work, say):
        done = super().forget(work, say)
        (Path(work.out) / SCRUBBED).write_bytes(b"weights")
        return done


@pytest.fixture
def client():
    return FakeClient()


def test_weights_are_logged_before_the_alias_and_a_second_time_changes_nothing(client, tmp_path):
    file = tmp_path / SCRUBBED
    file.write_bytes(b"weights")
    registry = Mlflow(client)
    for _ in range(2):
        registry.publish("t", "digits", "aa", [file], {"verdict": "forgotten"})
    assert client.calls.index("log_artifact") < client.calls.index("create_model_version")
    assert client.calls.index("create_model_version") < client.calls.index("set_registered_model_alias")
    [version] = client.models["digits-t"]
    assert version.tags == {NETWORK_TAG: "aa", "spotless.verdict": "forgotten"}
    assert client.aliases["digits-t", ALIAS] == version.version


def test_what_was_replaced_is_deleted_and_versions_of_others_are_not(client, tmp_path):
    registry = Mlflow(client)
    registry.publish("t", "digits", "aa", [], {})
    client.models["digits-t"].append(SimpleNamespace(version="77", run_id="theirs", tags={}))
    registry.publish("t", "digits", "bb", [], {})
    registry.retire("t", "digits", "bb")
    registry.retire("t", "digits", "bb")
    assert [one.tags.get(NETWORK_TAG) for one in client.models["digits-t"]] == [None, "bb"]
    assert list(client.files) == ["run1"]


def test_a_registry_that_is_away_may_come_back_and_its_text_is_not_repeated(tmp_path):
    with pytest.raises(WorkError, match="did not do what it was asked for") as told:
        Mlflow(FakeClient("set_registered_model_alias")).publish("t", "digits", "aa", [], {})
    assert told.value.may_pass
    assert "secret" not in str(told.value)


def test_the_desk_publishes_there_and_goes_on_after_a_failure(client, tmp_path):
    desk = Desk.at(tmp_path / "desk", engine=Weights(), registry=Mlflow(client))
    tenant = new_tenant(desk, "registry")
    model_of(desk, tenant, tmp_path / "run")
    name = f"digits-{tenant.id}"
    with TestClient(make_app(desk)) as calls:

        def ask(key, who):
            told = {"key": key, "ids": [who]}
            return calls.post("/api/v1/requests", json=told, headers=tenant.headers()).json()["id"]

        def get(request):
            return calls.get(f"/api/v1/requests/{request}", headers=tenant.headers()).json()

        first = ask("1", "ann")
        until(lambda: get(first)["state"] == "closed")
        client.broken = "set_registered_model_alias"
        second = ask("2", "bob")
        job = until(lambda: (jobs := get(second)["jobs"]) and jobs[0]["state"] == "failed" and jobs[0], 60)
        assert job["message"].startswith("MLflow's registry")
        client.broken = ""
        assert calls.post(f"/api/v1/jobs/{job['id']}/retry", headers=tenant.headers()).status_code == 200
        until(lambda: get(second)["state"] == "closed")
        network = get(second)["jobs"][0]["network"]
    [version] = client.models[name]
    assert (version.tags[NETWORK_TAG], version.tags["spotless.version"]) == (network, "2")
    assert client.aliases[name, ALIAS] == version.version
    assert client.files[version.run_id] == [SCRUBBED]
    desk.close()


def test_only_weights_and_receipt_are_logged(tmp_path):
    assert LOGGED == (SCRUBBED, WEIGHTS, NETWORK, RECEIPT)
    (tmp_path / PRIVATE).mkdir()
    for name in (SCRUBBED, "rows.safetensors", f"{PRIVATE}/opening.json"):
        (tmp_path / name).write_bytes(b"x")
    assert files_to_log(tmp_path) == [tmp_path / SCRUBBED]


def test_without_mlflow_the_flag_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(NeedError, match=r"pip install spotlessnet\[mlflow\]"):
        Mlflow.at("http://127.0.0.1:5000")
