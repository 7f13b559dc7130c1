"""What every command on a case shares: its flags, one for each field of a `Case`.

Flags come from the fields, so that commands and case files can never differ.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from spotlessnet.cli.console import AsJson as AsJson
from spotlessnet.cli.console import Console as Console
from spotlessnet.cli.console import Debug as Debug
from spotlessnet.cli.console import Quiet as Quiet
from spotlessnet.cli.console import results_alone as results_alone
from spotlessnet.cli.entry import printable as printable
from spotlessnet.core.errors import SettingError
from spotlessnet.core.recipe import Recipe
from spotlessnet.requests.case import Case, as_flag, kinds

PAIRS = ("settings", "recipe")
"""Fields that hold values by name."""

PAIRS_SHOWN = {"--set": "damping=0.1", "--recipe": "optimizer=adamw"}

GROUPS = {
    "the network": {
        "training": "The folder that `sn.record` wrote; it says model, weights, data, init, loss and training.",
        "accept_changes": "Go on where code or package versions have changed since the training was recorded.",
        "model": "The network: `package.module:build` or `file.py:build`, a module or what makes one.",
        "weights": "Its checkpoint: .safetensors, a folder of shards, or a .pt of plain tensors.",
        "loss": "What was minimised: cross-entropy, next-token, squared-error (½‖f − y‖², half the square), "
        "binary-cross-entropy or `file.py:name`.",
        "init": "The weights at which training began.",
        "weight_decay": "The weight decay of training: λ of ½λ‖w − start‖² beside the mean loss.",
        "device": "Where to work: auto, cpu or cuda.",
    },
    "the data": {
        "data": "Training rows: `mydata.py:train` (gives inputs, labels and ids, or a Dataset), an .npz file, or a "
        "data set's name.",
        "test": "Rows that only test, as for data.",
        "validation": "Held-out rows that a method may read, as for data.",
        "core": "Rows that will never be asked to go, as for data.",
        "forget": "The list of ids that must go: .csv, .json, .jsonl or .txt.",
        "id_column": "The data's column that holds the ids; `row` counts rows from zero.",
        "allow_missing": "Go on when some ids match no row.",
        "mislabelled": "Say that the rows to forget carry wrong labels.",
    },
    "how to forget": {
        "method": "How to forget: a name of `spotless list`, or several joined by +.",
        "settings": "A setting of the method, such as damping=0.1; may be repeated.",
        "max_nats": "Add noise until at most this much can be told from the weights, in nats.",
        "max_error_increase": "Add as much noise as raises the error by at most this share.",
        "max_damage": "Refuse a network whose error on rows that stay rose by more than this share. Unless said: 0.05.",
        "accept_damage": "Write the network however much worse it answers.",
        "reference": "Weights retrained without the rows, to measure the nats against.",
        "statistics": "Statistics that `spotless precompute` wrote for these weights.",
        "fold_models": "Fold models that `spotless precompute --folds 2` trained, for out-of-fold-distillation.",
        "seed": "FOR EXPERIMENTS ONLY: a seed that can be run again protects nobody.",
    },
    "how it was trained": {
        "train": "Your own training: `file.py:train`, a function `train(model, examples, seed) -> model`.",
        "epochs": "Passes over the data.",
        "lr": "Learning rate.",
        "momentum": f"Momentum. Unless said: {Recipe.momentum}.",
        "batch_size": f"Rows in a batch. Unless said: {Recipe.batch_size}.",
        "schedule": "How the rate fell: constant, linear, cosine, one-cycle or step.",
        "patience": "Epochs after the first without a mistake.",
        "recipe": "Any other setting of `sn.Recipe`, such as optimizer=adamw or warmup_ratio=0.1; may be repeated.",
    },
    "the run": {
        "out": "The folder for the result; must be new or empty.",
        "keep_private": "Days until the folder `private` in --out is due for `spotless purge`.",
        "memory_limit": "GiB that work is cut to fit into; what would need more is refused.",
    },
}
"""What each field of a case means, by the part of the help in which it stands."""

Out = Annotated[Path, typer.Option("--out", "-o", help="The folder for the result.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on in a folder that an earlier run of this request began.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print plan and cost, and write nothing.")]
File = Annotated[
    Path | None, typer.Option("--case", help="A TOML file with the fields below; flags go before it.", metavar="FILE")
]


@dataclass(frozen=True)
class Asked:
    """What a person asked of a command on a case, as one value.

    **Arguments:**

    - `flags`: fields of the case that came as flags, and not from a file.
    """

    case: Case
    resume: bool
    dry_run: bool
    flags: frozenset[str] = frozenset()


def takes_case(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `f(asked: Asked, ...)` one flag for each field of a `Case`, and build the case from them."""
    signature = inspect.signature(command).parameters.values()
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in signature if p.name != "asked"]

    def wrapped(file: Path | None, resume: bool, dry_run: bool, **given: Any) -> Any:
        rest = {p.name: given.pop(p.name) for p in own}
        for name in PAIRS:
            given[name] = pairs(given[name], as_flag(name))
        with results_alone():
            flags = frozenset(name for name, value in given.items() if value is not None)
            return command(Asked(Case.of(given, file), resume, dry_run, flags), **rest)

    shared = [_parameter("file", File, None), *_case_parameters(), _parameter("resume", Resume, False)]
    parameters = [*shared, _parameter("dry_run", DryRun, False), *own]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer looks at
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    wrapped.__doc__ = command.__doc__
    return wrapped


def _case_parameters() -> list[inspect.Parameter]:
    panels = {name: (panel, text) for panel, texts in GROUPS.items() for name, text in texts.items()}
    known = kinds()
    made = []
    for f in fields(Case):
        kind: Any = list[str] if f.name in PAIRS else known[f.name][0]
        panel, about = panels[f.name]
        text = about + ("" if f.default in (None, False) else f" Unless said: {f.default}.")
        names = (as_flag(f.name), "-o") if f.name == "out" else (as_flag(f.name),)
        metavar = {**dict.fromkeys(PAIRS, "NAME=VALUE"), "forget": "LIST"}.get(
            f.name, None if kind is bool else f.name.upper()
        )
        option = typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel)
        made.append(_parameter(f.name, Annotated[kind | None, option], None))
    return made


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def pairs(given: list[str] | None, flag: str) -> dict[str, str] | None:
    """What a flag that may be repeated says: values by name."""
    if not given:
        return None
    settings = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals):
            raise SettingError(f"{flag} must be NAME=VALUE, such as {PAIRS_SHOWN[flag]}, but got {one[:60]!r}.")
        settings[name.strip()] = value.strip()
    return settings
