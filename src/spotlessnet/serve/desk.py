"""A desk: its database, keys, folder and engine, opened together; and the rounds in which it looks for work."""

import logging
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from spotlessnet.core.errors import ResourceError, SettingError, SpotlessError
from spotlessnet.proof import ledger
from spotlessnet.proof.keys import SigningKey
from spotlessnet.serve.access import SCOPES, add_tenant, add_token, policy_of
from spotlessnet.serve.addresses import PUBLIC, Allowed
from spotlessnet.serve.belonging import check_own_database, check_own_ledger
from spotlessnet.serve.checkpoints import add_checkpoint, code_older
from spotlessnet.serve.closing import close_ready, is_ready_to_close
from spotlessnet.serve.database import (
    JOBS,
    MODELS,
    REQUESTS,
    TARGETS,
    TENANTS,
    address_of,
    in_state,
    opened,
    reading,
    rows_of,
)
from spotlessnet.serve.engine import Engine, Workers, check_folder
from spotlessnet.serve.matching import check_name, match, register
from spotlessnet.serve.migrating import migrate
from spotlessnet.serve.planning import start_job
from spotlessnet.serve.publishing import point_again
from spotlessnet.serve.registry import Registry
from spotlessnet.serve.sealing import FILE, Keys
from spotlessnet.serve.trail import OPEN, TRAIL_KEY, note, now

LOG = logging.getLogger("spotlessnet.serve")
SIGNING = "signing.pem"
AT_ONCE = 50
"""Requests that one transaction matches or warns of: whoever wants to write meanwhile waits for it."""

WORKFLOWS = {
    "planned": "make",
    "scrubbed": "make",
    "approved": "finish",
    "published": "finish",
    "destroyed": "finish",
    "sent back": "withdraw",
}
"""States of a job in which a workflow must be at work, and which."""


