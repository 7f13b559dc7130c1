"""`Trained`: any network at a point in weight space, with what is known about how it got there."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.swa_utils import AveragedModel
from torch.utils import checkpoint

from spotlessnet.core.data import Batch, Data
from spotlessnet.core.deprecated import AcceptsOldNames, OldName, accepts_old_names
from spotlessnet.core.errors import (
    DataError,
    MismatchError,
    NeedError,
    SettingError,
    check_finite,
    check_not_negative,
)
from spotlessnet.core.loss import Loss, as_loss, logits_of, smoothed
from spotlessnet.core.module_buffers import put_buffers, same_statistics
from spotlessnet.core.passes import HALVED, passing
from spotlessnet.core.recipe import Recipe
from spotlessnet.core.recomputing import NoReentrance, recomputed
from spotlessnet.core.recurrent import stepwise
from spotlessnet.core.source import Inputs
from spotlessnet.core.trainer import Trainer, check_signature, epochs_of

Buffers = Mapping[str, Tensor]
"""By name, as in a state dict."""


@dataclass(frozen=True, eq=False)
class Trained(metaclass=AcceptsOldNames):
    """A network, its weights as one flat vector `[P]`, and how it was trained. Make one with `Trained.of`.

    The caller's module is copied once and never touched; `at(w)` is the same network elsewhere. The vector holds
    the parameters that require gradients, in the order of `named_parameters()`; tied ones count once, frozen ones
    and buffers stay in the module. The network always answers in eval mode, so BatchNorm statistics stand still.

    >>> trained = Trained.of(nn.Linear(2, 3), weight_decay=0.1)
    >>> trained.weights.shape, trained.names
    (torch.Size([9]), ('weight', 'bias'))
    """

    model: nn.Module
    weights: Float[Tensor, " P"]
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    loss: Loss
    weight_decay: float | None = None
    init: Float[Tensor, " P"] | None = None
    recipe: Recipe | None = None
    trainer: Trainer | None = None
    init_buffers: Buffers | None = None

    decay = OldName("weight_decay")
    start = OldName("init")

    def __repr__(self) -> str:
        # Weights by the thousand tell nobody anything.
        known = [name for name in ("init", "recipe", "trainer") if getattr(self, name) is not None]
        return (
            f"Trained({type(self.model).__name__}, {self.size} weights, loss={self.loss.name!r}, "
            f"weight_decay={self.weight_decay}, known: {', '.join(known) or 'neither init nor recipe'})"
        )

    @staticmethod
    @accepts_old_names(decay="weight_decay", start="init")
    def of(
        model: nn.Module,
        loss: Loss | Any = None,
        *,
        weight_decay: float | None = None,
        init: Mapping[str, Tensor] | nn.Module | Tensor | None = None,
        recipe: Recipe | None = None,
        trainer: Trainer | Recipe | None = None,
    ) -> "Trained":
        """Wrap a network as it is.

        **Arguments:**

        - `loss`: what was minimised, per sample; softmax cross-entropy unless said. `"squared-error"`, which is
          **half** the square, ½‖f − y‖², and `"binary-cross-entropy"` are known by name.
        - `weight_decay`: weight of `½‖w − start‖²` beside the mean loss; taken from the recipe if that is given.
        - `init`: where training began, which the decay pulls to: a state dict, a module or a flat vector.
        - `recipe`: how it was trained, if retraining and relearning shall be defined. Where `init` has other BatchNorm
          statistics than the network, training moved them, and so does the recipe, whatever its `freeze_statistics`.
        - `trainer`: what trained it, where that was not this package: `train(model, examples, seed) -> model`.
        """
        if isinstance(trainer, Recipe):
            recipe, trainer = trainer, None
        if recipe is not None and trainer is not None:
            raise SettingError("A network was trained by a recipe or by a trainer, but both were given. Give one.")
        if trainer is not None:
            check_signature(trainer)
        # A copy: the caller's module may go on training, and eval mode must not leak into it.
        network = without_autocast(copy.deepcopy(unwrapped(model))).eval()
        taking_part = {n: p.detach() for n, p in network.named_parameters() if p.requires_grad}
        if not taking_part:
            raise SettingError("No parameter requires a gradient, so nothing can be forgotten. Unfreeze some.")
        devices = {str(p.device) for p in (*network.parameters(), *network.buffers())}
        if len(devices) > 1:
            raise MismatchError(f"The network must live on one device, but lies on {', '.join(sorted(devices))}.")
        shapes = tuple(p.shape for p in taking_part.values())
        weights = _flat(taking_part.values())
        check_finite("The weights of the network", weights, "Check the checkpoint.")
        if weight_decay is None and recipe is not None:
            weight_decay = recipe.penalty
        if weight_decay is not None:
            check_not_negative("Trained.decay", weight_decay)
        objective = smoothed(as_loss(loss), 0.0 if recipe is None else recipe.label_smoothing)
        made = Trained(network, weights, tuple(taking_part), shapes, objective, weight_decay, None, recipe, trainer)
        if init is None:
            return made
        made = replace(made, init=made.vector(init), init_buffers=made._buffers_in(init))
        if recipe is not None and made.statistics_moved:
            # What is seen outweighs a default: to repeat the training is to move them again.
            made = replace(made, recipe=recipe.but(freeze_statistics=False))
        return made

    @property
    def device(self) -> torch.device:
        """Where the network lives."""
        return self.weights.device

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the weights."""
        return self.weights.dtype

    @property
    def size(self) -> int:
        """The number of weights that take part, `P`."""
        return self.weights.numel()

    @property
    def anchor(self) -> Float[Tensor, " P"]:
        """What the decay pulls to: the start, or zero where that is not known or the recipe says so."""
        to_zero = self.recipe is not None and self.recipe.decay_toward == "zero"
        return torch.zeros_like(self.weights) if self.init is None or to_zero else self.init

    @property
    def known_weight_decay(self) -> float:
        """The decay, or zero where it is not known."""
        return self.weight_decay or 0.0

    @property
    def can_retrain(self) -> bool:
        """Whether it is known how the network was trained, and from where."""
        return (self.recipe is not None or self.trainer is not None) and self.init is not None

    @property
    def epochs(self) -> int | None:
        """How many epochs a training takes; `None` where nobody knows."""
        if self.trainer is not None:
            return epochs_of(self.trainer)
        return None if self.recipe is None else self.recipe.epochs

    @property
    def statistics_moved(self) -> bool:
        """Whether training moved BatchNorm's running statistics, so that they too know the rows.

        A recipe says so, or it is seen: they are not those at which training began. Where those are not known, it is
        believed of a trainer only.
        """
        if not running_norms(self.model):
            return False
        if self.recipe is not None and not self.recipe.freeze_statistics:
            return True
        if self.init_buffers is None:
            return self.trainer is not None
        return not same_statistics(self.model, running_norms(self.model), self.init_buffers)

    @property
    def moved_buffers(self) -> list[str]:
        """Buffers beside running statistics that are not those at which training began, where these are known."""
        norms = {id(b) for m in running_norms(self.model) for b in m.buffers(recurse=False)}
        own = [(name, b) for name, b in self.model.named_buffers() if self.init_buffers and id(b) not in norms]
        return [name for name, b in own if not torch.equal(b, self.init_buffers[name].to(b))]  # type: ignore[index]

    @property
    def may_have_moved_statistics(self) -> bool:
        """Whether running statistics may know the rows and nobody can tell: there are some, and init brought none."""
        return bool(running_norms(self.model)) and self.init_buffers is None and not self.statistics_moved

    def begin(self, who: str, *, instead: str = "") -> "Trained":
        """The network where its training began, or an error that says what `who` lacks and what to use instead.

        The one place where "needs the recipe and the initial weights" is checked.
        """
        if self.init is None or not self.can_retrain:
            known = {"recipe": self.recipe is not None or self.trainer is not None, "init": self.init is not None}
            missing = " and ".join(name for name, is_known in known.items() if not is_known)
            other = f", or use `{instead}`" if instead else ""
            raise NeedError(
                f"{who} needs the recipe and the start of the training, but there is no {missing}. Give both: "
                f"`Trained.of(model, recipe=..., init=...)`, or `trainer=...` for a training of your own{other}."
            )
        return self.at(self.init, self.began_with)

    @property
    def began_with(self) -> Buffers | None:
        """The buffers at which training began; `None` where those of the network are the same, or nobody knows."""
        return self.init_buffers if self.statistics_moved or self.moved_buffers else None

    def with_buffers(self, buffers: Buffers) -> "Trained":
        """The same network with other buffers, such as running statistics of BatchNorm."""
        return replace(self, model=put_buffers(self.model, buffers))

    def at(self, weights: Float[Tensor, " P"], buffers: Buffers | None = None) -> "Trained":
        """The same network with other weights, and with other buffers where they are given."""
        if weights.shape != self.weights.shape:
            raise MismatchError(
                f"The network has {self.size} weights, but got {weights.numel()}. They must come from the same network."
            )
        moved = replace(self, weights=weights.detach().to(self.weights))
        return moved if buffers is None else moved.with_buffers(buffers)

    def vector(self, weights: Mapping[str, Tensor] | nn.Module | Tensor) -> Float[Tensor, " P"]:
        """The flat vector of a state dict, or of another module of the same kind."""
        if isinstance(weights, Tensor):
            flat = weights
        else:
            named = dict(unwrapped(weights).named_parameters()) if isinstance(weights, nn.Module) else weights
            missing = [n for n in self.names if n not in named]
            if missing:
                raise MismatchError(f"Weights are missing {len(missing)} parameters, first {missing[0]!r}.")
            wrong = [n for n, s in zip(self.names, self.shapes, strict=True) if named[n].shape != s]
            if wrong:
                raise MismatchError(f"Parameter {wrong[0]!r} has another shape, {tuple(named[wrong[0]].shape)}.")
            flat = _flat(named[n] for n in self.names)
        if flat.shape != self.weights.shape:
            raise MismatchError(f"The network has {self.size} weights, but got {flat.numel()}.")
        return flat.detach().to(self.weights)

    def check_start(self, start: Mapping[str, Tensor] | nn.Module | Tensor, called: str) -> None:
        """Raise for weights, by what a person calls them, at which training of this network cannot have begun."""
        try:
            began = self.vector(start)
        except MismatchError as e:
            raise MismatchError(f"{called}: {e} Give the checkpoint that training of this network began at.") from e
        if not bool(began.isfinite().all()):
            raise DataError(f"The weights of {called} must be finite. Give the checkpoint that training began at.")
        # A retraining from there would keep what they know, and a receipt would say that it never saw the rows.
        if began.equal(self.weights):
            raise DataError(
                f"{called} holds the weights of the trained network itself, which know the rows to forget: a "
                "retraining from there forgets nothing. Give the checkpoint that training began at, or none."
            )

    def unflatten(self, weights: Float[Tensor, " P"]) -> dict[str, Tensor]:
        """Named parameters as views of a flat vector; differentiable."""
        pieces = weights.split([shape.numel() for shape in self.shapes])
        return {n: w.view(s) for n, w, s in zip(self.names, pieces, self.shapes, strict=True)}

    def module(self, weights: Float[Tensor, " P"] | None = None) -> nn.Module:
        """A module of its own, with these weights: what a user takes away."""
        network = copy.deepcopy(self.model)
        parameters = dict(network.named_parameters())
        with torch.no_grad():
            for name, value in self.unflatten(self.weights if weights is None else weights).items():
                parameters[name].copy_(value)
        return network

    def outputs(
        self, x: Inputs, weights: Float[Tensor, " P"] | Mapping[str, Tensor] | None = None
    ) -> Float[Tensor, "N *C"]:
        """What the network answers, logits as a rule, at these weights, flat or by name; differentiable in them."""
        if isinstance(weights, Mapping):
            parameters = dict(weights)
        else:
            parameters = self.unflatten(self.weights if weights is None else weights)
        inputs, named = ((), dict(x)) if isinstance(x, dict) else ((x,), {})
        halved = not torch.compiler.is_compiling() and HALVED.get()
        derived = stepwise() if torch.is_grad_enabled() and self.is_recurrent else nullcontext()
        with _lent(self.model, parameters), derived, passing(self.model, self.device) if halved else nullcontext():
            answer = logits_of(functional_call(self.model, parameters, inputs, named))
        return answer.to(self.dtype) if halved else answer

    @property
    def is_recurrent(self) -> bool:
        """Whether there are recurrent layers."""
        return any(isinstance(layer, nn.RNNBase) for layer in self.model.modules())

    def losses(
        self, x: Inputs, y: Shaped[Tensor, "N *d"], weights: Float[Tensor, " P"] | None = None
    ) -> Float[Tensor, " N"]:
        """The loss per sample, without decay."""
        return self.loss(self.outputs(x, weights), y)

    def batches(self, data: Data, size: int = 256) -> Iterator[Batch]:
        """The rows of `data`, on the network's device, floating inputs in its number format."""
        for x, y, rows in data.batches(size):
            yield Batch(self._fit(x), y.to(self.device), rows)

    def fetch(self, data: Data, rows: Tensor) -> Batch:
        """Some rows by their number in the source, moved like `batches` does."""
        x, y, rows = data.fetch(rows)
        return Batch(self._fit(x), y.to(self.device), rows)

    @torch.no_grad()
    def predict(self, data: Data, size: int = 256) -> Float[Tensor, "N *C"]:
        """All outputs, streamed; only the answers are kept."""
        answers = [self.outputs(batch.x) for batch in self.batches(data, size)]
        if not answers:
            raise DataError("There is no row to answer about. Give data with at least one row.")
        return torch.cat(answers)

    def risk(self, data: Data, weights: Float[Tensor, " P"] | None = None) -> Float[Tensor, ""]:
        r"""$L(w) = \frac1N \sum_i \ell_i(w) + \frac{\lambda}{2}\|w - w_{start}\|^2$, differentiable."""
        w = self.weights if weights is None else weights
        total = torch.stack([self.losses(b.x, b.y, w).sum() for b in self.batches(data)]).sum()
        return total / len(data) + 0.5 * self.known_weight_decay * (w - self.anchor).square().sum()

    def _buffers_in(self, init: Mapping[str, Tensor] | nn.Module | Tensor) -> Buffers | None:
        """The buffers that came with the start, where all of them did."""
        if isinstance(init, Tensor):
            return None
        found = buffers_of(unwrapped(init)) if isinstance(init, nn.Module) else init
        own = dict(self.model.named_buffers())
        # Those that no state dict holds are made with the network.
        if not own.keys() & self.model.state_dict().keys() <= found.keys():
            return None
        return {name: found.get(name, value).detach().to(value) for name, value in own.items()}

    def _fit(self, x: Inputs) -> Inputs:
        if isinstance(x, dict):
            return {name: self._fit_one(value) for name, value in x.items()}
        return self._fit_one(x)

    def _fit_one(self, x: Tensor) -> Tensor:
        if x.is_floating_point() and x.element_size() > self.dtype.itemsize:
            x = x.to(self.dtype)  # fewer bytes to move; else the device makes more of them
        return x.to(self.device).to(self.dtype) if x.is_floating_point() else x.to(self.device)


