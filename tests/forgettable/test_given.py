"""Ids, weights and ridges as people hand them in: used as meant, or refused before any work."""

import json
import struct
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import DataError, MismatchError, NeedError, NumericsError, SettingError
from spotlessnet.forgettable.given import check_inputs, ridge_of

CLASSES = 3


def some(n, seed):
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=draw)
    return torch.randn(n, 6, generator=draw) + nn.functional.one_hot(y, 6), y


CORE, USER = some(40, 0), some(120, 1)
BY_CLASS = torch.tensor([1, 4, 9])


def backbone():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU())


def fitted(user=USER, **settings):
    return sn.fit_forgettable(backbone(), core=CORE, user=user, **{"ridge": 0.1, "classes": CLASSES, **settings})


class Untouched(nn.Module):
    def forward(self, x):
        raise AssertionError("work was done")


def same(one, other):
    assert torch.equal(one.moments.gram, other.moments.gram)
    assert torch.equal(one.moments.cross, other.moments.cross)
    assert one.moments.weight == other.moments.weight
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-12, atol=0)


def kept_and_loaded(model, path):
    sn.save_forgettable(path, model)
    return sn.load_forgettable(path, backbone())


@pytest.mark.parametrize("through_a_file", [False, True])
def test_class_weights_hold_for_whatever_comes_later(through_a_file, tmp_path):
    x, y = USER
    whole = fitted(class_weights=BY_CLASS)
    model = fitted((x[:100], y[:100]), ids=range(100), class_weights=BY_CLASS)
    if through_a_file:
        model = kept_and_loaded(model, tmp_path / "m.safetensors")
    model.ridge = whole.ridge
    model.add(x[100:], y[100:], ids=range(100, 120))
    same(model, whole)
    same(model.solved_anew(USER, core=CORE), whole)
    turned = y.clone()
    turned[:5] = 2
    request = model.relabel(range(5), turned[:5])
    assert request.refactored
    other = fitted((x, turned), class_weights=BY_CLASS)
    assert other.ridge == model.ridge
    same(model, other)
    model.forget(7)
    model.add(x[7:8], y[7:8], ids=[7])
    same(model, other)


def test_an_example_with_a_weight_of_its_own_keeps_it_under_another_label():
    model = fitted(class_weights=BY_CLASS)
    x, _ = some(1, 5)
    model.add(x, torch.tensor([0]), ids=["own"], weights=torch.tensor([7]))
    model.relabel("own", 1)
    assert int(model.examples.weights[model.examples.find(["own"])]) == 7


def test_a_relabelling_beyond_what_sums_hold_changes_nothing():
    model = fitted()
    model.class_weights = torch.tensor([1, 1, 2**23])
    before, inside = model.moments.clone(), int((USER[1] == 0).nonzero()[0])
    with pytest.raises(SettingError, match="must sum to at most"):
        model.relabel(inside, 2)
    assert torch.equal(before.gram, model.moments.gram)
    assert model.moments.weight == before.weight


def test_old_states_with_weights_want_to_be_told(tmp_path):
    path = tmp_path / "m.safetensors"
    sn.save_forgettable(path, fitted(class_weights=BY_CLASS))
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    about = json.loads(content[8 : 8 + length])["__metadata__"]
    for name in ("class_weights", "digest", "lanes"):
        del about[name]
    path.write_bytes(save(load(content), about))
    with pytest.warns(UserWarning, match="no digest"):
        model = sn.load_forgettable(path, backbone())
    with pytest.raises(NeedError, match="Say what these examples weigh"):
        model.add(*some(1, 5), ids=["new"])
    with pytest.raises(NeedError, match="Forget the examples and add them anew"):
        model.relabel(0, 1)
    with pytest.raises(NeedError, match="Fit anew"):
        model.solved_anew(USER, core=CORE)
    model.add(*some(1, 5), ids=["new"], weights=[4])
    model.forget(["new", 3])


