"""What each process of a `torchrun` test does: compute every sum, and save it from the first process.

With `--alone` the same is computed without `torch.distributed`.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.hessian import Hessian
from spotlessnet.operators.jacobian import Jacobian
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.solve import conjugate_gradient
from tests.leaving import leave
from tests.reference import problem, random_weights


def everything() -> dict[str, torch.Tensor]:
    """Each operator on the same small problem, with rows that do not divide evenly."""
    trained, data = problem("residual", 0, rows=7)
    s, v = random_weights(7, 0), torch.randn(2, trained.size, generator=torch.Generator().manual_seed(1)).double()
    G = GaussNewton(trained, data, sample_weights=s, ridge=1.0, batch_size=2)
    J = Jacobian(trained, data, batch_size=2)
    one_row = data.select([0])
    return {
        "gradient": gradient(trained, data, sample_weights=s, ridge=0.5, batch_size=2),
        "gauss_newton": G.multiply(v),
        "gauss_newton_kept": _twice(GaussNewton(trained, data, sample_weights=s, keep=True, batch_size=2), v[0]),
        "hessian": Hessian(trained, data, s, batch_size=2).multiply(v[0]),
        "fisher": fisher_diagonal(trained, data, sample_weights=s, batch_size=2),
        "kernel": kernel(trained, data, batch_size=2),
        "outputs": J.multiply(v[0]),
        "pulled_back": J.transpose_multiply(J.multiply(v[1])),
        "one_row_for_two": gradient(trained, one_row) + Jacobian(trained, one_row).multiply(v[0]).sum(),
        "solution": conjugate_gradient(G.multiply, v[0], tolerance=1e-10).x,
    }


def _twice(G: GaussNewton, v: torch.Tensor) -> torch.Tensor:
    G.multiply(v)
    return G.multiply(v)


def main() -> None:
    torch.set_num_threads(1)
    path, alone = Path(sys.argv[1]), "--alone" in sys.argv
    if not alone:
        dist.init_process_group("gloo")
    found = everything()
    if alone:
        torch.save(found, path)
        return
    together = [torch.zeros_like(found["solution"]) for _ in range(dist.get_world_size())]
    dist.all_gather(together, found["solution"])
    found["same_on_all"] = torch.stack([(t - together[0]).abs().max() for t in together])
    if dist.get_rank() == 0:
        torch.save(found, path)
    leave()


if __name__ == "__main__":
    main()
