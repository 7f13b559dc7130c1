"""Publishing: which version of a model is the one that counts, switched at once, in the database and as a link."""

import os
import secrets
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from spotlessnet.core.errors import DataError
from spotlessnet.core.files import sha256
from spotlessnet.serve.database import JOBS, MODELS, VERSIONS, row_of, rows_of
from spotlessnet.serve.matching import forget_ids, held_of
from spotlessnet.serve.planning import ended_row, reach
from spotlessnet.serve.row_digests import OF_VERSION, digest_of, digest_of_people, spelled
from spotlessnet.serve.trail import StateError, note, now

PUBLISHED = "published"


def job_row(connection: sa.Connection, job: str, tenant: str | None = None) -> dict[str, Any]:
    """A job, locked where the database can."""
    query = sa.select(JOBS).where(JOBS.c.id == job).with_for_update()
    found = row_of(connection, query if tenant is None else query.where(JOBS.c.tenant == tenant))
    if found is None:
        raise LookupError(job)
    return found


def version_of(connection: sa.Connection, model: str, number: int) -> dict[str, Any]:
    """One version of a model."""
    found = row_of(connection, sa.select(VERSIONS).where(VERSIONS.c.model == model, VERSIONS.c.number == number))
    assert found is not None
    return found


def check_made(folder: Path, network: str) -> None:
    """Raise unless the network that the worker made, and the audit looked at, lies in the folder of a result."""
    if not any(one.is_file() and not one.is_symlink() and sha256(one) == network for one in sorted(folder.glob("*"))):
        raise StateError(
            "The network of a result must be the one that was made and audited, but no file in its folder is: it was "
            "changed since, and is not published. Bring it back from a backup and try again, or send the result back."
        )


def publish(connection: sa.Connection, job: str, folder: Path) -> dict[str, Any]:
    """Make the result of an approved job the version that counts; a second time changes nothing. Gives the model."""
    row = job_row(connection, job)
    model = row_of(connection, sa.select(MODELS).where(MODELS.c.id == row["model"]))
    assert model is not None
    if row["state"] != "approved":
        return model
    number = row["base"] + 1
    switched = MODELS.update().where(MODELS.c.id == model["id"], MODELS.c.version == row["base"])
    if not connection.execute(switched.values(version=number)).rowcount:
        raise DataError(f"Version {number} of a model must follow {row['base']}, but another one was published since.")
    version = {"model": model["id"], "number": number, "folder": str(folder), "network": row["network"], "job": job}
    version |= {"verdict": row["verdict"], "published": now()}
    connection.execute(VERSIONS.insert().values(**version))
    forget_ids(connection, model["id"], held_of(connection, model["id"], job))
    reach(connection, job, "published")
    told = {"model": model["name"], "version": number, "network": row["network"]}
    told |= {"version_row": digest_of(version, OF_VERSION), "held": digest_of_people(connection, model["id"])}
    note(connection, row["tenant"], "published", job=job, **told)
    return {**model, "version": number}


def point(desk_folder: Path, tenant: str, name: str, folder: Path) -> Path:
    """Let the link of a model lead to the folder of its published version; readers see the old or the new one."""
    link = desk_folder / PUBLISHED / tenant / name
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f".{name}.{secrets.token_hex(8)}")
    os.symlink(folder, new)
    os.replace(new, link)
    return link


def point_again(connection: sa.Connection, desk_folder: Path) -> None:
    """Let links lead to the versions that the database has published: a restored folder has none, or later ones.

    The models are locked meanwhile, so that whatever another worker publishes is pointed to after this.
    """
    current = sa.and_(VERSIONS.c.model == MODELS.c.id, VERSIONS.c.number == MODELS.c.version)
    query = sa.select(MODELS.c.tenant, MODELS.c.name, VERSIONS.c.folder).join(VERSIONS, current)
    for model in rows_of(connection, query.where(MODELS.c.version > 0).with_for_update(of=MODELS)):
        folder = desk_folder / model["folder"]
        link = desk_folder / PUBLISHED / model["tenant"] / model["name"]
        if not link.is_symlink() or os.readlink(link) != str(folder):
            point(desk_folder, model["tenant"], model["name"], folder)


def finished(connection: sa.Connection, job: str) -> None:
    """Note that what a version replaced is destroyed, and free the model for the next job."""
    row = job_row(connection, job)
    if row["state"] == "destroyed":
        connection.execute(JOBS.update().where(JOBS.c.id == job).values(state="closed"))
        connection.execute(MODELS.update().where(MODELS.c.job == job).values(job=None))
        note(connection, row["tenant"], "job closed", job=job, row=ended_row(connection, job))


def destroyed(connection: sa.Connection, job: str, files: list[str]) -> None:
    """Note what was destroyed."""
    row = job_row(connection, job)
    if row["state"] != "published":
        return
    before = sa.and_(VERSIONS.c.model == row["model"], VERSIONS.c.number == row["base"])
    at = now()
    connection.execute(VERSIONS.update().where(before).values(destroyed=at))
    reach(connection, job, "destroyed")
    note(connection, row["tenant"], "destroyed", job=job, version=row["base"], files=files, when=spelled(at))
