"""Methods by name, and their settings from text: `ntk+finetune` with `finetune.epochs=3`."""

import difflib
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from spotlessnet.core.chaining import chain
from spotlessnet.core.deprecated import former_setting, methods_now, setting_now, settings_now
from spotlessnet.core.errors import NeedError, SettingError, shown
from spotlessnet.core.registry import assembled, default_of, flat, part_defaults, part_hints, variants
from spotlessnet.core.scrub import METHODS, Scrub, Sizes
from spotlessnet.core.split import Split
from spotlessnet.core.trained import Trained
from spotlessnet.methods import Fisher, WithinBudget
from spotlessnet.precomputed.fold_models import FoldModels
from spotlessnet.precomputed.statistics import Statistics
from spotlessnet.requests.case import Case

BEST = "short-retrain"
"""The method where none is named, if start and recipe are known and the retained rows are at hand: nothing that an
attacker could find is left, for a fraction of a retraining (`docs/which_method_when.md`, `docs/frontier.md`)."""

FALLBACK = "ntk+finetune"
"""The method otherwise: the step that retraining would take, then fine-tuning."""

CHEAP = "respond-and-finetune"
"""The method instead of that where it would take longer than training did: a few products over some retained rows, and
four epochs."""

TAUGHT = "out-of-fold-distillation"
"""The method if fold models are given, for nothing else can ask them."""

EPOCHS_AFTER_A_STEP = 3
"""Epochs of that fine-tuning."""


TRAINED_FOR = 10
"""Epochs that a training of which nobody knows the recipe is taken to have had, at least."""

SHORT = 1e10
"""Operations (FLOPs) that a method may take however short the training was: a second or so."""


def name_of(kind: type[Scrub]) -> str:
    """A method's name on the command line.

    >>> from spotlessnet.methods import NTK, GradientAscent, SalUn
    >>> name_of(NTK), name_of(GradientAscent), name_of(SalUn)
    ('ntk', 'gradient-ascent', 'salun')
    """
    declared = (entry.name for entry in METHODS.entries() if entry.thing is kind)
    # A class of the caller's own need not be registered to be used; its name is spelt as the others are.
    return next(declared, None) or re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


@dataclass(frozen=True)
class Choice:
    """Methods by name with settings in their types: seen to exist, and not yet built.

    So a misspelt name is refused before anything is read, and the method is built once, with all that it needs.
    """

    kinds: Mapping[str, type[Scrub]]
    settings: Mapping[str, Mapping[str, Any]]

    @staticmethod
    def of(text: str, settings: Mapping[str, Any], *, is_default: bool = False) -> "Choice":
        """The methods that a text names, joined by `+`, with settings by name or by `method.name`."""
        kinds = {}
        for name in (part.strip() for part in methods_now(text).split("+")):
            kind = METHODS.find(name)
            if wraps(kind):
                raise SettingError(
                    f"{name!r} goes around another method. Name that one, and give --max-nats beside it."
                )
            if name in kinds:
                raise SettingError(f"The method {name!r} comes twice in {text[:60]!r}. Name each once.")
            kinds[name] = kind
        given: dict[str, dict[str, Any]] = {name: {} for name in kinds}
        if is_default and "finetune" in given:
            given["finetune"]["epochs"] = EPOCHS_AFTER_A_STEP
        said = set()
        for key, value in settings_now(settings).items():
            owner, name = _owner(key, kinds)
            if (owner, name) in said:
                raise SettingError(f"The setting {name!r} was given twice. Give it once.")
            said.add((owner, name))
            given[owner][name] = typed(kinds[owner], name, value)
        return Choice(kinds, {name: assembled(kind, given[name]) for name, kind in kinds.items()})

    def build(self, **inputs: Any) -> Scrub:
        """The method itself; of `inputs` (statistics, fold models) each part takes what it has a field for."""
        links = []
        for name, kind in self.kinds.items():
            own = {key: value for key, value in inputs.items() if key in _fields(kind)}
            links.append(kind(**self.settings[name], **own))
        return links[0] if len(links) == 1 else chain(*links)


