"""Case files, the names of a person's own code, and settings of methods: every refusal by its text."""

from pathlib import Path

import pytest

from spotlessnet.core.errors import DataError, NeedError, SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import METHODS
from spotlessnet.methods import NTK, Fisher, WithinBudget
from spotlessnet.requests.case import Case, made, read_case, resolve
from spotlessnet.requests.methods import BEST, FALLBACK, described, named, scrub_of


def written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "case.toml").write_text(text)
    return tmp_path / "case.toml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('modle = "x"', r"unknown field 'modle'\. Did you mean 'model'\?"),
        ("zzz = 1", r"unknown field 'zzz'\. Known are model, weights, data"),
        ("model = 1", r"The field 'model' of the case file .* must be text, but is '1'"),
        ('max-nats = "one"', r"The field 'max-nats' .* must be a number, but is 'one'"),
        ("epochs = 1.5", r"The field 'epochs' .* must be a whole number, but is '1.5'"),
        ("epochs = true", r"must be a whole number, but is 'True'"),
        ('allow_missing = "yes"', r"must be true or false, but is 'yes'"),
        ("set = 3", r"The field 'set' .* must be a table, but is '3'"),
        ("model = ", r"is not valid TOML"),
        ("x = " + "[" * 5000, r"is not valid TOML"),
    ],
)
def test_case_files_are_refused_by_the_field(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_case(written(tmp_path, text))


def test_a_case_file_must_be_there_be_text_and_be_short(tmp_path):
    with pytest.raises(DataError, match=r"There is no case file at .*nowhere\.toml"):
        read_case(tmp_path / "nowhere.toml")
    (tmp_path / "case.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"is not valid TOML"):
        read_case(tmp_path / "case.toml")
    with pytest.raises(DataError, match=r"is longer than 65536 bytes .it has 1048577., so it is not one"):
        read_case(written(tmp_path, "#" * (2**20 + 1)))


def test_values_come_in_their_types(tmp_path):
    found = read_case(written(tmp_path, 'weights = "w.pt"\nmax_nats = 1\nid-column = "person"\n[set]\ndamping = 0.5'))
    assert found == {"weights": tmp_path / "w.pt", "max_nats": 1.0, "id_column": "person", "settings": {"damping": 0.5}}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"max_nats": -1.0}, SettingError, r"`max-nats` must be positive, but got -1\.0"),
        ({"weight_decay": -1.0}, SettingError, r"`weight_decay` must be zero or positive"),
        ({"seed": -1}, SettingError, r"`seed` must be a whole number from 0 below 2⁶³, but got -1"),
        ({"device": "tpu"}, SettingError, r"`device` must be auto, cpu or cuda, but got 'tpu'"),
        ({"weights": Path("no.pt")}, DataError, r"There is no file no\.pt for --weights\. Check the path\."),
        ({"lr": 0.1}, NeedError, r"A recipe needs at least epochs and lr, but --epochs was not given\."),
        ({"epochs": 3, "lr": 0.1, "schedule": "x"}, SettingError, r"`schedule` must be one of 'constant', 'cosine'"),
    ],
)
def test_fields_are_checked_before_anything_is_opened(fields, error, message):
    with pytest.raises(error, match=message):
        Case.of(fields)


def test_paths_of_a_case_file_count_from_its_folder(tmp_path, monkeypatch):
    """The fault before: they were taken from wherever the command was called."""
    folder = tmp_path / "requests"
    folder.mkdir()
    text = """
        weights = "../w.pt"
        out = "run"
        model = "../nets.py:build"
        data = "rows.npz"
        test = "package.module:test"
        loss = "squared-error"
        init = "/far/away.pt"
        [recipe]
        augment = "views.py:crop"
        optimizer = "adamw"
    """
    monkeypatch.chdir(tmp_path)
    found = read_case(written(folder, text).relative_to(tmp_path))
    assert found == {
        "weights": Path("w.pt"),
        "out": Path("requests/run"),
        "model": "nets.py:build",
        "data": "requests/rows.npz",
        "test": "package.module:test",
        "loss": "squared-error",
        "init": Path("/far/away.pt"),
        "recipe": {"augment": "requests/views.py:crop", "optimizer": "adamw"},
    }
    monkeypatch.chdir(folder)
    here = read_case(Path("case.toml"))
    assert (here["weights"], here["out"], here["data"]) == (Path("../w.pt"), Path("run"), "rows.npz")


def test_what_is_missing_is_named_by_its_flag():
    with pytest.raises(NeedError, match=r"This needs --model and --id-column\. Give them as flags, or as lines"):
        Case(id_column=None).need("model", "id_column")


def test_the_recipe_is_built_from_its_fields():
    assert Case(epochs=3, lr=0.1, weight_decay=0.5).as_recipe() == Recipe(epochs=3, lr=0.1, weight_decay=0.5)
    assert Case(weight_decay=0.5).as_recipe() is None


CODE = """
from dataclasses import dataclass
import helper
@dataclass
class Thing:
    value: int = helper.VALUE
def fails():
    raise ValueError("first line\\nsecond line")
def leaves():
    raise SystemExit(3)
number = 5
"""


