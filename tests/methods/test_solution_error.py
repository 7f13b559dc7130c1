"""How far the default NTK step is from the dense solution of its own system, and what it says about that."""

import pytest
import torch

from spotlessnet.core.data import Data
from spotlessnet.methods.ntk import NTK
from spotlessnet.operators.solvers import CG
from tests.methods.problems import classifier, inputs


def dense_step(trained, split, damping):
    (x, _), n, N = inputs(split.retain), len(split.retain), len(split.whole)
    J = torch.func.jacrev(lambda w: trained.outputs(x, w))(trained.weights)
    p = trained.outputs(x).softmax(1)
    H = torch.einsum("ncp,ncd,ndq->pq", J, p.diag_embed() - p.unsqueeze(2) * p.unsqueeze(1), J)
    H = H + n * (trained.known_weight_decay + damping) * torch.eye(trained.size, dtype=H.dtype)

    def slope(data: Data):
        a, y = inputs(data)
        return torch.func.grad(lambda w: trained.losses(a, y, w).sum())(trained.weights)

    return torch.linalg.solve(H, n / N * slope(split.forget) - (N - n) / N * slope(split.retain))


@pytest.mark.parametrize("weight_decay", [1e-4, 1e-3, 0.05])
def test_the_default_step_is_the_dense_one_and_knows_its_error(weight_decay):
    for seed in range(3):
        trained, split = classifier(seed, weight_decay=weight_decay)
        found = NTK(solver=CG(), search=False)(trained, split)
        truth = dense_step(trained, split, found.diagnostics["ntk"]["damping"])
        off = float((found.mean - trained.weights - truth).norm() / truth.norm())
        assert off < 2e-5
        assert off <= found.diagnostics["ntk"]["error_at_most"]
