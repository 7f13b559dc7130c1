"""`ForgettableModel`: a network whose user data can be taken out again, exactly and at once."""

import copy
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, NeedError, SolveError
from spotlessnet.core.source import Inputs
from spotlessnet.forgettable.certificate import Certificate, refine
from spotlessnet.forgettable.encoder import Encoder, check_labels
from spotlessnet.forgettable.examples import Examples, digests_of
from spotlessnet.forgettable.given import (
    check_inputs,
    class_number,
    class_numbers,
    plain_ids,
    several,
    weights_by_class,
    whole_weights,
)
from spotlessnet.forgettable.inverse import inverse, update_, worth_updating
from spotlessnet.forgettable.module import ForgettableNetwork
from spotlessnet.forgettable.moments import Moments
from spotlessnet.forgettable.traced import traced
from spotlessnet.forgettable.turn import Turn, in_turn

Kind = Literal["fit", "forget", "add", "relabel", "refresh"]


@dataclass(frozen=True)
class Request:
    """What one request did.

    **Arguments:**

    - `kind`: forget, add, relabel, fit or refresh.
    - `examples`: how many examples it was about.
    - `left`: how many user examples the model holds now.
    - `certificate`: how far the weights can be from solving anew without them.
    - `moved`: how far the weights went, in the same units.
    - `refactored`: whether the inverse was made anew rather than updated.
    """

    kind: Kind
    examples: int
    left: int
    certificate: Certificate
    moved: float
    refactored: bool
    seconds: float

    def about(self) -> dict[str, float | int | str | bool]:
        """Plain values for a receipt."""
        return {
            "kind": self.kind,
            "examples": self.examples,
            "examples_left": self.left,
            "distance_bound": self.certificate.bound,
            "distance_bound_relative": self.certificate.relative,
            "moved": self.moved,
            "refactored": self.refactored,
            "seconds": self.seconds,
        }


