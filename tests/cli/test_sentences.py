"""Sentences of `spotless list` are whole: no formula leaves a hole, and none is shown as it was typed.

Those of docstrings are drawn on the site, where `tests/docs/test_site.py` looks for formulas that are raw or empty.
"""

import json
import re

from tests.cli.workshop import spotless

HOLE = re.compile(
    r"\s[.,;:)]"  # something went before the mark
    r"|\b(?:is|the|a|an|than|equals)\s*[.,;:)]"
    r"|[:=,]\s*[.,;:)]|\(\s*\)|\s\s|^\W|[:,=]$"
    r"|[$\\{}]"  # TeX
)


def holes(line: str) -> list[str]:
    """Where a sentence has one."""
    return HOLE.findall(line.replace("...", "…"))


def test_every_sentence_of_the_list_is_whole():
    found = json.loads(spotless("list", "--json").out)
    sentences = [
        (name, text)
        for things in found.values()
        if isinstance(things, dict)
        for name, about in things.items()
        for text in (about.values() if isinstance(about, dict) else [about])
        if isinstance(text, str) and " " in text
    ]
    assert len(sentences) > 60
    assert [(name, text) for name, text in sentences if holes(text)] == []


def test_a_hole_would_be_noticed():
    for line in ("linearised training on .", "the norm of , in nats", "a step ( )", r"the sum $\sum x$", "the bound:"):
        assert holes(line), line
    assert holes("Weights where training began, in float64 (see `Trained`).") == []


def test_no_setting_is_broken_where_eighty_columns_are_enough(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    told = json.loads(spotless("list", "methods", "--json").out)["methods"]
    words = spotless("list", "methods").out.split()
    settings = {f"{name}={value}" for one in told.values() for name, value in one["settings"].items()}
    assert {"epoch_fraction=0.2", "retain_temperature=None"} <= settings
    assert settings <= {word.rstrip(",") for word in words}
