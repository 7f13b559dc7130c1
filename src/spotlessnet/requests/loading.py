"""Load a request: the network, its weights and the rows, from files or from memory, seen to fit before any work."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from spotlessnet.core.adapters import Arrays, MapStyle
from spotlessnet.core.answers import SOMETHING, Known, known_of_labels
from spotlessnet.core.data import Contents, Data, contents_of, spelled
from spotlessnet.core.errors import DataError, MismatchError, ResourceError, SettingError, SpotlessError
from spotlessnet.core.files import Look
from spotlessnet.core.id_lists import listed_ids, read_list
from spotlessnet.core.loss import LOSSES, CrossEntropy, Loss
from spotlessnet.core.source import HasLabels
from spotlessnet.core.split import Cohort, Request, Split, ids, rows
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.after_request import LEAST
from spotlessnet.precomputed.fold_model_files import read_fold_models
from spotlessnet.precomputed.fold_models import FoldModels
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.precomputed.statistics_files import read_statistics
from spotlessnet.requests.case import Case, as_flag, called, made, resolve
from spotlessnet.requests.effects import check_rows_left, effects_beside, held_later, marked
from spotlessnet.requests.folder import follows_request
from spotlessnet.requests.recorded import check_rows
from spotlessnet.store.checkpoints import fit_names, forgotten_by, load_into, read_weights
from spotlessnet.store.pretrained import is_pretrained, load_pretrained
from spotlessnet.store.receipts import described_file, keyed
from spotlessnet.store.receipts import sha256_of as sha256_of

TRIED = 8
"""Rows on which the network is tried before any work."""

DATA = ("data", "test", "validation", "core")
KNOW_THE_ROWS = ("training", "weights", "reference", "statistics", "fold_models")
"""Made from the rows: whoever can make them anew with a guess could confirm it by a plain digest."""


@dataclass(frozen=True, eq=False)
class LoadedNetwork:
    """What a request reads before its rows: the network, and what was precomputed for it."""

    trained: Trained
    statistics: Statistics | None = None
    reference: Float[Tensor, " P"] | None = None
    fold_models: FoldModels | None = None


@dataclass(frozen=True, eq=False)
class LoadedRequest(LoadedNetwork):
    """A case with everything read and checked.

    **Arguments:**

    - `ids`: what the forget list names, each once; only their commitment ever leaves this process.
    - `contents`: what the rows of each field held when they were read; the same holds for their digests.
    - `known`: what the network knows about the labels of its training rows, on a few of them.
    """

    case: Case = field(kw_only=True)
    split: Split = field(kw_only=True)
    ids: frozenset[str] = field(kw_only=True)
    contents: Mapping[str, Contents] = field(default_factory=dict, kw_only=True)
    known: "Known | None" = field(default=None, kw_only=True)

    @property
    def left(self) -> int:
        """How many rows the statistics will hold when those of the request are gone."""
        return 0 if self.statistics is None else self.statistics.count - len(self.split.forget)

    @property
    def may_write_statistics(self) -> bool:
        """Whether enough retained rows are at hand to write statistics anew."""
        return len(self.split.retain) >= min(LEAST, self.left)

    @property
    def no_statistics(self) -> str:
        """What is said where they are not."""
        return (
            f"No statistics were written for the next request: that takes {min(LEAST, self.left)} retained rows, but "
            f"{len(self.split.retain)} were at hand. Precompute new ones from the retained rows before it."
        )


def open_case(case: Case, *, needs_forget: bool = True) -> LoadedRequest:
    """Everything that a case names, read and seen to fit."""
    need_inputs(case, *(["forget"] if needs_forget else []))
    return load_rows(case, load_network(case), needs_forget=needs_forget)


def need_inputs(case: Case, *others: str) -> None:
    """Raise unless a case gives a network, rows and these; a network in memory has its weights in it."""
    case.need("model", *([] if isinstance(case.model, Trained) else ["weights"]), "data", *others)


def load_network(case: Case) -> LoadedNetwork:
    """The network of a case with its weights, and what was precomputed for it."""
    trained = case.model if isinstance(case.model, Trained) else _trained(case, marked(_network(case), case.weights))
    if case.device in ("cpu", "cuda") and trained.device.type != case.device:
        where = f"A network in memory stays where it is, on {trained.device.type}, but `device` is {case.device!r}."
        raise SettingError(f"{where} Move it yourself, `model.to({case.device!r})`, and leave out `device`.")
    statistics = case.statistics
    if isinstance(statistics, Path):
        # With what earlier requests did to their rows, as long as that lies in `private`.
        statistics = replace(read_statistics(statistics), effects=effects_beside(statistics))
    if statistics is not None:
        statistics = held_later(statistics, case.weights, trained.model)
        statistics.check_belongs_to(trained)
    reference = case.reference
    if reference is not None:
        named = named_weights(trained.module(), reference) if isinstance(reference, Path) else reference
        reference = trained.vector(named)
    fold_models = case.fold_models
    if isinstance(fold_models, Path):
        fold_models = replace(read_fold_models(fold_models), effects=effects_beside(case.weights))
    fold_models = None if fold_models is None else held_later(fold_models, case.weights, trained.model)
    return LoadedNetwork(trained, statistics, reference, fold_models)


def load_rows(case: Case, network: LoadedNetwork, *, needs_forget: bool = True) -> LoadedRequest:
    """The rows of a case, divided into those that stay and those that go, and seen to fit its network."""
    # The list first: a misspelt one should not cost the reading of the data.
    cohort = cohort_of(case) if needs_forget else None
    train, test = _rows(case, "data")
    test = _rows(case, "test")[0] if case.test is not None else test
    others = {n: _rows(case, n)[0] if getattr(case, n) is not None else None for n in ("validation", "core")}
    if not len(train):
        raise DataError("The training data has no row. Give the data that the network was trained on.")
    if case.training is not None:
        check_rows(case, train)
    for name, data in (("data", train), ("test", test), *others.items()):
        if data is not None and len(data):
            check_fits(network.trained, data, called(case, name))
    known = known_of_labels(network.trained, train)
    if not case.accept_damage:
        _check_began_earlier(case, network.trained, train, known)
    if network.statistics is not None:
        network.statistics.check_holds(train)
    if network.fold_models is not None:
        network.fold_models.check_serve(network.trained, train)
    if cohort is None:
        check_rows_left(case.weights, train, network.trained.model)
        # A split must name what goes; here nothing does.
        split = Split(forget=train.select([]), kept=train, test=test, request=Request("nothing"), **others)
        return LoadedRequest(**vars(network), case=case, split=split, ids=frozenset(), known=known)
    split = cohort(train, test, **others)
    if not len(split.forget):
        raise DataError("`forget` must name rows, but names none, so there is nothing to forget.")
    contents = {n: contents_of(data) for n, data in (("test", test), *others.items()) if data is not None}
    contents["data"] = contents_of(train, split.forget)
    if forgotten_by(network.trained.model) or (case.weights is not None and follows_request(case.weights)):
        check_rows_left(case.weights, split.retain, network.trained.model)
    found = replace(split.request, copies=contents["data"].copies)
    if isinstance(case.forget, Path) and isinstance(cohort, rows):
        # Row numbers come from a file as any other names do, and its comments count.
        found = replace(found, comments=read_list(case.forget, "row").comments)
    split = replace(split, request=found)
    _check_finite(case, contents)
    wanted = _asked_for(cohort, split)
    return LoadedRequest(**vars(network), case=case, split=split, ids=wanted, contents=contents, known=known)


def _asked_for(cohort: Cohort, split: Split) -> frozenset[str]:
    """The names of what goes, which a receipt commits to: ids where there are any, else row numbers."""
    if isinstance(cohort, ids):
        train = split.retain.join(split.forget)
        return frozenset(cohort.listing.without_header(set(spelled(train.column(cohort.column)))))
    if isinstance(cohort, rows):
        return frozenset(
            map(str, cohort.numbers)
        )  # also those that no row has, as for ids: it is the list that is told
    return frozenset(map(str, split.forget.rows.tolist()))


def _check_finite(case: Case, contents: Mapping[str, Contents]) -> None:
    for name, held in contents.items():
        if not held.is_finite:
            raise DataError(
                f"The inputs of {called(case, name)} must be finite, but some are NaN or infinite. Clean the data."
            )


def cohort_of(case: Case) -> Cohort:
    """What a case asks to go; its list is read, and the rows are not."""
    assert case.forget is not None  # `need` has looked
    if isinstance(case.forget, Cohort):
        return case.forget
    if case.id_column == "row":
        numbers = [int(text) for text in listed_ids(case.forget, "row")]
        return rows(numbers, allow_missing=bool(case.allow_missing), mislabelled=bool(case.mislabelled))
    return ids(
        case.forget,
        column=case.id_column or "id",
        allow_missing=bool(case.allow_missing),
        mislabelled=bool(case.mislabelled),
    )


def network_of(case: Case) -> nn.Module:
    """The network of a case as it was given: a module of its own."""
    return case.model.module() if isinstance(case.model, Trained) else _network(case)


def _network(case: Case) -> nn.Module:
    assert isinstance(case.model, str)  # `need` has looked
    assert case.weights is not None
    # Read first: a damaged checkpoint should not cost the import of a large network.
    tensors = None if case.weights.is_dir() else read_weights(case.weights)
    network = made(case.model, "model")
    if not isinstance(network, nn.Module):
        raise DataError(
            f"--model {case.model} must be a torch module or a function that makes one, but gave "
            f"{type(network).__name__}."
        )
    if tensors is None and is_pretrained(case.weights, network):
        return load_pretrained(network, case.weights).to(_device(case))
    return load_into(network, read_weights(case.weights) if tensors is None else tensors).to(_device(case))


def _device(case: Case) -> str:
    if case.device == "cuda" and not torch.cuda.is_available():
        raise ResourceError("--device cuda was asked for, but this machine has none that torch can use.")
    return "cuda" if case.device != "cpu" and torch.cuda.is_available() else "cpu"


def _rows(case: Case, name: str) -> tuple[Data, Data | None]:
    """Training and, where the source has them, test rows of a field."""
    spec = getattr(case, name)
    if isinstance(spec, Data):
        return spec, None
    if ":" not in spec:
        # Late, since the data sets that come with an installation take long to import.
        from spotlessnet.datasets.registry import load

        pair = load(spec)
        return (pair.test, None) if name == "test" else (pair.train, pair.test if len(pair.test) else None)
    return as_data(made(spec, name), as_flag(name), case.id_column), None


def rows_of(case: Case, name: str) -> Data:
    """The rows that a field names."""
    return _rows(case, name)[0]


def as_data(found: Any, name: str, column: str | None = None) -> Data:
    """Rows from what a person's function gave: anything `Data.of` takes, or inputs, labels and ids.

    **Arguments:**

    - `column`: what the case calls the ids, which have no name of their own there.
    """
    called = column if column not in (None, "row") else "id"
    try:
        if isinstance(found, TensorDataset) and len(found.tensors) == 2:
            return Data.of(found.tensors)  # the same rows, fetched at once instead of one by one
        if isinstance(found, tuple) and len(found) == 3:
            return Data.of(found[:2], columns={called: list(found[2])})
        data = Data.of(found)
    except SpotlessError as e:
        raise DataError(f"{name}: {e}") from e
    if isinstance(data.source, MapStyle) and not isinstance(found, Data):
        return replace(data, source=replace(data.source, id_name=called))
    return data


def _trained(case: Case, network: nn.Module) -> Trained:
    recipe = case.as_recipe()
    if recipe is not None and case.augment is not None:
        recipe = recipe.but(augment=resolve(case.augment, "recipe"))
    # A recipe knows what its decay means: that of AdamW is no penalty beside the loss.
    decay = case.weight_decay if recipe is None else None
    how = {"weight_decay": decay, "recipe": recipe, "trainer": _trainer(case)}
    trained = Trained.of(network, _loss(case), **how)
    if case.init is None:
        return trained
    start = named_weights(trained.module(), case.init)  # with its buffers, where they lie in the file
    trained.check_start(start, f"--init {case.init}")
    return Trained.of(network, trained.loss, **how, init=start)


def _trainer(case: Case) -> Any:
    """The function of `--train`, which is not called before something is retrained."""
    if case.train is None:
        return None
    found = resolve(case.train, "train")
    if not callable(found):
        raise DataError(
            f"--train {case.train} must be a function `train(model, examples, seed)`, but is {found!r:.80}."
        )
    return found


def named_weights(model: nn.Module, path: Path) -> Mapping[str, Tensor]:
    """The weights of a checkpoint under the names that the model has for them."""
    if path.is_dir() and is_pretrained(path, model):
        return load_pretrained(model, path).state_dict()
    return fit_names(read_weights(path), model.state_dict())


def _loss(case: Case) -> Any:
    text = case.loss or "cross-entropy"
    if text in LOSSES:
        return LOSSES[text]()
    if ":" not in text:
        raise DataError(f"--loss must be {', '.join(LOSSES)} or `file.py:function`, but got {text[:60]!r}.")
    return resolve(text, "loss")


def check_fits(trained: Trained, data: Data, flag: str) -> None:
    """Try the network on a few rows, and look at every label that can be had for little; errors call them `flag`."""
    try:
        batch = next(iter(trained.batches(data, TRIED)))
        with torch.no_grad():
            outputs = trained.outputs(batch.x)
        if trained.loss.is_classification:
            _check_labels(trained.loss, outputs, data.labels() if isinstance(data.source, HasLabels) else batch.y, flag)
        with torch.no_grad():
            losses = trained.losses(batch.x, batch.y)
    except SpotlessError:
        raise
    except Exception as e:  # whatever the network or the data raise means: they do not fit
        line = (str(e).strip().splitlines() or [""])[0][:160]
        raise MismatchError(
            f"The network cannot answer the rows of {flag}: {type(e).__name__}: {line}. Give the data that it was "
            "trained on, prepared in the same way."
        ) from e
    _check_inputs(data, flag)
    if not bool(losses.isfinite().all()):
        raise MismatchError(f"The loss of the first rows of {flag} is not finite. Check inputs, labels and weights.")


def _check_began_earlier(case: Case, trained: Trained, train: Data, known: Known) -> None:
    """Raise where `init` answers the training rows better than what training made of it: the two were swapped."""
    if trained.init is None:
        return
    began = trained.at(trained.init, trained.began_with)
    at_first = known_of_labels(began, train)
    if at_first.share > SOMETHING and at_first.loss < known.loss:
        weights = "the network itself" if case.weights is None else f"--weights {case.weights}"
        init = "`init`" if case.init is None else f"--init {case.init}"
        raise DataError(
            f"Training must have begun at {init}, but that answers the training rows better than {weights} does (mean "
            f"loss {at_first.loss:.3g} and {known.loss:.3g}): were the two swapped? A retraining from a trained "
            "network forgets nothing. --accept-damage (in Python `accept_damage=True`) goes on."
        )


def _check_labels(loss: Loss, outputs: Tensor, y: Tensor, flag: str) -> None:
    has_positions = isinstance(loss, CrossEntropy) and loss.has_positions(outputs)
    if y.is_floating_point() or (y.ndim == 1) == has_positions:
        raise MismatchError(
            f"Cross-entropy needs one whole-number label a row, or one a position, but the labels of {flag} have shape "
            f"{tuple(y.shape)} and type {y.dtype} for answers of shape {tuple(outputs.shape)}. Give class numbers, "
            "or name another loss (`--loss`, in Python `loss=`)."
        )
    classes = outputs.shape[1]
    if isinstance(loss, CrossEntropy) and has_positions:
        # As many labels as there are answers: the tried rows tell where the classes lie.
        classes = loss.positions(outputs, y[: len(outputs)].to(outputs.device)).logits.shape[2]
        empty = [i for i, row in enumerate(y) if not len(loss.labels_that_count(row[None]))]
        if empty:
            raise MismatchError(
                f"Every row needs a position whose label counts, but row {empty[0]} of {flag} has none: all of its "
                f"labels are {loss.ignore_index}. Leave it out of the data."
            )
        y = loss.labels_that_count(y)
    low, high = (int(y.min()), int(y.max())) if len(y) else (0, 0)
    if low < 0 or high >= classes:
        raise MismatchError(
            f"The network has {classes} outputs, but the labels of {flag} go from {low} to {high}. "
            f"Number the classes from 0 to {classes - 1}."
        )


def _check_inputs(data: Data, flag: str) -> None:
    if not isinstance(data.source, Arrays):
        return
    for x in data.source.x.values() if isinstance(data.source.x, dict) else (data.source.x,):
        if x.is_floating_point() and not bool(x.isfinite().all()):
            raise DataError(f"The inputs of {flag} must be finite, but some are NaN or infinite. Clean the data.")


def described_inputs(opened: LoadedRequest, looks: Mapping[str, Look], salt: bytes) -> dict[str, dict[str, Any]]:
    """What the receipt says of everything that was read: files by their digests, rows by what the loader gave."""
    # A plain digest of the list, of rows, or of a module that holds some would let anyone test a guess.
    of_rows = {look.sha256 for name, look in looks.items() if name in (*DATA, *KNOW_THE_ROWS)}
    found = {name: described_file(name, look, salt, of_rows) for name, look in looks.items() if name != "forget"}
    if "model" in opened.case.objects:
        # Weights know the rows: whoever can make them anew with a guess could confirm it by a plain digest.
        found["weights"] = {"commitment": keyed(salt, "weights", sha256_of(opened.trained.weights))}
    for name, held in opened.contents.items():
        rows = {"count": held.count, "commitment": keyed(salt, "rows", held.sha256)}
        found[name] = {**found.get(name, {}), "rows": rows}
    return found
