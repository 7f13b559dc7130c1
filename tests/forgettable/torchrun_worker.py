"""One process of a fit that several share; writes the moments that every process must hold."""

import sys

import torch
import torch.distributed as dist
from torch import nn

import spotlessnet as sn
from spotlessnet.forgettable.features import Pooled
from spotlessnet.forgettable.fit import fit_problem, make_encoder
from tests.leaving import leave


def main() -> None:
    path, alone = sys.argv[1], "--alone" in sys.argv
    if not alone:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    encoder = make_encoder(Pooled(nn.Linear(5, 7)), sn.Data.of((torch.randn(20, 5), torch.arange(20) % 3)), 3, 8)
    core, user = ((torch.randn(n, 5), torch.arange(n) % 3) for n in (20, 51))
    model = fit_problem(encoder, sn.Data.of(core), sn.Data.of(user), list(range(51)), ridge=0.1, keep_features=False)
    # Every process is asked the same, and stays the same.
    model.forget([3, 4], inputs=user[0][[3, 4]])
    if alone or dist.get_rank() == 1:
        torch.save({"gram": model.moments.gram, "weights": model.weights, "count": model.moments.count}, path)
    if not alone:
        leave()


if __name__ == "__main__":
    main()
