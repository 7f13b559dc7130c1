"""`fit_forgettable`: adapt a backbone to core data, then put user data into a problem they can leave again."""

import copy
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, SettingError, check_positive
from spotlessnet.forgettable.adapt import Adaptation, WithHead, adapt, call
from spotlessnet.forgettable.encoder import Encoder, raw_features
from spotlessnet.forgettable.examples import Examples, digests_of
from spotlessnet.forgettable.features import Linearised, Mirrored, Pooled, TangentSketch, pool
from spotlessnet.forgettable.fixed_point import FixedPoint
from spotlessnet.forgettable.given import class_number, class_weights_of, plain_ids, ridge_of, weights_by_class
from spotlessnet.forgettable.inverse import cholesky, inverse, solve
from spotlessnet.forgettable.model import ForgettableModel
from spotlessnet.forgettable.moments import Moments
from spotlessnet.forgettable.places import lanes_needed
from spotlessnet.forgettable.ridge import as_ridge, choose_ridge, ridge_unit
from spotlessnet.forgettable.turn import check_mode
from spotlessnet.operators.sums import add_up, my_share, processes

SCALING = 1000
"""Core examples from which the fixed-point scales are taken."""


def fit_forgettable(
    backbone: nn.Module,
    *,
    core: Data | Any,
    user: Data | Any,
    features: str | nn.Module = "pooled",
    adaptation: Adaptation | None = None,
    ridge: float | Literal["loo"] = "loo",
    classes: int | None = None,
    class_weights: Tensor | Sequence[int] | None = None,
    mirrored: bool = False,
    keep_features: bool = True,
    id_column: str | None = None,
    ids: Iterable[Any] | None = None,
    batch_size: int = 64,
    rank: int = 16,
    directions: int = 2,
    layers: list[str] | None = None,
    seed: int = 0,
) -> ForgettableModel:
    """A model from which user data can be taken out again, exactly, one example or one person or all at once.

    **Arguments:**

    - `backbone`: any module, or a Hugging Face encoder; what it answers is pooled. For `"linearised"`, a classifier.
    - `core`: data that nobody will ask to forget: it adapts the backbone, fixes the scales, and enters the problem
      for good.
    - `user`: data that may be asked for.
    - `features`: `"pooled"`, `"tangent"` (pooled and sketched gradients), `"linearised"` (the whole Jacobian of a small
      classifier), or a frozen module of your own.
    - `adaptation`: how the backbone is fine-tuned on core data; `None` takes it as it is.
    - `ridge`: a share of `ridge_unit`, about the mean of the moments' diagonal, or `"loo"`: the best of a few under
      leave-one-out. That choice looks at user data once and stays when they go; give a number where even that must not
      be.
    - `class_weights`: whole numbers, one per class; from what is publicly known, not from counts of user data.
    - `mirrored`: average features over an image and its mirror image.
    - `keep_features`: keep each example's features, in 16 bits, so that a request needs no input.
    - `id_column`: the data's column that requests name; row numbers unless said.
    - `ids`: the ids themselves, one per user example, instead of a column.
    - `classes`: how many there are; unless said, up to the largest label, which then tells of a class that one user
      alone had, also when that user has gone.
    - `rank`, `directions`, `layers`: of `TangentSketch`.
    """
    check_mode()
    core, user = Data.of(core), Data.of(user)
    check_positive("batch_size", batch_size)
    count = _class_count(core, user, classes)
    by_class = class_weights_of(class_weights, count)
    names = _ids_of(user, id_column, ids)
    ridge = ridge_of(ridge)
    made = _features(backbone, core, features, adaptation, count, rank, directions, layers, batch_size, seed)
    if mirrored:
        made = Mirrored(made)
    encoder = make_encoder(made, core, count, batch_size)
    return fit_problem(encoder, core, user, names, ridge=ridge, class_weights=by_class, keep_features=keep_features)


def _class_count(core: Data, user: Data, classes: int | None) -> int:
    """As many as said, or up to the largest label."""
    for name, data in (("core", core), ("user", user)):
        if not len(data):
            raise DataError(f"There must be {name} data, but `{name}` has no example. Give at least one.")
    labels = core.labels()
    if labels.is_floating_point() or labels.ndim != 1:
        raise MismatchError("Labels must be class numbers. Turn them into whole numbers from 0.")
    if classes is None:
        return 1 + max(int(data.labels().max()) for data in (core, user))
    check_positive("classes", class_number(classes))
    return class_number(classes)


