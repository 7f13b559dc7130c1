"""The choice of exactness holds inside its block and is undone after it."""

import pytest
import torch
from torch import nn

from spotlessnet.core.data import Data
from spotlessnet.core.errors import SettingError
from spotlessnet.core.trained import Trained
from spotlessnet.operators.fisher import fisher_diagonal
from spotlessnet.operators.gauss_newton import GaussNewton
from spotlessnet.operators.gradient import gradient
from spotlessnet.operators.kernel import kernel
from spotlessnet.operators.precision import in_format, matmul
from tests.reference import problem


@pytest.mark.parametrize(
    ("exactness", "setting", "convolutions"),
    [("float32", "highest", False), ("tf32", "high", True), ("bfloat16", "high", True)],
)
def test_is_set_inside_and_restored_after_even_an_error(exactness, setting, convolutions):
    def fail() -> None:
        with matmul(exactness):
            assert torch.get_float32_matmul_precision() == setting
            assert torch.backends.cudnn.allow_tf32 == convolutions
            raise KeyError

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with pytest.raises(KeyError):
        fail()
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_another_format_answers_alike():
    trained, data = problem("residual", 0)
    x = data.fetch(data.rows).x
    single = in_format(trained, torch.float32)
    assert single.dtype == torch.float32
    assert single.anchor.dtype == torch.float32
    assert isinstance(x, torch.Tensor)
    torch.testing.assert_close(single.outputs(x.float()), trained.outputs(x).float())


@pytest.mark.parametrize("name", ["mlp", "positions", "residual"])
def test_bfloat16_answers_give_products_and_diagonals_with_a_few_bits_less(name):
    """Weights, vectors and sums stay in float32: only the network rounds."""
    double, data = problem(name, 0)
    trained = in_format(double, torch.float32)
    v = torch.randn(trained.size, generator=torch.Generator().manual_seed(0))
    truth = {
        "product": GaussNewton(double, data).multiply(v.double()),
        "products": GaussNewton(double, data).multiply(torch.stack([v, -v]).double()),
        "exact": fisher_diagonal(double, data),
        "empirical": fisher_diagonal(double, data, kind="empirical"),
        "gradient": gradient(double, data),
    }
    with matmul("bfloat16"):
        found = {
            "product": GaussNewton(trained, data).multiply(v),
            "products": GaussNewton(trained, data).multiply(torch.stack([v, -v])),
            "exact": fisher_diagonal(trained, data),
            "empirical": fisher_diagonal(trained, data, kind="empirical"),
            "gradient": gradient(trained, data),
        }
        assert trained.outputs(next(iter(trained.batches(data, 2))).x).dtype == torch.float32
    for part, exact in truth.items():
        assert found[part].dtype == torch.float32
        error = float((found[part].double() - exact).norm() / exact.norm())
        # Eight bits, and somewhat less after a dozen layers; in float32 it would be 1e-6.
        assert 1e-5 < error < 0.05, (part, error)


def test_bfloat16_products_go_through_attention():
    """Fused on the way back of one vector, spelled out for several and in forward mode."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)).eval()
    data = Data.of((torch.randn(5, 3, 8), torch.arange(5) % 3))
    trained = Trained.of(model)
    v = torch.randn(3, trained.size)
    exact = GaussNewton(in_format(trained, torch.float64), data).multiply(v.double())
    with matmul("bfloat16"):
        parts = [
            GaussNewton(trained, data).multiply(v),
            torch.stack([GaussNewton(trained, data).multiply(r) for r in v]),
        ]
    for found in parts:
        error = float((found.double() - exact).norm() / exact.norm())
        assert 1e-5 < error < 0.05


def test_the_kernel_goes_with_bfloat16_answers():
    double, data = problem("positions", 0)
    exact = kernel(double, data)
    with matmul("bfloat16"):
        found = kernel(in_format(double, torch.float32), data)
    assert float((found.double() - exact).norm() / exact.norm()) < 0.05


def test_an_unknown_exactness_is_named():
    words = "`exactness` must be one of 'float32', 'tf32', 'bfloat16', but got 'half'"
    with pytest.raises(SettingError, match=words), matmul("half"):
        pass
