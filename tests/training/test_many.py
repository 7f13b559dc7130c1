"""Many trainings as tasks: a kept one is used again for the very same training and for no other."""

import stat
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from spotlessnet.auditing.run_audit import audit
from spotlessnet.auditing.shadows import train_shadows
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NumericsError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods.gradient_ascent import GradientAscent
from spotlessnet.precomputed.fold_models import train_fold_models
from spotlessnet.training import fit
from spotlessnet.training.fingerprint import Fingerprint, told
from spotlessnet.training.kept import KNOW_THE_ROWS, NOTE, Kept
from spotlessnet.training.many import Executor, Task, Together, train_many
from spotlessnet.training.pairs import train_pairs

CALLS: list[int] = []
"""Seeds of the trainings that really ran."""


class Net(nn.Module):
    """With statistics that move."""

    def __init__(self, drop: float = 0.1) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.head = (
            nn.Linear(4, 6),
            nn.BatchNorm1d(6),
            nn.Dropout(drop),
            nn.Linear(6, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.first(x)).relu()))


def my_train(model, examples, seed, epochs=2, lr=0.05):
    CALLS.append(seed)
    x, y = examples.tensors()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(16):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model


def rows(count: int = 40, seed: int = 0) -> Data:
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    return Data.of((torch.randn(count, 4, generator=draw) + 2 * nn.functional.one_hot(y, 4), y))


def begun(**how) -> Trained:
    torch.manual_seed(1)
    net = Net()
    return Trained.of(net, init=net, **(how or {"trainer": my_train}))


@pytest.fixture
def split() -> Split:
    data = rows()
    gone = data.select(range(5))
    return Split(forget=gone, kept=data.without(gone), test=rows(60, 1))


def same(one: list[Trained], other: list[Trained]) -> None:
    for a, b in zip(one, other, strict=True):
        theirs = b.module().state_dict()
        for name, value in a.module().state_dict().items():
            assert torch.equal(value, theirs[name]), name
        assert (a.statistics_moved, a.weight_decay, a.can_retrain) == (
            b.statistics_moved,
            b.weight_decay,
            b.can_retrain,
        )


@pytest.mark.parametrize("how", [{"trainer": my_train}, {"recipe": Recipe(epochs=2, freeze_statistics=False)}])
def test_a_kept_training_is_the_training_to_the_bit(tmp_path, split, how):
    plain = train_pairs(begun(**how), split, seeds=2)
    executor = Executor(tmp_path / "kept")
    first = train_pairs(begun(**how), split, seeds=2, executor=executor)
    CALLS.clear()
    said: list[str] = []
    again = train_pairs(begun(**how), split, seeds=2, executor=replace(executor, say=said.append))
    assert CALLS == []
    assert said == [f"6 of 6 were kept in {tmp_path / 'kept'} and are not done again: training"]
    for group in ("original", "retrained", "held_out"):
        same(getattr(first, group), getattr(plain, group))
        same(getattr(again, group), getattr(plain, group))


def test_what_fit_tells_of_a_network_is_told_of_a_task(split):
    recipe = Recipe(epochs=2, freeze_statistics=False, weight_decay=0.01, label_smoothing=0.1)
    start = begun(recipe=recipe)
    [made] = train_many([start], split.whole, seeds=[3], keep=torch.ones(1, 40, dtype=torch.bool))
    alone = fit(start, split.whole, recipe, seed=3)
    same([made], [alone])
    assert made.init is not None
    assert alone.init is not None
    assert torch.equal(made.init, alone.init)
    assert (repr(made.loss), made.recipe) == (repr(alone.loss), alone.recipe)
    assert made.init_buffers is not None
    assert alone.init_buffers is not None
    assert all(torch.equal(value, alone.init_buffers[name]) for name, value in made.init_buffers.items())


def test_only_what_is_missing_is_trained(tmp_path, split):
    executor = Executor(tmp_path)
    whole = train_pairs(begun(), split, seeds=2, executor=executor)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 6
    for file in files[:2]:
        file.unlink()
    CALLS.clear()
    again = train_pairs(begun(), split, seeds=2, executor=executor)
    assert len(CALLS) == 2
    same(again.original + again.retrained + again.held_out, whole.original + whole.retrained + whole.held_out)