@dataclass(eq=False, repr=False)
class ForgettableModel:
    r"""Frozen features from core data, and the ridge problem $(G + rI)\,W = C$ that user data enter.

    Make one with `fit_forgettable`. `moments` are whole numbers, so examples are taken out without rounding; `inverse`,
    of the problem's matrix, is updated with them; `weights` are corrected until float64 holds no better ones. After a
    request weights and moments are those of a model that never held the examples, bit for bit as a rule, and the
    inverse is so up to rounding; `refresh` makes that bit for bit too.

    `class_weights` are those of the fit, or `None`; `weights_unknown` says that a state from before they were kept has
    examples that do not weigh one.

    Requests from several threads are served one after the other. A request that fails has changed nothing; one that
    was interrupted while it was written makes the model refuse all others, as `turn` says.
    """

    encoder: Encoder
    moments: Moments
    ridge: int
    examples: Examples
    inverse: Float[Tensor, "D D"]
    weights: Float[Tensor, "D C"]
    requests: list[Request] = field(default_factory=list)
    core_examples: int = 0
    ridge_from: str = "given"
    class_weights: Int64[Tensor, " classes"] | None = None
    weights_unknown: bool = False
    turn: Turn = field(default_factory=Turn)

    def __repr__(self) -> str:
        """Sizes alone: whoever logs a model must not log the ids in it."""
        features, outputs = self.weights.shape
        return (
            f"ForgettableModel(user_examples={len(self)}, core_examples={self.core_examples}, features={features}, "
            f"outputs={outputs}, ridge={self.ridge})"
        )

    def __len__(self) -> int:
        """How many user examples are inside."""
        return len(self.examples)

    @property
    def certificate(self) -> Certificate:
        """How far the present weights can be from the exact optimum."""
        return self.requests[-1].certificate

    @in_turn
    def forget(self, ids: Iterable[Any] | Hashable, *, inputs: Inputs | None = None) -> Request:
        """Take out every example with these ids.

        **Arguments:**

        - `inputs`: the examples' inputs, id after id, those of one id as they were put in; needed only where features
          were not kept.
        """
        return self._remove(self.examples.find(several(ids)), inputs)

    @in_turn
    def forget_class(self, label: int | Any, *, inputs: Inputs | None = None) -> Request:
        """Take out all user examples of a class."""
        label = class_number(label)
        if not 0 <= label < self.encoder.classes:
            raise DataError(f"A class must lie between 0 and {self.encoder.classes - 1}, but is {label}.")
        return self._remove(self.examples.of_class(label), inputs)

    @in_turn
    def forget_all(self, *, inputs: Inputs | None = None) -> Request:
        """Take out all user data: what is left is the model of core data."""
        return self._remove(self.examples.all(), inputs)

    @in_turn
    def add(
        self, x: Inputs, y: Tensor | Any, *, ids: Iterable[Any], weights: Tensor | Sequence[int] | None = None
    ) -> Request:
        """Put examples in: the same as if they had been there from the beginning.

        **Arguments:**

        - `weights`: whole numbers; those of the examples' classes unless said.
        """
        began = time.perf_counter()
        names, y = plain_ids(ids), class_numbers(y)
        check_inputs(x)
        if not y.ndim or len(names) != len(y):
            raise MismatchError(f"Each example needs an id, but {y.numel()} examples came with {len(names)} ids.")
        check_labels(y, self.encoder.classes)
        if weights is None and self.weights_unknown:
            raise NeedError(
                "This state comes from a version that did not keep class weights, and its examples have some. Say what "
                "these examples weigh: `add(..., weights=...)`."
            )
        w = weights_by_class(y, self.class_weights) if weights is None else whole_weights(weights, len(y))
        codes, targets = self.encoder(x, y)
        self._change("add", began, codes, targets, w, 1, lambda: self.examples.append(codes, targets, y, w, names))
        return self.requests[-1]

    @in_turn
    def relabel(self, ids: Iterable[Any] | Hashable, y: Tensor | Any, *, inputs: Inputs | None = None) -> Request:
        """Correct the labels of all examples with these ids; the inverse stays as it is unless their weights change.

        With class weights, an example that weighed what its class does then weighs what its new class does. One that
        was added with a weight of its own keeps that.

        **Arguments:**

        - `y`: one label for all, or one for each example: id after id, those of one id as they were put in.
        """
        began = time.perf_counter()
        places = self.examples.find(several(ids))
        if not len(places):
            raise DataError("No id was given, so there is nothing to relabel.")
        labels = class_numbers(y, len(places)).cpu()
        if len(labels) != len(places):
            raise MismatchError(f"{len(places)} examples have these ids, but {len(labels)} labels came.")
        check_labels(labels, self.encoder.classes)
        codes, targets, w = self._rows(places, inputs)
        turned = targets.clone()
        goal = nn.functional.one_hot(labels.long(), self.encoder.classes).to(targets)
        old = nn.functional.one_hot(self.examples.labels[places], self.encoder.classes).to(targets)
        if self.encoder.per_class:
            raise NeedError(
                "A linearised network's targets hold its own answers. Forget the examples and add them anew."
            )
        if self.weights_unknown:
            raise NeedError(
                "This state comes from a version that did not keep class weights, and its examples have some. Forget "
                "the examples and add them anew, with the weights that their new classes have."
            )
        turned += (goal - old)[:, None]
        by_class = weights_by_class(self.examples.labels[places], self.class_weights)
        now = torch.where(w == by_class, weights_by_class(labels, self.class_weights), w)
        if self.class_weights is None:
            now = w
        gone, come = _flat(codes, targets, w), _flat(codes, turned, now)

        with self._whole(lambda: self.moments.exchange(gone, come), lambda: self.moments.exchange(come, gone)):
            anew = not torch.equal(w, now)
            if anew:
                self.inverse = inverse(self.moments.gram, self.ridge)
            self._settle("relabel", began, len(places), refactored=anew)
        self.examples.targets[places.to(self.examples.targets.device)] = turned.to(self.examples.targets)
        self.examples.labels[places] = labels.long()
        self.examples.weights[places] = now
        self.turn.torn = False
        return self.requests[-1]

    @in_turn
    def refresh(self) -> Request:
        """Make the inverse anew from the moments: the whole state is then bit for bit that of a new fit."""
        began = time.perf_counter()
        self.inverse = inverse(self.moments.gram, self.ridge)
        self._settle("refresh", began, 0, refactored=True)
        return self.requests[-1]

    def solved_anew(self, user: Data | Any, *, core: Data | Any) -> "ForgettableModel":
        """The problem of these examples from nothing, with this model's features, ridge and class weights."""
        if self.weights_unknown:
            raise NeedError("This state comes from a version that did not keep class weights. Fit anew with them.")
        moments = Moments.zero(len(self.weights), self.weights.shape[1], self.encoder.device)
        for data in (Data.of(core), Data.of(user)):
            for batch in data.batches(1024):
                codes, targets = self.encoder(batch.x, batch.y)
                w = weights_by_class(batch.y, self.class_weights)
                moments.add(codes.flatten(0, 1), targets.flatten(0, 1), w.repeat_interleave(codes.shape[1]))
        model = empty_model(self.encoder, self.ridge, len(self.weights), self.weights.shape[1])
        model.moments, model.class_weights = moments, self.class_weights
        model.inverse = inverse(moments.gram, self.ridge)
        model._settle("fit", time.perf_counter(), len(Data.of(user)), refactored=True)
        return model

    def module(self, example: Tensor | None = None) -> nn.Module:
        """An ordinary network with the present weights, sharing nothing with this model.

        **Arguments:**

        - `example`: a batch of inputs, for `torch.export` and ONNX. The gradients that tangent features take while they
          answer are then written down as ordinary operations, for batches of this shape.
        """
        network = copy.deepcopy(ForgettableNetwork(self.encoder, self.weights)).eval()
        return network if example is None else traced(network, example)

    @torch.no_grad()
    def predict(self, data: Data | Inputs) -> Float[Tensor, "N C"]:
        """Scores per class, a batch at a time."""
        network = ForgettableNetwork(self.encoder, self.weights)
        size, device = self.encoder.batch_size, self.encoder.device
        if isinstance(data, Data):
            pieces = [batch.x for batch in data.batches(size)]
        elif isinstance(data, dict):
            count = len(next(iter(data.values())))
            pieces = [{n: v[i : i + size] for n, v in data.items()} for i in range(0, count, size)]
        else:
            pieces = list(data.split(size))
        answers = []
        for x in pieces:
            here = {n: v.to(device) for n, v in x.items()} if isinstance(x, dict) else x.to(device)
            answers.append(network(**here) if isinstance(here, dict) else network(here))
        return torch.cat(answers)

    def _remove(self, places: Int64[Tensor, " k"], inputs: Inputs | None) -> Request:
        began = time.perf_counter()
        if not len(places):
            raise DataError("No user example is concerned, so there is nothing to forget.")
        codes, targets, w = self._rows(places, inputs)
        self._change("forget", began, codes, targets, w, -1, lambda: self.examples.erase(places))
        return self.requests[-1]

    def _rows(self, places: Int64[Tensor, " k"], inputs: Inputs | None) -> tuple[Tensor, Tensor, Tensor]:
        kept = self.examples
        if kept.codes is not None:
            codes = kept.codes[places.to(kept.codes.device)]
        elif inputs is None:
            raise NeedError(
                "Features were not kept, so the inputs of these examples are needed: `forget(ids, inputs=...)`. Fit "
                "with `keep_features=True` to do without."
            )
        else:
            codes = self.encoder(inputs, kept.labels[places])[0]
            kept.check_same(places, codes)
        return codes, kept.targets[places.to(kept.targets.device)], kept.weights[places]

    def _change(
        self, kind: Kind, began: float, codes: Tensor, targets: Tensor, w: Tensor, sign: int, book: object
    ) -> None:
        """Moments, inverse, weights, and last the list of examples: a request that fails has changed nothing."""
        rows = _flat(codes, targets, w)
        there, back = (self.moments.add, self.moments.remove) if sign > 0 else (self.moments.remove, self.moments.add)
        root = rows[2].to(self.weights).sqrt()[:, None]
        X, T = rows[0].to(self.weights) * root, rows[1].to(self.weights) * root
        with self._whole(lambda: there(*rows), lambda: back(*rows)):
            step = None
            if worth_updating(len(self.inverse), len(X)):
                step = update_(self.inverse, X, sign, T - X @ self.weights)
            if step is None:
                self.inverse = inverse(self.moments.gram, self.ridge)
            left = len(self.examples) + sign * len(codes)
            self._settle(kind, began, len(codes), refactored=step is None, step=step, left=left)
        assert callable(book)
        book()
        self.turn.torn = False

    @contextmanager
    def _whole(self, do: Callable[[], object], undo: Callable[[], object]) -> Iterator[None]:
        """Change the moments, and put them and the inverse back if what follows breaks off.

        The model counts as torn from here until the caller has written the list of examples too.
        """
        self.turn.torn = True
        try:
            do()
        except Exception:
            # Moments put themselves back; only an interrupt, which may come anywhere, leaves them torn.
            self.turn.torn = False
            raise
        try:
            yield
        except BaseException:
            undo()
            self.turn.torn = False
            self.inverse = inverse(self.moments.gram, self.ridge)
            raise

    def _settle(
        self,
        kind: Kind,
        began: float,
        examples: int,
        *,
        refactored: bool,
        step: Tensor | None = None,
        left: int | None = None,
    ) -> None:
        """The weights of the present moments, certified; the inverse is made anew where it has become too coarse."""
        start = self.weights if step is None else self.weights + step
        found = refine(self.moments, self.ridge, self.inverse, start, near=step is not None)
        if found.coarse and not refactored:
            self.inverse = inverse(self.moments.gram, self.ridge)
            refactored = True
            found = refine(self.moments, self.ridge, self.inverse, self.inverse @ self.moments.cross)
        if not found.certificate.bound < 1e-6 * max(found.certificate.size, 1e-300) and found.certificate.bound > 0:
            raise SolveError(
                f"The weights must be certain to a millionth of their length, but only "
                f"{found.certificate.relative:.2g} is reached: the ridge {self.ridge} is too small for "
                "these features. Fit with a larger ridge."
            )
        moved = float((found.weights - self.weights).norm())
        self.weights = found.weights
        seconds = time.perf_counter() - began
        left = len(self.examples) if left is None else left
        self.requests.append(Request(kind, examples, left, found.certificate, moved, refactored, seconds))


def _flat(codes: Tensor, targets: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the problem: one per example, or one per example and class."""
    per = codes.shape[1]
    return codes.flatten(0, 1), targets.flatten(0, 1), w.repeat_interleave(per)


def empty_model(encoder: Encoder, ridge: int, features: int, outputs: int) -> ForgettableModel:
    """A model that holds no example at all."""
    device = encoder.device
    moments = Moments.zero(features, outputs, device)
    rows = encoder.classes if encoder.per_class else 1
    kept = Examples(
        torch.zeros(0, rows, outputs, dtype=torch.int16, device=device),
        torch.zeros(0, dtype=torch.long),
        torch.zeros(0, dtype=torch.long),
        [],
    )
    return ForgettableModel(
        encoder, moments, ridge, kept, inverse(moments.gram, ridge), torch.zeros_like(moments.cross)
    )


__all__ = ["ForgettableModel", "Request", "digests_of", "empty_model"]
