"""Files of forgettable models that lie: each ends in one line that says what is wrong, before anything is made."""

import json
import struct

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.cli import main
from spotlessnet.core.errors import DataError, IntegrityError, MismatchError, NumericsError, SolveError, SpotlessError
from spotlessnet.forgettable import load_forgettable, save_forgettable
from spotlessnet.forgettable.saved_state import digest_of
from spotlessnet.store.checkpoints import read_metadata, read_weights, to_bytes


def backbone():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))


def made(**settings):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 4, generator=draw), torch.arange(40) % 3
    given = {"ridge": 0.1, "ids": [f"row {i}" for i in range(30)], **settings}
    return sn.fit_forgettable(backbone(), core=(x[:10], y[:10]), user=(x[10:], y[10:]), **given)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    save_forgettable(path, made(features="tangent", rank=2))
    return path


def entry(name, change):
    def changed(tensors, about):
        tensors[name] = change(tensors[name])

    return changed


def text(name, value):
    def changed(tensors, about):
        if value is None:
            del about[name]
        else:
            about[name] = value

    return changed


def without(name):
    def changed(tensors, about):
        del tensors[name]

    return changed


def at(value, place, number):
    out = value.clone()
    out.view(-1)[place] = number
    return out


def huge(tensors, about):
    told = json.loads(about["features"])
    told["shapes"]["in_0"] = [2**20, 2**20]  # eight tebibytes
    about["features"] = json.dumps(told)


def ids(value):
    return entry("examples.ids", lambda v: torch.frombuffer(bytearray(value), dtype=torch.uint8))


