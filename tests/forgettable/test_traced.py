"""A network with tangent features leaves PyTorch: by `torch.export` and as ONNX, with the same answers."""

import warnings

import pytest
import torch
from torch import nn

import spotlessnet as sn
from spotlessnet.core.errors import MismatchError
from spotlessnet.forgettable import traced as tracing


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.Conv2d(5, 6, 1),
        nn.BatchNorm2d(6),
        nn.ReLU6(inplace=True),
        # A stride that leaves a line of the image over.
        nn.Conv2d(6, 6, 3, stride=2, groups=6, padding=1),
        nn.BatchNorm2d(6, affine=False),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 8, 1),
    ).eval()
    for layer in net:
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            nn.init.normal_(layer.running_mean)
            nn.init.uniform_(layer.running_var, 0.5, 2)
    x, y = torch.randn(40, 2, 6, 6), torch.arange(40) % 3
    return sn.fit_forgettable(
        net, core=(x[:20], y[:20]), user=(x[20:], y[20:]), features="tangent", rank=3, mirrored=True, ridge=0.1
    )


def test_tangent_features_pass_export(model):
    x, network = torch.randn(4, 2, 6, 6), model.module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(model.module(x), (x,)).module()
    other = torch.randn(4, 2, 6, 6)
    torch.testing.assert_close(exported(other), network(other), rtol=1e-4, atol=1e-5)
    model.forget([3])
    assert not torch.allclose(model.module(x)(other), exported(other), rtol=1e-6, atol=0)


def test_a_wrong_operation_is_found_out(model, monkeypatch):
    monkeypatch.setattr(tracing, "_hardtanh_backward", lambda slope, x, low, high: slope)
    with pytest.raises(MismatchError, match="answers otherwise"):
        model.module(3 * torch.randn(4, 2, 6, 6))


def test_tangent_features_pass_onnx(model, tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: ONNX was not tried")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: ONNX was not tried")
    x, network = torch.randn(4, 2, 6, 6), model.module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(model.module(x), (x,), dynamo=True, verbose=False)
    assert program is not None
    program.save(tmp_path / "network.onnx")
    session = runtime.InferenceSession(tmp_path / "network.onnx")
    other = torch.randn(4, 2, 6, 6)
    (found,) = session.run(None, {session.get_inputs()[0].name: other.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), network(other), rtol=1e-4, atol=1e-5)