def test_own_code_is_found_beside_its_file_and_called_when_it_can_be(tmp_path):
    (tmp_path / "own.py").write_text(CODE)
    (tmp_path / "helper.py").write_text("VALUE = 7\n")
    assert made(f"{tmp_path}/own.py:Thing", "model").value == 7
    assert made(f"{tmp_path}/own.py:number", "data") == 5
    assert resolve(f"{tmp_path}/own.py:Thing", "model").__name__ == "Thing"


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("nocolon", SettingError, r"--model must be `package\.module:name` or `file\.py:name`, but got 'nocolon'"),
        ("a:b c", SettingError, r"but got 'a:b c'"),
        ("no.py:build", DataError, r"There is no file no\.py for --model\. Check the path before the colon\."),
        ("no.such.module:build", DataError, r"no\.such\.module for --model could not be used: ModuleNotFoundError"),
        ("own.py:nothing", DataError, r"own\.py has no 'nothing' for --model\. Check the name after the colon\."),
        ("own.py:fails", DataError, r"own\.py:fails for --model could not be used: ValueError: first line\. Correct"),
        ("own.py:leaves", DataError, r"own\.py:leaves for --model could not be used: SystemExit: 3"),
        ("broken.py:x", DataError, r"broken\.py for --model could not be used: SyntaxError"),
    ],
)
def test_own_code_that_fails_is_named(tmp_path, monkeypatch, spec, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(CODE)
    (tmp_path / "helper.py").write_text("VALUE = 7\n")
    (tmp_path / "broken.py").write_text("def (:\n")
    with pytest.raises(error, match=message):
        made(spec, "model")


def test_methods_by_name_with_typed_settings():
    ntk = named("ntk", {"damping": "0.1", "search": "no", "max-iterations": 7, "output": "identity"})
    assert (ntk.damping, ntk.search, ntk.solver.max_iterations, ntk.output) == (0.1, False, 7, "identity")  # type: ignore[attr-defined]
    assert named("newton", {"damping": "none"}).damping is None  # type: ignore[attr-defined]
    both = named("ntk+fisher", {"ntk.damping": "0.1", "strength": "1e-3"})
    assert (both.links[0].damping, both.links[1].strength) == (0.1, 1e-3)  # type: ignore[attr-defined]
    assert set(METHODS) >= {"ntk", "fisher", "retrain", "gradient-ascent", "mixed-linear"}


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("ntkk", {}, r"There is no method 'ntkk'\. Did you mean 'ntk'\?"),
        ("qqqq", {}, r"There is no method 'qqqq'\. Known are amun, bad-teacher"),
        ("ntk+ntk", {}, r"The method 'ntk' comes twice in 'ntk\+ntk'\. Name each once\."),
        ("ntk", {"dampin": "1"}, r"There is no setting 'dampin' for ntk\. Did you mean 'damping'\?"),
        ("ntk", {"qqqq": "1"}, r"There is no setting 'qqqq' for ntk\. It has output"),
        ("ntk", {"tolerance": "much"}, r"`ntk\.tolerance` must be a number, but got 'much'"),
        ("ntk", {"rank": "1.5"}, r"`ntk\.rank` must be a whole number, but got '1\.5'"),
        ("ntk", {"search": "maybe"}, r"`ntk\.search` must be true or false, but got 'maybe'"),
        ("ntk", {"output": "x"}, r"`ntk\.output` must be 'identity' or 'softmax' or 'exact', but got 'x'"),
        ("ntk", {"tolerance": "-1"}, r"`Auto\.tolerance` must be positive, but got -1\.0"),
        ("ntk+fisher", {"seed": "1"}, r"--set seed: ntk and fisher both have it\. Say which: --set ntk\.seed="),
        ("ntk", {"fisher.seed": "1"}, r"--set fisher\.seed: 'fisher' is not among the methods ntk"),
        ("fisher", {"memory": "x"}, r"There is no setting 'memory' for fisher"),
        ("fisher+ntk", {}, r"Only the last scrub of a chain may add noise, but Fisher comes earlier"),
    ],
)
def test_methods_and_settings_are_refused_by_name(method, settings, message):
    with pytest.raises(SettingError, match=message):
        named(method, settings)


def test_a_budget_brings_noise_where_the_method_has_none():
    scrub = scrub_of(Case(method="ntk", max_nats=1.0))
    assert isinstance(scrub, WithinBudget)
    assert [type(link) for link in scrub.scrub.links] == [NTK, Fisher]  # type: ignore[attr-defined]
    assert described(scrub)[0] == "ntk+fisher"
    assert described(scrub)[1]["budget"] == {"max_nats": 1.0}
    kept = scrub_of(Case(method="fisher", max_error_increase=0.01))
    assert isinstance(kept, WithinBudget)
    assert isinstance(kept.scrub, Fisher)


def test_the_default_is_described_like_any_other():
    assert described(scrub_of(Case()))[0] == FALLBACK
    known = Case(init=Path("start.safetensors"), epochs=3, lr=0.1)
    assert described(scrub_of(known))[0] == BEST
