"""Networks of the papers and small ones, each with a linear `head`, and how to start from pre-trained weights."""

from spotlessnet.models.all_cnn import AllCNN
from spotlessnet.models.build import build
from spotlessnet.models.logistic import Logistic
from spotlessnet.models.mlp import MLP
from spotlessnet.models.pretrained import load_pretrained, replace_head
from spotlessnet.models.resnet import ResNet

__all__ = ["MLP", "AllCNN", "Logistic", "ResNet", "build", "load_pretrained", "replace_head"]
