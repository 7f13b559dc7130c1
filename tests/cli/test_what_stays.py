"""What a request leaves in its folder `private`, and what the next request reads there."""

import json
import stat

import pytest

from spotlessnet.requests.folder import Private
from tests.cli.test_memories import ROWS, STATISTICS, second, take_out
from tests.cli.workshop import BASE, RECIPE, spotless


def test_what_a_request_did_to_its_rows_lies_in_private_alone(here):
    """Later requests are held by it while it is there; when it was purged, they may move others less."""
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS)
    assert spotless(*asked, "--out", "first").code == 0
    kept = here / "first/private/effect.json"
    assert stat.S_IMODE(kept.stat().st_mode) & 0o077 == 0
    public = b"".join(p.read_bytes() for p in (here / "first").iterdir() if p.is_file())
    assert b"raised" not in public
    told = json.loads(kept.read_text())
    assert told["before"] == ""
    one = {"size": 1, "raised": 2.0, "loss": 3.0, "due": "2999-01-01T00:00:00+00:00"}
    kept.write_text(json.dumps({"effect": one, "before": ""}))
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-2\n")
    assert spotless(*second(asked), "--out", "second").code == 0
    later = Private(here / "second")
    assert json.loads((later.path / "effect.json").read_text())["before"] == "../first"
    assert "2.0" not in (later.path / "effect.json").read_text()  # each lies with its own request alone
    effects = later.effects()
    assert effects is not None
    assert effects[0].raised == 2.0
    assert spotless("purge", "first", "--now").code == 0
    assert not kept.exists()
    assert later.effects() is None


@pytest.mark.parametrize("told", ["", "{}", "[]", '{"effect": null, "before": 3}', '{"effect": null, "before": "."}'])
def test_what_a_request_did_is_not_known_where_its_file_is_damaged(here, told):
    (here / "first/private").mkdir(parents=True)
    (here / "first/private/effect.json").write_text(told)
    assert Private(here / "first").effects() is None


def test_a_second_request_on_the_very_data_of_the_first_is_refused(here):
    """Retraining would learn again what the first one forgot."""
    asked = ("scrub", *BASE, *RECIPE, "--method", "retrain", "--accept-damage")
    assert spotless(*asked, "--out", "first").code == 0
    (here / "forget.csv").write_text("id\nperson-8\n")
    ended = spotless(*second(asked), "--out", "second")
    assert ended.code == 3
    assert "3 rows of the request that wrote first/scrubbed.safetensors are still there" in ended.err
    assert not (here / "second").exists()
    ended = spotless("precompute", *second(ROWS), "--rank", "5", "--out", "anew")
    assert ended.code == 3
    assert not (here / "anew").exists()
    # A list that names them too asks for what may be asked.
    (here / "forget.csv").write_text("id\nperson-1\nperson-5\nperson-7\nperson-8\n")
    assert spotless(*second(asked), "--out", "all").code == 0
    (here / "forget.csv").write_text("id\nperson-8\n")
    take_out(here, "person-1", "person-5", "person-7")
    ended = spotless(*second(asked), "--out", "second")
    assert ended.code == 0, ended.err
