"""Puts the table of methods, as they declare themselves, into README.md and `docs/which_method_when.md`.

python benchmarks/methods_table.py
"""

import sys
from pathlib import Path

from spotlessnet.methods.catalogue import CAPTION, FIRST, table

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Place

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "which_method_when.md")
PLACE = Place("<!-- methods: written by benchmarks/methods_table.py -->", "<!-- end of methods -->")


def made() -> str:
    """The table with its caption."""
    return f"{table(FIRST)}\n\n{CAPTION}\nYour own case: `spotless scrub --dry-run`."


if __name__ == "__main__":
    for page in PAGES:
        PLACE.write(page, made())
