"""The library behind the desk: a recorded training and a forgettable model, two requests in a row, and no id left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from spotlessnet.core.files import sha256
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import EVENTS, MODELS, VERSIONS, reading, rows_of
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.policy import Policy
from tests.serve.conftest import new_tenant, until

pytestmark = pytest.mark.slow

TRAINING = """
import torch
from torch import nn

import spotlessnet as sn

torch.manual_seed(1)
y = torch.arange(300) % 3
x = torch.randn(300, 4) + 2 * nn.functional.one_hot(y, 4)
recipe = sn.Recipe(epochs=8, lr=0.1, batch_size=32)
ids = [f"canary-{i % 30:02}" for i in range(300)]


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def examples():
    return x, y, ids


def core():
    return x[:60], y[:60]


if __name__ == "__main__":
    model = build()
    with sn.record("run", model, examples, build=build, recipe=recipe) as run:
        run.model = sn.fit(sn.Trained.of(model, recipe=recipe), sn.Data.of((x, y)), recipe).module()
"""


@pytest.fixture
def trained(tmp_path) -> Path:
    (tmp_path / "train.py").write_text(TRAINING)
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "spotlessnet", "train", "--forgettable", "--model", "train.py:build"]
    command += ["--core", "train.py:core", "--data", "train.py:examples", "--out", "forgettable", "-q"]
    subprocess.run(command, cwd=tmp_path, check=True)
    return tmp_path


def test_two_requests_in_a_row_on_two_models_leave_no_id_anywhere(trained):
    desk = Desk.at(trained / "desk")
    tenant = new_tenant(desk, "one", Policy(audit_seeds=0, replay_share=1.0))
    code = str(trained / "train.py")
    desk.add_model(tenant.id, "net", "recorded", {}, trained / "run", "test")
    desk.add_model(tenant.id, "exact", "forgettable", {"model": f"{code}:build"}, trained / "forgettable", "test")
    with TestClient(make_app(desk)) as client:
        for key, ids in {"1": ["canary-07"], "2": ["canary-08", "canary-07"]}.items():
            asked = client.post("/api/v1/requests", json={"key": key, "ids": ids}, headers=tenant.headers()).json()
            serve(client, tenant, asked["id"])
    with reading(desk.database) as connection:
        for model in rows_of(connection, sa.select(MODELS)):
            query = sa.select(VERSIONS).where(VERSIONS.c.model == model["id"]).order_by(VERSIONS.c.number)
            versions = rows_of(connection, query)
            assert [one["number"] for one in versions] == [0, 1, 2]
            name = "scrubbed.safetensors" if model["name"] == "net" else "network.safetensors"
            assert sha256(Path(versions[2]["folder"]) / name) == versions[2]["network"]
            assert not any(list(Path(one["folder"]).glob("*.safetensors")) for one in versions[:2])
        told = connection.execute(sa.select(EVENTS.c.what).where(EVENTS.c.what.startswith("replayed"))).scalars().all()
        assert sorted(told) == ["replayed: cannot be told"] * 2 + ["replayed: the same"] * 2
    assert list(trained.rglob("*.replay")) == []
    desk.close()
    kept = [path for path in (trained / "desk").rglob("*") if path.is_file() and "forgettable" not in path.name]
    assert len(kept) > 10
    assert [path for path in kept if b"canary-07" in path.read_bytes()] == []


def serve(client, tenant, request) -> None:
    """Approve whatever waits for a person until the request is closed."""

    def closed():
        found = client.get(f"/api/v1/requests/{request}", headers=tenant.headers()).json()
        for job in found["jobs"]:
            assert job["state"] != "failed", json.dumps(job)
            if job["state"] == "audited":
                client.post(f"/api/v1/jobs/{job['id']}/approve", headers=tenant.headers())
        return found["state"] == "closed"

    until(closed, seconds=400)
