"""Writes the tables of `docs/support.md` from the rows of `results/networks.jsonl`.

python benchmarks/support_table.py
"""

import sys
from pathlib import Path

from spotlessnet.core.registry import markdown_table
from spotlessnet.core.scrub import METHODS
from spotlessnet.requests.methods import wraps

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Place
from benchmarks.networks_table import ORDER, ROOT, rows

PAGE = ROOT / "docs" / "support.md"
NETWORKS = Place("<!-- networks: written by benchmarks/support_table.py -->", "<!-- end of networks -->")
METHODS_HERE = Place("<!-- methods: written by benchmarks/support_table.py -->", "<!-- end of methods -->")

SHORT = {
    "own_cnn": ("CNN", "your own loop: Adam, augmentation, dropout, BatchNorm"),
    "hugging_face_classifier": ("text classifier", "`Trainer` of Hugging Face: AdamW, warm-up"),
    "vision_transformer": ("vision transformer", "a recipe: AdamW, cosine schedule, warm-up"),
    "lora": ("LoRA adapters", "a recipe, on a frozen network"),
    "lightning_module": ("Lightning module", "`Trainer` of Lightning"),
    "tabular_regression": ("tabular regression", "a recipe, squared error"),
    "multi_label": ("several labels", "a recipe, yes or no for each label"),
    "causal_language_model": ("causal language model", "a recipe, next token"),
    "segmentation": ("segmentation", "a recipe, a class for each pixel"),
}
"""A name for a column, and how the example trains."""


def network_table() -> str:
    """One row an example: how it was trained, what unlearned it, and how that was judged."""
    known = rows()
    cells = []
    for name in ORDER:
        row, (short, trained) = known[name], SHORT[name]
        cells.append((f"[{short}](networks/{name}.py)", trained, row["method"], row["compared_by"], row["verdict"]))
    return markdown_table(("network", "trained by", "method that was run", "audit compares", "verdict"), cells)


def method_table() -> str:
    """One row a method: which networks it takes."""
    known = rows()
    names = [entry.name for entry in METHODS.entries() if not wraps(entry.thing)]
    cells = [(f"`{name}`", *("–" if name in known[n]["refused"] else "yes" for n in ORDER)) for name in names]
    return markdown_table(("method", *(SHORT[name][0] for name in ORDER)), cells)


def filled(page: str) -> str:
    """The page with both tables."""
    return METHODS_HERE.fill(NETWORKS.fill(page, network_table()), method_table())


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