def _ids_of(user: Data, id_column: str | None, ids: Iterable[Any] | None) -> list[Hashable]:
    if ids is not None and id_column is not None:
        raise SettingError("Ids must come from `id_column` or from `ids`, but both were given. Leave one out.")
    if ids is None:
        ids = range(len(user)) if id_column is None else user.column(id_column)
    names = plain_ids(ids)
    if len(names) != len(user):
        raise MismatchError(f"Each user example needs an id, but {len(user)} examples came with {len(names)} ids.")
    return names


def make_encoder(features: nn.Module, core: Data, classes: int, batch_size: int = 64) -> Encoder:
    """The feature map with scales from core data."""
    device = _device(features)
    sample = core.select(torch.arange(min(SCALING, len(core))))
    raw = torch.cat(
        [raw_features(features, _to(batch.x, device)).flatten(0, 1) for batch in sample.batches(batch_size)]
    )
    blocks = getattr(features, "blocks", lambda d: [d])(raw.shape[1])
    spread = torch.arange(min(batch_size, len(core))) * len(core) // min(batch_size, len(core))
    x, _, _ = core.fetch(core.rows[spread])
    point = FixedPoint.of_core(raw, blocks)
    lanes = lanes_needed(features, _to(x, device), batch_size)
    return Encoder(features, point, classes, batch_size, lanes=lanes)


def fit_problem(
    encoder: Encoder,
    core: Data,
    user: Data,
    ids: list[Hashable],
    *,
    ridge: float | Literal["loo"],
    class_weights: Tensor | Sequence[int] | None = None,
    keep_features: bool = True,
) -> ForgettableModel:
    """Stream core and user data into moments, factor them, and solve.

    Under `torch.distributed` each process reads its share of the rows and the moments are summed; every process then
    holds the same model. Kept features and `"loo"` need all rows, so they are for one process.
    """
    check_mode()
    began = time.perf_counter()
    by_class = class_weights_of(class_weights, encoder.classes)
    many = processes()[1] > 1
    if many and (keep_features or ridge == "loo"):
        raise SettingError("With several processes, give a ridge as a number and keep_features=False.")
    moments: Moments | None = None
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    marks: dict[int, str] = {}
    diagonal = torch.zeros(0)
    for data, is_user in ((core, False), (user, True)):
        for positions in my_share(torch.arange(len(data))).split(max(encoder.batch_size, 1024)):
            x, y, _ = data.fetch(data.rows[positions])
            codes, targets = encoder(x, y)
            if moments is None:
                moments = Moments.zero(codes.shape[2], targets.shape[2], encoder.device)
            w = weights_by_class(y, by_class)
            moments.add(codes.flatten(0, 1), targets.flatten(0, 1), w.repeat_interleave(codes.shape[1]))
            if is_user:
                kept.append((codes if keep_features else codes[:0], targets, w))
                if not keep_features:
                    marks |= dict(zip(positions.tolist(), digests_of(codes), strict=True))
        assert moments is not None
        if not is_user:
            diagonal = add_up(moments.gram.diagonal().clone())
    assert moments is not None
    moments.all_reduce()
    examples = _examples(encoder, user, ids, kept, marks, by_class, keep_features, many)
    unit = ridge_unit(float(diagonal.mean()), len(core) * examples.targets.shape[1], moments.count)
    chosen, how = _ridge(ridge, unit, moments, examples)
    P = inverse(moments.gram, chosen)
    model = ForgettableModel(encoder, moments, chosen, examples, P, P @ moments.cross)
    model.core_examples, model.ridge_from, model.class_weights = len(core), how, by_class
    model._settle("fit", began, len(user), refactored=True)
    return model


