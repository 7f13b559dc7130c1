"""How often a request finds a fold model that saw none of it: the table of `docs/forget_a_person.md`, by closed form.

python benchmarks/fold_chance.py
"""

import sys
from pathlib import Path

from spotlessnet.core.registry import markdown_table
from spotlessnet.precomputed.fold_chance import chance_unseen

# Started as a script, its own folder comes first, not the one that holds it.
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.common import Place

PAGE = Path(__file__).parents[1] / "docs" / "forget_a_person.md"
PLACE = Place.of("fold_chance")
GROUPS = 50_000
REQUESTS = (1, 2, 3, 5, 10, 100, 1000)
FOLDS = (2, 3, 5, 10)
REPEATS = (1, 4, 16)


def made() -> str:
    """A row for every number of folds and of repeats, a column for every number of groups that a request names."""
    head = ("folds", "repeats", *(f"{m:,} group{'s' * (m > 1)}" for m in REQUESTS))
    rows = [[str(k), str(r), *(_shown(m, k, r) for m in REQUESTS)] for k in FOLDS for r in REPEATS]
    return markdown_table(head, rows)


def _shown(request: int, folds: int, repeats: int) -> str:
    p = chance_unseen(request, folds, repeats, groups=GROUPS)
    if p < 0.0005:
        return "0 %"
    return f"{p:.1%}".replace("%", " %").replace(".0 %", " %")


if __name__ == "__main__":
    PLACE.write(PAGE, made())