def scrub_of(
    case: Case,
    statistics: Statistics | None = None,
    reference: Any = None,
    fold_models: FoldModels | None = None,
    *,
    cheap: bool = False,
) -> Scrub:
    """The method that a case asks for, budgets included; built here and nowhere else.

    **Arguments:**

    - `cheap`: where nothing is asked for, the method that takes no longer than training did.
    """
    inputs: dict[str, Any] = {"statistics": statistics, "fold_models": fold_models}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    own = case.method if isinstance(case.method, Scrub) else None
    scrub = choice_of(case, cheap=cheap).build(**inputs) if own is None else _with_inputs(own, inputs)
    if case.max_nats is None and case.max_error_increase is None:
        return scrub
    if not scrub.is_noisy:
        # A budget is met by noise, and this method adds none of its own.
        scrub = chain(*_links(scrub), Fisher(statistics=statistics))
    return WithinBudget(scrub, case.max_nats, case.max_error_increase, reference)


def choice_of(case: Case, *, cheap: bool = False) -> Choice:
    """What a case asks for by name, or what is done where it names nothing; refused if it is misspelt or misfed."""
    assert not isinstance(case.method, Scrub)
    name = case.method or (CHEAP if cheap else default(case)[0])
    choice = Choice.of(name, case.settings or {}, is_default=case.method is None)
    _check_fed(case, tuple(choice.kinds.values()))
    return choice


def check_method(case: Case) -> None:
    """Raise where a case asks for a method that is not there or cannot use what it gives; nothing is built or read."""
    if not isinstance(case.method, Scrub):
        choice_of(case)
        return
    if case.settings:
        raise SettingError("`settings` belong to a method by name, but `method` is one already. Give them to it.")
    _check_brings_nothing(case.method)
    _check_fed(case, tuple(type(part) for part in _methods_in(case.method)))


def default(case: Case) -> tuple[str, str]:
    """What is done where no method is named, and why: the one place that decides it."""
    if case.fold_models is not None:
        return TAUGHT, "fold models are given"
    if case.knows_history and case.statistics is None:
        own = case.model.trainer if isinstance(case.model, Trained) else case.train
        return BEST, f"init and {'recipe' if own is None else 'trainer'} are known"
    return FALLBACK, "statistics are given" if case.statistics is not None else _unknown(case)


def _unknown(case: Case) -> str:
    """What is missing for a retraining, by name: whoever gave one of the two need not look for it."""
    if isinstance(case.model, Trained):
        known = case.model.init is not None, case.model.recipe is not None or case.model.trainer is not None
    else:
        known = case.init is not None, case.train is not None or case.as_recipe() is not None
    missing = [name for name, is_known in zip(("init", "recipe or trainer"), known, strict=True) if not is_known]
    return f"no {' and no '.join(missing)} is known"


def named(text: str, settings: Mapping[str, Any], *, is_default: bool = False) -> Scrub:
    """A method from its name, or several joined by `+`, with settings by name or by `method.name`.

    >>> named("ntk", {"damping": "0.1"}).damping
    0.1
    """
    return Choice.of(text, settings, is_default=is_default).build()


def wraps(kind: type[Scrub]) -> bool:
    """Whether a method cannot be made from its name alone, since it goes around another."""
    return any(f.default is MISSING and f.default_factory is MISSING for f in fields(kind))  # type: ignore[arg-type]  # every method is a dataclass


def _owner(key: str, kinds: Mapping[str, type[Scrub]]) -> tuple[str, str]:
    """Which method a setting is for."""
    owner, dot, name = key.rpartition(".")
    name = name.replace("-", "_")
    if dot:
        if owner not in kinds:
            raise SettingError(f"--set {key[:60]}: {owner[:40]!r} is not among the methods {', '.join(kinds)}.")
        owners = [owner] if _has(kinds[owner], name) else []
    else:
        owners = [method for method, kind in kinds.items() if _has(kind, name)]
    if len(owners) > 1:
        raise SettingError(f"--set {key}: {' and '.join(owners)} both have it. Say which: --set {owners[0]}.{key}=...")
    if owners:
        return owners[0], setting_now(kinds[owners[0]], name)
    known = [n for method, kind in kinds.items() if not dot or method == owner for n in settable(kind)]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(known) or 'none'}."
    raise SettingError(f"There is no setting {key[:60]!r} for {owner or '+'.join(kinds)}. {hint}")


