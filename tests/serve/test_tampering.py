"""Somebody changes the desk's own database, a receipt or a tree head: `spotless verify` finds it, and so does the page.

The command is run as a person would run it, on the desk's database, with the public key and a tree head kept elsewhere.
"""

import json
import random
import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa

from spotlessnet.cli import main
from spotlessnet.proof import ledger
from spotlessnet.serve.database import REQUESTS, reading
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.intake import submit
from spotlessnet.serve.proving import bundle_of, seal_of
from tests.proof.tampering import CHANGES, changed_bundle
from tests.serve.conftest import BY_RULE, new_tenant
from tests.serve.stand_in import StandIn

INTEGRITY = 7


def close_some(desk: Desk, tenant: str, keys: range) -> None:
    """Requests for people in no model: each is closed at once, with a receipt in the ledger."""
    with desk.database.begin() as connection:
        for key in keys:
            submit(connection, desk.keys, tenant, BY_RULE, key=str(key), ids=[f"p{key}"], submitter="test")
    desk.round()


@pytest.fixture(scope="module")
def closed(tmp_path_factory) -> Path:
    """A desk with eleven closed requests: its database, its public key, its tree head, and one of its bundles."""
    folder = tmp_path_factory.mktemp("closed")
    desk = Desk.at(folder / "desk", engine=StandIn())
    tenant = new_tenant(desk, "one").id
    close_some(desk, tenant, range(11))
    with reading(desk.database) as connection:
        assert ledger.size_of(connection) == 11
        (folder / "head.json").write_text(json.dumps(ledger.tree_head(connection)))
        (folder / "one.bundle.json").write_text(json.dumps(bundle_of(connection, 4)))
    (folder / "desk.pub").write_text(desk.signer.public.pem)
    desk.close()
    return folder


def verify(folder: Path, database: Path) -> int:
    trust = ["--public-key", str(folder / "desk.pub"), "--since", str(folder / "head.json")]
    return main(["verify", "--ledger", str(database), *trust, "-q"])


def changed(folder: Path, where: Path, name: str, seed: int) -> Path:
    """A copy of the desk's database after one change."""
    copy = where / "changed.sqlite"
    shutil.copyfile(folder / "desk" / "desk.sqlite", copy)
    engine = sa.create_engine(f"sqlite:///{copy}")
    with engine.begin() as connection:
        CHANGES[name](connection, random.Random(seed))
    engine.dispose()
    return copy


def test_the_desk_as_it_was_left_is_verified(closed, capfd):
    assert verify(closed, closed / "desk" / "desk.sqlite") == 0


@pytest.mark.parametrize("name", CHANGES)
def test_every_kind_of_change_to_the_desks_database_is_found(closed, tmp_path, name, capfd):
    assert verify(closed, changed(closed, tmp_path, name, 1)) == INTEGRITY


def test_the_page_of_the_ledger_sees_it_too(closed, tmp_path):
    shutil.copytree(closed / "desk", tmp_path / "desk")
    shutil.copyfile(changed(closed, tmp_path, "an entry's envelope", 3), tmp_path / "desk" / "desk.sqlite")
    desk = Desk.at(tmp_path / "desk", engine=StandIn())
    with reading(desk.database) as connection:
        assert not seal_of(connection, desk.signer).is_whole
    desk.close()


@pytest.mark.slow
def test_five_hundred_random_changes_to_database_receipts_and_heads_are_all_found(closed, tmp_path, capfd):
    rng = random.Random(11)
    trust = ["--public-key", str(closed / "desk.pub"), "-q"]
    text = (closed / "one.bundle.json").read_bytes()
    missed = []
    for number in range(500):
        name = rng.choice([*CHANGES, "a receipt"])
        if name != "a receipt":
            code = verify(closed, changed(closed, tmp_path, name, number))
        else:
            bundle = tmp_path / "changed.bundle.json"
            bundle.write_bytes(changed_text(text, random.Random(number)))
            code = main(["verify", str(bundle), *trust])
        if code == 0:
            missed.append((number, name))
    assert missed == []


def changed_text(text: bytes, rng: random.Random) -> bytes:
    """A bundle with something changed; JSON that can no longer be read stays as it is then: that is found too."""
    try:
        return json.dumps(changed_bundle(text, rng)).encode()
    except ValueError:
        return text[: rng.randrange(1, len(text))]


def test_yesterdays_backup_is_told_from_today_by_a_head_that_was_kept(tmp_path, capfd):
    desk = Desk.at(tmp_path / "desk", engine=StandIn())
    tenant = new_tenant(desk, "one").id
    close_some(desk, tenant, range(3))
    desk.close()
    shutil.copytree(tmp_path / "desk", tmp_path / "backup")
    desk = Desk.at(tmp_path / "desk", engine=StandIn())
    close_some(desk, tenant, range(3, 5))
    with reading(desk.database) as connection:
        (tmp_path / "head.json").write_text(json.dumps(ledger.tree_head(connection)))
    (tmp_path / "desk.pub").write_text(desk.signer.public.pem)
    desk.close()
    restored = Desk.at(tmp_path / "backup", engine=StandIn())
    with reading(restored.database) as connection:
        assert seal_of(connection, restored.signer).is_whole  # by itself it cannot know
    capfd.readouterr()
    assert verify(tmp_path, tmp_path / "backup" / "desk.sqlite") == INTEGRITY
    told = capfd.readouterr().err
    assert "the earlier tree head has 5 entries, the ledger 3: it was restored from an older copy" in told
    # Nor does it help to go on from the backup until it is as long: what follows is another history.
    close_some(restored, tenant, range(7, 10))
    with reading(restored.database) as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(REQUESTS)).scalar_one() == 6
    restored.close()
    assert verify(tmp_path, tmp_path / "backup" / "desk.sqlite") == INTEGRITY
    assert "history was rewritten" in capfd.readouterr().err