@pytest.mark.parametrize(
    ("weights", "error", "told"),
    [
        (torch.tensor([0.5, 1, 2]), SettingError, "must be whole numbers"),
        (torch.tensor([1, 2]), MismatchError, "3 classes came with 2 weights"),
        (torch.tensor([1, 2, 3, 4]), MismatchError, "3 classes came with 4 weights"),
        (torch.tensor([-1, 2, 3]), SettingError, "between 0 and"),
        (torch.tensor([2**62, 2, 3]), SettingError, "between 0 and"),
        (torch.tensor([float("nan"), 1, 1]), SettingError, "whole numbers"),
        (torch.tensor([0, 0, 0]), SettingError, "must weigh something"),
    ],
)
def test_class_weights_that_cannot_be_are_refused_before_any_work(weights, error, told):
    with pytest.raises(error, match=told):
        fitted(class_weights=weights, features=Untouched())


def test_lists_of_class_weights_are_as_good_as_tensors():
    same(fitted(class_weights=[1, 4, 9]), fitted(class_weights=BY_CLASS))


@pytest.mark.parametrize(
    "ids",
    [
        torch.arange(120),
        [float("nan")] * 120,
        [[i] for i in range(120)],
        [(i, []) for i in range(120)],
        [None] * 120,
        "x" * 120,
    ],
    ids=["tensors", "NaN", "lists", "tuples of lists", "None", "text"],
)
def test_ids_by_which_nobody_is_found_are_refused_before_any_work(ids):
    with pytest.raises(DataError, match="Ids must be"):
        fitted(ids=ids, features=Untouched())


def test_ids_of_numpy_become_plain_ones(tmp_path):
    for ids, one in ((np.arange(120), 4), (np.array([f"p{i}" for i in range(120)]), "p4")):
        model = fitted(ids=ids)
        assert {type(name) for name in model.examples.ids} == {type(one)}
        sn.save_forgettable(tmp_path / f"{one}.safetensors", model)
        assert model.forget(one).examples == 1


def test_ids_may_come_as_numpy_and_torch_give_them():
    model = fitted()
    assert model.forget(np.int64(4)).examples == 1
    assert model.forget(np.array([5, 6])).examples == 2
    assert model.forget(torch.tensor([7, 8])).examples == 2
    assert model.forget(torch.tensor(9)).examples == 1
    for wrong in (b"AB", bytearray(b"AB"), None, [[1]], 1.5):
        with pytest.raises(DataError):
            model.forget(wrong)
    assert len(model) == 114


def test_weights_whose_sum_wraps_around_are_refused_and_change_nothing():
    model = fitted()
    before = model.moments.clone()
    x, y = some(2, 5)
    for wrong in (torch.tensor([2**62, 2**62]), torch.tensor([2**23, 2**23])):
        with pytest.raises(SettingError):
            model.add(x, y, ids=["a", "b"], weights=wrong)
        assert torch.equal(before.gram, model.moments.gram)
        assert (before.weight, before.count) == (model.moments.weight, model.moments.count)
    with pytest.raises(SettingError, match="at most"):
        model.moments.add(model.examples.codes[:2, 0], model.examples.targets[:2, 0], torch.tensor([2**62, 2**62]))


@pytest.mark.parametrize("ridge", ["x", None, [1.0]])
def test_ridges_that_are_no_numbers_are_refused_before_any_work(ridge):
    with pytest.raises(SettingError, match='must be a positive number or "loo"'):
        ridge_of(ridge)


def test_labels_may_come_as_lists_and_from_numpy():
    x, y = some(2, 5)
    model, other = fitted(), fitted()
    model.add(x, y.tolist(), ids=["a", "b"])
    other.add(x, y.numpy(), ids=["a", "b"])
    same(model, other)
    model.relabel([5, 6], [1, 2])
    model.relabel(7, np.int64(1))
    model.relabel([8, 9], torch.tensor(1))
    other.relabel([5, 6, 7, 8, 9], torch.tensor([1, 2, 1, 1, 1]))
    same(model, other)
    assert model.forget_class(np.int64(1)).examples == other.forget_class(torch.tensor(1)).examples


