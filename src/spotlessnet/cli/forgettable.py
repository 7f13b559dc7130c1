"""`spotless train --forgettable` and `spotless forget`: a model that people can leave, exactly and at once."""

import secrets
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from torch import nn

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.cli.common import AsJson, Console, Debug, Out, Quiet
from spotlessnet.core.data import Data, spelled
from spotlessnet.core.errors import DataError, NeedError, SettingError, check_choice
from spotlessnet.core.files import Look
from spotlessnet.core.id_lists import read_list
from spotlessnet.core.progress import quiet as no_bars
from spotlessnet.forgettable.model import ForgettableModel, Request
from spotlessnet.requests.audits import rerun_command
from spotlessnet.requests.case import Case, made
from spotlessnet.requests.folder import Folder
from spotlessnet.requests.loading import listed_ids, neutral, rows_of
from spotlessnet.store.checkpoints import write_weights
from spotlessnet.store.receipts import COMMITMENT, commit_to, keyed, statement, write_receipt

if TYPE_CHECKING:
    from spotlessnet.forgettable.adapt import Adaptation

STATE, NETWORK = "forgettable.safetensors", "network.safetensors"

LEARNING_RATE = 0.01

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
    lr: LearningRate = LEARNING_RATE,
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
    console = Console(json, quiet)
    folder = Folder(out, again=False)
    began = datetime.now(UTC)
    folder.check({})
    case = Case(model=model, core=core, data=data, id_column=id_column, epochs=epochs, lr=lr)
    fit = Fit.of(case, features, ridge)
    with no_bars() if quiet or json else nullcontext():
        fitted = fit(seed)
    return _write(folder, fitted, console, None, [], began)


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
    listed_ids(forget, id_column)  # a list that cannot be read should not cost the loading
    look = Look.at(state)
    loaded = load_forgettable(state, backbone_of(model))
    listed = _wanted(forget, id_column, {str(name) for name in loaded.examples.places})
    look.check_unchanged("--state")
    copies = loaded.examples.copies_of(loaded.examples.find(listed))
    loaded.forget(listed)
    if copies:
        console.say(f"note    {copies} rows that stay are copies of rows that go; what they teach stays with them")
    return _write(folder, loaded, console, look, listed, began, copies)


@dataclass(frozen=True, eq=False)
class Fit:
    """A case and its settings, read and checked: `fit(seed)` is a model."""

    backbone: nn.Module
    core: Data
    user: Data
    ids: list[str]
    features: str
    ridge: float | Literal["loo"]
    adaptation: "Adaptation | None"

    @staticmethod
    def of(case: Case, features: str, ridge: str) -> "Fit":
        """Everything that can be wrong is found here, before any work."""
        from spotlessnet.forgettable.adapt import Adaptation

        check_choice("features", features, ("pooled", "tangent", "linearised"))
        share: float | Literal["loo"] = "loo" if ridge == "loo" else _number(ridge)
        assert isinstance(case.model, str)
        user, core = rows_of(case, "data"), rows_of(case, "core")
        # Lists of ids are text, so ids are kept as text.
        ids = spelled(range(len(user)) if case.id_column == "row" else user.column(case.id_column or "id"))
        how = Adaptation(epochs=case.epochs, lr=LEARNING_RATE if case.lr is None else case.lr) if case.epochs else None
        return Fit(backbone_of(case.model), core, user, ids, features, share, how)

    def __call__(self, seed: int) -> ForgettableModel:
        """A model whose core training has this seed."""
        from spotlessnet.forgettable.fit import fit_forgettable

        return fit_forgettable(
            self.backbone,
            core=self.core,
            user=self.user,
            features=self.features,
            adaptation=self.adaptation,
            ridge=self.ridge,
            ids=self.ids,
            seed=seed,
        )


def audit_fits(
    case: Case, features: str, ridge: str, seeds: int, *, say: Callable[[str], None], only_plan: bool = False
) -> AuditReport | None:
    """Audit what `spotless forget` would do, over seeds of the core training; the plan alone gives no report."""
    from spotlessnet.auditing.forgettable_models import audit_forgettable

    fit = Fit.of(case, features, ridge)
    assert isinstance(case.forget, Path)
    listed = _wanted(case.forget, case.id_column or "id", set(fit.ids))
    missing = len(set(listed) - set(fit.ids))
    if missing:
        raise DataError(f"{missing} of {len(set(listed))} ids belong to no row of --data. Check the list.")
    say(
        f"plan    {2 * seeds} models on {len(fit.core)} core and {len(fit.user)} user rows, each solved anew without "
        f"the rows; {seeds} of them forget"
    )
    if only_plan:
        return None
    return audit_forgettable(
        fit,
        core=fit.core,
        user=fit.user,
        forget=listed,
        test=None if case.test is None else rows_of(case, "test"),
        seeds=seeds,
        rerun_command=f"{rerun_command(case, 'audit --forgettable')} --features {features} --ridge {ridge}",
    )


def _wanted(path: Path, column: str, known: set[str]) -> list[str]:
    """The ids of a list, less the name of its only column, which the known ids tell."""
    if column == "row":
        return listed_ids(path, column)
    return read_list(path, column).without_header(known)


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


def _described(look: Look | None, written: str, count: int, salt: bytes) -> dict[str, Any]:
    """What the receipt says of what was read: the rows were in the old state, or are in the one that was written."""
    rows = keyed(salt, "rows", written if look is None else look.sha256)
    found: dict[str, Any] = {"data": {"rows": {"count": count, "commitment": rows}}}
    if look is not None:
        # Keyed: the old state holds the rows that went.
        found["state"] = {"name": neutral("state", look.path), "commitment": keyed(salt, "file", look.sha256)}
    return found


def _write(
    folder: Folder,
    model: ForgettableModel,
    console: Console,
    look: Look | None,
    ids: list[str],
    began: datetime,
    copies: int = 0,
) -> int:
    from spotlessnet.forgettable.files import save_forgettable

    request: Request = model.requests[-1]
    state, network = folder.path / STATE, folder.path / NETWORK
    with folder.claimed():
        # A digest of the list itself would let anyone test a guess; the commitment to its ids is salted.
        digests = {} if look is None else {"state": look.sha256}
        kept = {"files": digests, "ids": commit_to(ids, folder.salt), "kind": request.kind}
        folder.private.keep_request(kept)
        # Both still hold the rows that stay, and the problem has one solution: without a salt of their own, whoever
        # guessed a row that goes later could make them again, and see by their digests here that the guess was right.
        salted = {"format": "pt", "salt": secrets.token_hex(32)}
        subjects = {STATE: save_forgettable(state, model), NETWORK: write_weights(network, model.module(), salted)}
        matched = request.examples if request.kind == "forget" else 0
        about = request.about()
        receipt = statement(
            subjects=subjects,
            inputs=_described(look, subjects[STATE], matched + request.left, folder.salt),
            request={
                "identity": folder.identity(kept),
                "cohort": {"commitment": commit_to(ids, folder.salt), "algorithm": COMMITMENT},
                "matched": matched,
                "missing": 0,
                "duplicates": 0,
                "kept": request.left,
                "copies": copies,
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
