"""How fast a deletion desk takes requests while it scrubs a network, and how long its inbox takes when it is full.

    python benchmarks/desk.py --out results/desk.jsonl

runs `spotless serve` on this machine, on SQLite and, where Debian's PostgreSQL is installed, on a cluster of its own.
Requests are sent at fixed times, whether or not the ones before were answered, and each is timed from the moment at
which it was due: a desk that falls behind shows it. Everything goes over 127.0.0.1, and ends by itself.
"""

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import os
import platform
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Flags, command
from tests.postgresql import new_database, started, why_not

from spotlessnet.core.errors import ResourceError
from spotlessnet.serve.client import Client
from spotlessnet.serve.database import REQUESTS, address_of, opened

PEOPLE = 20_000
TRAINING = f"""
import torch
from torch import nn

import spotlessnet as sn

torch.manual_seed(1)
y = torch.arange({PEOPLE}) % 3
x = torch.randn({PEOPLE}, 16) + 2 * nn.functional.one_hot(y, 16)
recipe = sn.Recipe(epochs=8, lr=0.1, batch_size=64)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 3))


def examples():
    return x, y, [f"person-{{i}}" for i in range({PEOPLE})]


if __name__ == "__main__":
    model = build()
    with sn.record("run", model, examples, build=build, recipe=recipe) as run:
        run.model = sn.fit(sn.Trained.of(model, recipe=recipe), sn.Data.of((x, y)), recipe).module()
"""

CONNECTIONS = 32
STRANGERS = 0.05
"""The part of requests whose ids are in no model: they are closed at once, each with a receipt."""


def flags() -> Flags:
    made = Flags(__doc__).out(help="the file to which rows are added")
    made.add_argument("--on", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    made.add_argument("--what", nargs="+", choices=("intake", "inbox"), default=["intake", "inbox"])
    made.add_argument("--per-second", dest="rate", type=float, default=200.0, help="requests a second")
    made.add_argument("--time", type=float, default=60.0, help="seconds of them")
    made.add_argument("--inbox", type=int, default=100_000, help="requests in the inbox")
    made.add_argument("--cores", type=int, default=2)
    return made


@contextlib.contextmanager
def desk(folder: Path, database: str | None, *more: str) -> Iterator[tuple[Client, int]]:
    """A desk in a process of its own: somebody with all scopes, and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "spotlessnet", "serve", "--folder", str(folder), "--port", str(port), *more]
    line += [] if database is None else ["--database", database]
    log = folder.parent / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=stream)
        try:
            until(lambda: "desk    http" in log.read_text())
            token = next(line.split()[1] for line in log.read_text().splitlines() if line.startswith("token"))
            client = Client(f"http://127.0.0.1:{port}", token)
            until(lambda: client.list() is not None)
            yield client, process.pid
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def until(found: Any, seconds: float = 120.0) -> None:
    """Wait for something of a desk."""
    ends = time.monotonic() + seconds
    while True:
        with contextlib.suppress(ResourceError):
            if found():
                return
        if time.monotonic() > ends:
            raise SystemExit("The desk did not come so far; its log is in the folder.")
        time.sleep(0.1)


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bytes) -> bytes:
    """One call, and the head of its answer."""
    writer.write(asked)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    await reader.readexactly(length)
    return answer


async def send_all(client: Client, rate: float, seconds: float) -> tuple[list[float], list[int]]:
    """Requests at fixed times: seconds from the moment at which each was due to its answer, and the answers' codes."""
    draw = random.Random(0)
    count = int(rate * seconds)
    host, _, port = client.address.removeprefix("http://").partition(":")
    times, codes = [0.0] * count, [0] * count
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection(host, int(port)))
    begin = time.perf_counter() + 0.5

    async def send(i: int) -> None:
        stranger = draw.random() < STRANGERS
        name = f"stranger-{i}" if stranger else f"person-{draw.randrange(1, PEOPLE)}"
        body = json.dumps({"key": f"bench {i}", "ids": [name]}).encode()
        head = f"POST /api/v1/requests HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {client.token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        pair = await free.get()
        try:
            answer = await exchange(*pair, head.encode() + body)
        except (ConnectionError, asyncio.IncompleteReadError):
            # A desk closes a connection that was idle; sent again with its key it is the same request.
            pair = await asyncio.open_connection(host, int(port))
            answer = await exchange(*pair, head.encode() + body)
        times[i] = time.perf_counter() - (begin + i / rate)
        codes[i] = int(answer.split()[1])
        free.put_nowait(pair)

    async with asyncio.TaskGroup() as sending:
        for i in range(count):
            await asyncio.sleep(max(0.0, begin + i / rate - time.perf_counter()))
            sending.create_task(send(i))
    return times, codes


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def intake(given: argparse.Namespace, folder: Path, database: str | None) -> dict[str, Any]:
    """Requests while a scrub with its audit runs from before the first until after the last."""
    (folder / "train.py").write_text(TRAINING)
    subprocess.run([sys.executable, "train.py"], cwd=folder, check=True)
    with desk(folder / "desk", database, "--register", f"net={folder / 'run'}") as (client, process):
        client._call("PUT", "/api/v1/policy", {"approval": "person", "audit_seeds": 1000})
        first = client.send("first", ["person-0"])["id"]
        until(lambda: is_at_work(client, first))
        load, worked = os.getloadavg(), seconds_of(process)
        times, codes = asyncio.run(send_all(client, given.rate, given.time))
        worked = seconds_of(process) - worked
        scrubs = is_at_work(client, first)
        waited = time.monotonic()
        until(lambda: not client._call("GET", "/api/v1/requests")["counts"].get("received"))
        caught_up = time.monotonic() - waited
        counts = client._call("GET", "/api/v1/requests")["counts"]
    names = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "most": 1.0}
    told = {name: round(1000 * quantile(times, part), 1) for name, part in names.items()}
    refused = sum(code != 201 for code in codes)
    return {"ms": told, "sent": len(times), "refused": refused, "scrub_ran_all_the_time": scrubs, "counts": counts,
            "seconds_until_all_matched": round(caught_up, 2),
            "cpu_ms_a_request": round(1000 * worked / len(times), 2), "load_before": load}  # fmt: skip


