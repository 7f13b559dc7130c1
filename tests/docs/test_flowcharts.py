"""The flowcharts that the site draws by itself."""

import importlib.util
import re
from types import ModuleType

import pytest

from tests.docs.blocks import PAGES, ROOT, blocks


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mermaid_fence", ROOT / "docs" / "mermaid_fence.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_chart_of_the_pages_is_drawn(drawing):
    found = [block.text for page in PAGES for block in blocks(page) if block.language == "mermaid"]
    assert found
    for text in found:
        chart = drawing.read(text)
        svg = drawing.draw(chart)
        assert svg.count("<rect") == len(chart.labels)
        assert svg.count("<path") == len(chart.arrows)


def test_lines_and_labels_are_shown_and_escaped(drawing):
    svg = drawing.draw(drawing.read('flowchart TD\n a["one<br/>a < b"] -->|then| b\n b --> c["end"]'))
    assert re.findall(r">([^<>]+)</text>", svg) == ["then", "one", "a &lt; b", "b", "end"]


def test_what_it_cannot_draw_is_an_error(drawing):
    with pytest.raises(ValueError, match="`flowchart TD` only"):
        drawing.read("sequenceDiagram\n a->>b: hi")
    with pytest.raises(ValueError, match="Nothing is known about this line"):
        drawing.read("flowchart TD\n a -.-> b")
    with pytest.raises(ValueError, match="must not lead back"):
        drawing.draw(drawing.read("flowchart TD\n a --> b\n b --> a"))
