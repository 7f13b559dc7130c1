"""Roots of the loss's Hessian in the outputs, sample by sample, and products with them.

With `Λ = S Sᵀ` a system over the weights turns into a symmetric one over rows and outputs: `Sᵀ Θ S` has the same
eigenvalues as `Jᵀ Λ J`, up to zeros.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from spotlessnet.core.data import Data
from spotlessnet.core.trained import Trained

Output = Literal["identity", "softmax"]


def output_roots(trained: Trained, data: Data, output: Output, batch_size: int) -> Float[Tensor, "N C R"] | None:
    """`S` with `S Sᵀ = Λ`, sample by sample; nothing for the identity."""
    if output == "identity":
        return None
    with torch.no_grad():
        roots = [trained.loss.hessian_root(trained.outputs(b.x), b.y) for b in trained.batches(data, batch_size)]
    # The kernel between them is factored, and its smallest eigenvalues carry the step.
    return torch.cat(roots).double()


def between_roots(theta: Float[Tensor, "M M"], roots: Float[Tensor, "N C R"] | None) -> Float[Tensor, "K K"]:
    """`Sᵀ Θ S`."""
    if roots is None:
        return theta
    N, C, R = roots.shape
    half = torch.einsum("ncr,ncm->nrm", roots, theta.reshape(N, C, N * C)).reshape(N * R, N, C)
    return torch.einsum("knc,ncr->knr", half, roots).reshape(N * R, N * R)


def into_roots(v: Float[Tensor, "N C"], roots: Float[Tensor, "N C R"] | None) -> Float[Tensor, "N R"]:
    """`Sᵀ v`."""
    return v if roots is None else torch.einsum("ncr,nc->nr", roots, v)


def out_of_roots(v: Float[Tensor, "N R"], roots: Float[Tensor, "N C R"] | None) -> Float[Tensor, "N C"]:
    """`S v`."""
    return v if roots is None else torch.einsum("ncr,nr->nc", roots, v)