def _has(kind: type[Scrub], name: str) -> bool:
    """Whether a method has a setting, by its name or its old one."""
    return (former_setting(kind, name) or name) in settable(kind)


def settable(kind: type[Scrub]) -> dict[str, Any]:
    """The settings of a method that text can give, with their types."""
    hints = typing.get_type_hints(kind)
    plain = (int, float, bool, str, types.NoneType)
    found = {}
    for f in fields(kind):  # type: ignore[arg-type]  # every method is a dataclass
        parts = _parts(hints[f.name])
        if all(part in plain or typing.get_origin(part) is typing.Literal for part in parts):
            found[f.name] = hints[f.name]
    for name, setting in variants(kind).items():
        # A value such as a solver is flat in text: its kind by a word, and the settings of the kinds beside it.
        found |= {name: typing.Literal[(*setting.kinds(), *setting.old_words)], **part_hints(setting)}
    return found


def usual(method: str) -> dict[str, Any]:
    """What the settings of a method by name are unless said."""
    return defaults(METHODS[method])


def defaults(kind: type[Scrub]) -> dict[str, Any]:
    """What a method's settings are unless said; one that must be said has no default and is left out."""
    known = {f.name: f.default for f in fields(kind) if f.default is not MISSING}  # type: ignore[arg-type]  # a dataclass
    for name, setting in variants(kind).items():
        value = default_of(kind, name)
        known |= {name: value.word, **part_defaults(setting, value)}
    return {name: known[name] for name in settable(kind) if name in known}


def typed(kind: type[Scrub], name: str, value: Any) -> Any:
    """A setting's value from text or from a case file, in the type that the method declares."""
    parts = _parts(settable(kind)[name])
    if isinstance(value, int) and abs(value) >= 2**63:
        raise SettingError(f"`{name_of(kind)}.{name}` must be a number below 2⁶³, but got {shown(value)}.")
    text = value.strip() if isinstance(value, str) else shown(value)
    for part in parts:
        if part is types.NoneType and text.lower() in ("none", "null"):
            return None
        if typing.get_origin(part) is typing.Literal and text in typing.get_args(part):
            return text
        if part is bool and text.lower() in ("true", "false", "yes", "no"):
            return text.lower() in ("true", "yes")
        if part in (int, float) and not isinstance(value, bool):
            try:
                number = part(text)
            except ValueError:
                continue
            if part is int and abs(number) >= 2**63:
                raise SettingError(f"`{name_of(kind)}.{name}` must be a number below 2⁶³, but got {shown(number)}.")
            return number
    if str in parts:
        return text
    raise SettingError(f"`{name_of(kind)}.{name}` must be {' or '.join(map(_wanted, parts))}, but got {text[:60]!r}.")


def _parts(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _wanted(part: Any) -> str:
    if typing.get_origin(part) is typing.Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(part))
    words = {int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "none", str: "text"}
    return words[part]


def _links(scrub: Scrub) -> tuple[Scrub, ...]:
    return getattr(scrub, "links", (scrub,))


def _methods_in(scrub: Scrub) -> list[Scrub]:
    """The methods that a method is made of, in chains and budgets at any depth."""
    inside = getattr(scrub, "scrub", None)
    parts = (*getattr(scrub, "links", ()), *([inside] if isinstance(inside, Scrub) else []))
    return [one for part in parts for one in _methods_in(part)] or [scrub]


def _check_brings_nothing(scrub: Scrub) -> None:
    """Raise where a method that a person built holds what serves one request: nobody would see it served twice."""
    for link in _methods_in(scrub):
        for name in ("statistics", "fold_models"):
            if getattr(link, name, None) is not None:
                raise SettingError(
                    f"A request must be given its {name.replace('_', ' ')} itself, but the method holds them: they "
                    f"serve one request, which is seen to. Give `{name}=...` to `sn.unlearn`, and the method without."
                )


def _check_fed(case: Case, kinds: tuple[type[Scrub], ...]) -> None:
    """Raise where statistics or fold models are given that no part of the method reads."""
    if case.statistics is not None and not any("statistics" in _fields(kind) for kind in kinds):
        raise NeedError(
            "--statistics was given, but no part of the method reads any. End it with +fisher, or leave the flag out."
        )
    if case.fold_models is not None and not any("fold_models" in _fields(kind) for kind in kinds):
        raise NeedError(
            f"--fold-models was given, but no part of the method asks them. Name the method {TAUGHT}, or none."
        )


