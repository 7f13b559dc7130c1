"""MLflow itself, on a local store without a server: the desk publishes, the alias follows, what was replaced goes."""

from functools import partial

import pytest

pytest.importorskip("dbos", reason="the extra `serve` is not installed")
pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")

from fastapi.testclient import TestClient

from spotlessnet.requests.folder import SCRUBBED
from spotlessnet.serve.app import make_app
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.registry import ALIAS, NETWORK_TAG, Mlflow
from tests.serve.conftest import model_of, new_tenant, until
from tests.serve.test_registry import Weights

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow uses what newer versions of others have deprecated


def is_closed(client, tenant, at) -> bool:
    return client.get(at, headers=tenant.headers()).json()["state"] == "closed"


@pytest.fixture
def registry(tmp_path, monkeypatch) -> Mlflow:
    monkeypatch.chdir(tmp_path)  # its artefacts lie below the folder that it is run in
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return Mlflow.at(f"sqlite:///{tmp_path / 'mlflow.db'}")


def test_each_published_version_has_the_alias_and_the_one_before_is_deleted(tmp_path, registry):
    desk = Desk.at(tmp_path / "desk", engine=Weights(), registry=registry)
    tenant = new_tenant(desk, "one")
    model_of(desk, tenant, tmp_path / "run")
    name, networks = f"digits-{tenant.id}", []
    with TestClient(make_app(desk)) as client:
        for key, ids in {"1": ["ann"], "2": ["bob"]}.items():
            asked = client.post("/api/v1/requests", json={"key": key, "ids": ids}, headers=tenant.headers()).json()
            at = f"/api/v1/requests/{asked['id']}"
            until(partial(is_closed, client, tenant, at), 120)
            current = registry.client.get_model_version_by_alias(name, ALIAS)
            networks.append(current.tags[NETWORK_TAG])
            files = registry.client.list_artifacts(current.run_id, "model")
            assert [one.path for one in files] == [f"model/{SCRUBBED}"]
    found = registry.client.search_model_versions(f"name='{name}'")
    assert [one.tags[NETWORK_TAG] for one in found] == networks[1:]
    assert len(set(networks)) == 2
    runs = registry.client.search_runs([registry.client.get_experiment_by_name("spotlessnet desk").experiment_id])
    assert [run.info.run_id for run in runs] == [current.run_id]
    desk.close()


def test_publishing_a_second_time_changes_nothing(tmp_path, registry):
    file = tmp_path / SCRUBBED
    file.write_bytes(b"weights")
    for _ in range(2):
        registry.publish("t", "digits", "aa", [file], {"verdict": "forgotten"})
    [version] = registry.client.search_model_versions("name='digits-t'")
    assert version.tags == {NETWORK_TAG: "aa", "spotless.verdict": "forgotten"}
    registry.retire("t", "digits", "aa")
    assert len(registry.client.search_model_versions("name='digits-t'")) == 1
