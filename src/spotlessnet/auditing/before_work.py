"""What an audit was given: taken, or refused in words before anything is trained."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from spotlessnet.auditing.bank import Bank, Start
from spotlessnet.core.adapters import Arrays
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, SettingError, SpotlessError, check_finite, shown
from spotlessnet.core.scrub import Scrub
from spotlessnet.core.source import HasLabels
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained, as_trained
from spotlessnet.readouts.parts import class_labels, class_logits
from spotlessnet.readouts.scores import kind_of

LEAST = 2
"""Pairs of trainings, for a single one knows no spread; so few give no verdict."""


def taken(
    original: Start | nn.Module,
    split: Split,
    scrubs: Mapping[str, Scrub],
    *,
    seeds: int,
    delivered: Trained | None,
    bank: Bank | None,
) -> tuple[Start, Trained]:
    """The original as an audit takes it, and the network that it begins at; or an error in words."""
    check_kinds(original, scrubs, seeds, delivered, bank)
    start = as_trained(original) if isinstance(original, nn.Module) else original
    began = start if isinstance(start, Trained) else start(0)
    check_fits(began, split, scrubs, delivered)
    return start, began


def check_kinds(original: Any, scrubs: Mapping[str, Any], seeds: Any, delivered: Any, bank: Any) -> None:
    """Raise where something is not of the kind that an audit takes."""
    if not isinstance(original, (Trained, nn.Module)) and not callable(original):
        raise SettingError(
            f"An audit begins at a `Trained`, or at a function of the seed, but got {type(original).__name__}. Give "
            "`sn.Trained.of(model, recipe=..., init=...)`."
        )
    for name, scrub in scrubs.items():
        if not isinstance(scrub, Scrub):
            raise SettingError(f"The method {name!r} must be one, such as `sn.Retrain()`, but got {shown(scrub)}.")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < LEAST:
        raise SettingError(
            f"`seeds` must be a whole number of at least {LEAST}, but got {shown(seeds)}. Fewer know no spread; use 8."
        )
    if delivered is not None and not isinstance(delivered, Trained):
        raise SettingError(
            f"`delivered` must be a `Trained`, but got {type(delivered).__name__}. Give `trained.at(weights)`, or "
            "`sn.Trained.of(model)`."
        )
    if bank is not None and not isinstance(bank, Bank):
        raise SettingError(f"`bank` must be a `Bank`, but got {shown(bank)}. Give `sn.Bank(folder)`.")


def check_fits(began: Trained, split: Split, scrubs: Mapping[str, Scrub], delivered: Trained | None) -> None:
    """Raise where rows, network, methods and the delivered network do not belong together."""
    if not len(split.forget):
        raise DataError("An audit needs rows that must go, but the request names none. Name at least one.")
    for scrub in scrubs.values():
        scrub.check_enough_is_kept(split)
    parts = {"forgotten": split.forget, "retained": split.kept, "test": split.test}
    for name, data in parts.items():
        if data is not None:
            _check_part(began, data, name)
    for scrub in scrubs.values():
        scrub.check_needs(began, split)
    if delivered is not None:
        check_finite("The weights of `delivered`", delivered.weights, "It has diverged: do not hand it out.")
        for data in (split.forget, split.test):
            if data is not None:
                _check_answers_alike(began, delivered, data)


def _check_part(began: Trained, data: Data, name: str) -> None:
    """Raise for rows that the network cannot answer, or that have other labels or numbers than it knows."""
    if not len(data):
        raise DataError(
            f"There is no {name} row, though {name} data were given. Give some, or leave them out (`None`)."
        )
    inputs = data.source.x if isinstance(data.source, Arrays) else {}
    for x in inputs.values() if isinstance(inputs, dict) else (inputs,):
        if x.is_floating_point() and not bool(x[data.rows].isfinite().all()):
            raise DataError(f"The inputs of {name} rows must be finite, but some are NaN or infinite. Clean the data.")
    try:
        is_of_classes = kind_of(began, data) == "classes"
        classes = class_logits(began, data.select([0])).shape[1] if is_of_classes else 0
    except SpotlessError:
        raise
    except Exception as e:  # whatever the network or the data raise means: they do not fit
        line = (str(e).strip().splitlines() or [""])[0][:160]
        raise MismatchError(
            f"The network cannot answer the {name} rows: {type(e).__name__}: {line}. Give the data that it was trained "
            "on, prepared in the same way."
        ) from e
    if not is_of_classes or not isinstance(data.source, HasLabels):
        return
    y = class_labels(began, data)
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise MismatchError(
            f"The network has {classes} classes, but labels of {name} rows go from {int(y.min())} to {int(y.max())}. "
            f"Number the classes from 0 to {classes - 1}."
        )


def _check_answers_alike(began: Trained, delivered: Trained, data: Data) -> None:
    """Raise where the delivered network answers in another form, or in no numbers."""
    one = data.select([0])
    ours = delivered.predict(one).shape
    theirs = began.predict(one).shape
    if ours != theirs:
        raise MismatchError(
            f"`delivered` must answer as the original does, but one row gives {tuple(ours)} and {tuple(theirs)} "
            "numbers. Give the network that the method made of it."
        )
    with torch.no_grad():
        check_finite("The answers of `delivered`", delivered.predict(data), "It has diverged: do not hand it out.")
