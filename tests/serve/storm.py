"""Requests of all sorts while a desk is killed again and again and a person decides; then a look around."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from spotlessnet.core.errors import DataError, ResourceError
from spotlessnet.serve.addresses import Allowed
from spotlessnet.serve.client import Client
from spotlessnet.serve.database import DELIVERIES, JOBS, REQUESTS, reading
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.webhooks import add_webhook
from tests.serve.aftermath import check_heard, check_published, check_what_is_left
from tests.serve.conftest import BY_RULE, model_of, new_tenant
from tests.serve.listening import Heard, listening
from tests.serve.moody import Moody

ROOT = Path(__file__).parents[2]


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


def patiently(call: Any) -> Any:
    """A call that is made again until the desk is there to answer."""
    ends = time.monotonic() + 120
    while True:
        try:
            return call()
        except ResourceError:
            assert time.monotonic() < ends
            time.sleep(0.05)


def if_it_may_be(client: Client, path: str, told: Any = None) -> None:
    """A call that the desk may refuse, since what it is about has gone on meanwhile."""
    try:
        patiently(lambda: client._call("POST", f"/api/v1/{path}", told))
    except DataError as e:
        if "The desk answered 409" not in str(e):
            raise


@dataclass
class Storm:
    """One desk in a storm.

    **Arguments:**

    - `requests`: how often something is sent; a fifth of it was sent before.
    - `kills`: how often a process is killed.
    - `workers`: processes on one database.
    - `seed`: of the order of things; when exactly a kill comes is left to the machine.
    """

    folder: Path
    requests: int
    kills: int
    database: str = ""
    workers: int = 1
    seed: int = 0
    asked: dict[str, list[str]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.people = [f"p{i}" for i in range(max(40, self.requests // 4))]
        self.engine = Moody()
        self.desk = Desk.at(self.folder / "desk", database=self.database or None, engine=self.engine)
        policy = replace(BY_RULE, replay_share=0.2)
        self.tenant = new_tenant(self.desk, f"storm {self.seed} {time.time_ns()}", policy)
        # Two, so that requests are in two jobs at once.
        self.held = {"digits": self.people, "faces": self.people[::2]}
        for name, people in self.held.items():
            model_of(self.desk, self.tenant, self.folder / name, people, name)

    def run(self) -> dict[str, Any]:
        """All of it; gives what there was to count."""
        with listening() as heard:
            return self.run_with(heard)

    def run_with(self, heard: Heard) -> dict[str, Any]:
        """All of it, while a program hears of every step."""
        with self.desk.database.begin() as connection:
            add_webhook(connection, self.desk.keys, self.tenant.id, heard.url, "test", Allowed.of(["127.0.0.0/8"]))
        victims = Victims(self.folder / "desk", self.database, self.workers)
        self.clients = [Client(f"http://127.0.0.1:{port}", self.tenant.tokens["all"]) for port in victims.ports]
        acts = ["send"] * self.requests + ["kill"] * self.kills
        self.draw.shuffle(acts)
        try:
            for act in acts:
                if act == "kill":
                    time.sleep(self.draw.random() * 0.5)
                    victims.kill(self.draw.randrange(self.workers))
                else:
                    self.send()
                check_published(self.desk, self.tenant.id)
                self.decide()
            self.until_all_ended()
            self.until_all_told()
        finally:
            victims.end()
        found = check_what_is_left(self) | check_heard(self, heard.names)
        self.desk.close()
        return found

    def send(self) -> None:
        """A request, perhaps one that was sent before, and perhaps taken back at once."""
        client = self.draw.choice(self.clients)
        again = self.asked and self.draw.random() < 0.2
        key = self.draw.choice(list(self.asked)) if again else f"key {len(self.asked)}"
        drawn = [self.draw.choice([*self.people, "unknown"]) for _ in range(self.draw.randint(1, 3))]
        some = self.asked.setdefault(key, drawn)
        found = patiently(lambda: client.send(key, some))
        assert self.ids.setdefault(key, found["id"]) == found["id"], "one key became two requests"
        if self.draw.random() < 0.1:
            if_it_may_be(client, f"requests/{self.ids[key]}/cancel")

    def decide(self) -> None:
        """A person looks at what waits: bad results go back, doubtful ones perhaps, failed work is tried again."""
        waiting = sa.select(JOBS.c.id, JOBS.c.state, JOBS.c.verdict)
        with reading(self.desk.database) as connection:
            found = connection.execute(waiting.where(JOBS.c.state.in_(("audited", "failed")))).all()
        for job, state, verdict in found:
            client = self.draw.choice(self.clients)
            if state == "failed":
                if_it_may_be(client, f"jobs/{job}/retry")
            elif verdict == "inconclusive" and self.draw.random() < 0.5:
                if_it_may_be(client, f"jobs/{job}/approve")
            else:
                if_it_may_be(client, f"jobs/{job}/send-back", {"why": "it must pass"})

    def until_all_ended(self) -> None:
        ends = time.monotonic() + 300
        query = sa.select(REQUESTS.c.state, sa.func.count()).where(REQUESTS.c.tenant == self.tenant.id)
        working = sa.select(sa.func.count()).where(JOBS.c.state.not_in(("closed", "withdrawn")))
        while True:
            with reading(self.desk.database) as connection:
                found = {row[0]: row[1] for row in connection.execute(query.group_by(REQUESTS.c.state))}
                jobs = connection.execute(working).scalar_one()
            if found.keys() <= {"closed", "cancelled"} and sum(found.values()) == len(self.asked) and not jobs:
                return
            assert time.monotonic() < ends, (found, jobs)
            self.decide()
            time.sleep(0.1)

    def until_all_told(self) -> None:
        """Until the webhook was told all that waited for it."""
        ends = time.monotonic() + 300
        while True:
            with reading(self.desk.database) as connection:
                left = connection.execute(sa.select(sa.func.count()).select_from(DELIVERIES)).scalar_one()
            if not left:
                return
            assert time.monotonic() < ends, f"{left} messages still wait"
            time.sleep(0.1)
