"""`sn.record`: what it refuses before the training, what it writes after it, and callbacks of other trainers."""

import importlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spotlessnet as sn
from spotlessnet.core.errors import DataError, MismatchError, NeedError, SettingError
from spotlessnet.core.files import PENDING, sweep, write_folder
from spotlessnet.store.training_record import INIT, RECORD, ROWS, WEIGHTS, read_record
from spotlessnet.training import lightning as adapter

CODE = """
import torch
from torch import nn

DRAWN = []

def build():
    DRAWN.append(torch.rand(1))  # whatever is drawn here must not change the training
    return nn.Linear(3, 2)

def wider():
    return nn.Linear(3, 4)

def frozen():
    made = nn.Linear(3, 2)
    made.bias.requires_grad_(False)
    return made

def rows():
    torch.rand(7)
    draw = torch.Generator().manual_seed(1)
    return torch.randn(20, 3, generator=draw), torch.randint(0, 2, (20,), generator=draw)

def random_rows():
    return Shaky()

class Shaky(torch.utils.data.Dataset):
    def __len__(self):
        return 9
    def __getitem__(self, i):
        return torch.randn(3), 0

def train(model, examples, seed, epochs=2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = examples.tensors()
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y).backward()
        optimizer.step()
    return model

def absolute(outputs, y):
    return (outputs - y[:, None]).abs().sum(1)

def tilt(x):
    return x + 1

class Holder:
    @staticmethod
    def inner(model, examples, seed):
        return model

number = 5
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> Any:
    """A module of a person's own in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    sys.modules.pop("mine", None)
    yield importlib.import_module("mine")
    sys.modules.pop("mine", None)


def fails(model: nn.Module) -> None:
    step(model)
    raise ZeroDivisionError


