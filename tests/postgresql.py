"""A PostgreSQL of the tests' own: a cluster in a temporary folder, reached by a socket in it alone."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import sqlalchemy as sa

from spotlessnet.serve.database import address_of

USER = "postgres"
OTHER = "SPOTLESS_TEST_POSTGRESQL"
"""May name the address of another server, whose user may make databases: postgresql://desk@127.0.0.1/desk."""


SETTINGS: Sequence[str] = ("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=300")
"""No port is taken. Nobody cuts the power in a test, so nothing need reach the disk."""


def binaries() -> Path | None:
    """The folder of the newest `initdb` that Debian has installed, or that is on the path."""
    debian = [path for path in Path("/usr/lib/postgresql").glob("*/bin/initdb") if path.parts[4].isdigit()]
    if debian:
        return max(debian, key=lambda path: int(path.parts[4])).parent
    found = shutil.which("initdb")
    return None if found is None else Path(found).resolve().parent


def why_not() -> str | None:
    """Why no cluster can be started here; `None` where one can."""
    if binaries() is None:
        return f"PostgreSQL's initdb is not here (apt-get install postgresql), and {OTHER} names no other server"
    if shutil.which("setpriv") is None:
        return "setpriv (util-linux) is not here: the server would outlive the tests"
    if os.geteuid() == 0 and USER not in {one.pw_name for one in pwd.getpwall()}:
        return f"root may not run PostgreSQL, and there is no user {USER} to run it"
    return None


def _as_user(*command: str) -> list[str]:
    """A command as a user who may run PostgreSQL, which ends when the tests do, however they end."""
    own = ["--reuid", USER, "--regid", USER, "--init-groups"] if os.geteuid() == 0 else []
    return ["setpriv", *own, "--pdeathsig", "INT", *command]


@contextlib.contextmanager
def started() -> Iterator[str]:
    """The address of a server that listens on a socket in a folder of its own; both are gone afterwards."""
    bin_folder = binaries()
    assert bin_folder is not None
    # Not pytest's folder: the path of a socket may have some hundred characters at most.
    folder = Path(tempfile.mkdtemp(prefix="spotless-pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, USER)
    quiet = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    name = pwd.getpwuid(os.geteuid()).pw_name if os.geteuid() else USER
    try:
        made = [str(bin_folder / "initdb"), "-D", str(folder / "data"), "--auth=trust", "--encoding=UTF8"]
        made += ["--locale=C", "--no-sync", "--username", name]
        done = subprocess.run(_as_user(*made), **quiet)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stdout
        command = _as_user(str(bin_folder / "postgres"), "-D", str(folder / "data"), "-k", str(folder), *SETTINGS)
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        address = f"postgresql://{name}@/postgres?host={folder}"
        try:
            _wait_for(address, server, folder / "log")
            yield address
        finally:
            server.send_signal(signal.SIGINT)  # sends its clients away and ends
            server.wait(timeout=60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    ends = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(address).close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.05)


def new_database(server: str) -> str:
    """The address of a new, empty database on a server."""
    name = f"spotless_{uuid.uuid4().hex}"
    engine = sa.create_engine(address_of(Path(), server), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
    engine.dispose()
    return sa.make_url(server).set(database=name).render_as_string(hide_password=False)
