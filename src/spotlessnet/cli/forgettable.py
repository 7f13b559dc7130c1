"""`spotless train --forgettable` and `spotless forget`: a model that people can leave, exactly and at once."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from spotlessnet.cli.common import AsJson, Console, Debug, Out, Quiet, pairs, results_alone
from spotlessnet.core.errors import NeedError
from spotlessnet.core.progress import quiet as no_bars
from spotlessnet.requests.case import Case
from spotlessnet.requests.folder import RECEIPT
from spotlessnet.requests.forgettable import LEARNING_RATE, STATE, Served, forget_listed, train_model

Model = Annotated[str, typer.Option("--model", help="The backbone: `package.module:build` or `file.py:build`.")]
Core = Annotated[str, typer.Option("--core", help="Rows that nobody will ask to forget: `mydata.py:core`, or an .npz.")]
Rows = Annotated[str, typer.Option("--data", help="User rows, as for core.")]
IdColumn = Annotated[str, typer.Option("--id-column", help="The column of ids; `row` counts rows from zero.")]
Features = Annotated[str, typer.Option("--features", help="pooled, tangent or linearised.")]
Ridge = Annotated[str, typer.Option("--ridge", help="A share of the mean diagonal, or loo (leave-one-out).")]
Classes = Annotated[
    int | None,
    typer.Option(
        "--classes",
        help="How many classes there are. Unless said, as the labels show, also of rows that leave later.",
        min=1,
    ),
]
Epochs = Annotated[
    int | None, typer.Option("--epochs", help="Passes over the core rows; 0 takes the backbone as it is.", min=0)
]
LearningRate = Annotated[
    float | None, typer.Option("--lr", help=f"Learning rate on the core rows. Unless said: {LEARNING_RATE}.")
]
Recipe = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        metavar="NAME=VALUE",
        help="Any other setting of the training on core rows, such as optimizer=adamw; may be repeated.",
    ),
]
Wanted = Annotated[bool, typer.Option("--forgettable", help="Train a model that user rows can leave again.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the training on core rows.", min=0)]
State = Annotated[Path, typer.Option("--state", help=f"The {STATE} that training or the last request wrote.")]
Forget = Annotated[Path, typer.Option("--forget", help="The list of ids that must go: .csv, .json, .jsonl or .txt.")]


@results_alone()
def train(
    model: Model,
    core: Core,
    data: Rows,
    out: Out,
    forgettable: Wanted = False,
    id_column: IdColumn = "id",
    features: Features = "pooled",
    ridge: Ridge = "loo",
    classes: Classes = None,
    epochs: Epochs = None,
    lr: LearningRate = None,
    recipe: Recipe = None,
    seed: Seed = 0,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Train a network that user rows can leave again: `spotless forget` then takes milliseconds and is exact.

    [bold]spotless train --forgettable --model nets.py:backbone --core mydata.py:core --data mydata.py:train
    --out model/[/bold]

    Your own modules are imported, so their code runs. The state holds ids and features: keep it as private as the data.
    """
    if not forgettable:
        raise NeedError(
            "`spotless train` trains forgettable models only. Give --forgettable, or train as you always do."
        )
    case = Case(model=model, core=core, data=data, id_column=id_column, epochs=epochs, lr=lr, out=out)
    case = replace(case, recipe=pairs(recipe, "--recipe"))
    with no_bars() if quiet else nullcontext():
        served = train_model(case, features=features, ridge=ridge, classes=classes, seed=seed)
    return _told(served, Console(json, quiet))


@results_alone()
def forget(
    model: Model,
    state: State,
    forget: Forget,
    out: Out,
    id_column: IdColumn = "id",
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Take user rows out of a forgettable model, exactly, and write new state, network and receipt.

    [bold]spotless forget --model nets.py:backbone --state model/forgettable.safetensors --forget forget.csv
    --out after/[/bold]

    Delete the old state afterwards: it still holds the rows.
    """
    return _told(forget_listed(model, state, forget, out, id_column=id_column), Console(json, quiet))


def _told(served: Served, console: Console) -> int:
    if served.unsealed:
        console.say("note    the state has no digest, as older ones have none; compare it with the receipt beside it")
    if served.copies:
        console.say(
            f"note    {served.copies} rows that stay are copies of rows that go; what they teach stays with them"
        )
    console.say(f"result  {served}")
    told = {"status": "done", "state": served.state, "network": served.network, "receipt": served.receipt}
    console.give(told, [str(served.state), str(served.network), str(served.folder / RECEIPT)])
    return 0
