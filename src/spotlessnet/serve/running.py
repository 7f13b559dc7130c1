"""Running a desk as one process: what `spotless serve` does."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI

from spotlessnet.core.errors import SettingError
from spotlessnet.serve.access import SCOPES, add_tenant, add_token
from spotlessnet.serve.addresses import Allowed
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import TENANTS, reading
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.matching import model_named
from spotlessnet.serve.registry import Mlflow
from spotlessnet.serve.watching import start_log

SWITCH = 0.0005
"""Seconds after which a thread that computes lets another one go on."""


MOST_AT_ONCE = 500
"""Connections; whoever comes after is told 503 at once, and files and memory are left for the others."""


@dataclass(frozen=True)
class Run:
    """How to run a desk; see `spotless serve --help`."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8642
    database: str | None = None
    desk_key: Path | None = None
    signing_key: Path | None = None
    roots: tuple[Path, ...] = ()
    webhooks_to: tuple[str, ...] = ()
    mlflow: str | None = None
    register: tuple[str, ...] = ()
    tenant: str = "main"
    worker: str = "local"

    def desk(self) -> Desk:
        """The desk itself, opened."""
        where = {"database": self.database, "key": self.desk_key, "signing_key": self.signing_key}
        allowed = Allowed.of(self.webhooks_to)
        registry = None if self.mlflow is None else Mlflow.at(self.mlflow)
        return Desk.at(self.folder, **where, roots=self.roots, webhooks_to=allowed, registry=registry)  # type: ignore[arg-type]  # each has its own type


def run(wanted: Run, say: Callable[[str], None]) -> int:
    """Serve until interrupted."""
    desk = wanted.desk()
    tenant, token = tenant_named(desk, wanted.tenant)
    if token is not None:
        say(f"token   {token}")
        say("        it has all scopes and is not told again; make lesser ones in the settings")
    for one in wanted.register:
        add_training(desk, tenant, one)
    say(f"desk    http://{wanted.host}:{wanted.port}")
    serve_app(make_app(desk, worker=wanted.worker), wanted)
    desk.close()
    return 0


def serve_app(app: FastAPI, wanted: Run) -> None:
    """Answer calls; log lines are our own, for those of the server hold whole paths."""
    start_log()
    # A thread that the database has answered waits this long for one that computes; unless said it is 5 ms, a message.
    sys.setswitchinterval(SWITCH)
    uvicorn.run(
        app,
        host=wanted.host,
        port=wanted.port,
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_AT_ONCE,
    )


def tenant_named(desk: Desk, name: str) -> tuple[str, str | None]:
    """A tenant by its name, made with a token where there is none; the token is given that once."""
    try:
        return _tenant_named(desk, name)
    except sa.exc.IntegrityError:
        return _tenant_named(desk, name)  # another worker, which started at the same moment, has made it


def _tenant_named(desk: Desk, name: str) -> tuple[str, str | None]:
    with desk.database.begin() as connection:
        found = connection.execute(sa.select(TENANTS.c.id).where(TENANTS.c.name == name)).scalar()
        if found is not None:
            return str(found), None
        tenant = add_tenant(connection, name)
        return tenant, add_token(connection, tenant, "first", SCOPES)


def add_training(desk: Desk, tenant: str, told: str) -> None:
    """Register `name=folder,setting=value`, unless a model has that name."""
    parts = [one.partition("=") for one in told.split(",")]
    if not all(name and equals and value for name, equals, value in parts):
        raise SettingError(f"--register must be NAME=FOLDER, such as digits=run/, but got {told[:60]!r}.")
    (name, _, folder), *rest = parts
    with reading(desk.database) as connection:
        if model_named(connection, tenant, name) is not None:
            return
    settings = {key: _absolute(value) for key, _, value in rest}
    desk.add_model(
        tenant, name, "forgettable" if "model" in settings else "recorded", settings, Path(folder), "command"
    )


def _absolute(value: str) -> str:
    """A file by its whole path: workers need not start where this command did."""
    file, colon, name = value.rpartition(":")
    return f"{Path(file).resolve()}{colon}{name}" if colon and file.endswith(".py") else value
