"""A folder with a script that trains and records, as a person would write it."""

import os
import subprocess
import sys
from pathlib import Path

import spotlessnet

SCRIPT = '''
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader

import spotlessnet as sn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


def rows():
    draw = torch.Generator().manual_seed(5)
    y = torch.randint(0, 3, (90,), generator=draw)
    x = torch.randn(90, 4, generator=draw) + 2 * nn.functional.one_hot(y, 4)
    return x, y, [f"person-{i}" for i in range(90)]


def train(model, examples, seed, epochs=8):
    """Dropout and shuffling draw from the global generator, which nobody seeds in here."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=0.02)
    for _ in range(epochs):
        for x, y in DataLoader(examples, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


recipe = sn.Recipe(epochs=8, lr=0.02, batch_size=16, optimizer="adamw", weight_decay=0.01, warmup_ratio=0.1)


def by_function():
    model = build()
    examples = sn.Examples(sn.Data.of(rows()[:2]))
    with sn.record("run", model, rows, build=build, trainer=train, seed=3):
        train(model, examples, 3)


def by_recipe():
    model = build()
    with sn.record("run", model, "train.py:rows", build="train.py:build", recipe=recipe, seed=3) as run:
        began = sn.Trained.of(model, init=model)
        run.model = sn.fit(began, sn.Data.of(rows()[:2]), recipe.but(freeze_statistics=False), seed=3).module()


if __name__ == "__main__":
    by_recipe() if "recipe" in sys.argv else by_function()
'''

FORGET = ("person-1", "person-5", "person-7")


def furnish(folder: Path, how: str = "function") -> Path:
    """The folder, with the training done in a process of its own."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "forget.csv").write_text("id\n" + "\n".join(FORGET) + "\n")
    found = {**os.environ, "PYTHONPATH": str(Path(spotlessnet.__file__).parents[1])}
    ended = subprocess.run([sys.executable, "train.py", how], cwd=folder, env=found, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return folder
