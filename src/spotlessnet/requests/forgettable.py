"""Forgettable models as requests: train one, take examples out of it, audit that; files and receipt included."""

import secrets
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.core.data import Data, spelled
from spotlessnet.core.errors import DataError, SettingError, check_choice
from spotlessnet.core.files import Look
from spotlessnet.core.id_lists import listed_ids, read_list
from spotlessnet.forgettable.model import ForgettableModel, Request
from spotlessnet.requests.audits import rerun_command
from spotlessnet.requests.case import Case, as_flag, made, resolve
from spotlessnet.requests.folder import PRIVATE, RECEIPT, Folder
from spotlessnet.requests.loading import rows_of
from spotlessnet.store.checkpoints import read_metadata, write_weights
from spotlessnet.store.receipts import COMMITMENT, commit_to, keyed, neutral, statement, write_receipt

if TYPE_CHECKING:
    from spotlessnet.forgettable.adapt import Adaptation

STATE, NETWORK = "forgettable.safetensors", "network.safetensors"

LEARNING_RATE = 0.01

TRAINED_BY = {
    **{
        name: name for name in ("epochs", "lr", "batch_size", "weight_decay", "optimizer", "label_smoothing", "augment")
    },
    "warmup_ratio": "warmup",
    "bf16": "bfloat16",
}
"""The settings of a recipe that the training on core rows has too, and what it calls them."""

LIMITS = (
    "The backbone's own pre-training data and the core data are not covered: they stay.",
    "Copies of an example under other ids stay unless those ids are given too.",
)


@dataclass(frozen=True, eq=False)
class Served:
    """What a training or a request wrote.

    **Arguments:**

    - `request`: what was done, with its certificate.
    - `copies`: rows that stay and are copies of rows that went; what they teach stays with them.
    - `unsealed`: whether the state that was read is from before states had a digest.
    """

    folder: Path
    receipt: dict[str, Any]
    request: Request
    copies: int = 0
    unsealed: bool = False

    @property
    def state(self) -> Path:
        """What the next request is served from."""
        return self.folder / STATE

    @property
    def network(self) -> Path:
        """The checkpoint of the network."""
        return self.folder / NETWORK

    def __str__(self) -> str:
        did = self.request
        return (
            f"{did.examples} examples, {did.left} left, {1000 * did.seconds:.1f} ms; at most "
            f"{did.certificate.relative:.1g} of the weights' length from solving anew"
        )


def train_model(
    case: Case, *, features: str = "pooled", ridge: str = "loo", classes: int | None = None, seed: int = 0
) -> Served:
    """Train a forgettable model on the core and user rows of a case, and write it to the case's folder."""
    case.need("model", "core", "data", "out")
    assert case.out is not None
    check_not_served(case.out)
    folder = Folder(case.out, again=is_unfinished(case.out), resumes=False)
    began = datetime.now(UTC)
    folder.check({})
    return _write(folder, Fit.of(case, features, ridge, classes)(seed), None, [], began)


def forget_listed(model: str, state: Path, forget: Path, out: Path, *, id_column: str = "id") -> Served:
    """Take the rows of a list out of a forgettable model, exactly, and write new state, network and receipt.

    **Arguments:**

    - `model`: the backbone, as for `--model`.
    - `state`: what training, or the last request, wrote.
    """
    folder = _folder_for(state, out, {"state": state, "forget": forget})
    listed_ids(forget, id_column)  # a list that cannot be read should not cost the loading
    return _forget(model, state, folder, lambda known: _wanted(forget, id_column, known))


def forget_named(model: str, state: Path, ids: Sequence[str], out: Path) -> Served:
    """As `forget_listed`, of ids that stand in no file: whoever is killed leaves none behind."""
    return _forget(model, state, _folder_for(state, out, {"state": state}), lambda known: list(ids))


def _folder_for(state: Path, out: Path, inputs: Mapping[str, Path]) -> Folder:
    """The folder of a request, once everything that can be wrong before the loading is not."""
    check_not_served(out)
    folder = Folder(out, again=is_unfinished(out), resumes=False)
    if not state.is_file():
        raise DataError(f"There is no file {state} for --state. Give what `spotless train --forgettable` wrote.")
    folder.check(inputs)
    return folder


def _forget(model: str, state: Path, folder: Folder, wanted: Callable[[set[str]], list[str]]) -> Served:
    from spotlessnet.forgettable.files import load_forgettable

    began = datetime.now(UTC)
    look = Look.at(state)
    loaded = load_forgettable(state, backbone_of(model))
    listed = wanted({str(name) for name in loaded.examples.places})
    look.check_unchanged("--state")
    named = as_kept(listed, loaded.examples.places)
    copies = loaded.examples.copies_of(loaded.examples.find(named))
    loaded.forget(named)
    served = _write(folder, loaded, look, listed, began, copies)
    return replace(served, unsealed="digest" not in read_metadata(state))


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
    classes: int | None = None

    @staticmethod
    def of(case: Case, features: str, ridge: str, classes: int | None = None) -> "Fit":
        """Everything that can be wrong is found here, before any work."""
        check_choice("features", features, ("pooled", "tangent", "linearised"))
        share: float | Literal["loo"] = "loo" if ridge == "loo" else _number(ridge)
        assert isinstance(case.model, str)
        how = _adaptation(case)  # before the rows are read, which may take long
        user, core = rows_of(case, "data"), rows_of(case, "core")
        # Lists of ids are text, so ids are kept as text.
        ids = spelled(range(len(user)) if case.id_column == "row" else _named(user, case.id_column or "id"))
        return Fit(backbone_of(case.model), core, user, ids, features, share, how, classes)

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
            classes=self.classes,
            seed=seed,
        )


