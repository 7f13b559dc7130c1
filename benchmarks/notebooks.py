"""Runs the notebooks of `docs/notebooks/` from top to bottom, and keeps in them what they print.

python benchmarks/notebooks.py            # all of them
python benchmarks/notebooks.py text       # one
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def run(notebook: dict[str, Any]) -> list[str]:
    """What each cell of code prints, all in one namespace, as a kernel would run them."""
    space: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for cell in code(notebook):
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard):
            exec(compile("".join(cell["source"]), "<cell>", "exec"), space)
        printed.append(heard.getvalue())
    return printed


def code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kept(notebook: dict[str, Any]) -> list[str]:
    """What each cell printed when the notebook was last run."""
    return ["".join("".join(output["text"]) for output in cell["outputs"]) for cell in code(notebook)]


def main(names: list[str]) -> None:
    """Run and write."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for number, (cell, text) in enumerate(zip(code(notebook), run(notebook), strict=True), 1):
            lines = text.splitlines(keepends=True)
            cell["execution_count"] = number
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
