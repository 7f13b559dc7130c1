"""`Statistics`: what is kept at the end of training so that later requests need only the rows that must go."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from jaxtyping import Float, UInt8
from torch import Tensor

from spotlessnet.core.covariance import Block, Kronecker
from spotlessnet.core.data import WIDTH, Data
from spotlessnet.core.errors import DataError, MismatchError, NeedError
from spotlessnet.core.row_keys import RowKeys
from spotlessnet.core.trained import Trained
from spotlessnet.precomputed.effect import Effect
from spotlessnet.precomputed.written import Written

FORMAT = "4"

HEADER = f"spotlessnet statistics {FORMAT}"
"""What a file says of itself."""


@dataclass(frozen=True, eq=False)
class Statistics:
    r"""Sums over the training data at the network's weights; no row is kept.

    A request leaves the statistics of a network that never saw its rows: those that retained rows write at the new
    weights, and none where hardly any are at hand. Nothing of the weights before it stays, nor any sum that its rows
    are in.

    **Arguments:**

    - `weights`: of the network that the statistics belong to; they move with each request.
    - `gradient`: $g_D = \sum_{i \in D} \nabla \ell_i(w)$, without decay.
    - `keys`: of the rows that the sums hold; rows that requests removed are absent.
    - `weight_decay`: $\lambda$, as known when the statistics were written.
    - `basis`, `values`: the top eigenvectors and eigenvalues of the Gauss-Newton matrix $H_D$ (a sum, no ridge).
    - `outside`, `error`: the mean and the largest eigenvalue of $H_D$ beyond the kept span, as estimated.
    - `diagonal`: the Fisher diagonal, a sum.
    - `kronecker`: Kronecker-factored curvature, a sum.
    - `coreset`: keys of retained rows that fine-tuning may read.
    - `trained_on`: how many rows the network was trained on, before any request; 0 for as many as there are keys.
    - `after_requests`: whether the network served a request before, which later ones must not take back.
    - `effects`: how far each of them raised the loss of its rows, while that is known. Never in a file, nor in a pickle
      or copy: it would help to guess labels. Where it is gone, later requests may move others less.
    - `written`: how it was written.
    """

    weights: Float[Tensor, " P"]
    gradient: Float[Tensor, " P"]
    keys: RowKeys = field(repr=False)
    weight_decay: float
    basis: Float[Tensor, "P r"] | None = None
    values: Float[Tensor, " r"] | None = None
    outside: float = 0.0
    error: float = 0.0
    diagonal: Float[Tensor, " P"] | None = None
    kronecker: Kronecker | None = None
    coreset: UInt8[Tensor, "K w"] | None = None
    trained_on: int = 0
    after_requests: bool = False
    effects: tuple[Effect, ...] | None = field(default=None, repr=False)
    written: Written = field(default_factory=Written)

    def __repr__(self) -> str:
        rank = 0 if self.values is None else len(self.values)
        return f"Statistics({self.count} examples, {self.weights.numel()} weights, {rank} directions of curvature)"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "effects": None}

    @property
    def count(self) -> int:
        """$N$, how many rows the sums hold."""
        return len(self.keys)

    def forgotten(self, more: int = 0) -> float:
        """The share of the rows trained on that is gone, with so many more."""
        first = self.trained_on or self.count
        return (first - self.count + more) / first

    def check_holds(self, forget: Data) -> None:
        """Raise unless every row of a request is among those that the sums hold."""
        self.keys.check_hold(forget, "the statistics")

    def check_belongs_to(self, trained: Trained) -> None:
        """Raise unless the statistics were written for these very weights."""
        if self.weights.shape != trained.weights.shape:
            raise MismatchError(
                f"The statistics are of a network with {self.weights.numel()} weights, this one has {trained.size}. "
                "Precompute statistics for this network."
            )
        gap = float((self.weights.to(trained.weights) - trained.weights).norm())
        if gap > 1e-5 * max(1.0, float(trained.weights.norm())):
            raise MismatchError(
                f"The statistics were written at other weights (distance {gap:.3g}). Use those that belong to this "
                "checkpoint; each request writes a new pair."
            )

    def need(self, name: str) -> Tensor:
        """A part that may be missing; an error that names the remedy when it is."""
        value = getattr(self, name)
        if value is None:
            raise NeedError(f"The statistics hold no {name}. Write them anew with `precompute(..., {name}=...)`.")
        return value

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Everything as named tensors and text, ready for a safetensors file."""
        tensors = {"weights": self.weights, "gradient": self.gradient, "keys": self.keys.digests}
        for name in ("basis", "values", "diagonal", "coreset"):
            value = getattr(self, name)
            if value is not None:
                tensors[name] = value
        if self.kronecker is not None:
            for i, block in enumerate(self.kronecker.blocks):
                factors = {"left": block.left, "right": block.right, "values": block.values}
                tensors |= {f"kronecker.{i}.{name}": t for name, t in factors.items() if t is not None}
        text = {
            "format": HEADER,
            "salt": self.keys.salt.hex(),
            "trained_on": str(self.trained_on),
            "after_requests": str(int(self.after_requests)),
            "written": json.dumps(asdict(self.written), sort_keys=True),
            **{name: repr(getattr(self, name)) for name in NUMBERS},
        }
        return {name: t.detach().cpu().contiguous() for name, t in tensors.items()}, text

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor], text: Mapping[str, str]) -> "Statistics":
        """The statistics that `tensors` took apart."""
        said = text.get("format")
        if said != HEADER:
            old = str(said).startswith(("spotlessnet memory ", "spotlessnet statistics "))
            why = " Statistics of earlier formats held what their requests had removed: destroy them." if old else ""
            raise DataError(
                f"Statistics must say {HEADER!r} in their header, but say {said!r}.{why} Write them anew with "
                "`precompute`."
            )
        missing = [name for name in ("weights", "gradient", "keys") if name not in tensors]
        if missing:
            raise DataError(f"The statistics lack {', '.join(missing)}. Write them anew with `precompute`.")
        blocks = _blocks(tensors)
        try:
            salt = bytes.fromhex(text["salt"])
            written = Written.from_text(text["written"])
            numbers = {name: float(text[name]) for name in NUMBERS}
            since = int(text.get("since", 0))
            trained_on = _trained_on(text["trained_on"], len(tensors["keys"]))
            if tensors["keys"].ndim != 2 or tensors["keys"].shape[1] != WIDTH:
                raise ValueError("its keys have another shape")
            found = Statistics(
                weights=tensors["weights"],
                gradient=tensors["gradient"],
                keys=RowKeys(salt, tensors["keys"]),
                basis=tensors.get("basis"),
                values=tensors.get("values"),
                diagonal=tensors.get("diagonal"),
                kronecker=Kronecker(tuple(blocks)) if blocks else None,
                coreset=tensors.get("coreset"),
                trained_on=trained_on,
                after_requests=AFTER[text["after_requests"]],
                effects=None,
                written=written,
                **numbers,
            )
        except (KeyError, ValueError, TypeError, RecursionError) as e:
            raise DataError(f"The statistics' header is damaged ({e}). Write them anew with `precompute`.") from e
        if since:
            # An earlier version took the rows of a request out of a low rank, and so left them in its directions.
            raise DataError(
                "Statistics must be written anew from retained rows after every request, but these were not: what "
                "their last request removed can be read from them. Destroy them, and write new ones with `precompute`."
            )
        return found


def _trained_on(text: str, count: int) -> int:
    """How many rows a header says that there were at first: none where it does not tell, else not fewer than now."""
    found = int(text)
    if found and not count <= found <= MOST_ROWS:
        raise ValueError(f"it must have been trained on the {count} rows that it holds or more")
    return found


def _blocks(tensors: Mapping[str, Tensor]) -> list[Block]:
    """The blocks of a Kronecker-factored curvature, as far as they are numbered."""
    found: list[Block] = []
    while f"kronecker.{len(found)}.values" in tensors:
        i = len(found)
        left, right = tensors.get(f"kronecker.{i}.left"), tensors.get(f"kronecker.{i}.right")
        found.append(Block(left, right, tensors[f"kronecker.{i}.values"]))
    return found


MOST_ROWS = 2**53
"""Above, shares of rows are no longer exact."""

AFTER = {"0": False, "1": True}

NUMBERS = ("weight_decay", "outside", "error")