def seconds_of(process: int) -> float:
    """Processor time of a process, without that of its workers."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_at_work(client: Client, request: str) -> bool:
    """Whether the job of a request has been planned and its scrub has begun and not ended."""
    jobs = client.status(request)["jobs"]
    return any(job["state"] == "planned" and job["plan"] is not None for job in jobs)


def inbox(given: argparse.Namespace, folder: Path, database: str | None) -> dict[str, Any]:
    """Pages of an inbox with many requests, as HTML and as JSON, the first page and one in the middle."""
    with desk(folder / "desk", database) as (client, _):
        engine = opened(address_of((folder / "desk").resolve(), database))
        middle = fill(engine, given.inbox)
        engine.dispose()
        cookie = enter(client)
        found = {}
        for kind in ("open", "late", "closed", "all"):
            for name, after in {"first": "", "middle": f"&after={middle[kind]}"}.items():
                found[f"page {kind}, {name}"] = timed(client, f"/?kind={kind}{after}", cookie)
                found[f"json {kind}, {name}"] = timed(client, f"/api/v1/requests?kind={kind}{after}", cookie)
        load = os.getloadavg()
    worst = max(one["most"] for one in found.values())
    return {"ms": found, "most": worst, "requests": given.inbox, "load_before": load}


def fill(engine: sa.Engine, count: int) -> dict[str, str]:
    """Rows of requests: seven in ten closed, of the others one in ten late; gives one of each kind in the middle."""
    at = datetime.now(UTC)
    with engine.begin() as connection:
        tenant = connection.execute(sa.text("SELECT id FROM tenants")).scalar_one()
        rows, middle = [], {}
        for i in range(count):
            closed, late = i % 10 < 7, i % 100 == 9
            due = at + timedelta(days=-3 if late else 20, seconds=i)
            row = {"id": str(uuid.uuid4()), "tenant": tenant, "key": os.urandom(32), "content": os.urandom(32)}
            row |= {"state": "closed" if closed else "matched", "held": False, "submitter": "bench", "count": 1}
            row |= {"received": at, "due": due, "closed": at if closed else None}
            row |= {"entry": None, "outcome": "published without these ids" if closed else None}
            # On hold: this is about reading, and the desk would begin to close them.
            row["held"] = not closed
            rows.append(row)
            if i >= count // 2:
                kinds = ["all", "closed" if closed else "open", *(["late"] if late else [])]
                for kind in kinds:
                    middle.setdefault(kind, row["id"])
        for start in range(0, count, 1000):
            connection.execute(REQUESTS.insert(), rows[start : start + 1000])
    return middle


def enter(client: Client) -> str:
    """The cookie of a session, as the page of entering gives it."""
    import http.client

    host = client.address.removeprefix("http://")
    connection = http.client.HTTPConnection(host)
    connection.request("POST", "/login", f"token={client.token}", {"Content-Type": "application/x-www-form-urlencoded"})
    return str(connection.getresponse().headers["set-cookie"]).partition(";")[0]


def timed(client: Client, path: str, cookie: str, times: int = 15) -> dict[str, float]:
    """Milliseconds of a call."""
    import http.client

    connection = http.client.HTTPConnection(client.address.removeprefix("http://"))
    headers = {"Cookie": cookie, "Authorization": f"Bearer {client.token}"}
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        taken.append(1000 * (time.perf_counter() - begin))
        assert answer.status == 200, (path, answer.status)
        assert len(content) > 1000, path
    return {"p50": round(quantile(taken, 0.5), 1), "most": round(max(taken), 1)}


def versions(on: str, database: str | None) -> dict[str, str]:
    """Of everything that the figures hang on."""
    found = {name: importlib.metadata.version(name) for name in ("fastapi", "uvicorn", "sqlalchemy", "dbos", "psycopg")}
    found["python"] = platform.python_version()
    if on == "sqlite":
        return {**found, "sqlite": sqlite3.sqlite_version}
    assert database is not None
    with psycopg.connect(database) as connection:
        return {**found, "postgresql": str(connection.info.server_version)}


def measure(given: argparse.Namespace, on: str, server: str | None) -> Iterator[dict[str, Any]]:
    """One row for each thing to measure, on one kind of database."""
    for what in given.what:
        with tempfile.TemporaryDirectory(prefix="spotless-desk-") as name:
            database = None if server is None else new_database(server)
            found = {"intake": intake, "inbox": inbox}[what](given, Path(name).resolve(), database)
            about = {"command": command("desk"), "machine": f"{platform.system()} {platform.machine()}"}
            about |= {"cores": given.cores, "versions": versions(on, database), "load_after": os.getloadavg()}
            when = datetime.now(UTC).isoformat(timespec="seconds")
            yield {"what": what, "on": on, "rate": given.rate, "seconds": given.time, **found, **about, "at": when}


def main() -> None:
    given = flags().parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    for on in given.on:
        reason = why_not() if on == "postgresql" else None
        if reason is not None:
            print(f"{on}: {reason}")
            continue
        with started() if on == "postgresql" else contextlib.nullcontext(None) as server:
            for row in measure(given, on, server):
                print(json.dumps(row), flush=True)
                if given.out is not None:
                    with given.out.open("a") as stream:
                        stream.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