@dataclass(frozen=True, eq=False)
class Desk:
    """Everything that the service needs.

    **Arguments:**

    - `folder`: the database, keys and networks lie in it unless they were given elsewhere.
    - `signer`: signs receipts and tree heads.
    - `roots`: folders below which trainings may be registered over HTTP: registering one runs its code.
    - `webhooks_to`: networks that webhooks may lead to beside public addresses.
    - `registry`: where versions are published too.
    """

    folder: Path
    database: sa.Engine
    keys: Keys
    signer: SigningKey
    engine: Engine
    roots: tuple[Path, ...] = ()
    webhooks_to: Allowed = PUBLIC
    registry: Registry | None = None

    @staticmethod
    def at(
        folder: Path,
        *,
        database: str | None = None,
        key: Path | None = None,
        signing_key: Path | None = None,
        engine: Engine | None = None,
        roots: tuple[Path, ...] = (),
        webhooks_to: Allowed = PUBLIC,
        registry: Registry | None = None,
    ) -> "Desk":
        """Open a desk, and make what is missing: folder, keys, tables."""
        folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()
        files = (key or folder / FILE, signing_key or folder / SIGNING)
        made = [file for file in files if not file.exists()]
        keys = Keys.at(files[0])
        signer = SigningKey.at(files[1])
        found = opened(address_of(folder, database))
        found.update_execution_options(**{TRAIL_KEY: keys.trail_key})
        try:
            migrate(found)
            with found.begin() as connection:
                ledger.begin(connection)
                check_own_ledger(connection, signer)
                check_own_database(connection, keys)
                code_older(connection, keys.trail_key)
                point_again(connection, folder)
        except sa.exc.OperationalError as e:
            found.dispose()
            raise ResourceError(
                f"The database {found.url.render_as_string(hide_password=True)} does not answer, or cannot be written. "
                "Check that it runs, its address, password and disk; then start again."
            ) from e
        except SettingError:
            for file in made:
                file.unlink(missing_ok=True)  # a key that fits nothing must not lie where the lost one belongs
            found.dispose()
            raise
        below = tuple(root.resolve() for root in roots)
        return Desk(folder, found, keys, signer, engine or Workers(), below, webhooks_to, registry)

    def check_in(self) -> None:
        """Put all of the trail that is not there yet into the ledger: before an end, or a backup."""
        while add_checkpoint(self.database, self.signer, older=timedelta()):
            pass

    def close(self) -> None:
        """Let go of the database."""
        self.database.dispose()

    def first_token(self, tenant: str = "main") -> str | None:
        """A token with all scopes at the first start; `None` where a tenant is there already."""
        with self.database.begin() as connection:
            if connection.execute(sa.select(TENANTS.c.id).limit(1)).first() is not None:
                return None
            return add_token(connection, add_tenant(connection, tenant), "first", SCOPES)

    def add_model(self, tenant: str, name: str, kind: str, settings: dict[str, Any], folder: Path, actor: str) -> str:
        """Read a training, which imports its code, and write it into the registry."""
        check_name(name)
        found = self.engine.read(kind, settings, check_folder(folder))
        with self.database.begin() as connection:
            return register(connection, self.keys, tenant, name, kind, settings, found, actor)

    def check_allowed(self, folder: Path, settings: dict[str, str]) -> Path:
        """Raise unless a training and the code that its settings name lie where the desk was told to look."""
        files = [folder, *(Path(place) for place in map(_place_in, settings.values()) if place)]
        if any("\0" in str(one) for one in files):
            raise SettingError("The name of a file must have no character 0, but one has.")
        outside = [one for one in files if not any(one.resolve().is_relative_to(root) for root in self.roots)]
        if outside:
            raise SettingError(
                "Registering a training runs its code, so its folder and the files that its settings name must lie "
                "below a folder that the desk was started with (--trainings), but one does not. Register it there by "
                "the command."
            )
        return folder

    def out_of(self, job: dict[str, Any]) -> Path:
        """The folder of a job's result."""
        return self.folder / "models" / job["model"] / job["id"]

    def round(self) -> list[tuple[str, str, int]]:
        """Match what was received, close what is done, warn of dates, put the trail into the ledger, start jobs.

        Gives the workflows that are due.
        """
        self._match()
        self.close_all()
        self._warn()
        add_checkpoint(self.database, self.signer)
        with reading(self.database) as connection:
            # Only a look: a model that nobody waits for needs no lock.
            waits = sa.exists().where(TARGETS.c.model == MODELS.c.id, TARGETS.c.state == "matched")
            free = connection.execute(sa.select(MODELS.c.id).where(MODELS.c.job.is_(None), waits)).scalars().all()
        for model in free:
            try:
                with self.database.begin() as connection:
                    start_job(connection, model)
            except (SpotlessError, sa.exc.DataError, ArithmeticError):
                # It is about this model's rows. Those of other tenants wait behind it, as do workflows that are due.
                LOG.exception("a job could not be started", extra={"told": {"model": model}})
        return self.due()

    def _match(self) -> None:
        chosen = sa.select(REQUESTS).where(in_state("received"), REQUESTS.c.held.is_(False))
        query = chosen.order_by(REQUESTS.c.due).limit(AT_ONCE).with_for_update(skip_locked=True)
        with reading(self.database) as connection:
            # Only a look: an empty round must not wait for those who write.
            if connection.execute(chosen.with_only_columns(REQUESTS.c.id).limit(1)).first() is None:
                return
        with self.database.begin() as connection:
            match(connection, rows_of(connection, query))

    def close_all(self) -> None:
        """Close what is done, some at a time: whoever wants to write meanwhile waits for one transaction only."""
        with reading(self.database) as connection:
            # Only a look, as above.
            ready = sa.select(sa.func.count()).select_from(REQUESTS).where(is_ready_to_close())
            left = connection.execute(ready).scalar_one()
        while left > 0:
            with self.database.begin() as connection:
                closed = close_ready(connection, self.signer)
            left = left - len(closed) if closed else 0

    def _warn(self) -> None:
        """One event for each request whose date comes near, and one when it has passed."""
        with reading(self.database) as connection:
            # Only a look, as above.
            near = [row for tenant in _tenants(connection) for row in connection.execute(_near(connection, tenant))]
        if not near:
            return
        with self.database.begin() as connection:
            for tenant in _tenants(connection):
                for request, due in connection.execute(
                    _near(connection, tenant).with_for_update(skip_locked=True)
                ).all():
                    connection.execute(REQUESTS.update().where(REQUESTS.c.id == request).values(warned=now()))
                    told = "late" if due < now() else "due soon"
                    note(connection, tenant, told, request=request, due=due.isoformat())

    def due(self) -> list[tuple[str, str, int]]:
        """Jobs whose workflow must be at work: the name of the workflow, the job and its attempt."""
        with reading(self.database) as connection:
            chosen = sa.select(JOBS.c.id, JOBS.c.state, JOBS.c.attempt).where(JOBS.c.state.in_(WORKFLOWS))
            rows = connection.execute(chosen).all()
        return [(WORKFLOWS[state], job, attempt) for job, state, attempt in rows]


def _place_in(text: str) -> str:
    """The file that a setting names, as whoever loads it reads it: data, or what stands before the last colon."""
    return text if text.endswith(".npz") else text.rpartition(":")[0]


def _tenants(connection: sa.Connection) -> list[str]:
    return list(connection.execute(sa.select(TENANTS.c.id)).scalars())


def _near(connection: sa.Connection, tenant: str) -> sa.Select[Any]:
    """Open requests of a tenant that are due soon or late, and of which nobody was told that."""
    at = now()
    limit = at + policy_of(connection, tenant).warning
    near = sa.and_(REQUESTS.c.tenant == tenant, REQUESTS.c.state.in_(OPEN), REQUESTS.c.due <= limit)
    late_since = sa.and_(REQUESTS.c.due < at, REQUESTS.c.warned < REQUESTS.c.due)
    new = sa.or_(REQUESTS.c.warned.is_(None), late_since)
    return sa.select(REQUESTS.c.id, REQUESTS.c.due).where(near, new).limit(AT_ONCE)
