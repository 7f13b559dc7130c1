"""An audit that was killed goes on where it was, and what it kept is named, noted and destroyed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import spotlessnet
from spotlessnet.training.kept import KNOW_THE_ROWS
from tests.cli.workshop import BASE, RECIPE, spotless

TRAIN = """
import time
import torch
from torch.utils.data import DataLoader

def train(model, examples, seed, epochs=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(epochs):
        for x, y in DataLoader(examples, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    time.sleep(0.05)
    with open("trained.log", "a") as log:
        log.write(f"{seed} {len(examples)}\\n")
    return model
"""
METHOD = ("--method", "fisher", "--set", "strength=1e-8")
KNOWN = ("--init", "start.safetensors", "--train", "mytrain.py:train", "--test", "mydata.py:test")
AUDIT = ("audit", *BASE, *KNOWN, *METHOD, "--seeds", "5", "--seed", "1", "--quiet")


@pytest.fixture
def own(here):
    (here / "mytrain.py").write_text(TRAIN)
    return here


def trained() -> list[str]:
    log = Path("trained.log")
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def told(folder: str) -> list[object]:
    """All that an audit found, without what the clock said and without its name, which nobody can guess."""
    lines = (Path(folder) / "rows.jsonl").read_text().splitlines()
    by_chance = ("seconds", "memory", "experiment")
    rows = [{k: v for k, v in json.loads(line).items() if k not in by_chance} for line in lines]
    return [rows, (Path(folder) / "verdict.json").read_bytes()]


def killed_after(count: int, *arguments: str) -> None:
    """Run the command in a process of its own, and kill that once so many trainings are kept."""
    source = str(Path(spotlessnet.__file__).parents[1])
    env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": source}
    run = subprocess.Popen([sys.executable, "-m", "spotlessnet.cli", *arguments], env=env)
    try:
        ends = time.monotonic() + 120
        while len(list(Path("kept").glob("*.safetensors"))) < count:
            assert run.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < ends
            time.sleep(0.005)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()


@pytest.mark.slow
def test_a_killed_audit_trains_only_the_rest_and_finds_the_same_to_the_bit(own):
    plain = spotless(*AUDIT, "--out", "plain")
    assert plain.code in (0, 1, 6), plain.err
    all_of_them = trained()
    assert len(all_of_them) == 17  # five originals, ten retrained, one pair that is watched
    killed_after(4, *AUDIT, "--keep-trainings", "kept", "--out", "run")
    before = trained()
    had = len(list(Path("kept").glob("*.safetensors")))
    assert 4 <= had <= len(before) < 17
    again = spotless(*AUDIT[:-1], "--keep-trainings", "kept", "--out", "run", "--resume")
    assert again.code == plain.code
    rest = trained()
    assert rest == all_of_them[had:]
    assert f"{had} of 15 were kept in kept and are not done again: training" in again.err
    assert "each finished one is kept in kept until `spotless purge` destroys it" in again.err
    assert told("run") == told("plain")
    other = spotless(*AUDIT, "--keep-trainings", "kept", "--out", "other")
    assert other.code == plain.code
    assert trained() == []
    assert told("other") == told("plain")


def test_the_receipt_and_the_purge_name_what_was_kept(own):
    asked = ("scrub", *BASE, *RECIPE, *METHOD, "--seed", "1", "--accept-damage", "--quiet", "--audit", "--seeds", "5")
    ended = spotless(*asked, "--keep-trainings", "kept", "--out", "run")
    assert ended.code in (0, 1, 6), ended.err
    assert KNOW_THE_ROWS in json.loads(Path("run/receipt.json").read_text())["predicate"]["limits"]
    assert Path("run/private/kept-trainings").read_text() == "../kept"
    assert spotless("verify", "run").code == 0
    purged = spotless("purge", "run", "--now")
    assert purged.code == 0
    assert "networks that know the rows are kept in kept: purge it too" in purged.out
    files = len(list(Path("kept").glob("*.safetensors")))
    assert files == 3  # all pairs as one program, and a watched pair
    also = spotless("purge", "kept")
    assert also.out == f"purged kept: {files} kept trainings\n"
    assert not Path("kept").exists()


def test_within_the_private_folder_they_go_with_it(own):
    asked = ("audit", *BASE, *RECIPE, *METHOD, "--seed", "1", "--quiet", "--seeds", "5")
    assert spotless(*asked, "--keep-trainings", "run/private/kept", "--out", "run").code in (0, 1, 6)
    assert len(list(Path("run/private/kept").glob("*.safetensors"))) == 3
    purged = spotless("purge", "run", "--now")
    assert "purge it too" not in purged.out
    assert not Path("run/private").exists()


def test_fold_models_go_on_too(own):
    asked = ("precompute", *BASE[:6], *KNOWN[:4], "--rank", "0", "--diagonal", "none", "--seed", "1", "--folds", "3")
    assert spotless(*asked, "--out", "plain").code == 0
    assert len(trained()) == 3
    killed_after(1, *asked, "--keep-trainings", "kept", "--out", "run")
    had = len(list(Path("kept").glob("*.safetensors")))
    trained()
    assert spotless(*asked, "--keep-trainings", "kept", "--out", "run", "--resume").code == 0
    assert len(trained()) == 3 - had
    name = "fold-models.safetensors"
    assert (Path("run") / name).read_bytes() == (Path("plain") / name).read_bytes()


def test_flags_without_trainings_are_refused(own):
    scrub = spotless("scrub", *BASE, *METHOD, "--keep-trainings", "kept", "--out", "run")
    assert scrub.code == 2
    assert "are for the networks of an audit. Give --audit as well." in scrub.err
    rank = spotless("precompute", *BASE[:6], "--keep-trainings", "kept", "--out", "run")
    assert "are for fold models, but none are trained" in rank.err
    wrong = spotless(*AUDIT, "--workers", "dask", "--out", "run")
    assert wrong.code == 2
    assert "`workers` must be" in wrong.err
    assert not Path("run").exists()
