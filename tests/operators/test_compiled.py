"""The compiled Gauss-Newton product against the dense matrix."""

import json
import subprocess
import sys

import pytest
import torch
from torch import float64

from spotlessnet.core.errors import MismatchError
from spotlessnet.operators.compiled import Compiled
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.matrix import Matrix
from tests.reference import NETWORKS, problem


def test_full_and_broken_batches_give_the_dense_product():
    command = [sys.executable, "-m", "tests.operators.compiled_worker"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    gaps = json.loads(ended.stdout.splitlines()[-1])
    assert set(gaps) == set(NETWORKS)
    assert max(gaps.values()) < 1e-10, gaps


def test_is_a_matrix_and_refuses_a_vector_of_another_network():
    trained, data = problem("linear", 0)
    G = Compiled(GaussNewton(trained, data))
    assert isinstance(G, Matrix)
    assert G.size == trained.size
    with pytest.raises(MismatchError, match="Build it from the same network"):
        G.multiply(torch.zeros(4, dtype=float64))
