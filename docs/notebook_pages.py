"""Notebooks as pages: what they say, their code, and what it printed when it was run."""

import json
from pathlib import Path


def page(notebook: Path) -> str:
    """One notebook as Markdown."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join("".join(output["text"]) for output in cell["outputs"]).rstrip()
        if printed:
            parts.append(f"```text\n{printed}\n```")
    parts.append(f"[This page as a notebook]({notebook.name})")
    return "\n\n".join(parts) + "\n"
