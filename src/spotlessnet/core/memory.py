"""`Memory`: what is kept at the end of training so that later requests need only the rows that must go."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from spotlessnet.core.covariance import Block, Kronecker
from spotlessnet.core.data import Data
from spotlessnet.core.errors import DataError, MismatchError, NeedError
from spotlessnet.core.trained import Trained

FORMAT = "2"


@dataclass(frozen=True, eq=False)
class Memory:
    r"""Sums over the training data at the trained weights; no row is kept.

    A request removes its own sums, so the next one finds the memory of a network that never saw those rows. All sums
    stay those at the weights where the memory was written, also when requests have moved the network: so requests one
    by one ask for what one joint request would ask for, and no error feeds the next.

    **Arguments:**

    - `weights`: of the network that the memory belongs to; they move with each request.
    - `origin`: where the sums were taken; `weights` unless a request has moved them.
    - `undone`: the mean gradient when the memory was written, which training had left and requests leave as it is;
      `gradient / count` unless a request has changed that.
    - `moved`: what requests have asked for so far, all together; nothing unless one has.
    - `ridge`: decay plus damping, per row, that the last request needed; `first` is that of the first one.
    - `gradient`: $g_D = \sum_{i \in D} \nabla \ell_i(w)$, without decay.
    - `count`: $N$, how many rows the sums hold.
    - `decay`: $\lambda$, as known when the memory was written.
    - `basis`, `values`: the top eigenvectors and eigenvalues of the Gauss-Newton matrix $H_D$ (a sum, no ridge).
    - `outside`, `error`: the mean and the largest eigenvalue of $H_D$ beyond the kept span, as estimated.
    - `diagonal`: the Fisher diagonal, a sum.
    - `kronecker`: Kronecker-factored curvature, a sum.
    - `gone`: numbers of rows that requests have removed; they never count again.
    - `coreset`: numbers of retained rows that a polish may read.
    """

    weights: Float[Tensor, " P"]
    gradient: Float[Tensor, " P"]
    count: int
    decay: float
    basis: Float[Tensor, "P r"] | None = None
    values: Float[Tensor, " r"] | None = None
    outside: float = 0.0
    error: float = 0.0
    diagonal: Float[Tensor, " P"] | None = None
    kronecker: Kronecker | None = None
    gone: Int64[Tensor, " G"] | None = None
    coreset: Int64[Tensor, " K"] | None = None
    origin: Float[Tensor, " P"] | None = None
    undone: Float[Tensor, " P"] | None = None
    moved: Float[Tensor, " P"] | None = None
    ridge: float = 0.0
    first: float = 0.0

    @property
    def taken_at(self) -> Float[Tensor, " P"]:
        """The weights at which the sums hold."""
        return self.weights if self.origin is None else self.origin

    @property
    def left_undone(self) -> Float[Tensor, " P"]:
        """The mean gradient that training had left."""
        return self.gradient / self.count if self.undone is None else self.undone

    def fresh(self, forget: Data) -> Data:
        """The rows of a request that were not removed before."""
        if self.gone is None or not len(self.gone):
            return forget
        return forget.pick((~torch.isin(forget.rows, self.gone)).nonzero().squeeze(1))

    def check_belongs_to(self, trained: Trained) -> None:
        """Raise unless the memory was written for these very weights."""
        if self.weights.shape != trained.weights.shape:
            raise MismatchError(
                f"The memory is of a network with {self.weights.numel()} weights, this one has {trained.size}. "
                "Write a memory for this network."
            )
        gap = float((self.weights.to(trained.weights) - trained.weights).norm())
        if gap > 1e-5 * max(1.0, float(trained.weights.norm())):
            raise MismatchError(
                f"The memory was written at other weights (distance {gap:.3g}). Use the memory that belongs to this "
                "checkpoint; each request writes a new pair."
            )

    def need(self, name: str) -> Tensor:
        """A part that may be missing; an error that names the remedy when it is."""
        value = getattr(self, name)
        if value is None:
            raise NeedError(f"The memory holds no {name}. Write it anew with `remember(..., {name}=...)`.")
        return value

    def without(self, rows: Int64[Tensor, " k"], **changes: object) -> "Memory":
        """The memory after a request: these rows are gone, and the sums are the ones given."""
        gone = rows if self.gone is None else torch.cat([self.gone, rows]).unique()
        coreset = self.coreset
        if coreset is not None:
            coreset = coreset[~torch.isin(coreset, rows)]
        return replace(self, gone=gone, coreset=coreset, **changes)  # type: ignore[arg-type]  # field names, by keyword

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Everything as named tensors and text, ready for a safetensors file."""
        tensors = {"weights": self.weights, "gradient": self.gradient}
        for name in ("basis", "values", "diagonal", "gone", "coreset", "origin", "undone", "moved"):
            value = getattr(self, name)
            if value is not None:
                tensors[name] = value
        if self.kronecker is not None:
            for i, block in enumerate(self.kronecker.blocks):
                factors = {"left": block.left, "right": block.right, "values": block.values}
                tensors |= {f"kronecker.{i}.{name}": t for name, t in factors.items() if t is not None}
        text = {
            "format": f"spotlessnet memory {FORMAT}",
            "count": str(self.count),
            "decay": repr(self.decay),
            "outside": repr(self.outside),
            "error": repr(self.error),
            "ridge": repr(self.ridge),
            "first": repr(self.first),
        }
        return {name: t.detach().cpu().contiguous() for name, t in tensors.items()}, text

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor], text: Mapping[str, str]) -> "Memory":
        """The memory that `tensors` took apart."""
        if text.get("format") != f"spotlessnet memory {FORMAT}":
            raise DataError(
                f"A memory must say 'spotlessnet memory {FORMAT}' in its header, but says {text.get('format')!r}. "
                "Write it anew with `remember`."
            )
        missing = [name for name in ("weights", "gradient") if name not in tensors]
        if missing:
            raise DataError(f"The memory lacks {', '.join(missing)}. Write it anew with `remember`.")
        blocks: list[Block] = []
        while f"kronecker.{len(blocks)}.values" in tensors:
            i = len(blocks)
            left, right = tensors.get(f"kronecker.{i}.left"), tensors.get(f"kronecker.{i}.right")
            blocks.append(Block(left, right, tensors[f"kronecker.{i}.values"]))
        try:
            count = int(text["count"])
            numbers = {name: float(text[name]) for name in ("decay", "outside", "error", "ridge", "first")}
        except (KeyError, ValueError) as e:
            raise DataError(f"The memory's header is damaged ({e}). Write it anew with `remember`.") from e
        return Memory(
            weights=tensors["weights"],
            gradient=tensors["gradient"],
            count=count,
            basis=tensors.get("basis"),
            values=tensors.get("values"),
            diagonal=tensors.get("diagonal"),
            kronecker=Kronecker(tuple(blocks)) if blocks else None,
            gone=tensors.get("gone"),
            coreset=tensors.get("coreset"),
            origin=tensors.get("origin"),
            undone=tensors.get("undone"),
            moved=tensors.get("moved"),
            **numbers,
        )
