"""Puts the table of methods, as they declare themselves, into README.md and `docs/which_method_when.md`.

python benchmarks/methods_table.py
"""

from pathlib import Path

from spotlessnet.methods.catalogue import CAPTION, table

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "which_method_when.md")
BEGIN, END = "<!-- methods: written by benchmarks/methods_table.py -->", "<!-- end of methods -->"

FIRST = ("short-retrain", "retrain", "out-of-fold-distillation", "ntk", "newton", "fisher")
"""What to try first comes first; baselines and published methods for comparison follow by name."""


def put_into(page: str) -> str:
    """The page with the table between its markers."""
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    return f"{before}\n\n{table(FIRST)}\n\n{CAPTION}\nYour own case: `spotless scrub --dry-run`.\n\n{after}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(put_into(page.read_text(encoding="utf-8")), encoding="utf-8")
