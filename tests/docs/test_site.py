"""The built site: it needs nothing from elsewhere, and its formulas are drawn."""

import importlib.util
import json
import re
from types import ModuleType
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tests.docs.built import pages, read

RAW = re.compile(r"\\[(\[]|\\[a-zA-Z]{2,}|\$[^$\n]+\$")
"""TeX that nobody drew: its brackets, a command, dollars around something."""


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    pytest.importorskip("latex2mathml", reason="latex2mathml is not installed: formulas are not drawn")
    spec = importlib.util.spec_from_file_location("formulas", ROOT / "docs" / "formulas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_builds_without_a_warning_and_needs_nothing_from_elsewhere(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    assert "Machine unlearning for PyTorch" in home
    for name, html in pages(site):
        assert re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//', html) == [], name
        assert re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(?:https?:)?//', html) == [], name


def test_every_formula_of_every_page_is_drawn_and_none_is_empty(site):
    count = 0
    for name, html in pages(site):
        prose = read(html)
        assert RAW.findall(" ".join(prose.words)) == [], name
        assert "arithmatex" not in html, name
        for formula in prose.formulas:
            count += 1
            assert formula.strip(), name
            assert RAW.findall(formula) == [], name
    assert count > 150
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    for entry in index["docs"]:
        assert RAW.findall(" ".join(read(entry["text"]).words)) == [], entry["location"]


def test_a_formula_is_drawn_in_a_line_or_by_itself(drawing):
    html = r'<p>a <span class="arithmatex">\(a &lt; \sqrt{2}\)</span></p><div class="arithmatex">\[\|w\|_2\]</div>'
    made = drawing.drawn(html)
    assert made.count("<math") == 2
    assert made.count('display="block"') == 1
    assert "<msqrt>" in made
    assert read(made).formulas == ["a<2", "‖w‖2"]
    assert read(drawing.mathml(r"\big\| w \big\|")).formulas == ["‖w‖"]


@pytest.mark.parametrize("tex", [r"\nosuchcommand x", "", r"\,"])
def test_what_cannot_be_drawn_is_an_error(drawing, tex):
    with pytest.raises(ValueError, match="Nothing is known about a command in this formula, or it is empty"):
        drawing.mathml(tex)


def test_old_anchors_of_the_api_lead_to_a_line_that_leads_on(site):
    overview = (site / "api" / "index.html").read_text(encoding="utf-8")
    lines = re.findall(r'<a id="(spotlessnet\.[\w.]+)"></a><a href="([^"#]+)#([\w.]+)"', overview)
    assert len(lines) > 90
    for name, page, anchor in lines:
        assert anchor == name
        assert f'id="{name}"' in (site / "api" / page / "index.html").read_text(encoding="utf-8"), name


def section(name: str) -> list[str]:
    """The pages under one entry of the menu."""

    def below(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        parts = entry.values() if isinstance(entry, dict) else entry
        return [page for part in parts for page in below(part)]

    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: the menu was not read")
    menu = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.SafeLoader)["nav"]
    return below(next(entry[name] for entry in menu if name in entry))


def test_research_is_apart_from_what_users_read():
    research = set(section("Research"))
    assert {"papers.md", "reproduction.md", "full_size.md"} <= research
    assert {page for page in section("Guides") if page.startswith("results/")} == set()
    assert all(f"results/{path.name}" in research for path in (ROOT / "results").glob("*.md"))
