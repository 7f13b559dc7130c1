"""Tables of readouts and bounds as Markdown, made from what they declare."""

from spotlessnet.core.bound import BOUNDS
from spotlessnet.core.readout import READOUTS
from spotlessnet.core.registry import markdown_table

READOUT_COLUMNS = ("readout", "what it is", "unit", "should be", "needs", "paper")
BOUND_COLUMNS = ("bound", "what it is", "unit", "holds", "paper")


def readouts() -> str:
    """Every registered readout in one row."""
    rows = [
        (
            f"`{entry.python_name}`",
            entry.summary,
            entry.thing.unit,
            entry.thing.ideal,
            ", ".join(entry.needs),
            entry.paper,
        )
        for entry in READOUTS.entries()
    ]
    return markdown_table(READOUT_COLUMNS, rows)


def bounds() -> str:
    """Every registered bound in one row."""
    rows = [
        (f"`{entry.python_name}`", entry.summary, entry.thing.unit, entry.guarantee, entry.paper)
        for entry in BOUNDS.entries()
    ]
    return markdown_table(BOUND_COLUMNS, rows)
