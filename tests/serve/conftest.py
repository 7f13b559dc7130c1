"""A desk whose engine trains nothing, and callers of two tenants."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="the extra `serve` is not installed")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from spotlessnet.serve.access import SCOPES, add_tenant, add_token
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import PRAGMAS
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.policy import Policy
from tests.serve.stand_in import StandIn, write_training

BY_RULE = Policy(approval="rule", audit_seeds=5)
BY_PERSON = Policy(audit_seeds=5)
PEOPLE = ["ann", "bob", "cy", "di", "eve", "fay", "gil", "hal"]


@dataclass
class Tenant:
    """One tenant and its tokens by scope; `all` has every scope."""

    id: str
    tokens: dict[str, str]

    def headers(self, scope: str = "all") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[scope]}"}


def new_tenant(desk: Desk, name: str, policy: Policy = BY_RULE) -> Tenant:
    with desk.database.begin() as connection:
        tenant = add_tenant(connection, name, policy)
        tokens = {scope: add_token(connection, tenant, scope, [scope]) for scope in SCOPES}
        tokens["all"] = add_token(connection, tenant, "all", SCOPES)
    return Tenant(tenant, tokens)


def model_of(desk: Desk, tenant: Tenant, place: Path, people: list[str] = PEOPLE, name: str = "digits") -> str:
    return desk.add_model(tenant.id, name, "recorded", {}, write_training(place, people), "test")


def until(found: Callable[[], Any], seconds: float = 20) -> Any:
    """Wait for something to be true, and give it."""
    ends = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < ends, "it did not come about"
        time.sleep(0.05)
    return value


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk():
    """Tests do not cut the power, so nothing need reach the disk before it is answered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spotlessnet.serve.database.PRAGMAS", [*PRAGMAS, "synchronous=OFF"])
        yield


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk.at(tmp_path / "desk", engine=StandIn(), roots=(tmp_path,))
    yield made
    made.close()


@pytest.fixture
def tenant(desk: Desk) -> Tenant:
    return new_tenant(desk, "one")


@pytest.fixture
def app(desk: Desk) -> FastAPI:
    """Answers, and makes no rounds of its own."""
    return make_app(desk, run=False)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as made:
        yield made
