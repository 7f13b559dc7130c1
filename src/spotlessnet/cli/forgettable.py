"""`spotless train --forgettable` and `spotless forget`: a model that people can leave, exactly and at once."""

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from spotlessnet.cli.common import AsJson, Console, Debug, Out, Quiet
from spotlessnet.core.errors import DataError, NeedError, SettingError, check_choice
from spotlessnet.core.files import sha256
from spotlessnet.core.progress import quiet as no_bars
from spotlessnet.forgettable.model import ForgettableModel, Request
from spotlessnet.requests.case import Case, made
from spotlessnet.requests.folder import Folder
from spotlessnet.requests.loading import listed_ids, rows_of
from spotlessnet.store.checkpoints import write_weights
from spotlessnet.store.receipts import COMMITMENT, commit_to, keyed, statement, write_receipt

STATE, NETWORK = "forgettable.safetensors", "network.safetensors"

LIMITS = (
    "The backbone's own pre-training data and the core data are not covered: they stay.",
    "Copies of an example under other ids stay unless those ids are given too.",
)

Model = Annotated[str, typer.Option("--model", help="The backbone: `package.module:build` or `file.py:build`.")]
Core = Annotated[str, typer.Option("--core", help="Rows that nobody will ask to forget: `mydata.py:core`, or an .npz.")]
Rows = Annotated[str, typer.Option("--data", help="User rows, as for core.")]
IdColumn = Annotated[str, typer.Option("--id-column", help="The column of ids; `row` counts rows from zero.")]
Features = Annotated[str, typer.Option("--features", help="pooled, tangent or linearised.")]
Ridge = Annotated[str, typer.Option("--ridge", help="A share of the mean diagonal, or loo (leave-one-out).")]
Epochs = Annotated[
    int, typer.Option("--epochs", help="Passes over the core rows; 0 takes the backbone as it is.", min=0)
]
LearningRate = Annotated[float, typer.Option("--lr", help="Learning rate on the core rows.")]
Wanted = Annotated[bool, typer.Option("--forgettable", help="Train a model that user rows can leave again.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the training on core rows.", min=0)]
State = Annotated[Path, typer.Option("--state", help=f"The {STATE} that training or the last request wrote.")]
Forget = Annotated[Path, typer.Option("--forget", help="The list of ids that must go: .csv, .json, .jsonl or .txt.")]


def train(
    model: Model,
    core: Core,
    data: Rows,
    out: Out,
    forgettable: Wanted = False,
    id_column: IdColumn = "id",
    features: Features = "pooled",
    ridge: Ridge = "loo",
    epochs: Epochs = 0,
    lr: LearningRate = 0.01,
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
    from spotlessnet.forgettable.adapt import Adaptation
    from spotlessnet.forgettable.fit import fit_forgettable

    if not forgettable:
        raise NeedError(
            "`spotless train` trains forgettable models only. Give --forgettable, or train as you always do."
        )
    check_choice("features", features, ("pooled", "tangent", "linearised"))
    console = Console(json, quiet)
    folder = Folder(out, again=False)
    began = datetime.now(UTC)
    folder.check({})
    case = Case(model=model, core=core, data=data)
    user = rows_of(case, "data")
    with no_bars() if quiet or json else nullcontext():
        fitted = fit_forgettable(
            backbone_of(model),
            core=rows_of(case, "core"),
            user=user,
            features=features,
            adaptation=Adaptation(epochs=epochs, lr=lr) if epochs else None,
            ridge="loo" if ridge == "loo" else _number(ridge),
            # Lists of ids are text, so ids are kept as text.
            ids=[str(name) for name in (range(len(user)) if id_column == "row" else user.column(id_column))],
            seed=seed,
        )
    return _write(folder, fitted, console, {}, [], began)


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
    from spotlessnet.forgettable.files import load_forgettable

    console = Console(json, quiet)
    folder = Folder(out, again=False)
    began = datetime.now(UTC)
    if not state.is_file():
        raise DataError(f"There is no file {state} for --state. Give what `spotless train --forgettable` wrote.")
    folder.check({"state": state, "forget": forget})
    listed = listed_ids(forget, id_column)
    loaded = load_forgettable(state, backbone_of(model))
    loaded.forget(listed)
    return _write(folder, loaded, console, {"state": state, "forget": forget}, listed, began)


def backbone_of(spec: str) -> nn.Module:
    """The module that a person's function makes."""
    network = made(spec, "model")
    if not isinstance(network, nn.Module):
        raise DataError(
            f"--model {spec} must be a torch module or a function that makes one, but gave {type(network)}."
        )
    return network


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as e:
        raise SettingError(f"A number was expected, but got {str(text)[:40]!r}.") from e


def _write(
    folder: Folder, model: ForgettableModel, console: Console, inputs: dict[str, Path], ids: list[str], began: datetime
) -> int:
    from spotlessnet.forgettable.files import save_forgettable

    request: Request = model.requests[-1]
    state, network = folder.path / STATE, folder.path / NETWORK
    with folder.claimed():
        # A digest of the list itself would let anyone test a guess; the commitment to its ids is salted.
        digests = {name: sha256(path) for name, path in inputs.items() if name != "forget"}
        kept = {"files": digests, "ids": commit_to(ids, folder.salt), "kind": request.kind}
        folder.private.keep_request(kept)
        subjects = {STATE: save_forgettable(state, model), NETWORK: write_weights(network, model.module())}
        bound: dict[str, Any] = {
            name: {"name": inputs[name].name, "digest": {"sha256": digest}} for name, digest in digests.items()
        }
        matched = request.examples if request.kind == "forget" else 0
        # The rows were read from the state, or are in the one that was written.
        rows = keyed(folder.salt, "rows", digests.get("state", subjects[STATE]))
        bound["data"] = {"rows": {"count": matched + request.left, "commitment": rows}}
        about = request.about()
        receipt = statement(
            subjects=subjects,
            inputs=bound,
            request={
                "identity": folder.identity(kept),
                "cohort": {"commitment": commit_to(ids, folder.salt), "algorithm": COMMITMENT},
                "matched": matched,
                "missing": 0,
                "duplicates": 0,
                "kept": request.left,
                "copies": 0,
            },
            method="forgettable by design: exact downdate of a ridge problem",
            settings={"ridge": model.ridge, "ridge_from": model.ridge_from, "features": len(model.weights)},
            noise={"kind": "none"},
            diagnostics=about,
            private={"destroy_after": folder.private.destroy_after.isoformat(), "by": "spotless purge"},
            salt=folder.salt,
            limits=LIMITS,
            began=began,
        )
        folder.private.keep_diagnostics(about)
        write_receipt(folder.receipt, receipt)
    console.say(
        f"result  {request.examples} examples, {request.left} left, {1000 * request.seconds:.1f} ms; at most "
        f"{request.certificate.relative:.1g} of the weights' length from solving anew"
    )
    told = {"status": "done", "state": state, "network": network, "receipt": receipt}
    console.give(told, [str(state), str(network), str(folder.receipt)])
    return 0
