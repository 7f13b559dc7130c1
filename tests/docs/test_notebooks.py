"""Notebooks run from top to bottom, and show what they print."""

import json
import re

import benchmarks.notebooks as made
import pytest

NAMES = ("images", "tabular", "text")


def test_there_is_one_for_images_one_for_tables_and_one_for_text():
    assert tuple(sorted(path.stem for path in made.FOLDER.glob("*.ipynb"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_says_what_it_said(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((made.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    printed, kept = made.run(notebook), made.kept(notebook)
    assert [bool(text) for text in printed] == [bool(text) for text in kept]
    # Other versions round otherwise, and a verdict near its margin may be another word: how lines begin stays.
    for now, before in zip(printed, kept, strict=True):
        said, saying = (re.findall(r"^([a-z-]+):", text, re.M) for text in (before, now))
        assert said == saying
        assert "not forgotten" not in now
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_a_page_with_what_it_printed(site, name):
    html = (site / "notebooks" / name / "index.html").read_text(encoding="utf-8")
    notebook = json.loads((made.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    last = [text for text in made.kept(notebook) if text][-1].splitlines()[-1]
    assert last.replace("'", "&#39;") in html or last in html
    assert f"{name}.ipynb" in html