def test_networks_as_one_program_are_kept_as_one(tmp_path, split):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    start = Trained.of(net, init=net, recipe=Recipe(epochs=2))
    plain = train_pairs(start, split, seeds=2)
    for _ in range(2):
        kept = train_pairs(start, split, seeds=2, executor=Executor(tmp_path))
        same(kept.original + kept.held_out, plain.original + plain.held_out)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_fold_models_and_shadows_go_on_too(tmp_path, split):
    executor = Executor(tmp_path)
    plain = train_fold_models(begun(), split.whole, folds=3)
    first = train_fold_models(begun(), split.whole, folds=3, executor=executor)
    shadows = train_shadows(begun(), split.whole, torch.arange(4), shadows=4, executor=executor)
    CALLS.clear()
    again = train_fold_models(begun(), split.whole, folds=3, executor=executor)
    others = train_shadows(begun(), split.whole, torch.arange(4), shadows=4, executor=executor)
    assert CALLS == []
    assert torch.equal(plain.weights, first.weights)
    assert torch.equal(plain.weights, again.weights)
    assert plain.buffers is not None
    assert again.buffers is not None
    assert all(torch.equal(value, again.buffers[name]) for name, value in plain.buffers.items())
    assert torch.equal(shadows.weights, others.weights)


def test_an_audit_goes_on_with_what_it_has(tmp_path, split):
    ask = partial(audit, begun(), split, GradientAscent(epochs=1), name="ascent", seeds=5)
    plain = ask()
    first = ask(executor=Executor(tmp_path))
    CALLS.clear()
    again = ask(executor=Executor(tmp_path))
    assert CALLS == []
    for report in (first, again):
        assert [(row.key, row.value) for row in report.rows] == [(row.key, row.value) for row in plain.rows]
        assert report.verdict == plain.verdict
        assert report.curves == plain.curves
        assert KNOW_THE_ROWS in report.limits
    assert [cost.seconds for cost in again.costs[-2:]] == [cost.seconds for cost in first.costs[-2:]]
    assert KNOW_THE_ROWS not in plain.limits


def key(
    network: Trained, data: Data, keep: Tensor | None = None, seed: int = 0, kind: type[Task] = Task, **more
) -> str:
    keep = torch.ones(1, len(data), dtype=torch.bool) if keep is None else keep
    return Fingerprint.of(data).key(kind((network,), (seed,), keep, **more))


class Other(Net):
    """Another name, the same layers."""


class Scaled(Net):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def other_train(model, examples, seed, epochs=2, lr=0.05):
    return my_train(model, examples, seed, epochs, lr)


def with_model(change) -> Trained:
    torch.manual_seed(1)
    net = Net()
    net = change(net) or net
    return Trained.of(net, init=net, trainer=my_train)


def moved_bias(net):
    net.head.bias.data += 1


def moved_mean(net):
    net.norm.running_mean += 1


def frozen(net):
    net.first.weight.requires_grad_(False)


def frozen_elsewhere(net):
    frozen(net)
    net.first.weight.data += 1


def with_rate(rate):
    return lambda model, examples, seed: my_train(model, examples, seed, lr=rate)


def cast(kind):
    def change(net):
        made = kind()
        made.load_state_dict(net.state_dict())
        return made

    return change


DIFFERENT = {
    "the usual": lambda: key(begun(), rows()),
    "seed": lambda: key(begun(), rows(), seed=1),
    "rows left out": lambda: key(begun(), rows(), torch.arange(40)[None] > 0),
    "other rows left out": lambda: key(begun(), rows(), torch.arange(40)[None] != 1),
    "uncoupled": lambda: key(begun(), rows(), is_coupled=False),
    "as one program": lambda: key(begun(), rows(), kind=Together),
    "another label": lambda: key(begun(), rows().relabel((rows().labels() + 1) % 3)),
    "another input": lambda: key(begun(), rows(seed=2)),
    "fewer rows": lambda: key(begun(), rows(39)),
    "the same rows by other numbers": lambda: key(begun(), Data(rows(80).source, torch.arange(40) + 1)),
    "another weight": lambda: key(with_model(moved_bias), rows()),
    "statistics": lambda: key(with_model(moved_mean), rows()),
    "frozen": lambda: key(with_model(frozen), rows()),
    "frozen elsewhere": lambda: key(with_model(frozen_elsewhere), rows()),
    "dropout": lambda: key(with_model(lambda net: setattr(net.drop, "p", 0.2)), rows()),
    "another class": lambda: key(with_model(cast(Other)), rows()),
    "another formula": lambda: key(with_model(cast(Scaled)), rows()),
    "another function": lambda: key(begun(trainer=other_train), rows()),
    "an argument": lambda: key(begun(trainer=partial(my_train, lr=0.1)), rows()),
    "another argument": lambda: key(begun(trainer=partial(my_train, lr=0.2)), rows()),
    "a closure": lambda: key(begun(trainer=with_rate(0.1)), rows()),
    "another closure": lambda: key(begun(trainer=with_rate(0.2)), rows()),
    "a recipe": lambda: key(begun(recipe=Recipe(epochs=2)), rows()),
    "more epochs": lambda: key(begun(recipe=Recipe(epochs=3)), rows()),
    "augmentation": lambda: key(begun(recipe=Recipe(epochs=2, augment=torch.neg)), rows()),
    "other augmentation": lambda: key(begun(recipe=Recipe(epochs=2, augment=torch.abs)), rows()),
    "the loss": lambda: key(begun(trainer=my_train, loss=lambda z, y: cross_entropy(z, y, reduction="none")), rows()),
}


