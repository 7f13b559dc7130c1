"""Two processes hold, bit for bit, the model that one holds."""

import torch

from tests.operators.test_distributed import run

WORKER = "tests.forgettable.torchrun_worker"


def test_two_processes_hold_what_one_holds(tmp_path):
    run("-m", WORKER, str(tmp_path / "one.pt"), "--alone")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run(*launcher, "-m", WORKER, str(tmp_path / "two.pt"))
    one, two = torch.load(tmp_path / "one.pt"), torch.load(tmp_path / "two.pt")
    assert torch.equal(one["gram"], two["gram"])
    assert torch.equal(one["weights"], two["weights"])
    assert one["count"] == two["count"] == 69
