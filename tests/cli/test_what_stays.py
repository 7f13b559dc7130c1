"""What a request leaves in its folder `private`, and what the next request reads there."""

import json
import shutil
import stat
from unittest.mock import Mock

import pytest

from spotlessnet.precomputed.effect import Effect, as_text, from_text
from spotlessnet.requests import effects
from spotlessnet.requests.effects import EFFECT, effects_beside
from spotlessnet.requests.folder import Private
from tests.cli.test_memories import ROWS, STATISTICS, second, take_out
from tests.cli.workshop import BASE, QUICK, RECIPE, spotless

ONE = Effect(size=1, raised=2.0, loss=3.0, due="2999-01-01T00:00:00+00:00")


def told_in(folder):
    """What a request says that it did, without its seal."""
    return json.loads((folder / "private/effect.json").read_text().splitlines()[0])


def test_what_a_request_did_to_its_rows_lies_in_private_alone(here):
    """Later requests are held by it while it is there; when it was purged, they may move others less."""
    assert spotless("precompute", *ROWS, "--rank", "20", "--out", "memory").code == 0
    asked = ("scrub", *BASE, "--method", "ntk", "--statistics", STATISTICS)
    assert spotless(*asked, "--out", "first").code == 0
    kept = here / "first/private/effect.json"
    assert stat.S_IMODE(kept.stat().st_mode) & 0o077 == 0
    public = b"".join(p.read_bytes() for p in (here / "first").iterdir() if p.is_file())
    assert b"raised" not in public
    assert told_in(here / "first")["before"] == ""
    Private(here / "first").keep_sealed(EFFECT, as_text(ONE, ""))
    take_out(here, "person-1", "person-5", "person-7")
    (here / "forget.csv").write_text("id\nperson-2\n")
    assert spotless(*second(asked), "--out", "second").code == 0
    assert told_in(here / "second")["before"] == "../first"
    assert "2.0" not in (here / "second/private/effect.json").read_text()  # each lies with its own request alone
    later = here / "second/scrubbed.safetensors"
    found = effects_beside(later)
    assert found is not None
    assert found[0].raised == 2.0
    assert spotless("purge", "first", "--now").code == 0
    assert not kept.exists()
    assert effects_beside(later) is None


def begun(folder):
    """The folder of a request that was served."""
    assert spotless("scrub", *BASE, *QUICK, "--out", folder).code == 0
    return Private(folder)


@pytest.mark.parametrize("told", ["", "{}", "[]", '{"effect": null, "before": 3}', '{"effect": null, "before": "."}'])
def test_what_a_request_did_is_not_known_where_its_file_is_damaged(here, told):
    private = begun(here / "first")
    private.keep_sealed(EFFECT, told)
    assert effects_beside(here / "first/scrubbed.safetensors") is None
    (private.path / EFFECT).write_text(told + "\n")
    assert effects_beside(here / "first/scrubbed.safetensors") is None


def test_what_another_request_did_is_not_taken_for_it(here):
    """One that did nothing would let the next request take everything back."""
    first, other = begun(here / "first"), begun(here / "other")
    other.keep_sealed(EFFECT, as_text(None, ""))
    assert effects_beside(here / "other/scrubbed.safetensors") == ()
    shutil.copy(other.path / EFFECT, first.path / EFFECT)
    assert effects_beside(here / "first/scrubbed.safetensors") is None
    (other.path / "salt").unlink()
    assert effects_beside(here / "other/scrubbed.safetensors") is None


def exchange_notes(first, other):
    shutil.rmtree(first / "private")
    shutil.copytree(other / "private", first / "private")


def exchange_all_but_the_network(first, other):
    exchange_notes(first, other)
    shutil.copy(other / "receipt.json", first / "receipt.json")


def exchange_the_network(first, other):
    shutil.copy(other / "scrubbed.safetensors", first / "scrubbed.safetensors")


def remove_the_receipt(first, other):
    (first / "receipt.json").unlink()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (exchange_notes, "but the receipt is another's"),
        (exchange_all_but_the_network, "but scrubbed.safetensors is another's"),
        (exchange_the_network, "but scrubbed.safetensors is another's"),
        (remove_the_receipt, "holds notes of a request without its receipt"),
    ],
)
def test_notes_are_of_the_network_beside_them(here, change, said):
    """The fault before: notes of a request that forgot nothing of these rows let them be learnt again."""
    begun(here / "first")
    (here / "forget.csv").write_text("id\nperson-9\n")
    begun(here / "other").keep_sealed(EFFECT, as_text(None, ""))
    Private(here / "first").keep_sealed(EFFECT, as_text(None, ""))
    assert effects_beside(here / "first/scrubbed.safetensors") == ()
    change(here / "first", here / "other")
    assert effects_beside(here / "first/scrubbed.safetensors") is None
    for asked in (("precompute", *second(ROWS), "--rank", "0"), ("scrub", *second(BASE), *QUICK)):
        ended = spotless(*asked, "--out", "anew")
        assert ended.code == 7, ended.err
        assert said in ended.err
        assert len(ended.err.strip().splitlines()) == 1
        assert not (here / "anew").exists()


@pytest.mark.parametrize("before", [".", "../first/x/..", "../first" + "/." * 400_000])
def test_a_pointer_that_leads_nowhere_is_followed_once(here, monkeypatch, before):
    """A thousand times a megabyte took 16 seconds."""
    begun(here / "first").keep_sealed(EFFECT, as_text(None, before))
    watched = Mock(wraps=from_text)
    monkeypatch.setattr(effects, "from_text", watched)
    assert effects_beside(here / "first/scrubbed.safetensors") is None
    assert watched.call_count <= 1


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


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "{}",
        lambda text: "",
        lambda text: '{"digests": {"float32": {"00": 1e999}}}',
        lambda text: "[" * 100_000,
        lambda text: text.replace('": 0', '": 9', 1),
        lambda text: text.replace("a", "b"),
    ],
)
def test_a_list_of_earlier_rows_that_was_damaged_lets_nothing_pass(here, damage):
    assert spotless("scrub", *BASE, *QUICK, "--out", "first").code == 0
    kept = here / "first/private/rows.json"
    kept.write_text(damage(kept.read_text()))
    ended = spotless("precompute", *second(ROWS), "--rank", "0", "--out", "anew")
    assert ended.code == 3
    assert "must say which rows the request that wrote first/scrubbed.safetensors forgot, but was damaged" in ended.err
    assert not (here / "anew").exists()


def test_a_list_of_earlier_rows_that_was_removed_lets_nothing_pass(here):
    """The fault before: to remove it switched the check off, and `verify` said nothing."""
    assert spotless("scrub", *BASE, *QUICK, "--out", "first").code == 0
    assert spotless("verify", "first").code == 0
    (here / "first/private/rows.json").unlink()
    ended = spotless("precompute", *second(ROWS), "--rank", "0", "--out", "anew")
    assert ended.code == 3
    assert "must say which rows the request that wrote first/scrubbed.safetensors forgot, but is gone" in ended.err
    assert not (here / "anew").exists()
    ended = spotless("verify", "first")
    assert ended.code == 7
    assert "rows.json must say under the request's seal which rows went, but is gone" in ended.err
    # A purge takes all of it, and then nothing can be known.
    assert spotless("purge", "first", "--now").code == 0
    assert spotless("verify", "first").code == 0
    assert spotless("precompute", *second(ROWS), "--rank", "0", "--out", "anew").code == 0
