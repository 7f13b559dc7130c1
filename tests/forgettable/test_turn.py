"""One request at a time, whole or not at all: threads, interrupts, and memory that runs out half-way."""

import copy
import pickle
import sys
import threading

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import DataError, IntegrityError, SettingError
from spotlessnet.forgettable.examples import Examples

CLASSES = 3
NAMES = [f"person {i % 10}" for i in range(100)]
STAY = [i for i in range(100) if NAMES[i] != "person 3"]


def some(n, seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=draw), torch.arange(n) % CLASSES


CORE, USER = some(40, 0), some(100, 1)


def fitted():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 12), nn.ReLU())
    return sn.fit_forgettable(backbone, core=CORE, user=USER, ids=NAMES, ridge=0.1, classes=CLASSES)


def assert_never_held(model, rows=STAY):
    never = model.solved_anew((USER[0][rows], USER[1][rows]), core=CORE)
    assert torch.equal(model.moments.gram, never.moments.gram)
    assert torch.equal(model.moments.cross, never.moments.cross)
    assert torch.equal(model.weights, never.weights)
    assert (model.moments.count, len(model)) == (never.moments.count, len(rows))


class Interrupted:
    """Call as before, but break off at the `at`-th call, before or after it did its work."""

    def __init__(self, function, at, error, *, after=False):
        self.function, self.at, self.error, self.after, self.calls = function, at, error, after, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.calls == self.at and not self.after:
            raise self.error
        found = self.function(*args, **kwargs)
        if self.calls == self.at:
            raise self.error
        return found

    def __get__(self, one, owner=None):
        return lambda *args, **kwargs: self(one, *args, **kwargs)


def forget(model):
    model.forget("person 3")


def relabel(model):
    model.relabel("person 3", 1)


def add(model):
    model.add(USER[0][:4], USER[1][:4], ids=["new"] * 4)


@pytest.mark.parametrize("request_of", [forget, relabel, add])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_sums_that_fail_half_way_are_put_back(monkeypatch, request_of, at):
    model = fitted()
    before = model.moments.clone(), model.weights.clone()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "addmm_", Interrupted(torch.Tensor.addmm_, at, MemoryError()))
        try:
            request_of(model)
        except MemoryError:
            assert torch.equal(model.moments.gram, before[0].gram)
            assert torch.equal(model.moments.cross, before[0].cross)
            assert torch.equal(model.weights, before[1])
            assert len(model) == 100
        else:
            pytest.skip("so many products were not made")
    model.forget("person 3")
    assert_never_held(model)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name", "request_of"),
    [(torch.Tensor, "addmm_", forget), (Examples, "erase", forget), (Examples, "append", add)],
)
def test_a_request_interrupted_while_it_is_written_is_never_built_upon(
    monkeypatch, tmp_path, owner, name, request_of, after
):
    model = fitted()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, Interrupted(getattr(owner, name), 1, KeyboardInterrupt(), after=after))
        with pytest.raises(KeyboardInterrupt):
            request_of(model)
    for again in (forget, relabel, add, lambda m: m.refresh(), lambda m: m.forget_all(), lambda m: m.forget_class(0)):
        with pytest.raises(IntegrityError, match="broken off while it was written"):
            again(model)
    with pytest.raises(IntegrityError, match="broken off while it was written"):
        sn.save_forgettable(tmp_path / "state.safetensors", model)
    with pytest.raises(IntegrityError, match="broken off while it was written"):
        copy.deepcopy(model).forget("person 4")


def test_an_interrupt_while_weights_are_sought_is_undone(monkeypatch):
    model = fitted()
    with monkeypatch.context() as patch:
        patch.setattr("spotlessnet.forgettable.model.refine", Interrupted(None, 1, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            model.forget("person 3")
    assert len(model) == 100
    model.forget("person 3")
    assert_never_held(model)


def test_threads_wait_for_each_other():
    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            model = fitted()
            begin = threading.Barrier(5)
            refused: list[type[Exception]] = []

            def leave(who, model=model, begin=begin, refused=refused):
                begin.wait()
                try:
                    model.forget(who)
                except Exception as error:
                    refused.append(type(error))

            people = [f"person {k}" for k in (0, 1, 2, 0, 0)]
            threads = [threading.Thread(target=leave, args=(who,)) for who in people]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            # The same person twice more: forgotten once, and the others are told so.
            assert refused == [DataError, DataError]
            assert_never_held(model, [i for i in range(100) if i % 10 > 2])
    finally:
        sys.setswitchinterval(often)


def test_copies_take_turns_of_their_own_and_print_no_id():
    model = fitted()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.turn is not model.turn
        twin.forget("person 3")
        assert_never_held(twin)
    assert len(model) == 100
    assert repr(model) == "ForgettableModel(user_examples=100, core_examples=40, features=13, outputs=3, ridge=" + (
        f"{model.ridge})"
    )


def test_tensors_that_refuse_later_changes_are_never_made(tmp_path):
    model = fitted()
    sn.save_forgettable(tmp_path / "state.safetensors", model)
    with torch.inference_mode():
        model.predict(USER[0])
        for refused in (
            fitted,
            lambda: forget(model),
            lambda: sn.load_forgettable(tmp_path / "state.safetensors", nn.Identity()),
        ):
            with pytest.raises(SettingError, match=r"outside `torch.inference_mode`"):
                refused()
    with torch.no_grad():
        model.forget("person 3")
    assert_never_held(model)
