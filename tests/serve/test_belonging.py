"""A desk starts only with the keys of its database, and links lead where a restored database says."""

import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from spotlessnet.core.errors import SettingError
from spotlessnet.serve import workflow
from spotlessnet.serve.database import EVENTS
from spotlessnet.serve.desk import SIGNING, Desk
from spotlessnet.serve.intake import submit
from spotlessnet.serve.sealing import FILE
from tests.serve.conftest import BY_RULE, model_of, new_tenant
from tests.serve.stand_in import StandIn

ALL = (
    workflow.plan, workflow.scrub, workflow.judge, workflow.put_out, workflow.clear_away, workflow.close,
)  # fmt: skip


def published(desk: Desk, place: Path) -> Path:
    """One request served by rule; gives the link of the model."""
    tenant = new_tenant(desk, "one")
    model_of(desk, tenant, place)
    with desk.database.begin() as connection:
        submit(connection, desk.keys, tenant.id, BY_RULE, key="1", ids=["ann"], submitter="test")
    [(_, job, _)] = desk.round()
    workflow._AT_WORK[:] = [desk]
    for step in ALL:
        step(job)
    workflow._AT_WORK.clear()
    return desk.folder / "published" / tenant.id / "digits"


@pytest.mark.parametrize("older", [False, True], ids=["today", "before events had codes"])
def test_another_key_for_ids_is_refused_and_none_is_left_in_its_place(tmp_path, older):
    desk = Desk.at(tmp_path / "desk", engine=StandIn())
    tenant = new_tenant(desk, "one")
    with desk.database.begin() as connection:
        submit(connection, desk.keys, tenant.id, BY_RULE, key="1", ids=["ann"], submitter="test")
        if older:
            connection.execute(EVENTS.update().values(code=None))
    desk.close()
    key = desk.folder / FILE
    key.rename(tmp_path / "kept")
    with pytest.raises(SettingError, match=r"Bring desk\.key back from its backup"):
        Desk.at(desk.folder, engine=StandIn())
    assert not key.exists()
    Desk.at(desk.folder, engine=StandIn(), key=tmp_path / "kept").close()


def test_one_event_that_another_hand_changed_does_not_keep_the_desk_from_starting(tmp_path):
    desk = Desk.at(tmp_path / "desk", engine=StandIn())
    new_tenant(desk, "one")
    with desk.database.begin() as connection:
        last = connection.execute(sa.select(sa.func.max(EVENTS.c.number))).scalar_one()
        connection.execute(EVENTS.update().where(EVENTS.c.number == last).values(actor="another"))
    desk.close()
    Desk.at(desk.folder, engine=StandIn()).close()


def test_a_lost_key_for_receipts_leaves_no_other_in_its_place(tmp_path):
    desk = Desk.at(tmp_path / "desk", engine=StandIn())
    new_tenant(desk, "one")
    desk.check_in()
    desk.close()
    (desk.folder / SIGNING).rename(tmp_path / "kept.pem")
    with pytest.raises(SettingError, match="Give the file of that key with --key"):
        Desk.at(desk.folder, engine=StandIn())
    assert not (desk.folder / SIGNING).exists()


@pytest.mark.parametrize("left", ["nothing", "a later link"])
def test_after_a_restore_links_lead_to_what_the_database_has_published(tmp_path, left):
    desk = Desk.at(tmp_path / "desk", engine=StandIn())
    link = published(desk, tmp_path / "run")
    leads = os.readlink(link)
    desk.close()
    link.unlink()
    if left == "a later link":
        link.symlink_to(tmp_path / "later")
    Desk.at(desk.folder, engine=StandIn()).close()
    assert os.readlink(link) == leads
