"""Doctests of docstrings as fenced blocks: without fences, Markdown would take their answers for links."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*(?:\n(?=>>> ))?)+", re.M)


class DoctestFences(griffe.Extension):
    """Puts a fence around each run of lines that begins with `>>>`."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Look at one documented object."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(
                lambda found: f"```python\n{found[0].rstrip()}\n```\n", obj.docstring.value
            )