def _named(user: Data, column: str) -> list[Any]:
    """The ids of a column; what is missing would else become a person of the name "None", whom nobody asks for."""
    found = user.column(column)
    missing = sum(one is None or one != one or not str(one).strip() for one in found)
    if missing:
        raise DataError(
            f"{missing} of {len(found)} rows of --data have no id in the column {column!r}, so that nobody could ask "
            "for them. Give them ids, or leave them out."
        )
    return found


def _adaptation(case: Case) -> "Adaptation | None":
    """How the backbone is trained on core rows, from flags and the table `recipe`; `None` leaves it as it is."""
    from spotlessnet.forgettable.adapt import Adaptation
    from spotlessnet.requests.recipes import AUGMENT, typed_settings

    table = typed_settings(case.recipe or {})
    strange = next((name for name in table if name not in TRAINED_BY), None)
    if strange is not None:
        raise SettingError(
            f"--recipe {strange} says nothing of the training on core rows. That has {', '.join(TRAINED_BY)}."
        )
    flags = {name: value for name in ("epochs", "lr") if (value := getattr(case, name)) is not None}
    twice = sorted(table.keys() & flags.keys())
    if twice:
        raise SettingError(f"{as_flag(twice[0])} was given, and --recipe {twice[0]} too. Give it once.")
    how = {"lr": LEARNING_RATE, **flags, **table}
    if not how.get("epochs"):
        if table:
            raise SettingError("--recipe says how to train on core rows, but not for how long. Give --epochs too.")
        return None
    if AUGMENT in how:
        how[AUGMENT] = resolve(how[AUGMENT], "recipe")
    return Adaptation(**{TRAINED_BY[name]: value for name, value in how.items()})


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


def as_kept(listed: Iterable[str], kept: Iterable[Hashable]) -> list[Hashable]:
    """Ids as a state has them: a list is text, and states made in Python may have whole numbers."""
    spelling: dict[str, list[Hashable]] = {}
    for name in kept:
        spelling.setdefault(str(name), []).append(name)
    twice = sum(len(spelling.get(text, [])) > 1 for text in listed)
    if twice:
        raise DataError(
            f"{twice} ids of the list are both a text and a number in this state, so nobody can tell which is meant. "
            "Forget them in Python, where both can be given."
        )
    # What is unknown stays as it is, and is refused as unknown.
    return [spelling.get(text, [text])[0] for text in listed]


def check_not_served(out: Path) -> None:
    """Raise where a run was finished, perhaps unseen: it may have been killed when all was written."""
    if (out / RECEIPT).exists():
        raise DataError(
            f"--out {out} holds a receipt, so a run was finished there, and nothing is ever overwritten. `spotless "
            f"verify {out}` checks it; choose another folder for another run."
        )


def is_unfinished(out: Path) -> bool:
    """Whether a run began in this folder and was broken off: it may be done again there, as it wrote no receipt."""
    return (out / PRIVATE).is_dir() and not (out / RECEIPT).exists()


def _check_same(folder: Folder, kept: dict[str, Any]) -> None:
    began = folder.private.request()
    if folder.again and began is not None and began != kept:
        raise DataError(
            f"Another request began in --out {folder.path} and was broken off. Serve that, or choose another folder."
        )


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
    folder: Folder, model: ForgettableModel, look: Look | None, ids: list[str], began: datetime, copies: int = 0
) -> Served:
    """State and network, and the receipt last."""
    from spotlessnet.forgettable.files import save_forgettable

    request: Request = model.requests[-1]
    state, network = folder.path / STATE, folder.path / NETWORK
    with folder.claimed():
        # A digest of the list itself would let anyone test a guess; the commitment to its ids is salted.
        digests = {} if look is None else {"state": look.sha256}
        kept = {"files": digests, "ids": commit_to(ids, folder.salt), "kind": request.kind}
        _check_same(folder, kept)
        folder.private.keep_request(kept)
        # Both still hold the rows that stay, and the problem has one solution: without a salt of their own, whoever
        # guessed a row that goes later could make them again, and see by their digests here that the guess was right.
        salted = {"format": "pt", "salt": secrets.token_hex(32)}
        subjects = {STATE: save_forgettable(state, model, replace=folder.again)}
        subjects[NETWORK] = write_weights(network, model.module(), salted, replace=folder.again)
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
    return Served(folder.path, receipt, request, copies)
