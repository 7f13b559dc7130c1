"""The desk's own process does without torch: it answers, closes and proves where torch cannot be imported at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="the extra `serve` is not installed")

ROOT = Path(__file__).parents[2]

CODE = """
import sys
from pathlib import Path

for name in ("torch", "numpy"):
    sys.modules[name] = None  # whoever imports it meets an ImportError

from fastapi.testclient import TestClient

from spotlessnet.cli import console, serving
from spotlessnet.serve import client, demo, running
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import reading
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.proving import seal_of
from tests.serve.conftest import model_of, new_tenant, until
from tests.serve.stand_in import StandIn

place = Path(sys.argv[1])
desk = Desk.at(place / "desk", engine=StandIn())
tenant = new_tenant(desk, "one")
model_of(desk, tenant, place / "run")
with TestClient(make_app(desk)) as web:
    sent = web.post("/api/v1/requests", json={"key": "1", "ids": ["ann"]}, headers=tenant.headers())
    at = f"/api/v1/requests/{sent.json()['id']}"
    until(lambda: web.get(at, headers=tenant.headers()).json()["state"] == "closed", 60)
    assert web.get(at + "/receipt", headers=tenant.headers()).status_code == 200
    assert web.get("/login").status_code == 200
with reading(desk.database) as connection:
    assert seal_of(connection, desk.signer).mistakes == ()
print("done")
"""


def test_a_request_is_received_served_and_closed_without_torch(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
    assert ended.stdout == "done\n", ended.stderr


@pytest.mark.parametrize("arguments", [["serve", "--help"], ["request", "--help"], ["request", "list", "--json"]])
def test_the_desks_commands_are_found_without_torch(arguments, tmp_path):
    code = "import sys; sys.modules['torch'] = None; from spotlessnet.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SPOTLESS_DESK": "http://127.0.0.1:9"}
    command = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert "torch" not in ended.stderr
    assert ended.returncode == (2 if arguments[-1] == "--json" else 0), ended.stderr  # there is no token
