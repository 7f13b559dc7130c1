"""Linearised training without decay: of all solutions, the one nearest to where training began.

Golatkar, Achille and Soatto (2020), *Forgetting Outside the Box*, Proposition 2: more weights than equations.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.errors import ResourceError
from spotlessnet.core.trained import Trained
from spotlessnet.operators.jacobian import Jacobian
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.linear_response import DENSE_LIMIT, Answer
from spotlessnet.operators.output_roots import Output, between_roots, into_roots, out_of_roots, output_roots


@dataclass(frozen=True, eq=False)
class Span:
    r"""The directions that training on some rows can move in: the row space of $A = S^\top J$, $\Lambda = S S^\top$.

    **Arguments:**

    - `basis`, `values`: eigenvectors and eigenvalues of $A A^\top$ above rounding.
    """

    trained: Trained
    jacobian: Jacobian
    roots: Float[Tensor, "N C R"] | None
    basis: Float[Tensor, "K r"]
    values: Float[Tensor, " r"]
    rows: int

    @staticmethod
    def of(trained: Trained, data: Data, output: Output, batch_size: int = 256) -> "Span":
        """From the dense kernel of the rows."""
        outputs = int(trained.predict(data.select([0]))[0].numel())
        if len(data) * outputs > DENSE_LIMIT:
            raise ResourceError(
                "Without decay, and with more weights than equations, the step needs the kernel of all rows, at most "
                f"{DENSE_LIMIT} rows times outputs, but there are {len(data) * outputs}. Give a decay, or a damping "
                "that stands in for it."
            )
        roots = output_roots(trained, data, output, batch_size)
        values, vectors = torch.linalg.eigh(between_roots(kernel(trained, data).double(), roots))
        # Directions below rounding are seen by no row; their inverse would be noise magnified.
        seen = values > len(values) * torch.finfo(trained.dtype).eps * values.max()
        return Span(trained, Jacobian(trained, data, batch_size), roots, vectors[:, seen], values[seen], len(data))

    def forward(self, v: Float[Tensor, " P"]) -> Float[Tensor, " r"]:
        """`A v`, in the eigenbasis."""
        seen = into_roots(self.jacobian.multiply(v.to(self.trained.weights)).double(), self.roots)
        return self.basis.T @ seen.reshape(-1)

    def backward(self, u: Float[Tensor, " r"]) -> Float[Tensor, " P"]:
        """`Aᵀ u`, from the eigenbasis."""
        spread = out_of_roots((self.basis @ u).reshape(self.rows, -1), self.roots)
        return self.jacobian.transpose_multiply(spread.to(self.trained.weights))


def nearest(
    trained: Trained,
    data: Data,
    b: Float[Tensor, " P"],
    away: Float[Tensor, " P"],
    *,
    output: Output,
    batch_size: int = 256,
) -> Answer:
    r"""$x = H^+ b - (I - H^+ H)\,v$ with $H = J^\top\Lambda J$ over `data`, the limit of $(H + \rho)^{-1}(b - \rho v)$.

    Without decay nothing but the start decides about directions that no row sees. What was written there goes:
    $v = w - w_{start}$ is taken out of them. That over retained rows less that over all, of which training itself saw
    none of what is left, is what the forgotten rows wrote.

    **Arguments:**

    - `b`: what pushes the weights, as in `solve_response`.
    - `away`: $v$.
    """
    span = Span.of(trained, data, output, batch_size)
    # With A = Sᵀ J and A Aᵀ = Q μ Qᵀ: H⁺ = Aᵀ Q μ⁻² Qᵀ A, and the projector H⁺H = Aᵀ Q μ⁻¹ Qᵀ A.
    pushed = span.backward(span.forward(b) / span.values.square())
    unseen = away - span.backward(span.forward(away) / span.values)
    # Once more on what rounding left, so that retained rows do not see the step.
    unseen = unseen - span.backward(span.forward(unseen) / span.values)
    size = float(span.forward(away).norm())
    left = float(span.forward(unseen).norm()) / size if size else 0.0
    return Answer(pushed - unseen, "minimum norm", left)