def _examples(
    encoder: Encoder,
    user: Data,
    ids: list[Hashable],
    kept: list[tuple[Tensor, Tensor, Tensor]],
    marks: dict[int, str],
    class_weights: Tensor | None,
    keep_features: bool,
    many: bool,
) -> Examples:
    y = user.labels().long()
    if many:
        # Other processes computed the other marks; every process must know them all.
        everyone: list[dict[int, str]] = [{} for _ in range(processes()[1])]
        torch.distributed.all_gather_object(everyone, marks)
        marks = {i: mark for one in everyone for i, mark in one.items()}
    if many and encoder.per_class:
        raise SettingError("A linearised network is fitted in one process.")
    targets = (
        nn.functional.one_hot(y, encoder.classes).to(torch.int16)[:, None].to(encoder.device)
        if many
        else torch.cat([t for _, t, _ in kept])
    )
    codes = torch.cat([c for c, _, _ in kept]) if keep_features else None
    digests = [] if keep_features else [marks[i] for i in range(len(user))]
    return Examples(targets, y.cpu(), weights_by_class(y, class_weights), list(ids), codes, digests)


def _ridge(ridge: float | str, unit: float, moments: Moments, examples: Examples) -> tuple[int, str]:
    share = ridge_of(ridge)
    if share != "loo":
        return as_ridge(share, unit), "given"
    if examples.codes is None:
        raise SettingError("Leave-one-out needs kept features. Give `ridge` as a number, or keep_features=True.")
    w = examples.weights.repeat_interleave(examples.codes.shape[1])
    chosen, _ = choose_ridge(moments, examples.codes.flatten(0, 1), examples.targets.flatten(0, 1), w, mean=unit)
    return chosen, "leave-one-out over user examples at the fit"


def _features(
    backbone: nn.Module,
    core: Data,
    choice: str | nn.Module,
    how: Adaptation | None,
    classes: int,
    rank: int,
    directions: int,
    layers: list[str] | None,
    batch_size: int,
    seed: int,
) -> nn.Module:
    if isinstance(choice, nn.Module):
        return choice.eval()
    if choice not in ("pooled", "tangent", "linearised"):
        raise SettingError(f'`features` must be "pooled", "tangent", "linearised" or a module, but got {choice!r}.')
    if choice == "linearised":
        network = copy.deepcopy(backbone) if how is None else adapt(backbone, core, how, seed=seed)
        return Linearised(network, ("",) if layers is None else tuple(layers))
    device = _device(backbone)
    base = copy.deepcopy(backbone).eval()
    sample = core.select(torch.arange(min(SCALING, len(core))))
    batches = [_to(batch.x, device) for batch in sample.batches(batch_size)]
    with torch.no_grad():
        width = pool(call(base, batches[0]), **(batches[0] if isinstance(batches[0], dict) else {})).shape[1]
    head: Tensor | None = None
    if how is not None:
        torch.manual_seed(seed)
        trained = adapt(WithHead(base, pool, width, classes).to(device), core, replace(how), seed=seed)
        assert isinstance(trained, WithHead)
        base = trained.backbone
        head = trained.head.weight.detach()
    if choice == "pooled":
        return Pooled(base)
    if head is None:
        head = _core_head(base, core, classes, batch_size)
    made = TangentSketch(base, leading(head, directions), layers, rank_in=rank, rank_out=rank, seed=seed, even=True)
    made.align(batches, power=0.0)
    return made


def leading(head: Float[Tensor, "C d"], count: int) -> Float[Tensor, "m d"]:
    """The directions in which a head's classes differ most."""
    _, s, v = torch.linalg.svd(head.float() - head.float().mean(dim=0), full_matrices=False)
    return v[:count] * (s[:count, None] / s[0].clamp(min=1e-12))


def _core_head(base: nn.Module, core: Data, classes: int, batch_size: int) -> Float[Tensor, "C d"]:
    """A ridge head on core data, where the backbone came without one."""
    encoder = make_encoder(Pooled(base), core, classes, batch_size)
    moments: Moments | None = None
    for batch in core.batches(1024):
        codes, targets = encoder(batch.x, batch.y)
        moments = moments or Moments.zero(codes.shape[2], classes, encoder.device)
        moments.add(codes.flatten(0, 1), targets.flatten(0, 1))
    assert moments is not None
    L = cholesky(moments.gram, as_ridge(1e-2, float(moments.gram.diagonal().mean())))
    return (solve(L, moments.cross)[:-1].T / encoder.point.scale.double()).float()


def _device(module: nn.Module) -> torch.device:
    first = next(iter((*module.parameters(), *module.buffers())), None)
    return torch.device("cpu") if first is None else first.device


def _to(x: Any, device: torch.device) -> Any:
    return {n: v.to(device) for n, v in x.items()} if isinstance(x, dict) else x.to(device)