def test_whatever_decides_the_result_is_bound_into_the_key():
    found = {name: make() for name, make in DIFFERENT.items()}
    assert len(set(found.values())) == len(found), found
    assert {name: make() for name, make in DIFFERENT.items()} == found


def test_threads_are_bound_for_they_decide_how_sums_are_rounded():
    before = torch.get_num_threads()
    usual = key(begun(), rows())
    try:
        torch.set_num_threads(before + 1)
        assert key(begun(), rows()) != usual
    finally:
        torch.set_num_threads(before)


def test_a_change_in_the_file_of_a_trainer_or_what_it_imports_is_seen(tmp_path, monkeypatch):
    import importlib
    import sys

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helping_many.py").write_text("RATE = 0.1\n")
    (tmp_path / "mine_many.py").write_text("import helping_many\ndef train(model, examples, seed):\n    return model\n")

    def found() -> str:
        for name in ("mine_many", "helping_many"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return str(told(importlib.import_module("mine_many").train))

    first = found()
    assert found() == first
    (tmp_path / "helping_many.py").write_text("RATE = 0.2\n")
    assert found() != first


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-5],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content.replace(b"kept training 1", b"kept training 2"),
    ],
)
def test_a_damaged_file_is_trained_again_and_said(tmp_path, split, damage):
    executor = Executor(tmp_path)
    keep = torch.ones(1, 40, dtype=torch.bool)
    whole = train_many([begun()], split.whole, seeds=[0], keep=keep, executor=executor)
    [file] = tmp_path.glob("*.safetensors")
    content = file.read_bytes()
    file.write_bytes(damage(content))
    CALLS.clear()
    with pytest.warns(UserWarning, match=r"The kept training .* is damaged \(.*\), so it is done again\."):
        again = train_many([begun()], split.whole, seeds=[0], keep=keep, executor=executor)
    assert CALLS == [0]
    same(again, whole)
    assert file.read_bytes() == content


def test_a_file_under_another_name_is_refused(tmp_path, split):
    keep = torch.ones(2, 40, dtype=torch.bool)
    train_many([begun()] * 2, split.whole, seeds=[0, 1], keep=keep, executor=Executor(tmp_path))
    one, other = sorted(tmp_path.glob("*.safetensors"))
    other.write_bytes(one.read_bytes())
    with pytest.warns(UserWarning, match="of another training"):
        train_many([begun()] * 2, split.whole, seeds=[0, 1], keep=keep, executor=Executor(tmp_path))


def test_nobody_else_may_read_them_and_a_note_says_that_they_must_go(tmp_path):
    kept = Kept(tmp_path / "a" / "kept")
    kept.write("0" * 64, {"weights": torch.ones(2)})
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in kept.folder.iterdir())
    assert "spotless purge" in (kept.folder / NOTE).read_text()
    (kept.folder / "mine.txt").write_text("not theirs")
    assert kept.destroy() == ["0" * 64 + ".safetensors", NOTE]
    assert [path.name for path in kept.folder.iterdir()] == ["mine.txt"]


def test_a_training_that_fails_keeps_those_before_it(tmp_path, split):
    def breaks(model, examples, seed):
        examples.tensors()
        if seed == 1:
            model.head.bias.data.fill_(torch.nan)
        return model

    keep = torch.ones(3, 40, dtype=torch.bool)
    with pytest.raises(NumericsError, match="must be finite"):
        train_many([begun(trainer=breaks)] * 3, split.whole, seeds=[0, 1, 2], keep=keep, executor=Executor(tmp_path))
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


class Drawn(Dataset[Any]):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.randn(4), i % 3


def test_what_cannot_be_told_from_another_is_refused_before_any_work(tmp_path):
    CALLS.clear()
    keep = torch.ones(1, 12, dtype=torch.bool)
    with pytest.raises(DataError, match=r"Rows must be the same whenever they are read, .* keep no trainings\."):
        train_many([begun()], Data.of(Drawn()), seeds=[0], keep=keep, executor=Executor(tmp_path))
    stream = (i for i in range(3))
    strange = begun(trainer=lambda model, examples, seed: next(stream) and model)
    with pytest.raises(SettingError, match="must be told from others, but it holds a generator"):
        Executor(tmp_path).check(strange)
    Executor().check(strange)
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="is a file"):
        Executor(tmp_path / "file")
    with pytest.raises(SettingError, match="workers"):
        Executor(workers="dask")
    assert CALLS == []
