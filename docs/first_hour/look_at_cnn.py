"""What the command wrote, without the package that wrote it."""

import torch
from cnn import build, test
from safetensors.torch import load_file

inputs, answers = test()
for name, weights in {"before": torch.load("cnn.pt"), "after": load_file("cnn-run/scrubbed.safetensors")}.items():
    network = build().eval()
    network.load_state_dict(weights)
    print(f"{name}: {(network(inputs).argmax(1) == answers).double().mean():.1%} on test data")