LIES = {
    "a sum is NaN": (entry("moments.gram", lambda v: at(v, 0, float("nan"))), "must be whole numbers"),
    "a sum is no whole number": (entry("moments.cross", lambda v: at(v, 0, 0.5)), "must be whole numbers"),
    "sums are not symmetric": (entry("moments.gram", lambda v: at(v, 1, 7)), "must be symmetric"),
    "sums are not definite": (entry("moments.gram", lambda v: at(v, 0, -1e12)), "must be positive definite"),
    "sums of others": (entry("moments.gram", lambda v: 2 * v), "not those of as many examples"),
    "sums are missing": (without("moments.gram"), "'moments.gram' is missing"),
    "sums of another kind": (entry("moments.gram", lambda v: v.float()), "must be torch.float64"),
    "weights are NaN": (entry("weights", lambda v: at(v, 0, float("nan"))), "weights must be finite"),
    "weights of others": (entry("weights", lambda v: v + 1), "are not those of the sums"),
    "scales of nothing": (entry("scale", lambda v: v * 0), "scales must be positive"),
    "scales of others": (entry("scale", lambda v: v[:2].clone()), "scales of shape"),
    "labels beyond": (entry("examples.labels", lambda v: at(v, 0, 9)), "must be class numbers"),
    "targets of other labels": (entry("examples.targets", lambda v: at(v, 0, 5)), "not those of its labels"),
    "features of others": (entry("examples.codes", lambda v: v[:, :, :-1].clone()), "features do not fit its sums"),
    "weights of too many": (entry("examples.weights", lambda v: v * 1000), "more examples than its sums hold"),
    "negative weights": (entry("examples.weights", lambda v: -v), "must be positive"),
    "too few ids": (ids(b'["a"]'), "do not fit its ids"),
    "ids that are lists": (ids(json.dumps([[1]] * 30).encode()), "ids must be text or whole numbers"),
    "ids that are no list": (ids(b'{"a": 1}'), "must be a list"),
    "ids that are no JSON": (ids(b"\xff\xfe"), "damaged"),
    "deep ids": (ids(b"[" * 100_000), "damaged"),
    "a ridge of zero": (text("ridge", "0"), "ridge must lie between"),
    "a negative ridge": (text("ridge", "-5"), "ridge must be a whole number"),
    "an endless ridge": (text("ridge", "9" * 5000), "ridge must be a whole number"),
    "a batch that fills memory": (text("batch_size", str(2**40)), "batch_size must lie between"),
    "no classes": (text("classes", None), "'classes' is missing"),
    "classes of others": (text("classes", "4"), "outputs for 4 classes"),
    "a spread of NaN": (text("spread", "nan"), "spread must be positive"),
    "features that are text": (text("features", '"pooled"'), "must be an object"),
    "unknown features": (text("features", '{"kind": "magic"}'), "unknown kind"),
    "mirrors without end": (text("features", '{"kind":"mirrored","inside":' * 5000), "damaged"),
    "sketches of eight tebibytes": (huge, "description of its features cannot be"),
    "a backbone of NaN": (entry("features.backbone.0.bias", lambda v: v * float("nan")), "not finite"),
    "a backbone of others": (without("features.backbone.0.bias"), "features do not fit"),
    "another format": (text("format", "spotlessnet forgettable model 99"), "not a forgettable model"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_is_refused_with_a_reason_and_the_network_stays(honest, tmp_path, lie):
    tensors, about = read_weights(honest), read_metadata(honest)
    change, words = LIES[lie]
    change(tensors, about)
    # Whoever lies can make the digest anew.
    about["digest"] = digest_of(about, tensors)
    path = tmp_path / "lie.safetensors"
    path.write_bytes(to_bytes(tensors, about))
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(SpotlessError, match=words) as found:
        load_forgettable(path, network)
    assert isinstance(found.value, (DataError, IntegrityError, MismatchError, NumericsError, SolveError))
    if lie not in ("weights of others", "sums are not definite"):  # found by solving, which comes last
        assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_headers_that_lie_end_the_command_with_one_line(honest, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    whole = honest.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    header["moments.gram"]["shape"] = [10**9, 10**9]
    lied = json.dumps(header).encode()
    files = {
        "long.safetensors": struct.pack("<Q", 2**62) + whole[8:],
        "shape.safetensors": struct.pack("<Q", len(lied)) + lied + whole[8 + length :],
        "short.safetensors": whole[: len(whole) // 2],
        "empty.safetensors": b"",
    }
    (tmp_path / "nets.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(4, 5)\n")
    (tmp_path / "forget.csv").write_text("id\nrow 1\n")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        asked = ("forget", "--model", "nets.py:build", "--state", name, "--forget", "forget.csv", "--out", "out")
        assert main(list(asked)) == 3, name
        told = capsys.readouterr().err
        assert told.count("\n") == 1, told
        assert told.startswith("error[bad input]")
        assert not (tmp_path / "out").exists()


def test_what_the_earlier_format_wrote_is_still_read(tmp_path):
    model = made()
    save_forgettable(tmp_path / "new.safetensors", model)
    tensors, about = read_weights(tmp_path / "new.safetensors"), read_metadata(tmp_path / "new.safetensors")
    for name in ("ids", "digests"):
        about[name] = bytes(tensors.pop(f"examples.{name}").tolist()).decode()
    about["format"] = "spotlessnet forgettable model 1"
    del about["digest"], about["lanes"]
    (tmp_path / "old.safetensors").write_bytes(to_bytes(tensors, about))
    with pytest.warns(UserWarning, match="wrote no digest"):
        loaded = load_forgettable(tmp_path / "old.safetensors", backbone())
    assert loaded.examples.ids == model.examples.ids
    assert torch.equal(loaded.weights, model.weights)


def test_more_ids_than_a_header_holds_are_read_again(tmp_path):
    model = made()
    long = [f"{i}-{'x' * 2**20}" for i in range(30)]  # thirty mebibytes of ids
    model.examples.ids = list(long)
    model.examples.places = {name: [i] for i, name in enumerate(long)}
    save_forgettable(tmp_path / "model.safetensors", model)
    loaded = load_forgettable(tmp_path / "model.safetensors", backbone())
    loaded.forget(long[:2])
    assert len(loaded) == 28


def test_ids_that_text_cannot_hold_are_refused_when_they_are_saved(tmp_path):
    with pytest.raises(DataError, match="must be text or whole numbers, but one is of type tuple"):
        save_forgettable(tmp_path / "model.safetensors", made(ids=[(1, i) for i in range(30)]))
    assert not any(tmp_path.iterdir())
