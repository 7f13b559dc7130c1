"""Forgettable models trained, asked and verified without the command."""

from pathlib import Path

import pytest

from spotlessnet.core.errors import DataError, NeedError, SettingError
from spotlessnet.forgettable import load_forgettable
from spotlessnet.requests.case import Case
from spotlessnet.requests.forgettable import backbone_of, forget_listed, train_model
from spotlessnet.requests.verifying import verify_request
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
