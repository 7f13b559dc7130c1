"""The page on the architecture names every room, and shows the files that are visited."""

import re
import tomllib

from benchmarks.modules_visited import picture
from benchmarks.request_path import visited

from spotlessnet.core.recipe import Recipe
from tests.docs.blocks import ROOT, blocks

PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "spotlessnet"


def test_every_room_has_its_line():
    listed = set(re.findall(r"^  (\w+)/ ", PAGE.read_text(encoding="utf-8"), re.M))
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert listed == rooms


def test_layers_are_those_of_the_import_contract():
    [contract, *_] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    first = next(block.text for block in blocks(PAGE) if block.language == "mermaid")
    assert re.findall(r'\["([^"]+)"\]', first) == contract["layers"]


def test_pictures_show_files_that_exist():
    charts = [block.text for block in blocks(PAGE) if block.language == "mermaid"]
    found = [
        (room.strip("/"), name)
        for chart in charts
        for room, listed in re.findall(r'\["([\w/]+/)<br/>([^"]*)"\]', chart)
        for name in re.findall(r"(\w+\.py)", listed)
    ]
    assert len(found) > 30
    for room, name in found:
        assert (SOURCE / room / name).is_file(), f"{room}/{name}: python benchmarks/modules_visited.py --docs {PAGE}"


def test_a_file_is_visited_when_its_function_runs():
    assert visited(lambda: Recipe(epochs=3).time(10)) == ["core/deprecated.py", "core/recipe.py", "core/errors.py"]


def test_files_are_numbered_as_they_come_and_rooms_are_boxes():
    drawn = picture(["core/a.py", "core/b.py", "methods/c.py", "core/d.py"])
    assert 'r0["core/<br/> 1 a.py<br/> 2 b.py"]' in drawn
    assert 'r0 --> r1["methods/<br/> 3 c.py"]' in drawn
    assert 'r1 --> r2["core/<br/> 4 d.py"]' in drawn
