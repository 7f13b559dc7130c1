"""Requests of all sorts while the desk is killed again and again: none lost, none served twice, each with a receipt."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from spotlessnet.core.errors import DataError, ResourceError
from spotlessnet.proof.bundle import verify_bundle
from spotlessnet.proof.keys import PublicKeys
from spotlessnet.serve.client import Client
from spotlessnet.serve.database import JOBS, MODELS, REQUESTS, VERSIONS, address_of, reading, rows_of
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.proving import bundle_of, seal_of
from tests.serve.conftest import model_of, new_tenant
from tests.serve.stand_in import NETWORK, StandIn, digest

ROOT = Path(__file__).parents[2]
POSTGRESQL = os.environ.get("SPOTLESS_TEST_POSTGRESQL")
"""The address of a database beside which others may be made, such as postgresql://desk@127.0.0.1/desk."""


class Victims:
    """Processes of one desk; each is killed without a word and started again."""

    def __init__(self, folder: Path, database: str = "", count: int = 1) -> None:
        self.ports = [_free_port() for _ in range(count)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        command = [sys.executable, "-m", "tests.serve.killed", str(folder), database]
        self.nursery = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)  # type: ignore[call-overload]
        self.running = [self.start(i) for i in range(count)]

    def start(self, i: int) -> int:
        self.nursery.stdin.write(f"{self.ports[i]} worker-{i}\n")
        self.nursery.stdin.flush()
        return int(self.nursery.stdout.readline())

    def kill(self, i: int) -> None:
        os.kill(self.running[i], signal.SIGKILL)
        self.running[i] = self.start(i)

    def end(self) -> None:
        for one in self.running:
            os.kill(one, signal.SIGKILL)
        self.nursery.kill()
        self.nursery.communicate()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def patiently(call):
    """A call that is made again until the desk is there to answer."""
    ends = time.monotonic() + 120
    while True:
        try:
            return call()
        except ResourceError:
            assert time.monotonic() < ends
            time.sleep(0.1)


def cancel_if_it_may_be(client: Client, request: str) -> None:
    try:
        patiently(lambda: client._call("POST", f"/api/v1/requests/{request}/cancel"))
    except DataError as e:
        if "The desk answered 409" not in str(e):
            raise


def storm(folder: Path, *, requests: int, kills: int, database: str = "", workers: int = 1, seed: int = 0) -> None:
    """Requests, duplicates, unknown ids, cancels and kills, in an order drawn from the seed; then look around."""
    draw = random.Random(seed)
    people = [f"p{i}" for i in range(max(40, requests // 4))]
    desk = Desk.at(folder / "desk", database=database or None, engine=StandIn())
    tenant = new_tenant(desk, f"storm {seed} {time.time_ns()}")
    model_of(desk, tenant, folder / "run", people)
    victims = Victims(folder / "desk", database, workers)
    clients = [Client(f"http://127.0.0.1:{port}", tenant.tokens["all"]) for port in victims.ports]
    asked: dict[str, list[str]] = {}
    ids: dict[str, str] = {}
    acts = ["send"] * requests + ["kill"] * kills
    draw.shuffle(acts)
    try:
        for act in acts:
            client = draw.choice(clients)
            if act == "kill":
                time.sleep(draw.random() * 0.5)
                victims.kill(draw.randrange(workers))
                continue
            again = asked and draw.random() < 0.2
            key = draw.choice(list(asked)) if again else f"key {len(asked)}"
            some = asked.setdefault(key, [draw.choice([*people, "unknown"]) for _ in range(draw.randint(1, 3))])
            found = patiently(lambda key=key, some=some, client=client: client.send(key, some))
            assert ids.setdefault(key, found["id"]) == found["id"], "one key became two requests"
            if draw.random() < 0.1:
                cancel_if_it_may_be(client, ids[key])
        until_all_ended(desk, tenant.id, len(asked))
    finally:
        victims.end()
    check_what_is_left(desk, tenant.id, asked, ids, people, folder)
    desk.close()


def until_all_ended(desk: Desk, tenant: str, count: int) -> None:
    ends = time.monotonic() + 300
    query = sa.select(REQUESTS.c.state, sa.func.count()).where(REQUESTS.c.tenant == tenant).group_by(REQUESTS.c.state)
    while True:
        with reading(desk.database) as connection:
            found: dict[str, int] = {row[0]: row[1] for row in connection.execute(query)}
        if found.keys() <= {"closed", "cancelled"} and sum(found.values()) == count:
            return
        assert time.monotonic() < ends, found
        time.sleep(0.2)


def check_what_is_left(
    desk: Desk, tenant: str, asked: dict[str, list[str]], ids: dict[str, str], people: list[str], folder: Path
) -> None:
    with reading(desk.database) as connection:
        rows = {row["id"]: row for row in rows_of(connection, sa.select(REQUESTS).where(REQUESTS.c.tenant == tenant))}
        assert rows.keys() == set(ids.values()), "a request was lost, or came from nowhere"
        closed = [row for row in rows.values() if row["state"] == "closed"]
        assert len({row["entry"] for row in closed}) == len(closed), "two requests share a receipt"
        keys = PublicKeys([desk.signer.public])
        for row in closed:
            proven = verify_bundle(bundle_of(connection, row["entry"]), keys)
            assert proven.receipt["predicate"]["request"] == row["id"]
        assert seal_of(connection, desk.signer).is_whole
        [model] = rows_of(connection, sa.select(MODELS).where(MODELS.c.tenant == tenant))
        versions = rows_of(connection, sa.select(VERSIONS).where(VERSIONS.c.model == model["id"]))
        jobs = {row["id"]: row for row in rows_of(connection, sa.select(JOBS).where(JOBS.c.model == model["id"]))}
    assert sorted(one["number"] for one in versions) == list(range(model["version"] + 1))
    assert all(one["number"] == 0 or one["verdict"] == "forgotten" for one in versions), "published unaudited"
    assert {job["state"] for job in jobs.values()} <= {"closed", "destroyed"}
    current = next(Path(one["folder"]) for one in versions if one["number"] == model["version"])
    gone = {one for key, some in asked.items() for one in some if rows[ids[key]]["state"] == "closed"}
    left = json.loads((current / NETWORK).read_text())
    assert sorted(left) == sorted(set(people) - gone), "the published model is not the one without those who asked"
    assert digest(current / NETWORK) == next(one["network"] for one in versions if one["number"] == model["version"])
    log = Counter((current.parent / "log").read_text().split()) if (current.parent / "log").exists() else Counter()
    assert log.keys() <= jobs.keys()


@pytest.mark.slow
def test_a_few_kills_lose_nothing_and_serve_nothing_twice(tmp_path):
    storm(tmp_path, requests=25, kills=2)


@pytest.mark.slow
def test_two_hundred_kills(tmp_path):
    storm(tmp_path, requests=1000, kills=200, seed=1)


@pytest.mark.slow
@pytest.mark.skipif(POSTGRESQL is None, reason="SPOTLESS_TEST_POSTGRESQL names no database to try it on")
@pytest.mark.parametrize(("workers", "requests", "kills"), [(1, 100, 10), (4, 100, 10)])
def test_kills_on_postgresql(tmp_path, workers, requests, kills):
    assert POSTGRESQL is not None
    name = f"storm_{time.time_ns()}"
    with sa.create_engine(address_of(tmp_path, POSTGRESQL), isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
    own = f"{POSTGRESQL.rpartition('/')[0]}/{name}"
    storm(tmp_path, requests=requests, kills=kills, database=own, workers=workers, seed=2)