def step(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(torch.rand(()))


def test_what_is_written(own):
    model = own.build()
    with sn.record("run", model, own.rows, build=own.build, trainer=own.train, loss="squared-error", seed=4):
        step(model)
    record = read_record(Path("run"))
    assert [s.spec for s in (record.model, record.data, record.trainer) if s] == [
        "../mine.py:build", "../mine.py:rows", "../mine.py:train",
    ]  # fmt: skip
    assert record.loss.spec == "squared-error"
    assert (record.seed, record.id_column, record.recipe, record.requests) == (4, None, None, 0)
    assert torch.__version__.startswith(record.packages["torch"].partition("+")[0])
    assert record.packages["spotlessnet"] == sn.__version__
    assert os.listdir(".").count("run") == 1
    assert not [name for name in os.listdir(".") if name.startswith(PENDING)]


def test_a_training_is_the_same_with_and_without_a_record(own):
    """Building, reading and digesting draw numbers, and the training must not notice; it begins at the seed."""
    x, y = own.rows()
    one, other = (nn.Linear(3, 2) for _ in range(2))
    other.load_state_dict(one.state_dict())
    torch.manual_seed(4)
    own.train(one, sn.Examples(sn.Data.of((x, y))), 4)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    with sn.record("run", other, own.rows, build=own.build, trainer=own.train, seed=4):
        own.train(other, sn.Examples(sn.Data.of((x, y))), 4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"trainer": "mine.py:number"}, SettingError, r"`trainer` must be a function .* but is 5"),
        ({"trainer": "mine.py:nothing"}, DataError, r"mine\.py has no 'nothing' for --train\."),
        ({"trainer": "nowhere.py:train"}, DataError, r"There is no file nowhere\.py"),
        ({"trainer": lambda model, examples, seed: model}, SettingError, r"`trainer` must be a function or a class at"),
        ({"trainer": "Holder.inner"}, SettingError, r"`trainer` must be a function or a class at the top of a file"),
        ({"build": "mine.py:wider"}, MismatchError, r"`build` must make the network that is trained, but it has other "
                                                    r"weights, first bias"),
        ({"build": "mine.py:frozen"}, MismatchError, r"it has other weights that take part, first bias"),
        ({"build": "mine.py:rows"}, SettingError, r"`build` must make a torch module, but gave tuple"),
        ({"data": "mine.py:random_rows"}, DataError, r"Rows must be the same each time that they are read"),
        ({"seed": -1}, SettingError, r"`seed` must be a whole number from 0 below 2⁶³, but got -1"),
        ({"trainer": "mine.py:train", "recipe": sn.Recipe()}, SettingError, r"by a recipe or by a trainer, but both"),
        ({"recipe": sn.Recipe(augment=lambda x: x)}, SettingError, r"`recipe\.augment` must be a function or a class"),
        ({"loss": "absolute"}, SettingError, r"`loss` must be cross-entropy, .* but got 'absolute'"),
        ({"loss": sn.CrossEntropy(ignore_index=-7)}, SettingError, r"has settings of its own\. Name it at the top"),
        ({"id_column": "person"}, DataError, r"The data has no column 'person'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_the_training(own, given, error, message):
    if given.get("trainer") == "Holder.inner":
        given = {"trainer": own.Holder.inner}
    model = own.build()
    with pytest.raises(error, match=message):
        sn.record("run", model, **{"data": own.rows, **given})
    assert not Path("run").exists()


def test_a_folder_with_files_is_refused_and_an_empty_one_is_not(own):
    model = own.build()
    Path("run").mkdir()
    (Path("run") / "mine.txt").write_text("kept")
    with pytest.raises(DataError, match=r"run holds files already, and nothing is ever overwritten"):
        sn.record("run", model, own.rows)
    (Path("run") / "mine.txt").unlink()
    with sn.record("run", model, own.rows):
        step(model)
    assert (Path("run") / RECORD).is_file()
    with pytest.raises(DataError, match=r"holds files already"):
        sn.record("run", model, own.rows)


def test_a_training_that_fails_or_changes_nothing_leaves_nothing(own):
    model = own.build()
    with pytest.raises(ZeroDivisionError), sn.record("run", model, own.rows):
        fails(model)
    with (
        pytest.raises(MismatchError, match=r"no weight of it has changed, so nothing was written.*run\.model"),
        sn.record("run", model, own.rows),
    ):
        pass
    assert not Path("run").exists()
    with pytest.raises(NeedError, match="must be begun before it ends"):
        sn.record("run", model, own.rows).end()


def test_a_write_that_breaks_off_leaves_nothing(own, monkeypatch):
    model = own.build()

    def broken(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    run = sn.record("run", model, own.rows)
    run.begin()
    step(model)
    monkeypatch.setattr("spotlessnet.core.files.write_whole", broken)
    with pytest.raises(OSError, match=r"run could not be written .*No space left"):
        run.end()
    assert not [name for name in os.listdir(".") if name == "run" or name.startswith(PENDING)]


def test_a_folder_appears_with_all_its_files_at_once(tmp_path, monkeypatch):
    """Until the one rename, nothing stands under its name: a process that dies before leaves nothing that is read."""

    def dies(pending: Path, path: Path) -> None:
        assert sorted(p.name for p in Path(pending).iterdir()) == ["a", "b"]
        assert not Path(path).exists()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("spotlessnet.core.files.os.replace", dies)
    with pytest.raises(OSError, match=r"new could not be written .*Input/output error"):
        write_folder(tmp_path / "new", {"a": b"1", "b": b"2"})
    assert list(tmp_path.iterdir()) == []


def test_half_written_folders_of_dead_processes_are_swept(tmp_path):
    dead = tmp_path / f"{PENDING}999999999-x"
    dead.mkdir()
    (dead / "part").write_bytes(b"x")
    assert sweep(tmp_path) == 1
    assert not dead.exists()
    write_folder(tmp_path / "new", {"a": b"1", "b": b"2"})
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["a", "b"]


def test_names_of_functions_that_a_request_can_find(own):
    model = own.build()
    recipe = sn.Recipe(epochs=2, lr=0.1, augment=own.tilt, betas=(0.8, 0.9))
    with sn.record("run", model, "mine.py:rows", build="mine.py:build", recipe=recipe, loss=own.absolute):
        step(model)
    record = read_record(Path("run"))
    assert record.augment is not None
    assert (record.augment.spec, record.loss.spec) == ("../mine.py:tilt", "../mine.py:absolute")
    case = sn.recorded("run").case
    assert case.as_recipe() == recipe.but(augment=None)
    assert case.augment == f"{Path('mine.py').resolve()}:tilt"


def test_packages_are_named_by_their_modules(own, tmp_path):
    (tmp_path / "parcel").mkdir()
    (tmp_path / "parcel/__init__.py").write_text("")
    (tmp_path / "parcel/nets.py").write_text(CODE)
    parcel = importlib.import_module("parcel.nets")
    model, examples = parcel.build(), sn.Examples(sn.Data.of(parcel.rows()))
    with sn.record("run", model, parcel.rows, build=parcel.build, trainer=parcel.train):
        parcel.train(model, examples, 0)
    record = read_record(Path("run"))
    assert record.trainer is not None
    assert record.trainer.spec == "parcel.nets:train"
    again = sn.recorded("run").retrain().module()
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    (tmp_path / "parcel/nets.py").write_text(CODE + "\n# more\n")
    with pytest.raises(MismatchError, match=r"parcel\.nets has changed \(--train\)"):
        sn.recorded("run").case  # noqa: B018


def test_rows_without_a_name_must_be_given_again(own):
    model = own.build()
    x, y = own.rows()
    with sn.record("run", model, (x, y), build=own.build, trainer=own.train):
        own.train(model, sn.Examples(sn.Data.of((x, y))), 0)
    with pytest.raises(NeedError, match=r"This needs --data"):
        sn.recorded("run").data  # noqa: B018
    run = sn.recorded("run", data=(x, y))
    assert torch.equal(run.retrain().weights, run.trained.weights)
    with pytest.raises(MismatchError, match=r"20 of 20 rows of `data` are not among the 20 rows"):
        sn.recorded("run", data=(x + 1, y)).data  # noqa: B018
    done = sn.unlearn(run, forget=[0], accept_damage=True, method="finetune")
    assert done.receipt["predicate"]["request"]["kept"] == 19
    with pytest.raises(SettingError, match="A recorded training knows its own loss, init and recipe, but recipe was"):
        sn.unlearn(run, forget=[0], recipe=sn.Recipe())
    with pytest.raises(NeedError, match="`data` must be the training examples, but was not given"):
        sn.unlearn(model, forget=[0])


def test_archives_and_data_sets_by_name(own, tmp_path):
    import numpy as np

    x, y = own.rows()
    (tmp_path / "kept").mkdir()
    np.savez(tmp_path / "kept/mine.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])
    model = own.build()
    with sn.record("run", model, "kept/mine.npz", build=own.build):
        step(model)
    source = read_record(Path("run")).data
    assert source is not None
    assert (source.spec, source.sha256) == ("../kept/mine.npz", None)
    assert len(sn.recorded("run").data) == 20
    np.savez(tmp_path / "kept/mine.npz", x_train=x, y_train=1 - y, x_test=x[:3], y_test=y[:3])
    with pytest.raises(MismatchError, match=r"20 of 20 rows of --data are not among"):
        sn.recorded("run").data  # noqa: B018
    with sn.record("other", model, "digits"):
        step(model)
    assert len(sn.recorded("other").data) > 1000


def test_a_record_without_a_trainer_serves_methods_that_need_none(own):
    model = own.build()
    with sn.record("run", model, own.rows, build=own.build):
        own.train(model, sn.Examples(sn.Data.of(own.rows())), 0)
    done = sn.unlearn(sn.recorded("run"), forget=[0], method="ntk", accept_damage=True)
    assert done.plan is not None
    assert done.plan.method == "ntk"
    with pytest.raises(NeedError, match="needs the recipe and the start of the training, but there is no recipe"):
        sn.recorded("run").retrain()


def test_a_script_that_would_train_again_when_imported_is_refused(own, tmp_path, monkeypatch):
    script = SimpleNamespace(__file__=str(tmp_path / "mine.py"), train=own.train)
    monkeypatch.setitem(sys.modules, "__main__", script)
    with pytest.raises(SettingError, match=r"mine\.py is a script that would train again .*if __name__"):
        sn.record("run", own.build(), own.rows, trainer="mine.py:train").begin()
    (tmp_path / "mine.py").write_text(CODE + '\nif __name__ == "__main__":\n    pass\n')
    sn.record("run", own.build(), own.rows, trainer="mine.py:train").begin()
    with pytest.raises(DataError, match=r"mine\.py has no 'later' yet"):
        sn.record("run", own.build(), own.rows, trainer="mine.py:later").begin()


# Trainers of other frameworks.

NAMED = """
import torch
from torch import nn
from transformers import TrainingArguments

from spotlessnet.training.hugging_face import HuggingFaceTrainer

class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(5, 3)
    def forward(self, values, labels=None):
        logits = self.head(self.drop(values))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

def rows():
    draw = torch.Generator().manual_seed(0)
    return {"values": torch.randn(40, 5, generator=draw)}, torch.arange(40) % 3

arguments = TrainingArguments(
    output_dir="unused", num_train_epochs=3, learning_rate=0.05, per_device_train_batch_size=8, use_cpu=True, seed=4,
    disable_tqdm=True, report_to=[], logging_strategy="no", save_strategy="no",
)
trainer = HuggingFaceTrainer(arguments)
"""


def test_hugging_face(own, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    (tmp_path / "named.py").write_text(NAMED)
    named = importlib.import_module("named")
    model = named.Linear()
    record = sn.record("run", model, named.rows, build=named.Linear, trainer="named.py:trainer", seed=4)
    examples = sn.Examples(sn.Data.of(named.rows()))
    transformers.Trainer(
        model=model, args=named.arguments, train_dataset=examples, callbacks=[record.hugging_face()]
    ).train()
    found = sn.read_weights(Path("run") / WEIGHTS)
    assert all(torch.equal(value, found[name]) for name, value in model.state_dict().items())
    again = sn.recorded("run").retrain().module().state_dict()
    assert all(torch.equal(value, found[name]) for name, value in again.items())
    assert "transformers" in read_record(Path("run")).packages
    other = sn.record("other", model, named.rows, seed=5)
    with pytest.raises(SettingError, match=r"is 5 where those have 4\. Give `seed=arguments\.seed`"):
        transformers.Trainer(
            model=model, args=named.arguments, train_dataset=examples, callbacks=[other.hugging_face()]
        ).train()
    sys.modules.pop("named")


def test_hugging_face_that_goes_on_is_refused(own):
    pytest.importorskip("transformers")
    callback = sn.record("run", own.build(), own.rows).hugging_face()
    with pytest.raises(SettingError, match=r"seen from its first step, but this one goes on at step 7"):
        callback.on_train_begin(SimpleNamespace(seed=0, data_seed=None), SimpleNamespace(global_step=7), None)


def test_lightning_by_its_hooks(own, monkeypatch):
    """Lightning calls a callback's hooks by these names; the real one is asked where it is installed."""
    monkeypatch.setattr(adapter, "_lightning", lambda: SimpleNamespace(Callback=object))
    model = own.build()
    callback = sn.record("run", model, own.rows, build=own.build, trainer=own.train).lightning()
    callback.on_train_start(SimpleNamespace(global_step=0), model)
    began = {name: value.clone() for name, value in model.state_dict().items()}
    step(model)
    callback.on_train_end(SimpleNamespace(global_step=3), model)
    found = sn.read_weights(Path("run") / INIT)
    assert all(torch.equal(value, found[name]) for name, value in began.items())
    assert (Path("run") / ROWS).is_file()
    with pytest.raises(SettingError, match=r"goes on at step 3"):
        sn.record("other", model, own.rows).lightning().on_train_start(SimpleNamespace(global_step=3), model)


@pytest.mark.filterwarnings("ignore")  # its own use of what is deprecated
def test_lightning(own, tmp_path):
    lightning = pytest.importorskip("lightning")
    (tmp_path / "lit.py").write_text(
        "import lightning, torch\nfrom torch import nn\nfrom spotlessnet.training.lightning import LightningTrainer\n"
        "class Lit(lightning.LightningModule):\n"
        "    def __init__(self):\n        super().__init__()\n        torch.manual_seed(0)\n"
        "        self.body = nn.Linear(3, 2)\n"
        "    def forward(self, x):\n        return self.body(x)\n"
        "    def training_step(self, batch, index):\n"
        "        return nn.functional.cross_entropy(self(batch[0]), batch[1])\n"
        "    def configure_optimizers(self):\n        return torch.optim.AdamW(self.parameters(), lr=0.05)\n"
        "trainer = LightningTrainer(epochs=3, batch_size=8, options={'accelerator': 'cpu'})\n"
    )
    lit = importlib.import_module("lit")
    model = lit.Lit()
    callback = sn.record("run", model, own.rows, build=lit.Lit, trainer="lit.py:trainer", seed=2).lightning()
    loader = torch.utils.data.DataLoader(
        sn.Examples(sn.Data.of(own.rows())), 8, shuffle=True, generator=torch.Generator().manual_seed(2)
    )
    lightning.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[callback]
    ).fit(model, loader)
    found = sn.read_weights(Path("run") / WEIGHTS)
    again = sn.recorded("run").retrain().module().state_dict()
    assert all(torch.equal(value, found[name]) for name, value in again.items())
    assert json.loads((Path("run") / RECORD).read_text())["packages"]["lightning"] == lightning.__version__
    sys.modules.pop("lit")


class Wrapped(nn.Module):
    """As a distributed wrapper: the network inside is what is recorded."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module

    def forward(self, x: Tensor) -> Tensor:
        return self._orig_mod(x)


def test_a_wrapped_network_is_recorded_as_itself(own):
    model = own.build()
    with sn.record("run", Wrapped(model), own.rows, build=own.build):
        step(model)
    assert set(sn.read_weights(Path("run") / WEIGHTS)) == {"weight", "bias"}