def test_labels_and_inputs_that_are_none_are_refused_and_change_nothing():
    model = fitted()
    x, _ = some(2, 5)
    before = model.moments.clone()
    for wrong in ("ab", [0, None], [0.5, 1.0], 1.5, [[0], [1]]):
        with pytest.raises(MismatchError):
            model.add(x, wrong, ids=["a", "b"])
        with pytest.raises(MismatchError):
            model.relabel([5, 6], wrong)
    for label in (1.5, "1", None):
        with pytest.raises(DataError, match="must be a whole number"):
            model.forget_class(label)
    with pytest.raises(DataError, match="must be a tensor"):
        check_inputs({"x": x.numpy()})
    assert torch.equal(before.gram, model.moments.gram)


@pytest.mark.parametrize("ridge", [1e12, 1e30, 1e300])
def test_ridges_that_no_file_could_hold_are_refused(ridge):
    with pytest.raises(SettingError, match="A ridge must come to at most"):
        fitted(ridge=ridge)


def test_states_are_written_only_where_they_are_read_again(tmp_path):
    with pytest.raises(DataError, match=r"must end in \.safetensors"):
        sn.save_forgettable(tmp_path / "m.st", fitted())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", ["examples.weights", "examples.codes", "scale", "features.backbone.0.bias", "salt"])
def test_a_changed_state_is_refused(part, tmp_path):
    path = tmp_path / "m.safetensors"
    sn.save_forgettable(path, fitted())
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    about, tensors = json.loads(content[8 : 8 + length])["__metadata__"], load(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sn.load_forgettable(path, backbone())
    if part == "salt":
        about["salt"] = "0" * 64
    else:
        tensors[part] = tensors[part] * 0 + (1 if part == "scale" else 0)
    path.write_bytes(save(tensors, about))
    with pytest.raises(DataError, match="damaged forgettable model"):
        sn.load_forgettable(path, backbone())


def test_a_state_that_lost_its_digest_is_damaged(tmp_path):
    path = tmp_path / "m.safetensors"
    sn.save_forgettable(path, fitted())
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    about = json.loads(content[8 : 8 + length])["__metadata__"]
    del about["digest"]
    path.write_bytes(save(load(content), about))
    with pytest.raises(DataError, match="its digest is missing"):
        sn.load_forgettable(path, backbone())


def test_sums_that_are_one_number_are_damage(tmp_path):
    path = tmp_path / "m.safetensors"
    sn.save_forgettable(path, fitted())
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    about, tensors = json.loads(content[8 : 8 + length])["__metadata__"], load(content)
    tensors["moments.cross"] = torch.zeros((), dtype=torch.float64)
    path.write_bytes(save(tensors, about))
    with pytest.raises(DataError, match="damaged forgettable model"):
        sn.load_forgettable(path, backbone())


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"ids": list(range(120)), "id_column": "person"}, SettingError, "both were given"),
        ({"classes": 0}, SettingError, "`classes` must be positive"),
        ({"user": some(0, 1)}, DataError, "`user` has no example"),
        ({"core": some(0, 1)}, DataError, "`core` has no example"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_any_work(settings, error, told):
    with pytest.raises(error, match=told):
        sn.fit_forgettable(
            backbone(), **{"core": CORE, "user": USER, "ridge": 0.1, "features": Untouched(), **settings}
        )


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (lambda x: 0 * x, NumericsError, "must not all be zero"),
        (lambda x: x[:, :0], NumericsError, "must not all be zero"),
        (lambda x: x[:3], MismatchError, "40 inputs gave 3 rows"),
    ],
)
def test_features_that_cannot_be_are_refused(answer, error, told):
    class Odd(nn.Module):
        def forward(self, x):
            return answer(x)

    with pytest.raises(error, match=told):
        sn.fit_forgettable(Odd(), core=CORE, user=USER, ridge=0.1, classes=CLASSES)