@contextmanager
def _lent(model: nn.Module, parameters: dict[str, Tensor]) -> Iterator[None]:
    """What the network computes anew on its way back it computes with these parameters, see `core.recomputing`."""
    before = (checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction)
    checkpoint._checkpoint_without_reentrant_generator = partial(recomputed, model, parameters, before[0])
    checkpoint.CheckpointFunction = NoReentrance  # type: ignore[assignment,misc]  # only `apply` is ever asked for
    try:
        yield
    finally:
        checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction = before  # type: ignore[misc]


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside what `torch.compile`, data parallelism or an average over training put around it."""
    around = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
    if hasattr(model, "_orig_mod"):
        return unwrapped(model._orig_mod)  # type: ignore[arg-type]  # torch.compile keeps the module there
    return unwrapped(model.module) if isinstance(model, around) else model


def without_autocast(copied: nn.Module) -> nn.Module:
    """A copy's own `forward`, without the mixed precision that accelerate, and so `transformers.Trainer`, left there.

    It belongs to the training, and no derivative by row goes through it.
    """
    # Marked as prepared, it would be trained again without its mixed precision.
    copied.__dict__.pop("_is_accelerate_prepared", None)
    forward = copied.__dict__.pop("_original_forward", None)
    if forward is not None:
        copied.__dict__.pop("forward", None)
        if getattr(forward, "__func__", None) is not type(copied).forward:
            copied.forward = forward
    return copied


def as_trained(given: Trained | nn.Module) -> Trained:
    """A bare module as a network of which nothing else is known: cross-entropy, no recipe."""
    if not isinstance(given, (Trained, nn.Module)):
        raise SettingError(f"A network must be a torch module or a `Trained`, but got {type(given).__name__}.")
    return Trained.of(given) if isinstance(given, nn.Module) else given


def _flat(tensors: Any) -> Float[Tensor, " P"]:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """All buffers by name, copied."""
    return {name: value.detach().clone() for name, value in module.named_buffers()}


def running_norms(module: nn.Module) -> list[_NormBase]:
    """The layers that keep running statistics."""
    return [m for m in module.modules() if isinstance(m, _NormBase) and m.running_mean is not None]
