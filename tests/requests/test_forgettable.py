"""Forgettable models trained, asked and verified without the command."""

import os
from pathlib import Path

import pytest

from spotlessnet.cli import main
from spotlessnet.core.errors import DataError, NeedError, SettingError
from spotlessnet.forgettable import load_forgettable, save_forgettable
from spotlessnet.requests.case import Case
from spotlessnet.requests.forgettable import as_kept, backbone_of, forget_listed, train_model
from spotlessnet.requests.leaving import told
from spotlessnet.requests.verifying import verify_request
from spotlessnet.store.checkpoints import read_metadata, read_weights, to_bytes
from tests.cli.test_forgettable import furnished
from tests.cli.workshop import FORGET


def asked(**more: object) -> Case:
    given = {"model": "backbone.py:build", "core": "public.py:core", "data": "mydata.py:train", "out": Path("model")}
    return Case(**{**given, **more})  # type: ignore[arg-type]


def test_a_list_is_taken_out_and_the_receipt_tells_of_it(tmp_path, monkeypatch):
    furnished(tmp_path, monkeypatch)
    trained = train_model(asked(), ridge="0.1")
    assert (trained.request.kind, trained.request.left) == ("fit", 60)
    served = forget_listed("backbone.py:build", trained.state, Path("forget.csv"), Path("after"))
    assert (served.request.examples, served.request.left, served.copies) == (3, 57, 0)
    assert served.request.certificate.relative < 1e-3
    assert str(served).startswith("3 examples, 57 left, ")
    left = load_forgettable(served.state, backbone_of("backbone.py:build"))
    assert not {str(name) for name in left.examples.places} & set(FORGET)
    assert verify_request(Path("after"), Path("forget.csv"), "id").is_sealed
    # Whether the inverse had to be made anew, numbers of the rows decide: not for everyone.
    about = served.receipt["predicate"]["about"]
    assert "refactored" not in about
    assert about["held_back"] == ["moved", "refactored", "seconds"]


def test_what_cannot_be_done_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    furnished(tmp_path, monkeypatch)
    with pytest.raises(NeedError, match="This needs --core"):
        train_model(asked(core=None))
    with pytest.raises(SettingError, match="`features` must be one of"):
        train_model(asked(), features="deep")
    with pytest.raises(SettingError, match="A number was expected, but got 'much'"):
        train_model(asked(), ridge="much")
    with pytest.raises(DataError, match="There is no file nowhere for --state"):
        forget_listed("backbone.py:build", Path("nowhere"), Path("forget.csv"), Path("after"))
    assert not Path("model").exists()
    assert not Path("after").exists()


def test_lists_name_the_whole_numbers_of_states_made_in_python(tmp_path, monkeypatch):
    furnished(tmp_path, monkeypatch)
    trained = train_model(asked(), ridge="0.1")
    model = load_forgettable(trained.state, backbone_of("backbone.py:build"))
    kept = model.examples
    kept.ids[:] = list(range(len(kept.ids)))
    kept.places = {i: [i] for i in range(len(kept.ids))}
    save_forgettable(Path("numbers.safetensors"), model)
    Path("rows.txt").write_text("17\n3\n")
    served = forget_listed("backbone.py:build", Path("numbers.safetensors"), Path("rows.txt"), Path("after"))
    assert (served.request.examples, served.request.left) == (2, 58)
    assert as_kept(["1", "x"], [1, 2]) == [1, "x"]
    with pytest.raises(DataError, match="1 ids of the list are both"):
        as_kept(["1", "2"], [1, "1", 2])


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
def test_a_request_that_was_broken_off_is_served_in_the_same_folder(tmp_path, monkeypatch, at):
    furnished(tmp_path, monkeypatch)
    trained = train_model(asked(), ridge="0.1")
    flush, count = os.fsync, 0

    def killed(handle: int) -> None:
        nonlocal count
        count += 1
        if count == 2 * at:
            raise KeyboardInterrupt
        flush(handle)

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        forget_listed("backbone.py:build", trained.state, Path("forget.csv"), Path("after"))
    monkeypatch.setattr(os, "fsync", flush)
    if not Path("after/receipt.json").exists():
        # A run that is broken off clears its folder; what a killed one leaves half-written holds rows.
        Path("after/private").mkdir(parents=True, exist_ok=True)
        Path("after/private/.spotless-999999999-x").write_bytes(b"rows")
        served = forget_listed("backbone.py:build", trained.state, Path("forget.csv"), Path("after"))
        assert served.request.left == 57
    assert not list(Path("after").rglob(".spotless-*"))
    assert verify_request(Path("after"), Path("forget.csv"), "id").is_sealed
    with pytest.raises(DataError, match="so a run was finished there, and nothing is ever overwritten"):
        forget_listed("backbone.py:build", trained.state, Path("forget.csv"), Path("after"))


