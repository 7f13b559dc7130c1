"""The choice of exactness holds inside its block and is undone after it."""

import pytest
import torch

from spotlessnet.core.errors import SettingError
from spotlessnet.operators.precision import in_format, matmul
from tests.reference import problem


@pytest.mark.parametrize(
    ("exactness", "setting", "convolutions"), [("float32", "highest", False), ("tf32", "high", True)]
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


def test_an_unknown_exactness_is_named():
    words = "`exactness` must be one of 'float32', 'tf32', 'bfloat16', but got 'half'"
    with pytest.raises(SettingError, match=words), matmul("half"):
        pass
