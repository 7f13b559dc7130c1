"""The network of one's own forgets a person, from Python."""

import torch
from cnn import build, examples, people, test, train

import spotlessnet as sn

before, start = build(), build()
before.load_state_dict(torch.load("cnn.pt"))
start.load_state_dict(torch.load("cnn-init.pt"))
x, y, _ = examples()
gone = [row for row, person in enumerate(people) if person == "person-07"]
result = sn.unlearn(before, (x, y), forget=gone, init=start, trainer=train, test=test(), audit=True)

inputs, answers = test()
for name, network in {"before": before, "after": result.model}.items():
    print(f"{name}: {(network.eval()(inputs).argmax(1) == answers).double().mean():.1%} on test data")
print(f"{result.report.outcome}: {result.report.reason}")
