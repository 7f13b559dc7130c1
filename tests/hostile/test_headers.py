"""Headers of statistics and fold models that were made to hang or crash: one line, code 3, before any work."""

import shutil
import time

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.cli.workshop import BASE, RECIPE, furnish, spotless

LIMIT = 5.0
"""Seconds that a refusal may take."""

NESTED = "[" * 100_000 + "]" * 100_000
AFTER = {f"after {text[:9]!r}": {"after_requests": text} for text in ("", "2", "true", "1 ", "9" * 5000, NESTED)}
WRITTEN = {
    "nested": NESTED,
    "list": "[]",
    "rank in text": '{"rank": "x"}',
    "rank of a trillion": '{"rank": 1000000000000}',
    "rank with a point": '{"rank": 1e12}',
    "rank below zero": '{"rank": -1}',
    "no sample": '{"sample": 0}',
    "sample below zero": '{"sample": -5}',
    "endless coreset": '{"coreset": 1e400}',
    "coreset that is true": '{"coreset": true}',
    "unknown diagonal": '{"diagonal": "nonsense"}',
    "listed diagonal": '{"diagonal": []}',
    "kronecker as a number": '{"kronecker": 2}',
    "seed below all": '{"seed": -99999999999999999999999999}',
    "huge seed": f'{{"seed": 1{"0" * 400}}}',
    "unknown name": '{"\\n\\u001b[2Jx": 1}',
}
STATISTICS = (
    AFTER
    | {f"written: {name}": {"written": text} for name, text in WRITTEN.items()}
    | {f"trained on {text[:9]}": {"trained_on": text} for text in ("-5", "59", "9" * 400, "9" * 5000, "x")}
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A newcomer's folder with statistics and fold models of its network."""
    folder = furnish(tmp_path_factory.mktemp("kept"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ("precompute", *BASE[:6], *RECIPE, "--rank", "5", "--folds", "2", "--out", "kept")
        assert spotless(*words).code == 0
    return folder


def refused(folder, monkeypatch, kind: str, header: dict[str, str]) -> str:
    """What is said where a file's header says other things."""
    monkeypatch.chdir(folder)
    source = folder / f"kept/{kind}.safetensors"
    with safe_open(source, "pt") as opened:
        told = opened.metadata()
    save_file(load_file(source), folder / "bad.safetensors", told | header)
    shutil.rmtree(folder / "run", ignore_errors=True)  # of a file that should have been refused, and was not
    began = time.perf_counter()
    flags = (f"--{kind}", "bad.safetensors", *(("--method", "ntk") if kind == "statistics" else ()))
    ended = spotless("scrub", *BASE, *RECIPE, *flags, "--quiet", "--out", "run")
    assert time.perf_counter() - began < LIMIT
    assert ended.code == 3, ended.err
    assert ended.err.count("\n") == 1
    assert ended.err.rstrip("\n").isprintable()
    assert not (folder / "run").exists()
    return ended.err


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_with_a_hostile_header_are_refused(kept, monkeypatch, name):
    header = STATISTICS[name]
    # Rows gone, so that there can have been requests.
    assert "header is damaged" in refused(kept, monkeypatch, "statistics", {"trained_on": "70"} | header)


@pytest.mark.parametrize("name", AFTER)
def test_fold_models_with_a_hostile_header_are_refused(kept, monkeypatch, name):
    assert "are damaged" in refused(kept, monkeypatch, "fold-models", AFTER[name])


def test_an_honest_header_is_read(kept, monkeypatch):
    """The header alone is why the others are refused."""
    monkeypatch.chdir(kept)
    source = kept / "kept/statistics.safetensors"
    with safe_open(source, "pt") as opened:
        told = opened.metadata() | {"trained_on": "70"} | {"after_requests": "1"}
    save_file(load_file(source), kept / "good.safetensors", told)
    words = ("scrub", *BASE, *RECIPE, "--method", "ntk", "--statistics", "good.safetensors", "--dry-run")
    ended = spotless(*words)
    assert ended.code == 0, ended.err
