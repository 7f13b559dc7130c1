"""Every name of the API with the page that has it.

The API was one page once. Its anchors were the full names of things, and each name here still bears its own: an old
link leads to the line that leads on.
"""

import importlib
import re
from pathlib import Path

from spotlessnet.core.registry import markdown_table, with_registered

ENTRY = re.compile(r"^::: ([\w.]+)$(?:\n    options: \{members: \[([^\]]*)\]\})?", re.M)


def names(markdown: str) -> list[str]:
    """Full names of what a page documents; for a module, those of its members."""
    found = []
    for path, members in ENTRY.findall(with_registered(markdown)):
        try:
            importlib.import_module(path)
        except ModuleNotFoundError:
            found.append(path)
        else:
            found += [f"{path}.{name.strip()}" for name in members.split(",")]
    return found


def listed(folder: Path, address: str) -> str:
    """A table for each page of a folder, under the title of the page."""
    parts = []
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        rows = [_row(name, f"{address}/{path.name}") for name in names(text)]
        title = text.splitlines()[0].removeprefix("# ")
        parts += [f"## {title}", markdown_table(("name", "what it is"), rows)]
    return "\n\n".join(parts)


def _row(name: str, page: str) -> tuple[str, str]:
    module, _, last = name.rpartition(".")
    said = (getattr(importlib.import_module(module), last).__doc__ or "").strip().partition("\n")[0]
    said = said.replace("\\|", "\\Vert ").replace("|", "\\vert ")  # a bar would end the cell; only formulas have any
    return f'<a id="{name}"></a>[`{last}`]({page}#{name})', said


def with_names(markdown: str, docs: Path) -> str:
    """A page whose mark `<!-- names: folder -->` became the names on the pages of that folder."""
    return re.sub(r"<!-- names: (\w+) -->", lambda found: listed(docs / found[1], found[1]), markdown)
