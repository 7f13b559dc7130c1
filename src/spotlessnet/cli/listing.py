"""`spotless list`: what there is to choose from."""

from typing import Annotated, Any

import typer

from spotlessnet.cli.common import AsJson, Console, Debug, Quiet
from spotlessnet.core.errors import check_choice
from spotlessnet.core.registry import Entry, defaults, first_line

KINDS = ("methods", "readouts", "bounds", "datasets", "experiments")
What = Annotated[str, typer.Argument(help=f"{', '.join(KINDS)}, or all.")]


def list_(what: What = "all", json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> int:
    """Show methods with their settings, readouts, bounds, data sets and experiments.

    [bold]spotless list methods[/bold]
    """
    check_choice("what", what, (*KINDS, "all"))
    console = Console(json, quiet)
    makers = {
        "methods": methods,
        "readouts": readouts,
        "bounds": bounds,
        "datasets": datasets,
        "experiments": _experiments,
    }
    found = {kind: makers[kind]() for kind in KINDS if what in (kind, "all")}
    for kind, entries in found.items():
        needs = ["needs"] if any("needs" in one for one in entries.values()) else []
        rows = [
            [
                name,
                one["about"],
                *(", ".join(one[column]) for column in needs),
                ", ".join(f"{k}={v}" for k, v in one["settings"].items()),
            ]
            for name, one in entries.items()
        ]
        console.table([kind, "what it does", *needs, "settings"], rows)
    console.give(found)
    return 0


def methods() -> dict[str, Any]:
    """Every method with its settings and what they are unless said; what to try first comes first."""
    from spotlessnet.methods.catalogue import ranked
    from spotlessnet.requests.methods import usual, wraps

    return {
        entry.name: {
            "about": entry.summary,
            "settings": usual(entry.name),
            "paper": entry.paper,
            "needs": list(entry.needs),
            "reads": list(entry.reads),
            "guarantee": entry.guarantee,
        }
        for entry in ranked()
        # A budget is asked for by flags of its own, not by a name.
        if not wraps(entry.thing)
    }


def readouts() -> dict[str, Any]:
    """Every look at one network."""
    from spotlessnet.core.readout import READOUTS

    return {
        entry.name: _declared(entry) | {"unit": entry.thing.unit, "ideal": entry.thing.ideal}
        for entry in READOUTS.entries()
    }


def bounds() -> dict[str, Any]:
    """Every limit on what an attacker can learn."""
    from spotlessnet.core.bound import BOUNDS

    return {entry.name: _declared(entry) | {"unit": entry.thing.unit} for entry in BOUNDS.entries()}


def _declared(entry: Entry[Any]) -> dict[str, Any]:
    """What a readout or a bound says of itself, with its settings where they have a default."""
    return {
        "about": entry.summary,
        "python": entry.python_name,
        "settings": defaults(entry.thing),
        "paper": entry.paper,
        "needs": list(entry.needs),
        "guarantee": entry.guarantee,
    }


def datasets() -> dict[str, Any]:
    """Every data set that has a name."""
    from spotlessnet.datasets.registry import DATASETS

    return {entry.name: {"about": entry.summary, "settings": {}} for entry in DATASETS.entries()}


def experiments() -> dict[str, Any]:
    """The registered experiments by name."""
    import spotlessnet.experiments as registry

    return dict(getattr(registry, "EXPERIMENTS", {}))


def _experiments() -> dict[str, Any]:
    return {name: {"about": first_line(one), "settings": {}} for name, one in experiments().items()}
