"""Commands of benchmarks that pages give are understood by the scripts they name."""

import importlib
import re
import shlex

import pytest

from tests.docs.blocks import PAGES, ROOT, blocks

GIVEN = [
    (page.relative_to(ROOT).as_posix(), line)
    for page in PAGES
    for block in blocks(page)
    if block.language == "sh"
    for line in block.text.replace("\\\n", " ").splitlines()
    if re.match(r"python benchmarks/\w+\.py", line)
]


def test_there_are_some():
    assert len(GIVEN) > 8


@pytest.mark.parametrize(("page", "line"), GIVEN)
def test_a_script_understands_its_command(page, line):
    _, script, *words = shlex.split(line, comments=True)
    module = importlib.import_module(script.removesuffix(".py").replace("/", "."))
    if hasattr(module, "flags"):
        module.flags().parse_args(words)
    else:  # a parser of its own, made where it is used
        source = (ROOT / script).read_text(encoding="utf-8")
        assert [word for word in words if word.startswith("--") and f'"{word}"' not in source] == []