def test_another_request_does_not_take_an_unfinished_folder(tmp_path, monkeypatch):
    furnished(tmp_path, monkeypatch)
    trained = train_model(asked(), ridge="0.1")
    forget_listed("backbone.py:build", trained.state, Path("forget.csv"), Path("after"))
    Path("after/receipt.json").unlink()
    Path("other.csv").write_text("\n".join(Path("forget.csv").read_text().splitlines()[:2]) + "\n")
    with pytest.raises(DataError, match="Another request began"):
        forget_listed("backbone.py:build", trained.state, Path("other.csv"), Path("after"))
    # `spotless forget` has no flag --resume.
    assert told() == "after holds what was begun: the same command goes on there"


def test_a_state_from_before_there_were_digests_is_read_and_said_to_be_one(tmp_path, monkeypatch, capsys):
    furnished(tmp_path, monkeypatch)
    state = train_model(asked(), ridge="0.1").state
    about = read_metadata(state)
    del about["digest"], about["lanes"]
    Path("old.safetensors").write_bytes(to_bytes(read_weights(state), about))
    given = ["forget", "--model", "backbone.py:build", "--forget", "forget.csv"]
    assert main([*given, "--state", str(state), "--out", "one"]) == 0
    assert "has no digest" not in capsys.readouterr().err
    assert main([*given, "--state", "old.safetensors", "--out", "two"]) == 0
    assert "the state has no digest" in capsys.readouterr().err


def test_classes_that_are_given_do_not_tell_of_one_that_a_row_alone_had(tmp_path, monkeypatch):
    furnished(tmp_path, monkeypatch)
    (tmp_path / "rare.py").write_text(
        "from mydata import some\ndef rows():\n    x, y, ids = some(0, 60)\n    y[5] = 6\n    return x, y, ids\n"
    )
    sizes = {}
    for name, data, classes in (("told", "rare.py:rows", None), ("given", "rare.py:rows", 9)):
        trained = train_model(asked(data=data, out=Path(name)), ridge="0.1", classes=classes)
        served = forget_listed("backbone.py:build", trained.state, Path("forget.csv"), Path(f"{name}-after"))
        sizes[name] = len(read_weights(served.network)["bias"])
    assert sizes == {"told": 7, "given": 9}
    with pytest.raises(DataError, match="from 0 to 2"):
        train_model(asked(data="rare.py:rows", out=Path("fewer")), ridge="0.1", classes=3)


@pytest.mark.parametrize("blank", ["None", "float('nan')", "' '"])
def test_rows_without_an_id_are_refused(tmp_path, monkeypatch, blank):
    furnished(tmp_path, monkeypatch)
    (tmp_path / "unnamed.py").write_text(
        f"from mydata import some\ndef rows():\n    x, y, ids = some(0, 60)\n    return x, y, [{blank}, *ids[1:]]\n"
    )
    with pytest.raises(DataError, match="1 of 60 rows of --data have no id"):
        train_model(asked(data="unnamed.py:rows"), ridge="0.1")
    assert not Path("model").exists()
