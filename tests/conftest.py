"""What tests of several folders need."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a PostgreSQL whose user may make databases: one that is started here, or the one that is named."""
    pytest.importorskip("psycopg", reason="the extra `serve` is not installed")
    from tests.postgresql import OTHER, started, why_not

    if os.environ.get(OTHER):
        yield os.environ[OTHER]
        return
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with started() as address:
        yield address