def _fields(kind: type[Scrub]) -> set[str]:
    return {f.name for f in fields(kind)}  # type: ignore[arg-type]  # every method is a dataclass


def _with_inputs(scrub: Scrub, inputs: Mapping[str, Any]) -> Scrub:
    """A method that a person built, with what the request gives put into the parts that read it."""
    if not inputs:
        return scrub
    if isinstance(scrub, WithinBudget):
        return replace(scrub, scrub=_with_inputs(scrub.scrub, inputs))
    fed = []
    for link in _links(scrub):
        if hasattr(link, "links") or isinstance(link, WithinBudget):
            fed.append(_with_inputs(link, inputs))
            continue
        own = {name: value for name, value in inputs.items() if name in _fields(type(link))}
        fed.append(replace(link, **own) if own else link)  # type: ignore[type-var]  # every method is a dataclass
    return fed[0] if len(fed) == 1 else chain(*fed)


def for_other_networks(scrub: Scrub) -> Scrub:
    """The same method for networks that an audit trains: statistics and reference are of the one network alone.

    Fold models teach them all, each held to what it said itself.
    """
    if isinstance(scrub, WithinBudget):
        return replace(scrub, scrub=for_other_networks(scrub.scrub), reference=None)
    changes: list[dict[str, Any]] = []
    for link in _links(scrub):
        models = getattr(link, "fold_models", None)
        own = {} if getattr(link, "statistics", None) is None else {"statistics": None}
        changes.append(
            own if models is None else {**own, "fold_models": replace(models, origin=None, after_requests=False)}
        )
    if not any(changes):
        return scrub
    links = [replace(link, **own) if own else link for link, own in zip(_links(scrub), changes, strict=True)]  # type: ignore[type-var]
    return links[0] if len(links) == 1 else chain(*links)


def described(scrub: Scrub) -> tuple[str, dict[str, Any]]:
    """A method's name and settings for receipts and plans."""
    if isinstance(scrub, WithinBudget):
        name, settings = described(scrub.scrub)
        budget = {"max_nats": scrub.max_nats, "max_error_increase": scrub.max_error_increase}
        return name, {**settings, "budget": {k: v for k, v in budget.items() if v is not None}}
    links = _links(scrub)
    settings = {name_of(type(link)): settings_of(link) for link in links}
    return "+".join(settings), settings


def settings_of(link: Scrub) -> dict[str, Any]:
    """The settings of one method as text has them: a value such as a solver by its word, and its own settings."""
    kind = type(link)
    found = dict[str, Any]()
    values = variants(kind)
    parts = {part for setting in values.values() for part in part_hints(setting)}
    for name in settable(kind):
        if name in values:
            value = getattr(link, name)
            found |= {name: value.word, **flat(value)}
        elif name not in parts:
            found[name] = getattr(link, name)
    return found


def changed(scrub: Scrub) -> dict[str, dict[str, Any]]:
    """The settings of each part of a method that are not what they are unless said."""
    inside = scrub.scrub if isinstance(scrub, WithinBudget) else scrub
    found = {}
    for link in _links(inside):
        plain = defaults(type(link))
        found[name_of(type(link))] = {k: v for k, v in settings_of(link).items() if k in plain and v != plain[k]}
    return {name: own for name, own in found.items() if own}


def may_be_cheaper(case: Case) -> bool:
    """Whether nobody named a method or a setting of one, and the usual one reads all rows many times."""
    return case.method is None and not case.settings and default(case)[0] == FALLBACK and case.statistics is None


def too_dear(trained: Trained, split: Split, scrub: Scrub) -> str:
    """Why the usual method would take longer than training did; nothing where it would not.

    By counts, not seconds: the same request must choose the same method on every machine.
    """
    work = scrub.cost(trained, split).usual
    epoch = len(split.retain) * Sizes.of(trained, split).gradient
    if work <= max(SHORT, TRAINED_FOR * epoch):
        return ""
    return f"{described(scrub)[0]} would take as much as {work / epoch:.0f} epochs of training"
