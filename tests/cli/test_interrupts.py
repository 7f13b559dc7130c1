"""Control-C in the middle of the work of every command: one line, exit code 130, nothing half-written."""

import signal
import subprocess
import sys
from functools import partial

import pytest

from tests.cli.workshop import BASE, spotless

SLOW = """
import sys, time
def train(model, examples, seed, epochs=2):
    print("training", file=sys.stderr, flush=True)
    time.sleep(60)
    return model
"""
TRAINED = ("--init", "start.safetensors", "--train", "slow.py:train")
ENDED = "interrupted: nothing half-written was left; run it again"

COMMANDS = {
    "scrub": ("scrub", *BASE, *TRAINED, "--method", "retrain"),
    "scrub, in its audit": ("scrub", *BASE, *TRAINED, "--method", "fisher", "--set", "strength=1e-8", "--audit"),
    "audit": ("audit", *BASE, *TRAINED, "--method", "fisher"),
    "precompute": ("precompute", *BASE[:6], *TRAINED, "--rank", "2", "--folds", "2"),
    "compare": ("compare", *BASE, *TRAINED, "--methods", "fisher"),
}


QUICK = "scrub, in its audit"
"""Each takes seconds, most of them for torch: the others are for the slow tests."""


@pytest.mark.parametrize(
    "asked",
    [pytest.param(asked, id=name, marks=() if name == QUICK else pytest.mark.slow) for name, asked in COMMANDS.items()],
)
def test_control_c_while_networks_are_trained(here, asked):
    (here / "slow.py").write_text(SLOW)
    # Whoever runs the tests may ignore interrupts, and children would inherit that.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-m", "spotlessnet", *asked, "--out", "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=heard) as ran:
        assert ran.stderr is not None
        said = []
        for line in ran.stderr:
            said.append(line)
            if line == "training\n":
                break
        assert said[-1:] == ["training\n"], said
        ran.send_signal(signal.SIGINT)
        rest = ran.stderr.read().splitlines()
        assert ran.wait(30) == 130
    assert rest == [ENDED]
    assert not list((here / "run").rglob("*"))
    unlocked = spotless(*asked, "--out", "run", "--dry-run")
    assert unlocked.code == 0, unlocked.err
