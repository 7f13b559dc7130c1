"""Commands run where a newcomer would: in a folder of their own."""

import pytest

from tests.cli.workshop import furnish


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(furnish(tmp_path / "work"))
    return tmp_path / "work"
