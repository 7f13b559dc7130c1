"""`unlearn`: one call from a trained network to one that forgot, with its receipt."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, NeedError, SettingError, shown
from spotlessnet.core.loss import Loss
from spotlessnet.core.progress import quiet
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.split import Cohort, Request, rows
from spotlessnet.core.split import ids as by_id
from spotlessnet.core.trained import Trained
from spotlessnet.core.trainer import Trainer
from spotlessnet.precomputed.fold_models import FoldModels
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.requests.audits import Audit
from spotlessnet.requests.case import RECIPE, Case
from spotlessnet.requests.loading import as_data, named_weights
from spotlessnet.requests.recorded import Recorded
from spotlessnet.requests.serving import Unlearned, serve

FILE = (str, Path)
NUMBERS = ("weight_decay", "max_nats", "max_error_increase", "max_damage", "memory_limit")
TRUTHS = ("mislabelled", "accept_damage", "resume", "progress")

KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "settings": ((Mapping,), 'a mapping such as `{"damping": 0.1}`'),
    "init": ((Mapping, nn.Module, Tensor, *FILE), "a state dict, a module, a vector or the path of a checkpoint"),
    "recipe": ((Recipe,), "a `sn.Recipe`, such as `sn.Recipe(epochs=30, lr=0.01)`"),
    "weights": (FILE, "the path of a checkpoint"),
    "statistics": ((Statistics, *FILE), "what `sn.precompute` gave, or its path"),
    "fold_models": ((FoldModels, *FILE), "what `sn.train_fold_models` gave, or its path"),
    "reference": ((Tensor, *FILE), "a vector of weights, or the path of a checkpoint"),
    "audit": ((bool, Audit), "True, False or how to audit, such as `sn.Audit(seeds=5)`"),
    "out": (FILE, "the path of a new folder"),
    **dict.fromkeys(TRUTHS, ((bool,), "True or False")),
}
"""For each argument the types that it may have, and how a message calls them; what may be left out may also be None."""

NEVER_NONE = ("audit", *TRUTHS)


def unlearn(
    model: nn.Module | Trained | Recorded | str,
    data: Any = None,
    *,
    forget: Any,
    method: str | Scrub = "auto",
    settings: Mapping[str, Any] | None = None,
    loss: Loss | Callable[[Tensor, Tensor], Tensor] | str | None = None,
    init: Mapping[str, Tensor] | nn.Module | Tensor | str | Path | None = None,
    recipe: Recipe | None = None,
    trainer: Trainer | None = None,
    weight_decay: float | None = None,
    weights: str | Path | None = None,
    test: Any = None,
    validation: Any = None,
    core: Any = None,
    ids: Sequence[Any] | str | None = None,
    id_column: str | None = None,
    mislabelled: bool = False,
    statistics: Statistics | str | Path | None = None,
    fold_models: FoldModels | str | Path | None = None,
    reference: Tensor | str | Path | None = None,
    max_nats: float | None = None,
    max_error_increase: float | None = None,
    max_damage: float | None = None,
    accept_damage: bool = False,
    audit: bool | Audit = False,
    out: str | Path | None = None,
    resume: bool = False,
    keep_private: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    memory_limit: float | None = None,
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Unlearned:
    """Make a trained network forget some of its training examples.

    Your own network is left as it is; the result holds a copy. Whatever can be refused is refused before the work, and
    a network that answers examples which stay much worse than before is not given out. `spotless scrub` is the same
    with flags.

    >>> import spotlessnet as sn
    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> y = torch.arange(90) % 3
    >>> x = torch.randn(90, 4) + 2 * nn.functional.one_hot(y, 4)
    >>> trained = sn.fit(sn.Trained.of(nn.Linear(4, 3)), sn.Data.of((x, y)), sn.Recipe(epochs=5, lr=0.1))
    >>> done = sn.unlearn(trained.module(), (x, y), forget=[3, 14, 15], method="ntk")
    >>> type(done.model).__name__, done.receipt["predicate"]["request"]["matched"]
    ('Linear', 3)

    **Arguments:**

    - `model`: a module, a `Trained`, text such as `"nets.py:build"` with `weights` as for the command, or a training
      that was recorded, `sn.recorded("run/")`, which also knows its `data`.
    - `data`: the training examples: a `Dataset`, a pair of tensors, a `Data`, or text as for the command.
    - `forget`: what must go: row numbers, a mask with one truth value a row, a cohort such as `sn.whole_class(6)`, the
      path of a list of ids, or ids themselves if `ids` tells those of the data.
    - `method`: a method, its name, or names joined by `+`, with `settings`. `"auto"`: out-of-fold distillation if
      fold models are given; else short retraining if `init` and `recipe` or `trainer` are known; else an NTK step,
      then fine-tuning, or `respond-and-finetune` where that would take more than ten epochs of training.
    - `init`, `recipe`: where training began (a state dict, a module, a vector or a file) and how it went.
    - `trainer`: instead of a recipe, the function that trained it: `train(model, examples, seed) -> model`, where
      `examples` is a `torch` data set (`sn.Examples`) of the rows to train on.
    - `loss`, `weight_decay`: what was minimised; cross-entropy unless said. See `Trained.of` for names:
      `"squared-error"` is half the square.
    - `test`, `validation`, `core`: as in `Split`.
    - `ids`: the id of each example, or the name of the data's column that holds them (`id` unless said).
    - `id_column`: the column of a list with several that holds the ids, where `ids` are the ids themselves.
    - `statistics`, `fold_models`: what was precomputed for requests, as objects or files.
    - `max_nats`, `max_error_increase`, `reference`: a budget for noise; see `WithinBudget`.
    - `max_damage`, `accept_damage`: how much the error on examples that stay may rise (0.05 unless said); or any.
    - `audit`: measure what is left over several trainings, which takes long; `sn.Audit(seeds=5)` says how.
    - `out`: a new folder for network, receipt and report; nothing is written without it. See `resume`.
    - `seed`: for experiments only: noise that can be drawn again protects nobody.
    - `memory_limit`: GiB that the work is cut to fit into, beside network and data; what would need more is refused.
    - `progress`, `say`: whether bars are shown; what is called with each line of the plan.
    """
    check_arguments(dict(locals()))
    objects = {"test": test, "validation": validation, "core": core}
    column = _column(forget, ids, id_column)
    values: dict[str, Any] = {
        **_network_fields(
            model, loss=loss, init=init, recipe=recipe, trainer=trainer, weight_decay=weight_decay, weights=weights
        ),
        "data": _data(model, data, ids, column),
        **{name: None if value is None else _rows(name, value, None) for name, value in objects.items()},
        "forget": _forget(forget, ids, column, mislabelled=mislabelled),
        "id_column": column,
        "mislabelled": mislabelled,
        "method": None if isinstance(method, str) and method == "auto" else method,
        "settings": settings,
        "statistics": _file(statistics),
        "fold_models": _file(fold_models),
        "reference": _file(reference),
        "max_nats": max_nats,
        "max_error_increase": max_error_increase,
        "max_damage": max_damage,
        "accept_damage": accept_damage,
        "out": _file(out),
        "keep_private": keep_private,
        "seed": seed,
        # Where a recorded training ran, it is repeated.
        "device": None if isinstance(model, Recorded) and device == "auto" else device,
        "memory_limit": memory_limit,
    }
    how: Audit | None
    if isinstance(audit, bool):
        how = Audit() if audit else None
    else:
        how = audit
    with nullcontext() if progress else quiet():
        return serve(Case.of(values), resume=resume, audit=how, say=say)


def _column(forget: Any, ids: Sequence[Any] | str | None, named: str | None) -> str | None:
    """What the ids are called, in the data and in a list; nothing where nobody said."""
    if isinstance(ids, str):
        if named not in (None, ids):
            raise SettingError(f"`ids` names the column {ids[:40]!r}, but `id_column` {str(named)[:40]!r}. Give one.")
        return ids
    return forget.column if named is None and ids is not None and isinstance(forget, by_id) else named


def _data(model: Any, data: Any, ids: Sequence[Any] | str | None, column: str | None) -> Data | str | None:
    """The examples of a request; a recorded training knows its own."""
    if isinstance(model, Recorded) and data is None:
        data = model.given
    elif data is None:
        raise NeedError("`data` must be the training examples, but was not given. Give what the network learnt from.")
    return None if data is None else _rows("data", data, ids, column)


def _network_fields(
    model: nn.Module | Trained | Recorded | str,
    *,
    loss: Any,
    init: Any,
    recipe: Recipe | None,
    trainer: Trainer | None,
    weight_decay: float | None,
    weights: str | Path | None,
) -> dict[str, Any]:
    """The fields of a case that say which network, from objects or from text."""
    told = {"loss": loss, "init": init, "recipe": recipe, "trainer": trainer, "weight_decay": weight_decay}
    told["weights"] = weights
    given = [name for name, value in told.items() if value is not None]
    if isinstance(model, Recorded):
        if given:
            raise SettingError(
                f"A recorded training knows its own loss, init and recipe, but {' and '.join(given)} was given beside "
                "it. Take `sn.recorded(...).trained` apart, or leave them out."
            )
        return {"training": model.folder, "accept_changes": model.accept_changes}
    if isinstance(model, Trained):
        if given:
            raise SettingError(
                f"A `Trained` knows its own loss, init and recipe, but {' and '.join(given)} was given beside it. "
                "Give them to `Trained.of`."
            )
        return {"model": model}
    if isinstance(model, nn.Module):
        if weights is not None:
            raise SettingError("`weights` is the checkpoint of a network by name, but `model` is a network already.")
        trained = Trained.of(model, loss, weight_decay=weight_decay, recipe=recipe, trainer=trainer)
        if init is None:
            return {"model": trained}
        if isinstance(init, (str, Path)):
            init = named_weights(trained.module(), Path(init))
        trained.check_start(init, "`init`")
        return {"model": Trained.of(model, loss, weight_decay=weight_decay, recipe=recipe, trainer=trainer, init=init)}
    if not isinstance(model, str):
        raise SettingError(
            "`model` must be a torch module, a `Trained`, or text such as 'nets.py:build' with `weights`, but got "
            f"{type(model).__name__}."
        )
    if trainer is not None:
        raise SettingError("A `model` by name takes a recipe, but a trainer was given. Give the network itself.")
    if not isinstance(loss, str | None) or not isinstance(init, str | Path | None):
        raise SettingError("A `model` by name needs `loss` by name and `init` as a file. Or give the network itself.")
    fields = {} if recipe is None else {name: getattr(recipe, name) for name in (*RECIPE, "weight_decay")}
    if recipe is not None:
        if recipe.augment is not None:
            raise SettingError(
                "A `model` by name takes a recipe without `augment`, which no file can tell again. Give the network."
            )
        usual = Recipe(**fields)
        fields["recipe"] = {name: value for name, value in vars(recipe).items() if value != getattr(usual, name)}
    if weight_decay is not None:
        fields["weight_decay"] = weight_decay
    return {**fields, "model": model, "loss": loss, "init": _file(init), "weights": _file(weights)}


def _rows(name: str, given: Any, ids: Sequence[Any] | str | None, column: str | None = None) -> Data | str:
    """Examples from whatever was given; text is left to the loader."""
    if isinstance(given, (str, Path)):
        return str(given)
    data = as_data(given, f"`{name}`", column)
    if ids is None or isinstance(ids, str):
        return data
    if len(ids) != len(data):
        raise DataError(f"`ids` must hold one id for each of {len(data)} examples, but holds {len(ids)}.")
    # A view's columns are as long as its source.
    named: list[Any] = [None] * len(data.source)
    for row, one in zip(data.rows.tolist(), ids, strict=True):
        named[row] = one
    return Data(data.source, data.rows, {**data.columns, column or "id": named})


def _forget(given: Any, ids: Sequence[Any] | str | None, column: str | None, *, mislabelled: bool) -> Cohort | Path:
    """What must go, from any of the ways to say it."""
    if isinstance(given, Cohort):
        return given
    if isinstance(given, (str, Path)):
        if not Path(given).exists():
            raise DataError(
                f"`forget` must be the path of a list, row numbers, a mask or ids, but there is no file "
                f"{str(given)[:80]!r}. Give one id as a list, `[...]`, with `ids`."
            )
        return Path(given)
    if not isinstance(given, (Tensor, np.ndarray, Iterable)) or isinstance(given, (bytes, bytearray, memoryview)):
        raise SettingError(f"`forget` must be row numbers, a mask, ids or a list file, but got {type(given).__name__}.")
    listed = given.reshape(-1).tolist() if isinstance(given, (Tensor, np.ndarray)) else list(given)
    # Truth values are nobody's ids, so a mask is one whether ids are given or not.
    if listed and all(isinstance(one, (bool, np.bool_)) for one in listed):
        return Mask(torch.tensor(listed), mislabelled)
    if ids is not None:
        return by_id(listed, column=column or "id", mislabelled=mislabelled)
    wrong = [one for one in listed if isinstance(one, (bool, np.bool_)) or not hasattr(one, "__index__")]
    if wrong:
        raise SettingError(
            f"`forget` must hold row numbers, but holds {str(wrong[0])[:40]!r}. For ids give those of the data too: "
            "`ids=[...]`, or the name of the column that holds them."
        )
    numbers = [int(one) for one in listed]
    check_rows(numbers)
    return rows(numbers, mislabelled=mislabelled)


@dataclass(frozen=True, eq=False)
class Mask(Cohort):
    """Rows by one truth value each."""

    chosen: Bool[Tensor, " N"]
    mislabelled: bool = False

    def choose(self, train: Data) -> tuple[Tensor, Request]:
        if len(self.chosen) != len(train):
            raise DataError(
                f"A mask must hold one truth value for each of {len(train)} examples, but holds {len(self.chosen)}."
            )
        positions = self.chosen.nonzero().squeeze(1)
        return positions, Request("rows of a mask", matched=len(positions), mislabelled=self.mislabelled)


def _file(given: Any) -> Any:
    return Path(given) if isinstance(given, str) else given


def check_arguments(given: Mapping[str, Any]) -> None:
    """Raise, by its name, for the first argument that is of no type that `unlearn` knows."""
    for name, (kinds, wanted) in KINDS.items():
        value = given[name]
        if not isinstance(value, kinds) and not (value is None and name not in NEVER_NONE):
            raise _wrong(name, wanted, value)
    for name in NUMBERS:
        _check_number(name, given[name], Real, "a number")
    for name in ("seed", "keep_private"):
        _check_number(name, given[name], Integral, "a whole number")
    for name in ("trainer", "say"):
        if not callable(given[name]) and not (given[name] is None and name == "trainer"):
            raise _wrong(name, "a function", given[name])
    _check_method(given["method"])
    _check_ids(given["ids"])
    if given["resume"] and given["out"] is None:
        raise NeedError("`resume` goes on in the folder of an earlier run, but `out` does not name one. Give it.")


def _check_number(name: str, value: Any, kind: type, wanted: str) -> None:
    # True is a number to Python, and to nobody else.
    if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
        raise _wrong(name, wanted, value)


def _check_method(method: Any) -> None:
    if isinstance(method, type) and issubclass(method, Scrub):
        raise SettingError(f"`method` must be a method, but got its class. Give `sn.{method.__name__}()`.")
    if not isinstance(method, (str, Scrub)) or (isinstance(method, str) and not method.strip()):
        raise _wrong("method", 'a method such as `sn.NTK()`, its name such as `"ntk"`, or `"auto"`', method)


def _check_ids(ids: Any) -> None:
    if ids is None or isinstance(ids, str):
        return
    # An iterator would be empty when it is read again.
    is_listed = isinstance(ids, Collection) and not isinstance(ids, (bytes, bytearray, set, frozenset, Mapping))
    if not is_listed:
        raise _wrong("ids", "a list with the id of each example, or the name of a column", ids)


def check_rows(listed: list[int]) -> None:
    """Raise where row numbers come twice, as they do in a mask of zeros and ones."""
    if len(set(listed)) == len(listed):
        return
    if set(listed) <= {0, 1}:
        raise SettingError(
            f"`forget` must hold each row number once, but holds {len(listed)} zeros and ones. A mask must be of truth "
            "values: give `mask.bool()` of a tensor, `mask.astype(bool)` of an array."
        )
    twice = next(one for one, count in Counter(listed).items() if count > 1)
    raise SettingError(f"`forget` must hold each row number once, but holds {twice} more than once.")


def _wrong(name: str, wanted: str, value: Any) -> SettingError:
    return SettingError(f"`{name}` must be {wanted}, but got {shown(repr(value))} ({type(value).__name__}).")
